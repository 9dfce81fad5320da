"""Tuning of samplers: stages, preconditioner and step size."""
