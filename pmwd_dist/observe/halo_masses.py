"""Spherical overdensity masses of halos."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY, Cosmology
from pmwd_dist.observe.halos import DEFINITIONS, PARTICLE_MASS, HaloCatalogue, Rows, check_halos, particle_rows
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.exchange import Places
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm.particles import Particles

_FEWEST = 10  # particles in a sphere, from which on its density counts
_LARGE = 50  # particles of halos that have a core, unless forces are too smooth or the particles are others
_REACH = 2.0  # largest radius, over that of the group's mass at 200 times the mean density
_AT_ONCE = 1 << 22  # particles of spheres in memory


class _Spheres(NamedTuple):
    """Particles around halos: the halo of each one, and its distance [Mpc/h], ascending by both."""

    halo: np.ndarray
    distance: np.ndarray


@on_auto_axes
def overdensity_masses(
    halos: HaloCatalogue, particles: Particles, cosmo: Cosmology | GrowthTable, config: Config
) -> HaloCatalogue:
    """Halos with their spherical overdensity masses and radii, of all particles around their cores. Collective.

    A sphere with mean density Delta times the mean ("200m") or critical density ("200c") has this mass, and one with
    the density of Bryan & Norman (1998) the mass "vir": Delta_c = 18 pi^2 + 82 x - 39 x^2 with x = Omega_m(a) - 1, a
    fit for flat LCDM. Densities are of cold matter. It is the innermost such sphere with more than ten particles.
    Both numbers are 0 where a core never has the density, or has it within a much larger halo: in a sphere of twice the
    radius that the mass of the group has at "200m". A warning says that most of the large halos have no core.

    Args:
      halos: halos of `friends_of_friends`.
      particles: the particles from which they were made.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.

    Returns:
      The catalogue with masses `halo_mvir`, `halo_m200m` and `halo_m200c` [Msun/h], and radii `halo_rvir`, `halo_r200m`
      and `halo_r200c`, comoving [Mpc/h].

    Raises:
      ValueError: the particles are made for another scale factor or box than the halos, or the cosmology is
        another one.

    Warns:
      UserWarning: most of the large halos have no dense core among the particles.

    Examples:
      >>> halos = observe.overdensity_masses(halos, solution.particles, cosmo, config)
      >>> halos.columns["halo_m200m"]
    """
    check_on_host("overdensity_masses", (particles, cosmo))
    check_halos(halos, config, cosmo)
    rows, _ = particle_rows(particles, config, halos.about["a"])
    table, places = growth_table_to(2, cosmo), Places(config.decomposition, config.box_size)
    found = with_masses(halos, rows, places, float(table.cosmo.Omega_cb), float(table.E(halos.about["a"])))
    large = halos.number >= _LARGE
    if large.any() and (lost := np.mean(found.columns["halo_m200m"][large] == 0)) > 0.5:
        text = f"particles have no dense core in {100 * lost:.0f} % of the halos of {_LARGE} particles or more"
        warnings.warn(f"{text}: the mesh is coarse, or the halos were found in other particles", stacklevel=3)
    return found


def with_masses(halos: HaloCatalogue, rows: Rows, places: Places, Omega_m: float, E: float) -> HaloCatalogue:
    """`overdensity_masses` of particles of a process. Collective.

    Args:
      halos: all halos, on every process.
      rows: particles of this process, of `make_rows`; all processes together have each once.
      places: owners of the places of the box.
      Omega_m: density of the particles today [critical density today].
      E: expansion rate at the scale factor of the halos [H0].

    Returns:
      The halos with six more columns of shape (halos,), masses [Msun/h] and comoving radii [Mpc/h].
    """
    mass, densities = halos.about[PARTICLE_MASS], _densities(Omega_m, E**2 * halos.about["a"] ** 3)
    reach = _REACH * _radius(halos.mass, densities["200m"])
    farthest = min(reach.max(initial=0), 0.499 * min(places.sides))
    if jax.process_count() > 1:
        rows = rows.send(places.near(rows.x, farthest))
    own, limits = np.flatnonzero(places.owner(halos.core) == jax.process_index()), np.minimum(reach, farthest)
    table_rows = [
        np.column_stack([part, *(_numbers(spheres, limits[part], mass, rho) for rho in densities.values())])
        for part, spheres in _spheres(halos, own, rows, places, limits)
    ]
    found = distributed.all_rows(np.concatenate(table_rows or [np.zeros((0, 1 + len(densities)))]))
    columns, units = dict(halos.columns), dict(halos.units)
    for name, number in zip(densities, found[np.argsort(found[:, 0]), 1:].T, strict=True):
        columns[f"halo_m{name}"], columns[f"halo_r{name}"] = mass * number, _radius(mass * number, densities[name])
        units |= {f"halo_m{name}": "Msun/h", f"halo_r{name}": "Mpc/h"}
    return HaloCatalogue(columns, units, halos.about)


def _densities(matter: float, critical: float) -> dict[str, float]:
    """Densities of spheres [Msun/h (Mpc/h)^-3], from the mean and the critical one; all comoving [critical today]."""
    x = matter / critical - 1
    overdensity = 18 * math.pi**2 + 82 * x - 39 * x**2
    values = (overdensity * critical, 200 * matter, 200 * critical)
    return {name: 1e10 * CRITICAL_DENSITY * value for name, value in zip(DEFINITIONS, values, strict=True)}


def _radius(mass: Any, density: float) -> np.ndarray:
    return np.cbrt(3 * mass / (4 * math.pi * density))


def _spheres(halos: HaloCatalogue, own: np.ndarray, rows: Rows, places: Places, reach: np.ndarray) -> Any:
    """Numbers of some halos at a time, and the particles around them."""
    from scipy.spatial import KDTree

    points, core = rows.x.astype(float), halos.core
    tree = KDTree(points, boxsize=places.sides, balanced_tree=False, compact_nodes=False) if len(points) else None
    ends = np.cumsum(tree.query_ball_point(core[own], reach[own], return_length=True)) if tree and len(own) else own
    for part in np.split(own, np.flatnonzero(np.diff(ends // _AT_ONCE)) + 1):
        if not len(part) or tree is None:
            continue
        members = tree.query_ball_point(core[part], reach[part])
        halo = np.repeat(np.arange(len(part)), [len(x) for x in members])
        d = places.nearest(points[np.concatenate(members).astype(np.int64)] - core[part][halo])
        distance = np.sqrt(np.sum(d**2, axis=-1))
        order = np.lexsort((distance, halo))
        yield part, _Spheres(halo[order], distance[order])


def _numbers(spheres: _Spheres, reach: np.ndarray, mass: float, density: float) -> np.ndarray:
    """Numbers of particles in the innermost spheres of a density around each halo, up to its reach; 0 without one."""
    (halo, distance), count = spheres, len(reach)
    rank = np.arange(len(halo)) - np.searchsorted(halo, np.arange(count))[halo]  # number of closer particles
    needed = density * 4 / 3 * math.pi * distance**3 / mass
    outside = (rank >= _FEWEST) & (rank + 1 < needed)
    found = np.full(count, -1)
    np.minimum.at(first := np.full(count, len(halo)), halo[outside], np.flatnonzero(outside))
    crossed = first < len(halo)
    found[crossed] = rank[first[crossed]]
    number = np.bincount(halo, minlength=count)
    alone = ~crossed & (number < density * 4 / 3 * math.pi * reach**3 / mass)  # no particle is farther out
    found = np.where(alone, number, found)
    return np.where(found > _FEWEST, found, 0).astype(float)
