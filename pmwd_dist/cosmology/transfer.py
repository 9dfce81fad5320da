"""Transfer functions of cold matter and baryons: fits, and a table of a Boltzmann code.

All are functions of (k [h/Mpc], Omega_c, Omega_b, h, n_eff), for massless neutrinos and T_CMB = 2.726 K.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError

Transfer = Callable[[Array, Array, Array, Array, Array], Array]

_THETA = 2.726 / 2.7  # T_CMB [2.7 K], as in jax_cosmo
# Powers of Omega_m h^2 in the equations of Eisenstein & Hu: as one array they are one kernel to compile.
_EXPONENTS = (0.251, 0.828, -0.419, 0.674, 0.223, 0.73, -0.95, 0.67, -0.532, 0.424, -0.582, -0.708, -0.0266, 0.435)
# Table of `boltzmann`: ranges of Omega_m h^2 and Omega_b / Omega_m, step and scale of its nodes in ln(1 + k s / scale).
RANGES = (0.05, 0.35), (0.04, 0.32)
STEP, SCALE = 0.02, 25.0
# Ranges of Omega_m h^2, Omega_b / Omega_m, n_eff and m_nu [eV]: compared with CAMB, and beyond which nothing is known.
TESTED = (*RANGES, (2.5, 4.0), (0.0, 0.6))
_BEST = (0.13, 0.35), (0.04, 0.25), *TESTED[2:]  # within 0.3 %, and within 0.8 % elsewhere, for massless neutrinos
_TESTED_FIT = (*((0.0, math.inf),) * 2, (2.9, 3.1), (0.0, math.inf))
USABLE = (0.02, 1.5), (0.005, 0.5), (2.0, 5.0), (0.0, 3.0)
COMPARED = 3e-4, 100.0  # wavenumbers [h/Mpc]
N_TABLE, N_RANGE = 3.046, (2.0, 5.0)  # n_eff of that table, and range of the table of its change


def eisenstein_hu(k: Array, Omega_c: Array, Omega_b: Array, h: Array, n_eff: Array) -> Array:
    """Transfer function with baryon oscillations of Eisenstein & Hu (1998, astro-ph/9709112), for n_eff = 3."""
    del n_eff
    return _with_sound_horizon(k, Omega_c, Omega_b, h)[0]


def boltzmann(k: Array, Omega_c: Array, Omega_b: Array, h: Array, n_eff: Array) -> Array:
    """Transfer function of CAMB, as a correction of Eisenstein & Hu's.

    ln(T / T_EH) is tabulated as Chebyshev series in ln(Omega_m h^2) and Omega_b / Omega_m at nodes of k s, with s the
    sound horizon, and continues as a constant beyond the table. A second table, with more nodes at small k s, adds what
    the nodes of the first miss there, and the change with n_eff, as a Chebyshev series times n_eff - 3.046.
    """
    transfer, s = _with_sound_horizon(k, Omega_c, Omega_b, h)
    w_m, f_b = (Omega_c + Omega_b) * h**2, Omega_b / (Omega_c + Omega_b)
    (least, most), (low, high) = RANGES
    table, finer = (jnp.asarray(_table(name), k.dtype) for name in ("transfer", "transfer_n_eff"))

    def polynomials(fraction: Array, count: int) -> Array:
        return chebyshev(jnp.clip(2 * fraction - 1, -1, 1), count)

    x = polynomials(jnp.log(w_m / least) / math.log(most / least), table.shape[0])
    y = polynomials((f_b - low) / (high - low), table.shape[1])
    products = x[:, None] * y[None, :]
    nodes = jnp.sum(products[..., None] * table, (0, 1))
    of_n = polynomials((n_eff - N_RANGE[0]) / (N_RANGE[1] - N_RANGE[0]), finer.shape[2] - 1) * (n_eff - N_TABLE)
    change = jnp.sum(products[: finer.shape[0], : finer.shape[1], None, None] * finer, (0, 1))
    change = change[0] + jnp.sum(of_n[:, None] * change[1:], 0)
    return transfer * jnp.exp(cubic(nodes, jnp.log1p(k * h * s / SCALE) / STEP) + cubic(change, finer_node(k * h * s)))


def finer_node(ks: Array) -> Array:
    """Position of k s among the nodes of the table of n_eff, dense at small k s."""
    return (jnp.log1p(ks / SCALE) + 0.05 * jnp.log1p(ks / 0.02)) / STEP


def outside_table(cosmo: Any, ranges: Sequence[tuple[float, float]] = TESTED) -> list[tuple[str, float, str]]:
    """Names, values and ranges of the parameters of a cosmology for which `boltzmann` was not compared with CAMB."""
    values = _table_parameters(cosmo)
    pairs = zip(values.items(), ranges, strict=True)
    near = 1e-6  # rounding of ratios in single precision
    outside = [(name, x, ends) for (name, x), ends in pairs if not ends[0] * (1 - near) <= x <= ends[1] * (1 + near)]
    return [(name, x, f"{low:g} to {high:g}") for name, x, (low, high) in outside]


def transfer_warnings(name: str, cosmo: Any) -> list[str]:
    """Warnings about parameters of a cosmology for which a transfer function was not compared with CAMB."""
    limit = f'the range of linear_power = "{name}"; P(k) was not compared with CAMB there'
    outside = outside_table(cosmo, TESTED if name == "boltzmann" else _TESTED_FIT)
    return [f"{parameter} = {value:.3g} is outside of {ends}, {limit}" for parameter, value, ends in outside]


def accuracy_warnings(name: str, cosmo: Any) -> list[str]:
    """Warnings as of `transfer_warnings`, or about the temperature of massive neutrinos."""
    found, n_eff = transfer_warnings(name, cosmo), _table_parameters(cosmo)["n_eff"]
    share = _neutrino_share(cosmo)
    if found or name != "boltzmann" or share == 0 or n_eff <= 3.1:
        return found
    # The default of CAMB has massive neutrinos of the standard temperature, and massless ones beyond n_eff = 3.044.
    change = math.ceil(250 * share * (n_eff - N_TABLE))
    text = f"n_eff = {n_eff:.3g} with m_nu: P(k) follows CAMB with standard_neutrino_neff = n_eff"
    return [f"{text}, and differs from its default by up to {change} %"]


def _table_parameters(cosmo: Any) -> dict[str, float]:
    Omega_b, h, matter = float(cosmo.Omega_b), float(cosmo.h), float(cosmo.Omega_c) + float(cosmo.Omega_b)
    n_eff, m_nu = (getattr(cosmo, name, None) for name in ("n_eff", "m_nu"))
    return {
        "Omega_m h^2": matter * h**2,
        "Omega_b / Omega_m": Omega_b / matter if matter > 0 else math.nan,
        "n_eff": N_TABLE if n_eff is None else float(n_eff),
        "m_nu": 0.0 if m_nu is None else float(m_nu),
    }


def _neutrino_share(cosmo: Any) -> float:
    """Massive neutrinos over all matter."""
    cold, _, n_eff, m_nu = _table_parameters(cosmo).values()
    massive = m_nu / 93.1 * (n_eff / N_TABLE) ** 0.75  # Omega_nu h^2
    return massive / (massive + cold)


def expected_error(name: str, cosmo: Any, k: tuple[float, float]) -> float | None:
    """Error of P(k) against CAMB from a wavenumber k to another [per cent]; None where they were not compared."""
    if outside_table(cosmo) or k[0] < COMPARED[0] or k[1] > COMPARED[1]:
        return None
    _, _, n_eff, m_nu = _table_parameters(cosmo).values()
    if name != "boltzmann":
        return 6.0 if abs(n_eff - 3) < 0.1 and m_nu == 0 and k[0] >= 0.009 else None
    w, curvature = _equation_of_state(cosmo), abs(float(cosmo.Omega_k))
    constant = bool((w == -1).all())
    # Dark energy of CAMB has perturbations, and wavelengths come near the radius of curvature.
    if (k[0] < 0.009 and not (constant and curvature == 0)) or w.max() > (-0.5 if k[0] < 0.1 else -0.3):
        return None
    near = not constant or curvature > 0.1
    error = 0.8 if outside_table(cosmo, _BEST) else 0.5 if k[0] < 0.03 and near else 0.3
    if (share := _neutrino_share(cosmo)) > 0:
        some = share <= 0.07
        error = (0.8 if some else 1.2) if k[0] >= 0.03 else 1.0 if share <= 0.03 else 4.0 if some else 10.0
    return max(error, 12.0 if k[1] > 30 else 1.5 if k[1] > 9 else 0.0)


def _equation_of_state(cosmo: Any) -> np.ndarray:
    """w of dark energy: its extremes, or a table."""
    if (table := getattr(cosmo, "w_table", None)) is not None:
        return np.asarray(table, float)[:, 1]
    return float(cosmo.w0) + np.asarray([0.0, float(cosmo.wa)])


def check_transfer(name: str, cosmo: Any) -> None:
    """Raise ArgumentError far from the parameters of the table, or without baryons, and warn where P(k) is unknown.

    Traced values are not checked.
    """
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(vars(cosmo))):
        return
    check_usable(name, cosmo)
    for text in accuracy_warnings(name, cosmo):
        warnings.warn(text, stacklevel=3)


def check_usable(name: str, cosmo: Any) -> None:
    """Raise ArgumentError far from the parameters of the table, or without baryons."""
    ranges = USABLE if name == "boltzmann" else (USABLE[0], *((1e-6, 1 - 1e-6), (0.0, math.inf), (0.0, math.inf)))
    for parameter, value, ends in outside_table(cosmo, ranges):
        constraint = f"is a transfer function for {parameter} of {ends}, and here it is {value:.3g}"
        remedy = "pass a table (k, P), or a function of (k, cosmology)"
        raise ArgumentError("linear_power", name, constraint, remedy)


@cache
def _table(name: str) -> np.ndarray:
    """Coefficients [order in Omega_m h^2, order in Omega_b / Omega_m, ..., node], of benchmarks/transfer_table.py."""
    return np.load(str(files("pmwd_dist.cosmology").joinpath(f"{name}.npy")))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def chebyshev(x: Array, count: int) -> Array:
    """Chebyshev polynomials of the first kind, with a leading axis."""
    values = [jnp.ones_like(x), x]
    while len(values) < count:
        values.append(2 * x * values[-1] - values[-2])
    return jnp.stack(values)


@chebyshev.defjvp
def _chebyshev_jvp(count: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    values = chebyshev(primals[0], count)
    derived = np.polynomial.chebyshev.chebder(np.eye(len(values)), axis=1)
    slopes = jnp.tensordot(jnp.asarray(derived, values.dtype), values[:-1], 1, precision="highest")
    return values, slopes * tangents[0][None]


def cubic(nodes: Array, t: Array) -> Array:
    """Cubic through values at whole numbers t, with slopes from the neighbours (Catmull & Rom 1974)."""
    padded = jnp.concatenate([nodes[:1], nodes, nodes[-1:]])
    t = jnp.clip(t, 0, len(nodes) - 1)
    i = jnp.clip(t.astype(jnp.int32), 0, len(nodes) - 2)
    t = t - i.astype(t.dtype)
    a, b, c, d = (padded[i + n] for n in range(4))
    return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))


def _sound_horizon(w_m: Array, w_b: Array, m: dict[float, Array]) -> tuple[Array, ...]:
    """Equality (redshift, wavenumber), the drag epoch (redshift, baryons over photons), and the sound horizon."""
    z_eq = 2.5e4 * w_m * _THETA**-4  # (2)
    k_eq = 7.46e-2 * w_m * _THETA**-2  # (3)
    b_1 = 0.313 * m[-0.419] * (1 + 0.607 * m[0.674])
    b_2 = 0.238 * m[0.223]
    z_d = 1291 * m[0.251] / (1 + 0.659 * m[0.828]) * (1 + b_1 * w_b**b_2)  # (4)
    R_d, R_eq = (31.5 * w_b * _THETA**-4 * (1e3 / z) for z in (z_d, z_eq))  # (5)
    logarithm = jnp.log((jnp.sqrt(1 + R_d) + jnp.sqrt(R_d + R_eq)) / (1 + jnp.sqrt(R_eq)))
    return z_eq, k_eq, z_d, R_d, 2 / (3 * k_eq) * jnp.sqrt(6 / R_eq) * logarithm  # (6)


def _with_sound_horizon(k: Array, Omega_c: Array, Omega_b: Array, h: Array) -> tuple[Array, Array]:
    """Transfer function and sound horizon [Mpc] of Eisenstein & Hu; numbers of their equations in brackets.

    Lengths are in Mpc, wavenumbers in 1/Mpc.
    """
    w_c, w_b = Omega_c * h**2, Omega_b * h**2
    w_m = w_c + w_b
    f_b, f_c = w_b / w_m, w_c / w_m
    k = k * h
    m = dict(zip(_EXPONENTS, w_m ** jnp.asarray(_EXPONENTS, k.dtype), strict=True))  # m[p] = w_m^p

    z_eq, k_eq, z_d, R_d, s = _sound_horizon(w_m, w_b, m)
    k_silk = 1.6 * w_b**0.52 * m[0.73] * (1 + 10.4**-0.95 * m[-0.95])  # (7)

    # Cold dark matter
    a_1 = 46.9**0.67 * m[0.67] * (1 + 32.1**-0.532 * m[-0.532])
    a_2 = 12**0.424 * m[0.424] * (1 + 45**-0.582 * m[-0.582])
    alpha_c = a_1**-f_b * a_2 ** -(f_b**3)  # (11)
    b_1 = 0.944 / (1 + 458**-0.708 * m[-0.708])
    b_2 = 0.395**-0.0266 * m[-0.0266]
    beta_c = 1 / (1 + b_1 * (f_c**b_2 - 1))  # (12)
    # T_0(1, beta_c), T_0(alpha_c, beta_c) and T_0(1, 1) at once, and quotients of numbers: few kernels to compile
    one, ks = jnp.ones_like(alpha_c), k * s
    alpha, beta = (jnp.reshape(jnp.stack(x), (3, *(1,) * k.ndim)) for x in ((one, alpha_c, one), (beta_c, beta_c, one)))
    q = (k * (1 / (13.41 * k_eq)))[None]  # (10)
    C = 14.2 / alpha + 386 / (1 + 69.9 * q**1.08)  # (20)
    L = jnp.log(math.e + 1.8 * beta * q)
    T_1, T_alpha, T_b = L / (L + C * q**2)  # (19)
    f, g = 1 / (1 + jnp.stack([(ks / 5.4) ** 4, (ks / 5.2) ** 2]))  # (18)
    T_c = f * T_1 + (1 - f) * T_alpha  # (17)

    # Baryons
    y = (1 + z_eq) / (1 + z_d)
    x = jnp.sqrt(1 + y)
    G = y * (-6 * x + (2 + 3 * y) * jnp.log((x + 1) / (x - 1)))  # (15)
    alpha_b = 2.07 * k_eq * s * (1 + R_d) ** -0.75 * G  # (14)
    beta_node = 8.41 * m[0.435]  # (23)
    beta_b = 0.5 + f_b + (3 - 2 * f_b) * jnp.sqrt((17.2 * w_m) ** 2 + 1)  # (24)
    inverse = (1 / ks) ** 3
    x = ks * (1 + beta_node**3 * inverse) ** (-1 / 3)  # (22)
    j_0 = jnp.where(x > 0, jnp.sin(x) / jnp.where(x > 0, x, 1), 1)  # jnp.sinc of JAX 0.12 is a loop
    damped = alpha_b / (1 + beta_b**3 * inverse) * jnp.exp(-((k * (1 / k_silk)) ** 1.4))
    T_b = (T_b * g + damped) * j_0  # (21)

    return f_b * T_b + f_c * T_c, s  # (16)
