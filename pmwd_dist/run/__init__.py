"""One simulation as a resumable job."""
