"""Expansion, growth and linear power."""
