"""Chains: their draws, their state, and their folder."""
