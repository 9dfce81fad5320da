"""Files that outlive a run."""
