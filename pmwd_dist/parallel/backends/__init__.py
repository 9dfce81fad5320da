"""Communication backends: one object each."""
