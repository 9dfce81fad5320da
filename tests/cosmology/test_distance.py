"""Comoving distances against SciPy's quadrature and closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy.integrate import quad

from pmwd_dist.cosmology.distance import (
    HUBBLE_DISTANCE,
    comoving_distance,
    scale_factor_at,
    transverse_distance,
)
from pmwd_dist.cosmology.growth import growth_table

A = np.array([1e-3, 0.01, 0.1, 0.5, 0.9, 1.3])


@pytest.mark.parametrize("changes", [{}, {"Omega_k": 0.1, "w0": -0.8, "wa": 0.2}])
def test_distances_and_their_inverse(changes: dict[str, float]) -> None:
    cosmo = problems.cosmology(**changes)
    table = growth_table(cosmo)
    expected = [quad(lambda x: 1 / (x**2 * problems.expansion(cosmo, x)), a, 1, epsabs=0, epsrel=1e-12)[0] for a in A]
    distance = comoving_distance(A, table)
    np.testing.assert_allclose(distance, HUBBLE_DISTANCE * np.array(expected), rtol=1e-12)
    np.testing.assert_allclose(scale_factor_at(distance[:5], table), A[:5], rtol=1e-12)
    rate = -HUBBLE_DISTANCE / (A**2 * problems.expansion(cosmo, A))
    slopes = jax.vmap(jax.grad(lambda a: comoving_distance(a, table)))(A)
    np.testing.assert_allclose(slopes, rate, rtol=1e-9)
    inverse = jax.vmap(jax.grad(lambda x: scale_factor_at(x, table)))(distance[2:5])
    np.testing.assert_allclose(inverse, 1 / rate[2:5], rtol=1e-9)
    single = comoving_distance(jnp.asarray(A, jnp.float32), jax.tree.map(lambda x: x.astype(jnp.float32), table))
    np.testing.assert_allclose(single, distance, rtol=1e-6)


def test_transverse_distances_are_smooth_in_the_curvature() -> None:
    x, dH = 6000.0, HUBBLE_DISTANCE

    def across(curvature: float) -> jax.Array:
        return transverse_distance(x, problems.cosmology(Omega_k=curvature))

    np.testing.assert_allclose(across(0.1), dH / np.sqrt(0.1) * np.sinh(np.sqrt(0.1) * x / dH), rtol=1e-10)
    np.testing.assert_allclose(across(-0.1), dH / np.sqrt(0.1) * np.sin(np.sqrt(0.1) * x / dH), rtol=1e-10)
    np.testing.assert_allclose(jax.grad(across)(0.0), x * (x / dH) ** 2 / 6, rtol=1e-10)
