"""Observables of particles and fields."""
