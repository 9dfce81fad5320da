"""Halos: friends-of-friends groups of particles, in real space."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from pmwd_dist._checks import check_number, check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, parameters_of
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY, Cosmology
from pmwd_dist.observe.catalogue import Catalogue, about_simulation
from pmwd_dist.ops.friends import components, group_labels, group_moments
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.exchange import Places, send_rows
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import check_on_host, whole_number
from pmwd_dist.pm import inputs
from pmwd_dist.pm.particles import Particles

PARTICLE_MASS = "particle_mass [Msun/h]"
DEFINITIONS = ("vir", "200m", "200c")  # of spherical overdensity masses


class Rows(NamedTuple):
    """Particles of a process.

    Args:
      site: index of the lattice site, shape (n,).
      x: position, shape (n, 3) [Mpc/h].
      u: peculiar velocity, shape (n, 3) [km/s].
      group: least site of the particles in the group, shape (n,).
    """

    site: np.ndarray
    x: np.ndarray
    u: np.ndarray
    group: np.ndarray

    def of(self, some: np.ndarray) -> Rows:
        """Rows of some indices, or of a mask; several times as fast as by brackets."""
        return Rows(*(np.compress(some, x, 0) if some.dtype == bool else np.take(x, some, 0) for x in self))

    def send(self, wanted: np.ndarray) -> Rows:
        """Rows that all processes have for this one: see `send_rows`. Collective."""
        kinds: Any = [(name, x.dtype, x.shape[1:]) for name, x in zip(self._fields, self, strict=True)]
        rows: Any = np.empty(len(self.site), np.dtype(kinds))
        for name, x in zip(self._fields, self, strict=True):
            rows[name] = x
        rows = send_rows(rows, wanted)
        return Rows(*(rows[name] for name in self._fields))


@dataclass(frozen=True, repr=False, eq=False)
class HaloCatalogue(Catalogue):
    """Halos, from the one with the most particles on, with the names of halotools for their columns."""

    @property
    def mass(self) -> np.ndarray:
        """Masses of all particles of each group [Msun/h]."""
        return self.columns["halo_mfof"]

    @property
    def number(self) -> np.ndarray:
        """Numbers of particles."""
        return self.columns["halo_particles"]

    @property
    def position(self) -> np.ndarray:
        """Centres of mass, comoving, from 0 to the sides of the box, shape (halos, 3) [Mpc/h]."""
        return self.vectors("halo_{}")

    @property
    def core(self) -> np.ndarray:
        """Densest places, comoving, from 0 to the sides of the box, shape (halos, 3) [Mpc/h]."""
        return self.vectors("halo_core_{}")

    @property
    def velocity(self) -> np.ndarray:
        """Mean peculiar velocities, shape (halos, 3) [km/s]."""
        return self.vectors("halo_v{}")

    def for_halotools(self) -> dict[str, Any]:
        """Keyword arguments of `halotools.sim_manager.UserSuppliedHaloCatalog`: the halos with a virial mass, at cores.

        Raises:
          ValueError: the halos have no virial masses.
        """
        if "halo_mvir" not in self.columns:
            raise ArgumentError("halos", self, "have no virial masses", "call overdensity_masses", show_value=False)
        some = self.columns["halo_mvir"] > 0
        columns = {name: values[some] for name, values in self.columns.items()}
        columns |= {f"halo_{axis}": columns[f"halo_core_{axis}"] for axis in "xyz"}
        columns |= {"halo_upid": np.full(some.sum(), -1), "halo_hostid": columns["halo_id"]}  # none is a subhalo
        about = {"redshift": self.about["z"], "particle_mass": self.about[PARTICLE_MASS]}
        return columns | about | {"Lbox": list(self.about["box_size [Mpc/h]"])}

    def check_made_for(
        self, config: Config | None, cosmo: Cosmology | GrowthTable | None = None, name: str = "halos"
    ) -> None:
        """Raise ArgumentError unless they are of this box and cosmology, if any."""
        box = self.about["box_size [Mpc/h]"]
        if config is not None and tuple(box) != config.box_size:
            constraint = f"has a box of {tuple(box)} Mpc/h, and the config of {config.box_size}"
            raise ArgumentError(name, self, constraint, "pass their config", show_value=False)
        if cosmo is not None and "cosmology" in self.about:
            own, other = json.loads(self.about["cosmology"]), parameters_of(cosmo)
            for key in ("Omega_c", "Omega_b", "h", "Omega_k", "w0", "wa"):
                if not math.isclose(own[key], value := float(getattr(other, key)), rel_tol=1e-5, abs_tol=1e-7):
                    constraint = f"are of a universe with {key} = {own[key]:g}, and cosmo has {value:g}"
                    raise ArgumentError(name, self, constraint, "pass their cosmology", show_value=False)

    def vectors(self, name: str) -> np.ndarray:
        """Three columns, whose names have an axis in the place of {}, as rows."""
        return np.stack([self.columns[name.format(axis)] for axis in "xyz"], axis=-1)


def check_halos(
    halos: Any, config: Config | None = None, cosmo: Cosmology | GrowthTable | None = None, *, name: str = "halos"
) -> None:
    """Raise ArgumentError unless this is a HaloCatalogue, in the box and the cosmology of others if there are some."""
    check_type(halos, HaloCatalogue, name, "must be a HaloCatalogue", "call friends_of_friends")
    halos.check_made_for(config, cosmo, name)


@on_auto_axes
def friends_of_friends(
    particles: Particles,
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    linking_length: float = 0.2,
    min_particles: int = 20,
    a: float | None = None,
) -> HaloCatalogue:
    """Halos by friends of friends (Davis et al. 1985): particles at most a linking length apart are in one. Collective.

    Groups do not depend on the division over devices and processes, and are the same to the last particle; every
    process has all halos. Each process has its particles in memory meanwhile, and finds neighbours on its CPUs; where
    jztree is installed, on a GPU.

    The core is the mean position in the last of spheres that shrink around it (Power et al. 2003): from all particles
    of the group to a tenth of them, or to ten.

    Args:
      particles: particles at scale factor a.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.
      linking_length: linking length over the mean distance of particles, the cube root of the volume of one.
      min_particles: least number of particles of a halo.
      a: scale factor of the particles; default: the one that they are made for.

    Returns:
      Mass, number of particles, centre of mass, core and velocity of each halo.

    Raises:
      ValueError: an array is traced or of another config, the scale factor is not known, the particles are not finite
        or in redshift space, or another argument is out of its range.

    Examples:
      >>> halos = observe.friends_of_friends(solution.particles, cosmo, config)
      >>> halos.mass, halos.position, halos.velocity
    """
    inputs.check_config(config)
    check_on_host("friends_of_friends", (particles, cosmo))
    rows, at = particle_rows(particles, config, a)
    places = Places(config.decomposition, config.box_size)
    count = math.prod(config.particle_shape)
    found = find_groups(rows, places, count, linking_length=linking_length, min_particles=min_particles)
    mass = 1e10 * CRITICAL_DENSITY * float(parameters_of(cosmo).Omega_cb) * math.prod(config.box_size) / count
    about = {PARTICLE_MASS: mass, "linking_length": float(linking_length), "a": at, "z": 1 / at - 1}
    about |= about_simulation(cosmo, config)
    return catalogue_of(found, places, about)


def particle_rows(particles: Particles, config: Config, a: Any = None) -> tuple[Rows, float]:
    """Particles of this process, with site, position and peculiar velocity, and their scale factor. Collective.

    Raises:
      ValueError: an error of `friends_of_friends` in its particles or scale factor.
    """
    at = inputs.scale_factor_of(particles, a)
    particles = inputs.checked_particles(particles, config, at, real_space=True)
    inputs.check_finite(particles)
    positions = particles.positions(config)
    velocities = jax.device_put(particles.velocities(at), positions.sharding)
    parts: list[Rows] = []
    for x, u in zip(positions.addressable_shards, velocities.addressable_shards, strict=True):
        if x.replica_id == 0:
            local = np.asarray(x.data)
            i, j, k = np.ix_(*(np.arange(n) + (s.start or 0) for s, n in zip(x.index, local.shape[:3], strict=False)))
            sites = (i * config.particle_shape[1] + j) * config.particle_shape[2] + k
            parts.append(make_rows(sites.ravel(), local.reshape(-1, 3), np.asarray(u.data).reshape(-1, 3)))
    return joined(parts), float(at)


def make_rows(site: np.ndarray, x: np.ndarray, u: np.ndarray) -> Rows:
    """Rows of particles that are in no group yet."""
    return Rows(site, x, np.asarray(u, np.float32), site)


def joined(parts: list[Rows]) -> Rows:
    """Rows of several parts."""
    return parts[0] if len(parts) == 1 else Rows(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def find_groups(rows: Rows, places: Places, count: int, *, linking_length: float, min_particles: int) -> Rows:
    """Particles of groups, each whole on one process, ascending by the least site of their group and site. Collective.

    Pairs lie within the reach of the block of one of them, on whose process both are. Groups of two processes are
    joined by the particles that both have.

    Args:
      rows: particles of this process, of `make_rows`; all processes together have each once.
      places: owners of the places of the box.
      count: number of all particles.
      linking_length: linking length over the mean distance of particles, 0.05 to 1.
      min_particles: least number of particles of a group.

    Returns:
      Rows of the particles of groups, with the least site in the group of each as `group`.

    Raises:
      ValueError: a number is out of its range, or the linking length is half of the box or more.
    """
    check_number(linking_length, "linking_length", 0.05, 1)
    min_particles = whole_number(min_particles, "min_particles", least=1)
    length = linking_length * (math.prod(places.sides) / count) ** (1 / 3)
    if length >= min(places.sides) / 2:
        raise ArgumentError("linking_length", linking_length, "must be less than half of the box", "use more particles")
    alone = jax.process_count() == 1
    rows = rows if alone else rows.send(places.near(rows.x, length))
    if (rows.site[1:] < rows.site[:-1]).any():
        rows = rows.of(np.argsort(rows.site))
    labels = group_labels(rows.x, tuple(places.sides), length)
    if alone:
        some = _members(labels, min_particles)
        return rows.of(some)._replace(group=np.take(rows.site, np.take(labels, some)))
    rows = rows._replace(group=np.take(rows.site, labels))
    spanning = _join(rows, places.near(rows.x, length).sum(0) > 1)
    own = places.owner(rows.x) == jax.process_index()
    rows, labels, spanning = rows.of(own), labels[own], spanning[own]
    rows = rows.of(spanning | (np.bincount(labels)[labels] >= min_particles))
    rows = rows.send(rows.group % jax.process_count() == np.arange(jax.process_count())[:, None])
    rows = rows.of(np.lexsort((rows.site, rows.group)))
    number = np.diff(_starts(rows.group), append=len(rows.group))
    return rows.of(np.repeat(number >= min_particles, number))


def _members(labels: np.ndarray, least: int) -> np.ndarray:
    """Indices of the points in groups of at least this number, ascending by label and index."""
    number = np.bincount(labels).astype(np.int32)
    some = np.flatnonzero(np.take(number, labels, mode="clip") >= least)  # "clip" needs no copies
    keys = np.take(labels, some).astype(np.int64) << 32 | some
    keys.sort()  # several times as fast as an argument sort
    return keys & 0xFFFFFFFF


def _starts(values: np.ndarray) -> np.ndarray:
    """First places of runs of equal values."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


