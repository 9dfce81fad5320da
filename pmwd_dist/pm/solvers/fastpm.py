"""FastPM: the drift-kick-drift step that is exact for Zel'dovich motion."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.solvers.coefficients import Coefficients


def fastpm(table: GrowthTable, lower: Array, upper: Array) -> Coefficients:
    """Kick vel1 = vel0 + (F1 - F0) / D acceleration, with F = vel / (dx/dD1) and D at the half step."""
    ends = jnp.stack([lower, upper])
    growth = table.at(ends)
    D0, D1 = growth.D1
    F0, F1 = ends**2 * table.E(ends) * growth.dD1
    half = (D1 - D0) / 2
    return Coefficients(half / F0, (F1 - F0) * 2 / (D0 + D1), jnp.zeros_like(D0), half / F1)
