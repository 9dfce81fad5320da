"""Linear matter power: Eisenstein & Hu (1998), or a table."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.growth import hermite
from pmwd_dist.cosmology.parameters import Cosmology, Parameters, parameters

_LOG_K = np.linspace(math.log(1e-5), math.log(1e2), 4096)  # nodes of integrals over P(k) [h/Mpc]


def linear_power(k: ArrayLike, cosmo: Cosmology) -> Array:
    """Linear matter power spectrum at a = 1 [(Mpc/h)^3] at wavenumbers k [h/Mpc].

    The transfer function of Eisenstein & Hu (1998) with baryon oscillations, from jax_cosmo, normalised to sigma8.
    It is off a Boltzmann code by up to 4 % near the oscillations: pass a table to `linear_modes` where that counts.
    """
    return _eisenstein_hu(jnp.asarray(k, dtype=float), parameters(cosmo))


@jax.jit
def _eisenstein_hu(k: Array, cosmo: Parameters) -> Array:
    from jax_cosmo.transfer import Eisenstein_Hu

    def shape(k: Array) -> Array:
        return k**cosmo.n_s * Eisenstein_Hu(cosmo, k) ** 2

    # jax_cosmo's own normalisation integrates over exp(log10 k), i.e. 0.018 < k < 20 only.
    return shape(k) * (cosmo.sigma8 / sigma_R(8.0, shape)) ** 2


def sigma_R(radius: float, power: Callable[[Array], Array]) -> Array:
    """Root of the variance of the density in spheres of this radius [Mpc/h], for a P(k) [(Mpc/h)^3]."""
    x = jnp.asarray(_LOG_K, dtype=float)
    return jnp.sqrt(jnp.trapezoid(_variance(jnp.exp(x), radius, power), x))


def _variance(k: Array, radius: float, power: Callable[[Array], Array]) -> Array:
    """Variance of the density in spheres, per ln k."""
    kR = k * radius
    # The series below kR = 0.1 avoids the cancellation of sin and cos in float32.
    small = kR < 0.1
    safe = jnp.where(small, 1.0, kR)
    window = jnp.where(small, 1 - kR**2 / 10 + kR**4 / 280, 3 * (jnp.sin(safe) - safe * jnp.cos(safe)) / safe**3)
    return k**3 * power(k) * window**2 / (2 * math.pi**2)


@jax.jit
def interpolate_power(k: Array, table_k: Array, table_power: Array) -> Array:
    """A tabulated P(k) at k: cubic in log-log through the table, with slopes from its neighbours."""
    x, y = jnp.log(table_k), jnp.log(table_power)
    secant = jnp.diff(y) / jnp.diff(x)
    h = jnp.diff(x)
    inner = (h[1:] * secant[:-1] + h[:-1] * secant[1:]) / (h[1:] + h[:-1])
    slope = jnp.concatenate([secant[:1], inner, secant[-1:]])
    i = jnp.clip(jnp.searchsorted(x, jnp.log(k), side="right") - 1, 0, len(x) - 2)
    t = (jnp.log(k) - x[i]) / h[i]
    return jnp.exp(hermite(t, y[i], y[i + 1], h[i] * slope[i], h[i] * slope[i + 1]))


def normalised_power(table_k: Array, table_power: Array, sigma8: ArrayLike) -> Array:
    """A tabulated P(k) scaled to this sigma8; the table is taken as zero beyond its ends."""

    def power(k: Array) -> Array:
        inside = (k >= table_k[0]) & (k <= table_k[-1])
        return jnp.where(inside, interpolate_power(k, table_k, table_power), 0)

    return table_power * (sigma8 / sigma_R(8.0, power)) ** 2


def check_sigma8_range(table_k: np.ndarray, cosmo: Cosmology) -> None:
    """Raise ArgumentError unless a tabulated P(k) covers the k that sigma8 needs, for `normalised_power`.

    Beyond the ends of the table may lie 1e-3 of sigma8 at most, by the P(k) of Eisenstein & Hu: half of it at each end.
    """
    density = np.asarray(_variance(jnp.exp(jnp.asarray(_LOG_K)), 8.0, lambda k: linear_power(k, cosmo)), float)
    below = np.cumsum(density) / np.sum(density)
    low, high = np.exp(np.interp([1e-3, 1 - 1e-3], below, _LOG_K))  # of the variance: half as much of its root
    if table_k[0] > low or table_k[-1] < high:
        raise ArgumentError(
            "linear_power",
            table_k,
            f"covers k={table_k[0]:.4g}..{table_k[-1]:.4g} h/Mpc, but sigma8 needs {low:.4g}..{high:.4g}",
            "use a longer table, or normalise it yourself and leave normalise out",
            show_value=False,
        )
