"""Outputs of a run: each is one class with its options, files, values and figures, and a line in `registry.py`."""
