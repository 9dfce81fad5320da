"""Shared by simulations and inferences: the folder of a run, its events, signals and resources."""
