"""LeapFrog: the symplectic drift-kick-drift step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.solvers.coefficients import Coefficients, rates


def leapfrog(table: GrowthTable, lower: Array, upper: Array) -> Coefficients:
    """Drifts: integrals of da / (a^3 E) over both halves; kick: integral of 3/2 Omega_cb da / (a^2 E)."""
    middle = table.scale_factor((table.D1(lower) + table.D1(upper)) / 2)
    drift = partial(_integral, lambda a: rates(table, a)[0])
    drifts = jax.vmap(drift)(jnp.stack([lower, middle]), jnp.stack([middle, upper]))
    kick = _integral(lambda a: rates(table, a)[1], lower, upper)
    return Coefficients(drifts[0], kick, jnp.zeros_like(middle), drifts[1])


def _integral(rate: Callable[[Array], Array], lower: Array, upper: Array) -> Array:
    """Integral over the scale factor by 12-point Gauss-Legendre quadrature in ln a."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = jnp.log(upper / lower) / 2
    a = jnp.sqrt(lower * upper) * jnp.exp(half * nodes)
    return half * jnp.sum(weights * rate(a) * a)
