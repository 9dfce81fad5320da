"""Galaxies in halos: the halo occupation of Zheng et al. (2007), with satellites on NFW profiles."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_choice, check_number, check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.catalogue import MOST_GALAXIES, Catalogue
from pmwd_dist.observe.halos import DEFINITIONS, HaloCatalogue, check_halos, wrapped
from pmwd_dist.observe.redshift_space import LineOfSight, direction
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm.noise import check_key

_G = 4.30092e-9  # gravitational constant [(km/s)^2 Mpc / Msun]
_MOST_SATELLITES = 1e6  # of a halo
# Concentrations A (M / 2e12 Msun/h)^B (1 + z)^C of Duffy et al. (2008), table 1, all halos.
_DUFFY = {"vir": (7.85, -0.081, -0.71), "200m": (10.14, -0.081, -1.01), "200c": (5.71, -0.084, -0.47)}
_RADII = np.geomspace(1e-5, 1e5, 4000)  # nodes of the velocity dispersion [scale radius]


class HaloOccupation(eqx.Module):
    """Mean numbers of galaxies in a halo of mass M (Zheng et al. 2007, eqs. 2 and 5), differentiable.

    N_cen = (1 + erf((lg M - lg M_min) / sigma)) / 2 and N_sat = ((M - M_0) / M_1)^alpha, 0 for M < M_0.

    Args:
      log_m_min, log_m0, log_m1: decimal logarithms of the masses [Msun/h].
      sigma_log_m: width of the step of the centrals.
      alpha: slope of the satellites.

    Raises:
      ValueError: a number is out of its range: a mass instead of its logarithm, or a width that is not positive.
    """

    log_m_min: Any = 12.0
    sigma_log_m: Any = 0.25
    log_m0: Any = 12.0
    log_m1: Any = 13.2
    alpha: Any = 1.0

    def __check_init__(self) -> None:
        for name in ("log_m_min", "log_m0", "log_m1"):
            check_number(getattr(self, name), name, 0, 20, remedy="pass decimal logarithms of masses [Msun/h]")
        check_number(self.sigma_log_m, "sigma_log_m", 1e-4, 10)
        check_number(self.alpha, "alpha", 0, 10)

    def centrals(self, mass: ArrayLike) -> Array:
        """Mean number of central galaxies, 0 to 1."""
        mass = jnp.asarray(mass, float)
        lg = jnp.log10(jnp.where(mass > 0, mass, 1))
        return jnp.where(mass > 0, (1 + erf((lg - self.log_m_min) / self.sigma_log_m)) / 2, 0)

    def satellites(self, mass: ArrayLike) -> Array:
        """Mean number of satellite galaxies."""
        # In units of M_1: powers of ten would leave the range of single precision in derivatives.
        ratio = jnp.asarray(mass, float) * 10.0**-self.log_m1 - 10.0 ** (self.log_m0 - self.log_m1)
        return jnp.where(ratio > 0, jnp.where(ratio > 0, ratio, 1) ** self.alpha, 0)


def halo_galaxies(
    halos: HaloCatalogue,
    occupation: HaloOccupation,
    cosmo: Cosmology | GrowthTable,
    *,
    key: Array,
    definition: Literal["vir", "200m", "200c"] = "vir",
    concentration: Any = None,
    line_of_sight: LineOfSight = "z",
) -> Catalogue:
    """Mock galaxies in halos: a central or none at the core, with the velocity of the halo, and Poisson satellites.

    Satellites follow an NFW profile up to the radius of the halo (sampled as by Robotham & Howlett 2018), with the
    isotropic velocity dispersion of its Jeans equation. Galaxies are equal on all processes.

    Args:
      halos: halos of `overdensity_masses`.
      occupation: mean numbers of galaxies.
      cosmo: cosmology, or its `growth_table`.
      key: key of the random numbers.
      definition: definition of mass and radius.
      concentration: concentration of each halo, or one number; default: Duffy et al. (2008).
      line_of_sight: direction of the redshifts, "x", "y", "z" or a vector.

    Returns:
      Columns `Position` and `RedshiftSpacePosition`, comoving, from 0 to the sides of the box [Mpc/h], and `Velocity`,
      peculiar [km/s], all of shape (galaxies, 3); `halo_id`, and `central`, 1 or 0.

    Raises:
      ValueError: the halos have no such masses, or another argument is out of its range.

    Examples:
      >>> halos = observe.overdensity_masses(halos, solution.particles, cosmo, config)
      >>> mocks = observe.halo_galaxies(halos, observe.HaloOccupation(log_m_min=12.5), cosmo, key=jax.random.key(1))
    """
    check_on_host("halo_galaxies", (occupation, cosmo, key))
    check_type(occupation, HaloOccupation, "occupation", "must be a HaloOccupation")
    check_key(key)
    check_choice(definition, "definition", DEFINITIONS)
    check_halos(halos, cosmo=cosmo)
    if f"halo_m{definition}" not in halos.columns:
        raise ArgumentError("halos", halos, f"have no M{definition}", "call overdensity_masses", show_value=False)
    mass, a, sides = halos.columns[f"halo_m{definition}"], halos.about["a"], halos.about["box_size [Mpc/h]"]
    if concentration is None:
        A, B, C = _DUFFY[definition]
        concentration = A * (np.maximum(mass, 1e8) / 2e12) ** B * a**-C
    check_number(concentration, "concentration", 0.1, 1e4, several=True)
    if np.shape(concentration) not in ((), mass.shape):
        raise ArgumentError("concentration.shape", np.shape(concentration), f"must be () or {mass.shape}")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    centrals, satellites = (np.asarray(f(mass), float) for f in (occupation.centrals, occupation.satellites))
    few = (satellites <= _MOST_SATELLITES).all() and satellites.sum() <= MOST_GALAXIES
    if not (np.isfinite(centrals).all() and few):
        most = f"at most {_MOST_SATELLITES:g} satellites in a halo, and {MOST_GALAXIES:g} in all"
        constraint = f"must have finite numbers of galaxies, {most}"
        raise ArgumentError("occupation", occupation, constraint)
    is_host = rng.random(len(mass)) < centrals
    host = np.repeat(np.arange(len(mass)), rng.poisson(satellites))
    c = np.broadcast_to(np.asarray(concentration, float), mass.shape)[host]
    radius = halos.columns[f"halo_r{definition}"][host]
    offset, dispersion = _nfw(c, rng)
    squared = _G * mass[host] / (a * radius)
    velocity = np.sqrt(squared)[:, None] * dispersion[:, None] * rng.normal(size=(len(host), 3))
    order = np.concatenate([np.flatnonzero(is_host), host])
    x = halos.core[order] + np.concatenate([np.zeros((is_host.sum(), 3)), radius[:, None] * offset])
    u = halos.velocity[order] + np.concatenate([np.zeros((is_host.sum(), 3)), velocity])
    n = np.asarray(direction(line_of_sight))
    seen = x + (u @ n)[:, None] * n / (100 * a * float(growth_table_to(2, cosmo).E(a)))
    columns = {"Position": wrapped(x, sides), "Velocity": u, "RedshiftSpacePosition": wrapped(seen, sides)}
    columns |= {"halo_id": halos.columns["halo_id"][order], "central": np.arange(len(order)) < is_host.sum()}
    units = {"Position": "Mpc/h", "Velocity": "km/s", "RedshiftSpacePosition": "Mpc/h", "halo_id": "", "central": ""}
    return Catalogue(columns, units, halos.about | {"line_of_sight": str(line_of_sight)})


def _nfw(c: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Places on NFW profiles of concentration c [radius], and velocity dispersions along an axis there [(GM/R)^(1/2)].

    sigma^2 = c / m(c) x (1 + x)^2 int_x^inf m(y) / (y^3 (1 + y)^2) dy at x scale radii, m(x) = ln(1 + x) - x / (1 + x).
    """
    from scipy.integrate import cumulative_trapezoid
    from scipy.special import lambertw

    def mass(x: Any) -> Any:
        return np.log1p(x) - x / (1 + x)

    share = np.maximum(rng.random(len(c)), 1e-12)  # of the mass; at 0 the logarithm of a place would be infinite
    x = -1 / lambertw(-np.exp(-share * mass(c) - 1)).real - 1
    axis = rng.normal(size=(len(c), 3))
    offset = axis * (x / c / np.linalg.norm(axis, axis=-1))[:, None]
    pressure = mass(_RADII) / (_RADII * (1 + _RADII)) ** 2
    beyond = -cumulative_trapezoid(pressure[::-1], np.log(_RADII[::-1]), initial=0)[::-1]
    return offset, np.sqrt(c / mass(c) * x * (1 + x) ** 2 * np.interp(np.log(x), np.log(_RADII), beyond))
