"""Halos on the light cone: halos of several times, each moved to where and when light passes it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import HUBBLE_DISTANCE
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.catalogue import Catalogue, about_simulation
from pmwd_dist.observe.halos import HaloCatalogue, check_halos
from pmwd_dist.observe.passage import images_of
from pmwd_dist.observe.shells import checked_observer
from pmwd_dist.observe.survey import UNITS, distances_at, redshift_table, sky
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm.inputs import check_config

_TURNS = 6  # iterations; each multiplies the error of a crossing by the velocity in c
_REACH = 1.05  # farthest redshift 1 + z of the table of distances, over that of the first catalogue


def halo_light_cone(
    catalogues: Sequence[HaloCatalogue],
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    observer: Sequence[float] | None = None,
) -> Catalogue:
    """Halos on the past light cone of an observer at a = 1, from catalogues of several times of a simulation.

    Each distance takes the halos of the catalogue with the nearest distance on the light cone. Their cores move in a
    straight line in the growth factor, x = x_i + (dx/dD)_i (D - D_i), until light passes them, as particles do in a
    step. Masses stay as in the catalogue: halos do not grow or merge meanwhile. The box is repeated around the
    observer by shifts of its sides, as for `galaxy_light_cone`. The light cone reaches from the distance of the last
    catalogue to the one of the first. Catalogues after a = 1 have no part in it.

    Args:
      catalogues: halos of `friends_of_friends` at two or more times.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.
      observer: position of the observer in the box [Mpc/h]; default: the centre.

    Returns:
      Columns `RA`, `DEC` [deg], `Z`, `Z_COSMO`, `a`, the scale factor of the catalogue, and the columns of the halos
      except their positions, with the velocities of that time; ordered by catalogue, the latest first. `Z` is the
      observed redshift (1 + Z_COSMO) (1 + v/c) - 1 with the peculiar velocity v along the line of sight.

    Raises:
      ValueError: the catalogues until a = 1 are less than two, of equal times or of another box, or the observer is
        not in the box.

    Examples:
      >>> halos = [observe.friends_of_friends(x, cosmo, config, a=a) for a, x in snapshots.items()]
      >>> observe.halo_light_cone(halos, cosmo, config).columns["Z"]
    """
    check_config(config)
    check_on_host("halo_light_cone", cosmo)
    table = growth_table_to(2, cosmo)
    later_first = _checked(catalogues, config, table)
    place = checked_observer(observer, config.box_size)
    times = np.array([halos.about["a"] for halos in later_first])
    distances = distances_at(1 / times - 1, table)
    edges = np.concatenate([distances[:1], (distances[1:] + distances[:-1]) / 2, distances[-1:]])
    r, z = redshift_table(table, _REACH / times[-1] - 1)
    growth = np.asarray(table.D1(1 / (1 + z)), float)
    rates = np.asarray(table.momentum(1 / (1 + z)), float)
    parts = list[dict[str, np.ndarray]]()
    for halos, (near, far), at in zip(later_first, itertools.pairwise(edges), distances, strict=True):
        images = images_of((near, far), place, config, "catalogues")
        a, D = halos.about["a"], np.interp(at, r, growth)
        slope = halos.velocity * (a / 100 / np.interp(at, r, rates))  # dx / dD
        longest = np.linalg.norm(slope, axis=1) * np.abs(np.interp([near, far], r, growth) - D).max()
        for corner in images:
            distance = np.linalg.norm(halos.core + corner, axis=1)
            some = np.flatnonzero((distance >= near - longest) & (distance <= far + longest))
            x, w, distance = halos.core[some] + corner, slope[some], np.clip(distance[some], near, far)
            moved = x
            for _ in range(_TURNS):
                moved = x + w * (np.interp(distance, r, growth) - D)[:, None]
                distance = np.linalg.norm(moved, axis=1)
            inside = (distance >= near) & (distance < far)
            some, moved, w, distance = some[inside], moved[inside], w[inside], distance[inside]
            z_cosmo = np.interp(distance, r, z)
            rate = np.interp(distance, r, rates) * (1 + z_cosmo) / HUBBLE_DISTANCE
            speed = rate * np.sum(w * moved, axis=1) / np.maximum(distance, 1e-30)  # in c
            columns = sky(moved) | {"Z": (1 + z_cosmo) * (1 + speed) - 1, "Z_COSMO": z_cosmo, "a": np.full(len(w), a)}
            parts.append(columns | {n: x[some] for n, x in halos.columns.items() if n not in _POSITIONS})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    units = later_first[0].units | UNITS | {"a": ""}
    about = {"observer [Mpc/h]": place, "a": times, "distances [Mpc/h]": edges} | about_simulation(table, config)
    return Catalogue(columns, {name: units[name] for name in columns}, about)


def check_reach(z: float, cosmo: Cosmology | GrowthTable, config: Config, observer: Sequence[float] | None) -> None:
    """Raise ArgumentError if the light cone to a redshift repeats the box too often, or the observer is not in it."""
    images_of((0.0, float(distances_at(z, cosmo))), checked_observer(observer, config.box_size), config)


_POSITIONS = {name.format(axis) for name in ("halo_{}", "halo_core_{}") for axis in "xyz"}


def _checked(catalogues: Sequence[HaloCatalogue], config: Config, table: GrowthTable) -> list[HaloCatalogue]:
    """Catalogues of a config and cosmology, the latest first."""
    if isinstance(catalogues, HaloCatalogue):
        raise ArgumentError("catalogues", catalogues, "must be a list of catalogues", show_value=False)
    for halos in catalogues:
        check_halos(halos, config, table, name="catalogues")
    found = sorted((x for x in catalogues if x.about["a"] < 1 + 1e-6), key=lambda halos: -halos.about["a"])
    times = [halos.about["a"] for halos in found]
    if len({*times}) < max(len(times), 2) or any({*halos.columns} != {*found[0].columns} for halos in found):
        constraint = f"must have the same columns at two or more different times until a = 1, and have a = {times}"
        raise ArgumentError("catalogues", catalogues, constraint, show_value=False)
    return found
