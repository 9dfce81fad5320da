"""Inferences as resumable jobs."""
