"""Simulations as resumable jobs."""
