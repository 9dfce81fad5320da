"""Linear matter power: Eisenstein & Hu (1998), or a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.few import forward_derivatives
from pmwd_dist.cosmology.growth import GrowthTable, hermite, parameters_of
from pmwd_dist.cosmology.parameters import Cosmology, Parameters

# Nodes of integrals over P(k) [h/Mpc]; the integrand of sigma8 is negligible beyond them.
_LOG_K = np.linspace(math.log(1e-5), math.log(50.0), 1024)
_T_CMB = 2.726  # K, as in jax_cosmo
SHAPE_PARAMETERS = ("Omega_c", "Omega_b", "h", "n_s")  # of P(k), beside its amplitude sigma8
# Exponents of the matter density in the formulae of Eisenstein & Hu.
_EXPONENTS = (0.251, 0.828, -0.419, 0.674, 0.223, 0.73, -0.95, 0.67, -0.532, 0.424, -0.582, -0.708, -0.0266, 0.435)


def linear_power(k: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """Linear matter power spectrum at a = 1 [(Mpc/h)^3] at wavenumbers k [h/Mpc].

    The transfer function of Eisenstein & Hu (1998) with baryon oscillations, normalised to sigma8. It differs from
    Boltzmann codes by up to 4 % near the oscillations; `linear_modes` takes a table instead. The result has the shape
    of k and is differentiable in the parameters.

    Raises:
      ValueError: the cosmology lacks a parameter, or has a component that is not modelled (`Cosmology`).

    Examples:
      >>> k = jnp.geomspace(1e-3, 10.0, 200)
      >>> power = pmd.linear_power(k, jax_cosmo.Planck15())
    """
    return _eisenstein_hu(jnp.asarray(k, dtype=float), parameters_of(cosmo))


@jax.jit
def _eisenstein_hu(k: Array, cosmo: Parameters) -> Array:
    theta = jnp.stack([getattr(cosmo, name) for name in SHAPE_PARAMETERS])
    return cosmo.sigma8**2 * forward_derivatives(_normalised)(theta, k)


def _normalised(theta: Array, k: Array) -> Array:
    """P(k) of Eisenstein & Hu with sigma8 = 1."""
    nodes = np.exp(_LOG_K)
    *matter, n_s = theta
    all_k = jnp.concatenate([jnp.asarray(nodes, k.dtype), jnp.ravel(k)])
    log_k = jnp.log(all_k)
    power = jnp.exp(n_s * log_k) * _transfer(all_k, log_k, *matter) ** 2
    variance = jnp.sum(power[: len(nodes)] * jnp.asarray(_variance_weights(8.0), k.dtype))
    return jnp.reshape(power[len(nodes) :], k.shape) / variance


def _transfer(k: Array, log_k: Array, Omega_c: Array, Omega_b: Array, h: Array) -> Array:
    """Transfer function of Eisenstein & Hu (1998), at k [h/Mpc]; numbers of their equations in brackets.

    Powers and quotients are exponentials and logistic functions of logarithms: their derivatives are products, which
    compile faster.
    """
    theta = _T_CMB / 2.7
    log_whole, log_b, log_h = jnp.log(jnp.stack([Omega_c + Omega_b, Omega_b, h]))
    log_matter, log_baryons, log_fraction = log_whole + 2 * log_h, log_b + 2 * log_h, log_b - log_whole
    matter, fraction = jnp.exp(jnp.stack([log_matter, log_fraction]))
    log_k_equality = log_matter + math.log(7.46e-2 / theta**2)  # (3)
    power = dict(zip(_EXPONENTS, jnp.exp(log_matter * jnp.asarray(_EXPONENTS, k.dtype)), strict=True))
    drag_1 = 0.313 * power[-0.419] * (1 + 0.607 * power[0.674]) * jnp.exp(0.238 * power[0.223] * log_baryons)
    small = (drag_1, 0.659 * power[0.828], 32.1**-0.532 * power[-0.532], 45**-0.582 * power[-0.582])
    log_of = jnp.log(1 + jnp.stack([*small, 458**-0.708 * power[-0.708], -fraction, 10.4**-0.95 * power[-0.95]]))
    log_drag = math.log(1291) + 0.251 * log_matter + log_of[0] - log_of[1]  # (4)
    log_R = jnp.stack([log_baryons + math.log(31.5e3 / theta**4) - log_drag, log_fraction + math.log(31.5 / 25)])
    R_drag, R_equality = jnp.exp(log_R)  # (5)
    roots = jnp.sqrt(jnp.stack([1 + R_drag, R_drag + R_equality, R_equality]))
    equality, drag = 2.5e4 / theta**4 * matter, jnp.exp(log_drag)  # (2)
    logs = jnp.log(jnp.stack([roots[0] + roots[1], 1 + roots[2], 1 + equality, 1 + drag, 1 + R_drag]))
    log_sound = math.log(2 * 6**0.5 / 3) - log_k_equality - 0.5 * log_R[1] + jnp.log(logs[0] - logs[1])  # (6)
    log_k_silk = math.log(1.6) + 0.52 * log_baryons + 0.73 * log_matter + log_of[6]  # (7)

    log_first = 0.67 * (math.log(46.9) + log_matter) + log_of[2]
    log_second = 0.424 * (math.log(12) + log_matter) + log_of[3]
    # 14.2 over alpha_c (11)
    cold_c = 14.2 * jnp.exp(fraction * (log_first + fraction**2 * log_second))
    less = jnp.exp(0.395**-0.0266 * power[-0.0266] * log_of[5]) - 1
    beta_c = 1 / (1 + 0.944 * jnp.exp(-log_of[4]) * less)  # (12)
    y = jnp.exp(logs[2] - logs[3])
    x = jnp.sqrt(1 + y)
    G = y * (-6 * x + (2 + 3 * y) * (2 * jnp.log(1 + x) - logs[2] + logs[3]))  # (15), where x^2 - 1 = y
    scales = jnp.exp(jnp.stack([log_k_equality + log_sound, -0.75 * logs[4], log_sound]))
    alpha_b = 2.07 * scales[0] * scales[1] * G  # (14)
    beta_node = 8.41 * power[0.435]  # (23)
    beta_b = 0.5 + fraction + (3 - 2 * fraction) * jnp.sqrt((17.2 * matter) ** 2 + 1)  # (24)
    log_betas = jnp.log(jnp.stack([beta_node, beta_b]))

    log_q, ks, log_ks = log_k + log_h - math.log(13.41) - log_k_equality, k * h * scales[2], log_k + log_h + log_sound
    q = jnp.exp(log_q)  # (10)
    curve = 386 * jax.nn.sigmoid(-1.08 * log_q - math.log(69.9))

    def cold(coefficient: ArrayLike, log: Array) -> Array:  # (19, 20)
        return log / (log + (coefficient + curve) * q**2)

    plain, log_c = jnp.log(math.e + 1.8 * q), jnp.log(math.e + 1.8 * beta_c * q)
    weight = jax.nn.sigmoid(4 * (math.log(5.4) - log_ks))  # (18)
    dark = weight * cold(14.2, log_c) + (1 - weight) * cold(cold_c, log_c)  # (17)
    silk = alpha_b * jax.nn.sigmoid(3 * (log_ks - log_betas[1])) * jnp.exp(-jnp.exp(1.4 * (log_k + log_h - log_k_silk)))
    log_shift = jnp.log(jax.nn.sigmoid(3 * (log_ks - log_betas[0]))) / 3
    shifted = ks * jnp.exp(log_shift)  # (22)
    wave = jnp.where(shifted > 0, jnp.sin(shifted) * jnp.exp(-log_ks - log_shift), 1)
    baryonic = (cold(14.2, plain) * jax.nn.sigmoid(2 * (math.log(5.2) - log_ks)) + silk) * wave  # (21)
    return fraction * baryonic + (1 - fraction) * dark  # (16)


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
    """A tabulated P(k) scaled to a value of sigma8; P(k) is zero beyond the ends of the table."""

    def power(k: Array) -> Array:
        inside = (k >= table_k[0]) & (k <= table_k[-1])
        return jnp.where(inside, interpolate_power(k, table_k, table_power), 0)

    return table_power * (sigma8 / sigma_R(8.0, power)) ** 2


def check_sigma8_range(table_k: np.ndarray, cosmo: Cosmology) -> None:
    """Raise ArgumentError unless a tabulated P(k) covers the k that sigma8 needs, for `normalised_power`.

    At most 5e-4 of sigma8 may lie beyond each end of the table, by the P(k) of Eisenstein & Hu.
    """
    density = _variance_weights(8.0) * np.asarray(linear_power(np.exp(_LOG_K), cosmo), float)
    below = np.cumsum(density) / np.sum(density)
    low, high = np.exp(np.interp([1e-3, 1 - 1e-3], below, _LOG_K))  # 1e-3 of the variance is 5e-4 of sigma8
    if table_k[0] > low or table_k[-1] < high:
        raise ArgumentError(
            "linear_power",
            table_k,
            f"covers k={table_k[0]:.4g}..{table_k[-1]:.4g} h/Mpc, but sigma8 needs {low:.4g}..{high:.4g}",
            "use a longer table, or normalise it yourself and leave normalise out",
            show_value=False,
        )
