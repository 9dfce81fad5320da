"""Ops on one block: they know no decomposition and no config."""