def _join(rows: Rows, shared: np.ndarray) -> np.ndarray:
    """Set the groups of rows, some of which are on several processes; whether they may span processes. Collective."""
    pairs = np.stack([rows.group, rows.site], axis=-1)[shared]
    numbers, places = np.unique(distributed.all_rows(pairs), return_inverse=True)
    least = numbers[components(len(numbers), places.reshape(-1, 2).T)]
    at = np.minimum(np.searchsorted(numbers, rows.group), len(numbers) - 1)
    spanning = numbers[at] == rows.group if len(numbers) else np.zeros(len(rows.group), bool)
    rows.group[spanning] = least[at[spanning]]
    return spanning


def catalogue_of(rows: Rows, places: Places, about: dict[str, Any]) -> HaloCatalogue:
    """Catalogue of the groups of all processes, on every process. Collective.

    Args:
      rows: particles of groups, of `find_groups`.
      places: owners of the places of the box.
      about: facts for the catalogue, with the mass of a particle [Msun/h] as `PARTICLE_MASS`.

    Returns:
      Halos with their columns of shape (halos,), by number of particles, largest first, and by `halo_id`.
    """
    starts, sides = _starts(rows.group), places.sides
    number, first = np.diff(starts, append=len(rows.group)), rows.x[starts].astype(float)
    centre, u, core = group_moments(rows.x, rows.u, starts, tuple(sides)).swapaxes(0, 1)
    table = np.column_stack([rows.group[starts], number, first + centre, u, first + core])
    table = distributed.all_rows(table)
    table = table[np.lexsort((table[:, 0], -table[:, 1]))]
    names = ["halo_id", "halo_particles"]
    names += [name.format(axis) for name in ("halo_{}", "halo_v{}", "halo_core_{}") for axis in "xyz"]
    columns = dict(zip(names, table.T.copy(), strict=True))
    for name in names[:2]:
        columns[name] = columns[name].astype(np.int64)
    for name in (name for name in names if name[-1] in "xyz" and "_v" not in name):
        columns[name] = wrapped(columns[name], sides["xyz".index(name[-1])])
    columns["halo_mfof"] = columns["halo_particles"] * about[PARTICLE_MASS]
    units = {name: "km/s" if "_v" in name else "Mpc/h" for name in names[2:]} | dict.fromkeys(names[:2], "")
    return HaloCatalogue(columns, units | {"halo_mfof": "Msun/h"}, about)


def wrapped(x: np.ndarray, side: Any) -> np.ndarray:
    """Positions in the box, from 0 to below its sides."""
    x = np.mod(x, side)
    return np.where(x >= side, 0, x)
