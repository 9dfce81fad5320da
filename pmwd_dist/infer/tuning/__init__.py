"""Tuning of samplers: step size, lengths, masses, and the correction of the discretisation bias of MCLMC."""
