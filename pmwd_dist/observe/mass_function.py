"""The mass function of halos: numbers in bins, and the fit of Tinker et al. (2008)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from pmwd_dist._checks import check_ascending, check_callable, check_choice
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.linear_power import sigma_R
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY, Cosmology
from pmwd_dist.observe.halos import DEFINITIONS, HaloCatalogue, check_halos
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm import inputs

_PER_DECADE = 5  # bins
_LEAST = 1e5  # mass [Msun/h]: the logarithm of none
_NODES = 32  # masses at which sigma(M) is computed


class MassFunction(NamedTuple):
    """Number density of halos in bins of their mass.

    Args:
      mass: geometric mean of the ends of each bin [Msun/h].
      density: number of halos per volume and ln M, dn/dlnM [(h/Mpc)^3].
      error: its Poisson error, from the number in the bin [(h/Mpc)^3].
      number: number of halos in each bin.
    """

    mass: Float[np.ndarray, " bins"]
    density: Float[np.ndarray, " bins"]
    error: Float[np.ndarray, " bins"]
    number: Float[np.ndarray, " bins"]


def mass_function(halos: HaloCatalogue, edges: Any = None, *, definition: str = "fof") -> MassFunction:
    """Mass function of halos, with the error of Poisson numbers: N^(1/2) for N halos in a bin.

    Args:
      halos: halos of `friends_of_friends`; with `overdensity_masses` for another definition than "fof".
      edges: ends of the bins of mass, ascending [Msun/h]; default: five a decade, with all masses.
      definition: definition of the mass, "fof", "vir", "200m" or "200c".

    Raises:
      ValueError: the halos have no such masses, or the edges don't ascend from above 0.

    Examples:
      >>> found = observe.mass_function(observe.friends_of_friends(solution.particles, cosmo, config))
    """
    check_halos(halos)
    check_choice(definition, "definition", ("fof", *DEFINITIONS))
    mass = halos.columns.get(f"halo_m{definition}")
    if mass is None:
        raise ArgumentError("definition", definition, "is not known for these halos", "call overdensity_masses first")
    if edges is None:
        logs = np.floor(_PER_DECADE * np.log10(mass[mass > 0])) if mass.any() else np.array([12.0 * _PER_DECADE])
        edges = 10 ** (np.arange(logs.min(), logs.max() + 2) / _PER_DECADE)
        edges[0] = min(edges[0], mass[mass > 0].min(initial=edges[0]))  # the logarithm may round up
    ends = np.asarray(check_ascending(edges, "edges"))
    if ends[0] <= 0 or ends[-1] < _LEAST:
        end = float(ends[0] if ends[0] <= 0 else ends[-1])
        raise ArgumentError("edges", end, "must be positive masses [Msun/h], not their logarithms")
    number = np.histogram(mass, ends)[0].astype(float)
    volume = np.prod(halos.about["box_size [Mpc/h]"]) * np.diff(np.log(ends))
    return MassFunction(np.sqrt(ends[1:] * ends[:-1]), number / volume, np.sqrt(number) / volume, number)


def tinker_mass_function(
    mass: Any, power: Callable[[Any], Any], cosmo: Cosmology | GrowthTable, a: float
) -> Float[np.ndarray, " masses"]:
    """Mass function dn/dlnM of Tinker et al. (2008) for "200m" [(h/Mpc)^3], in a universe of linear power P(k).

    dn/dlnM = f(sigma) rho / M dln(1/sigma)/dlnM with f = A ((sigma / b)^-alpha + 1) exp(-c / sigma^2), their equations
    2 to 8 and the parameters of their table 2, measured at z <= 2.5. Density and power are of cold matter.

    Args:
      mass: masses M200m [Msun/h].
      power: linear power at a = 1, a function of k [h/Mpc] that returns P(k) [(Mpc/h)^3].
      cosmo: cosmology, or its `growth_table`.
      a: scale factor.

    Raises:
      ValueError: a mass is below 1e5 Msun/h, the power is not finite, or another argument is out of its range.

    Examples:
      >>> observe.tinker_mass_function([1e13, 1e14], lambda k: pmd.linear_power(k, cosmo), cosmo, 1.0)
    """
    check_on_host("tinker_mass_function", (mass, cosmo, a))
    check_callable(power, "power", "lambda k: pmd.linear_power(k, cosmo)")
    inputs.scale_factor(a)
    values, table = np.atleast_1d(np.asarray(mass, float)), growth_table_to(2, cosmo)
    if not values.size or not (np.isfinite(values) & (values >= _LEAST)).all():
        constraint = f"must be masses of {_LEAST:g} Msun/h or more, not their logarithms"
        raise ArgumentError("mass", mass, constraint, show_value=False)
    rho = 1e10 * CRITICAL_DENSITY * float(table.cosmo.Omega_cb)
    sigma, slope = _sigma(values, rho, lambda k: power(k) * table.linear(k, a)[0] ** 2)
    alpha = 10 ** -((0.75 / math.log10(200 / 75)) ** 1.2)
    A, first, b, c = 0.186 * a**0.14, 1.47 * a**0.06, 2.57 * a**alpha, 1.19
    f = A * ((sigma / b) ** -first + 1) * np.exp(-c / sigma**2)
    return (-f * rho / values * slope).reshape(np.shape(mass))


def _sigma(mass: np.ndarray, rho: float, power: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviation of the density in spheres of each mass, and dln sigma/dlnM."""
    from scipy.interpolate import CubicSpline

    nodes = np.linspace(math.log(mass.min()) - 1, math.log(mass.max()) + 1, _NODES)
    radii = np.cbrt(3 * np.exp(nodes) / (4 * math.pi * rho))
    sigmas = np.array([float(sigma_R(float(radius), power)) for radius in radii])
    if not (np.isfinite(sigmas) & (sigmas > 0)).all():
        raise ArgumentError("power", power, "must be finite, and 0 beyond the ends of a table", show_value=False)
    spline = CubicSpline(nodes, np.log(sigmas))
    return np.exp(spline(np.log(mass))), spline(np.log(mass), 1)
