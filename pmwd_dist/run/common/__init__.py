"""Shared by simulations and inferences: the folder of a run, its log, signals and resources."""
