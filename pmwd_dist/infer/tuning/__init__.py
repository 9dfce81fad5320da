"""Tuning of samplers: stages, step size, masses, and the preconditioner."""
