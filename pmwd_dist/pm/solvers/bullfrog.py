"""BullFrog: the drift-kick-drift step that is exact for second-order Lagrangian perturbation theory."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.solvers.coefficients import Coefficients


def bullfrog(table: GrowthTable, lower: Array, upper: Array) -> Coefficients:
    """Kick v1 = alpha v0 + (1 - alpha) / D acceleration, with v = dx/dD1 and D at the half step.

    At second order the displacement at the half step is D psi1 + e psi2, e = D2 + D2' dD/2, and the acceleration
    D psi1 + (e - D^2) psi2. The condition v1 = psi1 + D2' psi2 fixes alpha.

    For steps over a factor of 3 or more in D1 this alpha is not positive, and the step has no inverse. Hence the
    lower bound F0 / (8 F1). The step is exact for Zel'dovich motion with any alpha.
    """
    ends = jnp.stack([lower, upper])
    growth = table.at(ends)
    D0, D1 = growth.D1
    F0, F1 = ends**2 * table.E(ends) * growth.dD1
    slope0, slope1 = growth.dD2 / growth.dD1  # dD2 / dD1
    half, middle = (D1 - D0) / 2, (D0 + D1) / 2
    upsilon = (growth.D2[0] + slope0 * half) / middle - middle
    alpha = (slope1 - upsilon) / (slope0 - upsilon)
    alpha = jnp.maximum(alpha, F0 / (8 * F1))
    return Coefficients(half / F0, (1 - alpha) * F1 / middle, jnp.log2(alpha * F1 / F0), half / F1)
