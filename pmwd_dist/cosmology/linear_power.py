"""Linear matter power of transfer functions, or of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_choice, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.derivatives import forward_derivatives
from pmwd_dist._jax.order import stored
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to, hermite, parameters_of
from pmwd_dist.cosmology.neutrinos import LinearResponse
from pmwd_dist.cosmology.parameters import Cosmology, Parameters
from pmwd_dist.cosmology.transfer import N_TABLE, Transfer, boltzmann, check_transfer, eisenstein_hu

# Nodes of integrals over P(k) [h/Mpc]; the integrand of sigma8 is negligible beyond them.
_LOG_K = np.linspace(math.log(1e-5), math.log(50.0), 1024)
DEFAULT = "boltzmann"
SHAPE_PARAMETERS = ("Omega_c", "Omega_b", "h", "n_eff", "n_s")  # of P(k), beside its amplitude sigma8
_PIVOT, _HUBBLE_LENGTH = 0.05, 2997.92458  # wavenumber of A_s [1/Mpc], c / H0 [Mpc/h]
TRANSFERS = {"boltzmann": boltzmann, "eisenstein-hu": eisenstein_hu}


def linear_power(k: ArrayLike, cosmo: Cosmology | GrowthTable, transfer: str = DEFAULT) -> Array:
    """Linear matter power spectrum at a = 1 [(Mpc/h)^3] at wavenumbers k [h/Mpc], normalised to sigma8.

    With massive neutrinos it is the power of cold matter, and sigma8 the one of all matter. The result has the shape of
    k and is differentiable in the parameters.

    Args:
      k: wavenumbers [h/Mpc].
      cosmo: cosmology, or its `growth_table`.
      transfer: transfer function: "boltzmann", interpolated between those of the code CAMB (docs/howto/power.md), or
        "eisenstein-hu", the fit of Eisenstein & Hu (1998) with baryon oscillations.

    Raises:
      ValueError: a wavenumber is negative, or the cosmology lacks a parameter, has a component that is not modelled
        (`Cosmology`), or is far from the parameters of the transfer function.

    Warns:
      UserWarning: parameters for which the transfer function was not compared with CAMB, or masses with an n_eff for
        which the default of CAMB differs.

    Examples:
      >>> k = jnp.geomspace(1e-3, 10.0, 200)
      >>> power = pmd.linear_power(k, jax_cosmo.Planck15())
    """
    check_number(k, "k", 0, remedy="call linear_power(k, cosmo)", several=True)
    values, transfer = parameters_of(cosmo), transfer_name(transfer, "transfer")
    check_transfer(transfer, values)
    response = None if values.m_nu is None else growth_table_to(2, cosmo).response
    return _normalised_to_sigma8(as_array(k), values, response, transfer)


def transfer_name(name: Any, argument: str) -> str:
    """The name of a transfer function; ArgumentError if there is none of this name."""
    check_choice(name, argument, tuple(TRANSFERS))
    return name


@partial(jit, static_argnames="transfer")
def _normalised_to_sigma8(k: Array, cosmo: Parameters, response: LinearResponse | None, transfer: str) -> Array:
    theta = [*_densities(cosmo), cosmo.n_s]
    power = forward_derivatives(partial(_normalised, TRANSFERS[transfer]))
    if response is None:
        return cosmo.sigma8**2 * power(theta, k)
    nodes = jnp.asarray(np.exp(_LOG_K), k.dtype)
    every = jnp.concatenate([nodes, jnp.ravel(k)])
    cold = power(theta, every) * response.cold(every, 1.0) ** 2
    weights = jnp.asarray(_variance_weights(8.0), k.dtype)
    variance = jnp.sum(weights * cold[: len(nodes)] * response.total(nodes, 1.0) ** 2)
    return cosmo.sigma8**2 * jnp.reshape(cold[len(nodes) :], k.shape) / variance


def _densities(cosmo: Parameters) -> list[Array]:
    """Arguments of transfer functions."""
    n_eff = jnp.full_like(cosmo.h, N_TABLE) if cosmo.n_eff is None else cosmo.n_eff
    return [cosmo.Omega_c, cosmo.Omega_b, cosmo.h, n_eff]


def _normalised(transfer: Transfer, theta: Array, k: Array) -> Array:
    """P(k) with sigma8 = 1."""
    nodes = np.exp(_LOG_K)
    *matter, n_s = theta
    all_k = jnp.concatenate([jnp.asarray(nodes, k.dtype), jnp.ravel(k)])
    power = stored(all_k**n_s * transfer(all_k, *matter) ** 2)
    variance = jnp.sum(power[: len(nodes)] * jnp.asarray(_variance_weights(8.0), k.dtype))
    return jnp.reshape(power[len(nodes) :], k.shape) / variance


def sigma8_of_A_s(A_s: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """sigma8 for an amplitude A_s of the primordial curvature at k = 0.05/Mpc, with the transfer function "boltzmann".

    P(k) = 2 pi^2 / k^3 A_s (k / k_pivot)^(n_s - 1) (3/5 M(k))^2 with M of `potential_transfer`. The cosmology's own
    sigma8 is not used.
    """
    table = growth_table_to(2, cosmo)

    def power(k: Array) -> Array:
        primordial = 2 * math.pi**2 / k**3 * as_array(A_s) * (k * table.cosmo.h / _PIVOT) ** (table.cosmo.n_s - 1)
        total = 1.0 if table.response is None else table.response.total(k, 1.0)
        return primordial * (0.6 * total * potential_transfer(k, table)) ** 2

    return sigma_R(8.0, power)


def potential_transfer(k: Array, table: GrowthTable) -> Array:
    """M(k) = delta_cb(k, a = 1) / phi(k), with phi = 3/5 zeta, minus Newton's potential in the matter era.

    M = 2 k^2 c^2 / (3 Omega_cb H0^2) T(k) g, with the transfer function "boltzmann" and the growth g since the matter
    era, relative to a.
    """
    cosmo, g = table.cosmo, 1 / table.since_matter_era
    transfer = boltzmann(k, *_densities(cosmo))
    g = g if table.response is None else g * table.response.cold(k, 1.0)
    return 2 * (k * _HUBBLE_LENGTH) ** 2 / (3 * cosmo.Omega_cb) * transfer * g


def sigma_R(radius: float, power: Callable[[Array], Array]) -> Array:
    """Standard deviation of the density in spheres of a radius [Mpc/h], for a P(k) [(Mpc/h)^3]."""
    k = jnp.exp(jnp.asarray(_LOG_K, dtype=float))
    return jnp.sqrt(jnp.sum(jnp.asarray(_variance_weights(radius), dtype=float) * power(k)))


@cache
def _variance_weights(radius: float) -> np.ndarray:
    """Weights of P(k) at the nodes, for the variance of the density in spheres."""
    k = np.exp(_LOG_K)
    x = k * radius
    window = np.where(x < 1e-2, 1 - x**2 / 10, 3 * (np.sin(x) - x * np.cos(x)) / x**3)
    ends = np.where(np.isin(np.arange(len(k)), (0, len(k) - 1)), 0.5, 1.0)
    return (_LOG_K[1] - _LOG_K[0]) * ends * k**3 * window**2 / (2 * math.pi**2)


@jit
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
    """A tabulated P(k) scaled to a value of sigma8; P(k) is zero beyond the ends of the table."""

    def power(k: Array) -> Array:
        inside = (k >= table_k[0]) & (k <= table_k[-1])
        return jnp.where(inside, interpolate_power(k, table_k, table_power), 0)

    return table_power * (sigma8 / sigma_R(8.0, power)) ** 2


def check_sigma8_range(table_k: np.ndarray, cosmo: Cosmology) -> None:
    """Raise ArgumentError unless a tabulated P(k) covers the k that sigma8 needs, for `normalised_power`.

    At most 5e-4 of sigma8 may lie beyond each end of the table, by the P(k) of `linear_power`.
    """
    density = _variance_weights(8.0) * np.asarray(linear_power(np.exp(_LOG_K), cosmo), float)
    below = np.cumsum(density) / np.sum(density)
    low, high = np.exp(np.interp([1e-3, 1 - 1e-3], below, _LOG_K))  # 1e-3 of the variance is 5e-4 of sigma8
    if table_k[0] > low or table_k[-1] < high:
        constraint = f"covers k={table_k[0]:.4g}..{table_k[-1]:.4g} h/Mpc, but sigma8 needs {low:.4g}..{high:.4g}"
        remedy = "use a longer table, or normalise it yourself and leave normalise out"
        raise ArgumentError("linear_power", table_k, constraint, remedy, show_value=False)
