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

# Nodes of integrals over P(k) [h/Mpc]: the integrand of sigma8 oscillates with k beyond them, at 1e-8 of its height.
_LOG_K = np.linspace(math.log(1e-5), math.log(50.0), 1024)
_T_CMB = 2.726  # K, as in jax_cosmo
# Of the matter density, in the formulae of Eisenstein & Hu.
_EXPONENTS = (0.251, 0.828, -0.419, 0.674, 0.223, 0.73, -0.95, 0.67, -0.532, 0.424, -0.582, -0.708, -0.0266, 0.435)


def linear_power(k: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """Linear matter power spectrum at a = 1 [(Mpc/h)^3] at wavenumbers k [h/Mpc].

    The transfer function of Eisenstein & Hu (1998) with baryon oscillations, normalised to sigma8. It is off Boltzmann
    codes by up to 4 % near the oscillations: pass a table to `linear_modes` where that counts.
    """
    return _eisenstein_hu(jnp.asarray(k, dtype=float), parameters_of(cosmo))


@jax.jit
def _eisenstein_hu(k: Array, cosmo: Parameters) -> Array:
    theta = jnp.stack([cosmo.Omega_c, cosmo.Omega_b, cosmo.h, cosmo.n_s])
    return cosmo.sigma8**2 * forward_derivatives(_normalised)(theta, k)


def _normalised(theta: Array, k: Array) -> Array:
    """P(k) of Eisenstein & Hu with sigma8 = 1."""
    nodes = np.exp(_LOG_K)
    *matter, n_s = theta
    all_k = jnp.concatenate([jnp.asarray(nodes, k.dtype), jnp.ravel(k)])
    power = all_k**n_s * _transfer(all_k, *matter) ** 2
    variance = jnp.sum(power[: len(nodes)] * jnp.asarray(_variance_weights(8.0), k.dtype))
    return jnp.reshape(power[len(nodes) :], k.shape) / variance


def _transfer(k: Array, Omega_c: Array, Omega_b: Array, h: Array) -> Array:
    """Transfer function of Eisenstein & Hu (1998), at k [h/Mpc]; their numbers of equations in brackets."""
    k = k * h  # [1/Mpc]
    matter, baryons, theta = (Omega_c + Omega_b) * h**2, Omega_b * h**2, _T_CMB / 2.7
    fraction = Omega_b / (Omega_c + Omega_b)
    equality, k_equality = 2.5e4 * matter / theta**4, 7.46e-2 * matter / theta**2  # (2, 3)
    power = dict(zip(_EXPONENTS, matter ** jnp.asarray(_EXPONENTS, k.dtype), strict=True))  # one kernel to compile
    drag = 1 + 0.313 * power[-0.419] * (1 + 0.607 * power[0.674]) * baryons ** (0.238 * power[0.223])
    drag = 1291 * power[0.251] / (1 + 0.659 * power[0.828]) * drag  # (4)
    R_drag, R_equality = (31.5e3 * baryons / theta**4 / z for z in (drag, equality))  # (5)
    root = jnp.sqrt(R_equality)
    sound = jnp.log((jnp.sqrt(1 + R_drag) + jnp.sqrt(R_drag + R_equality)) / (1 + root))
    sound = 2 / (3 * k_equality) * math.sqrt(6) / root * sound  # (6)
    k_silk = 1.6 * baryons**0.52 * power[0.73] * (1 + 10.4**-0.95 * power[-0.95])  # (7)

    first = 46.9**0.67 * power[0.67] * (1 + 32.1**-0.532 * power[-0.532])
    second = 12**0.424 * power[0.424] * (1 + 45**-0.582 * power[-0.582])
    alpha_c = first**-fraction * second ** -(fraction**3)  # (11)
    beta_c = (1 - fraction) ** (0.395**-0.0266 * power[-0.0266]) - 1
    beta_c = 1 / (1 + 0.944 / (1 + 458**-0.708 * power[-0.708]) * beta_c)  # (12)
    y = (1 + equality) / (1 + drag)
    x = jnp.sqrt(1 + y)
    G = y * (-6 * x + (2 + 3 * y) * jnp.log((x + 1) / (x - 1)))  # (15)
    alpha_b = 2.07 * k_equality * sound * (1 + R_drag) ** -0.75 * G  # (14)
    beta_node = 8.41 * power[0.435]  # (23)
    beta_b = 0.5 + fraction + (3 - 2 * fraction) * jnp.sqrt((17.2 * matter) ** 2 + 1)  # (24)

    q, ks = k / (13.41 * k_equality), k * sound  # (10)
    curve = 386 / (1 + 69.9 * q**1.08)

    def cold(alpha: ArrayLike, beta: ArrayLike) -> Array:  # (19, 20)
        log = jnp.log(math.e + 1.8 * beta * q)
        return log / (log + (14.2 / alpha + curve) * q**2)

    weight = 1 / (1 + (ks / 5.4) ** 4)  # (18)
    dark = weight * cold(1, beta_c) + (1 - weight) * cold(alpha_c, beta_c)  # (17)
    silk = alpha_b / (1 + (beta_b / ks) ** 3) * jnp.exp(-((k / k_silk) ** 1.4))
    shifted = ks / jnp.cbrt(1 + (beta_node / ks) ** 3)  # (22)
    baryonic = (cold(1, 1) / (1 + (ks / 5.2) ** 2) + silk) * jnp.sinc(shifted / math.pi)  # (21)
    return fraction * baryonic + (1 - fraction) * dark  # (16)


def sigma_R(radius: float, power: Callable[[Array], Array]) -> Array:
    """Root of the variance of the density in spheres of this radius [Mpc/h], for a P(k) [(Mpc/h)^3]."""
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
    """A tabulated P(k) scaled to this sigma8; the table is taken as zero beyond its ends."""

    def power(k: Array) -> Array:
        inside = (k >= table_k[0]) & (k <= table_k[-1])
        return jnp.where(inside, interpolate_power(k, table_k, table_power), 0)

    return table_power * (sigma8 / sigma_R(8.0, power)) ** 2


def check_sigma8_range(table_k: np.ndarray, cosmo: Cosmology) -> None:
    """Raise ArgumentError unless a tabulated P(k) covers the k that sigma8 needs, for `normalised_power`.

    Beyond the ends of the table may lie 1e-3 of sigma8 at most, by the P(k) of Eisenstein & Hu: half of it at each end.
    """
    density = _variance_weights(8.0) * np.asarray(linear_power(np.exp(_LOG_K), cosmo), float)
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
