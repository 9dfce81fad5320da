"""Read the particles of a snapshot onto their lattice.

The lattice site of a particle follows from its ID, its place in the file, or its position.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot.base import KM_S_PER_H0
from pmwd_dist.io.snapshot.header import SnapshotHeader, read_header, units_note
from pmwd_dist.io.snapshot.particles import (
    CHUNK,
    IDS,
    ORDER,
    POSITIONS,
    VELOCITIES,
    Column,
    check_arrays,
    check_box,
    chunks,
    holds,
    shared_files,
)
from pmwd_dist.io.snapshot.units import LengthUnit
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.particles import Particles

_FARTHEST = 0.25  # largest displacement of particles whose numbers follow a lattice [side of the box]


class Sites(NamedTuple):
    """Rule for the lattice sites of particles."""

    column: Column | None  # numbers along the lattice, IDS or ORDER; None to round positions to the nearest site
    first: int = 0  # number of the first site
    axes: tuple[int, ...] = (0, 1, 2)  # of the lattice, the slowest one first
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)  # first site, for rounded positions [spacings of the lattice]

    def of(self, numbers: np.ndarray, x: np.ndarray, config: Config) -> list[np.ndarray]:
        """Indices of the sites of particles with these numbers, or at positions x [Mpc/h]."""
        shape = config.particle_shape
        if self.column is None:
            nearest = np.rint(x * np.divide(shape, config.box_size) - self.origin).astype(np.int64)
            return list((nearest % shape).T)
        count, wide = math.prod(shape), numbers.astype(np.uint64 if numbers.dtype.kind == "u" else np.int64)
        along = ((wide % count).astype(np.int64) - self.first % count) % count
        index = np.unravel_index(along, [shape[axis] for axis in self.axes])
        return [index[self.axes.index(axis)] for axis in range(3)]


OWN = Sites(IDS)  # in snapshots of this package


def displacements(x: np.ndarray, sites: Sequence[np.ndarray], config: Config) -> np.ndarray:
    """Displacements from lattice sites to positions x in the periodic box [Mpc/h]; changes x."""
    for axis, (site, box, n) in enumerate(zip(sites, config.box_size, config.particle_shape, strict=True)):
        x[:, axis] -= site * (box / n)
        x[:, axis] -= box * np.rint(x[:, axis] / box)
    return x


def find_sites(files: Sequence[Path], header: SnapshotHeader, config: Config) -> Sites:
    """The rule that leaves small displacements: IDs before the order of the file, before rounded positions.

    IDs and places count from 0, 1 or the smallest one, along the axes in any order. They are tried on the first
    particles. A lattice beside ours has a mean displacement.
    """
    if header.indexed:
        return OWN
    numbers, x = _sample(files, header)
    for column, values in numbers.items():
        firsts = sorted({0, 1, int(values.min())})
        tried = [Sites(column, first, axes) for first in firsts for axes in itertools.permutations(range(3))]
        moved = (displacements(x.copy(), sites.of(values, x, config), config) for sites in tried)
        shares = [float((np.abs(each - each.mean(0)) / config.box_size).max()) for each in moved]
        if min(shares) < _FARTHEST:
            return tried[int(np.argmin(shares))]
    return Sites(None, origin=tuple((np.angle(_phases(x, config)) / (2 * math.pi)).tolist()))


def beside_mesh(files: Sequence[Path], header: SnapshotHeader, config: Config) -> float:
    """Largest distance of the lattice from mesh points along an axis [cells]; 0 where displacements hide it."""
    phases = _phases(_sample(files, header)[1], config)
    shift = np.angle(phases) / (2 * math.pi) * np.divide(config.mesh_shape, config.particle_shape)
    return float(np.where(np.abs(phases) > 0.5, np.abs(shift - np.rint(shift)), 0).max())


def _phases(x: np.ndarray, config: Config) -> np.ndarray:
    """Mean phases of waves with the spacing of the lattice, at positions x [Mpc/h]."""
    return np.exp(2j * math.pi * x * np.divide(config.particle_shape, config.box_size)).mean(0)


def _sample(files: Sequence[Path], header: SnapshotHeader) -> tuple[dict[Column, np.ndarray], np.ndarray]:
    """IDs, if there are any, and places of the first particles, and their positions [Mpc/h]."""
    columns = [IDS, ORDER] if holds(files, 1, IDS) else [ORDER]
    rows: list[list[np.ndarray]] = []
    for row in chunks(files, header, 1, (*columns, POSITIONS)):
        rows.append(row)
        if sum(len(x) for *_, x in rows) >= CHUNK:
            break
    *numbers, x = (np.concatenate(values) for values in zip(*rows, strict=True))
    return dict(zip(columns, numbers, strict=True)), x


def load_snapshot(
    path: str | Path, config: Config | None = None, *, length_unit: LengthUnit | None = None
) -> tuple[Particles, SnapshotHeader]:
    """Read the dark matter (type 1) of a snapshot onto the devices of a config. Collective.

    Particles of another code are assigned to lattice sites in the order of their file. Their displacements may exceed
    any halo on several devices, and their masses are not read: use `snapshot_density` for such snapshots.

    Args:
      path: a file, any of a set (name.0.hdf5), their common name, or a folder that holds one snapshot.
      config: simulation with the box and lattice of the snapshot; default: one made from its header.
      length_unit: unit of length; default: the unit that the file names, else kpc/h with a warning.

    Returns:
      Displacements and momenta [Mpc/h], shapes (*particle_shape, 3), and the header.

    Raises:
      ValueError: the snapshot is damaged, incomplete, without dark matter, or larger than the memory, or its box or
        lattice is not the config's.
      OSError: a file is missing or can't be read.
      SharedError: one of these, where there are several processes.

    Examples:
      >>> particles, header = pmd.load_snapshot("snapshot_z0.000.hdf5", config)
    """
    if config is not None:
        check_config(config)
    files = shared_files(Path(path))
    with raise_on_all_processes():
        header = read_header(files, length_unit)
        if header.counts[1] == 0:
            raise ValueError(f"{files[0]}: has no particles of type 1, dark matter")
        check_arrays(files, header, 1, (POSITIONS, VELOCITIES))
        if config is None:
            config = Config(header.box_size, header.mesh_shape, header.particle_shape)
        check_box(header, config)
        if header.particle_shape != config.particle_shape:
            constraint = f"is not that of the snapshot, {header.particle_shape}"
            raise ArgumentError("particle_shape", config.particle_shape, constraint)
        check_memory(files[0], config)
        sites = OWN if header.indexed else Sites(ORDER)
    if note := units_note(header, files[0], "length_unit="):
        warnings.warn(note, stacklevel=2)
    return read_particles(files, header, sites, config), header


def read_particles(files: Sequence[Path], header: SnapshotHeader, rule: Sites, config: Config) -> Particles:
    """The particles of type 1 on their sites, divided over the devices. Collective."""
    shape, dtype = config.particle_shape, jnp.result_type(float)

    def block(column: Column, index: Any) -> np.ndarray:
        """Displacements [Mpc/h] or momenta [Mpc/h] of the lattice sites of one device."""
        low = [s.start or 0 for s in index[:3]]
        high = [n if s.stop is None else s.stop for s, n in zip(index[:3], shape, strict=True)]
        values = np.full((*np.subtract(high, low), 3), np.nan, dtype)
        places = [POSITIONS] if rule.column is None and column is not POSITIONS else []
        for numbers, *others, rows in chunks(files, header, 1, (rule.column or ORDER, *places, column)):
            if header.indexed and len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < header.counts[1]:
                raise ValueError(f"{files[0]}: holds other particle IDs than its header says")
            sites = rule.of(numbers, others[0] if others else rows, config)
            mine = np.logical_and.reduce([(s >= a) & (s < b) for s, a, b in zip(sites, low, high, strict=True)])
            sites, x = ([site[mine] for site in sites], rows[mine]) if not mine.all() else (sites, rows)
            # Peculiar velocities [km/s] become momenta.
            x = displacements(x, sites, config) if column is POSITIONS else x * (header.a / KM_S_PER_H0)
            values[tuple(site - first for site, first in zip(sites, low, strict=True))] = x
        return values

    def array(column: Column) -> jax.Array:
        return jax.make_array_from_callback((*shape, 3), config.decomposition.sharding, partial(block, column))

    with raise_on_all_processes():
        particles = Particles(array(POSITIONS), array(VELOCITIES))
    count = jit(lambda disp: jnp.isnan(disp[..., 0]).sum(), out_shardings=config.decomposition.replicated)
    if missing := int(count(particles.disp)):
        why = (
            "some IDs are there twice"
            if rule.column is not None
            else (
                "IDs and order of the particles follow no lattice, and displacements are too large to find sites from "
                "positions; start from an earlier time, or write IDs in the order of the lattice"
            )
        )
        lack = f"{missing} sites of the lattice of {shape} lack particles, and others have several"
        raise ValueError(f"{files[0]}: {lack}: {why}")
    return particles.made_for(config, header.a)


def check_memory(path: Path, config: Config) -> None:
    """Raise ValueError if the particles can't fit into the memory of this machine."""
    each = 2 * 3 * jnp.dtype(jnp.result_type(float)).itemsize if config.decomposition.platform == "cpu" else 24
    need, (_, total) = each * math.prod(config.particle_shape) / jax.process_count(), available_memory()
    if need > total:
        raise ValueError(f"{path}: its particles need {size(need)} of memory, and this machine has {size(total)}")
