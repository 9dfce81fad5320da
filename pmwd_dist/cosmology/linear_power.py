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
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.derivatives import forward_derivatives
from pmwd_dist.cosmology.growth import GrowthTable, hermite, parameters_of
from pmwd_dist.cosmology.parameters import Cosmology, Parameters, check_numbers

# Nodes of integrals over P(k) [h/Mpc]; the integrand of sigma8 is negligible beyond them.
_LOG_K = np.linspace(math.log(1e-5), math.log(50.0), 1024)
_T_CMB = 2.726  # K, as in jax_cosmo
SHAPE_PARAMETERS = ("Omega_c", "Omega_b", "h", "n_s")  # of P(k), beside its amplitude sigma8
# Powers of Omega_m h^2 in the equations of Eisenstein & Hu: as one array they are one kernel to compile.
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
    check_numbers(k, "k", "linear_power(k, cosmo)")
    return _eisenstein_hu(as_array(k), parameters_of(cosmo))


@jax.jit
def _eisenstein_hu(k: Array, cosmo: Parameters) -> Array:
    theta = jnp.stack([getattr(cosmo, name) for name in SHAPE_PARAMETERS])
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
    """Transfer function at k [h/Mpc], Eisenstein & Hu (1998, astro-ph/9709112); numbers of their equations in brackets.

    Lengths are in Mpc, wavenumbers in 1/Mpc.
    """
    w_c, w_b = Omega_c * h**2, Omega_b * h**2
    w_m = w_c + w_b
    f_b, f_c = w_b / w_m, w_c / w_m
    theta = _T_CMB / 2.7
    k = k * h
    m = dict(zip(_EXPONENTS, w_m ** jnp.asarray(_EXPONENTS, k.dtype), strict=True))  # m[p] = w_m^p

    # Equality, the drag epoch, the sound horizon and Silk damping
    z_eq = 2.5e4 * w_m * theta**-4  # (2)
    k_eq = 7.46e-2 * w_m * theta**-2  # (3)
    b_1 = 0.313 * m[-0.419] * (1 + 0.607 * m[0.674])
    b_2 = 0.238 * m[0.223]
    z_d = 1291 * m[0.251] / (1 + 0.659 * m[0.828]) * (1 + b_1 * w_b**b_2)  # (4)
    R_d, R_eq = (31.5 * w_b * theta**-4 * (1e3 / z) for z in (z_d, z_eq))  # (5)
    logarithm = jnp.log((jnp.sqrt(1 + R_d) + jnp.sqrt(R_d + R_eq)) / (1 + jnp.sqrt(R_eq)))
    s = 2 / (3 * k_eq) * jnp.sqrt(6 / R_eq) * logarithm  # (6)
    k_silk = 1.6 * w_b**0.52 * m[0.73] * (1 + 10.4**-0.95 * m[-0.95])  # (7)

    def T_0(alpha_c: ArrayLike, beta_c: ArrayLike) -> Array:  # (19)
        q = k / (13.41 * k_eq)  # (10)
        C = 14.2 / alpha_c + 386 / (1 + 69.9 * q**1.08)  # (20)
        L = jnp.log(math.e + 1.8 * beta_c * q)
        return L / (L + C * q**2)

    # Cold dark matter
    a_1 = 46.9**0.67 * m[0.67] * (1 + 32.1**-0.532 * m[-0.532])
    a_2 = 12**0.424 * m[0.424] * (1 + 45**-0.582 * m[-0.582])
    alpha_c = a_1**-f_b * a_2 ** -(f_b**3)  # (11)
    b_1 = 0.944 / (1 + 458**-0.708 * m[-0.708])
    b_2 = 0.395**-0.0266 * m[-0.0266]
    beta_c = 1 / (1 + b_1 * (f_c**b_2 - 1))  # (12)
    f = 1 / (1 + (k * s / 5.4) ** 4)  # (18)
    T_c = f * T_0(1, beta_c) + (1 - f) * T_0(alpha_c, beta_c)  # (17)

    # Baryons
    y = (1 + z_eq) / (1 + z_d)
    x = jnp.sqrt(1 + y)
    G = y * (-6 * x + (2 + 3 * y) * jnp.log((x + 1) / (x - 1)))  # (15)
    alpha_b = 2.07 * k_eq * s * (1 + R_d) ** -0.75 * G  # (14)
    beta_node = 8.41 * m[0.435]  # (23)
    beta_b = 0.5 + f_b + (3 - 2 * f_b) * jnp.sqrt((17.2 * w_m) ** 2 + 1)  # (24)
    s_k = s * (1 + (beta_node / (k * s)) ** 3) ** (-1 / 3)  # (22)
    x = k * s_k
    j_0 = jnp.where(x > 0, jnp.sin(x) / jnp.where(x > 0, x, 1), 1)  # jnp.sinc of JAX 0.12 is a loop
    damped = alpha_b / (1 + (beta_b / (k * s)) ** 3) * jnp.exp(-((k / k_silk) ** 1.4))
    T_b = (T_0(1, 1) / (1 + (k * s / 5.2) ** 2) + damped) * j_0  # (21)

    return f_b * T_b + f_c * T_c  # (16)


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
