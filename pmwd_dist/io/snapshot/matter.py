"""Density of the matter in a snapshot of any code, painted onto the mesh with the masses of its particles.

The order of the file is arbitrary. Each particle is assigned a lattice site in its block of the mesh, one lattice of
particles after the other, so that a halo of one cell holds all displacements.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY
from pmwd_dist.io.snapshot.content import opened
from pmwd_dist.io.snapshot.header import SnapshotHeader, read_counts, read_header, units_note
from pmwd_dist.io.snapshot.particles import (
    MASSES,
    POSITIONS,
    Column,
    check_arrays,
    check_box,
    chunks,
    has_array,
    shared_files,
)
from pmwd_dist.io.snapshot.units import LengthUnit
from pmwd_dist.parallel.decomposition import Shape3
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.paint import cic_paint

_COMPLETE = 0.02  # largest relative difference between the density of all particles and Omega_m without a warning
LEAST_SHARE = 0.9  # least density over Omega_m without other types: massive neutrinos are up to 10 %
_PAINTED = 1 << 22  # particles painted at a time


@dataclass(frozen=True)
class Matter:
    """The painted matter of a snapshot.

    Args:
      header: header of the snapshot.
      counts: number of particles by type.
      left_out: types with particles that were not painted.
      omega: density of the particles [critical density today], to compare with Omega_m; NaN if masses aren't known.
      shot_noise: shot noise of the particles with their masses [(Mpc/h)^3].
    """

    header: SnapshotHeader
    counts: dict[int, int]
    left_out: tuple[int, ...]
    omega: float
    shot_noise: float


def snapshot_density(
    path: str | Path,
    config: Config | None = None,
    *,
    types: Sequence[int] | None = None,
    length_unit: LengthUnit | None = None,
) -> tuple[Float[Array, "nx ny nz"], Matter]:
    """Density of the matter in a snapshot in units of its mean, and a summary of this matter. Collective.

    Args:
      path: a file, any of a set (name.0.hdf5), their common name, or a folder that holds one snapshot.
      config: box, mesh and decomposition of the density; default: box and mesh of the snapshot, on all devices.
      types: types of particles, 0 gas, 1 dark matter, 4 stars and so on; default: all that have masses.
      length_unit: unit of length; default: the unit that the file names, else kpc/h with a warning.

    Raises:
      ValueError: the snapshot is damaged or incomplete, its box is not the config's, or it has no particles of a type.
      OSError: a file is missing or can't be read.

    Examples:
      >>> density, matter = pmd.snapshot_density("snapshot_z0.000.hdf5")
      >>> matter.counts, matter.omega
    """
    if config is not None:
        check_config(config)
    files = shared_files(Path(path))
    with raise_on_all_processes():
        header = read_header(files, length_unit)
        if config is None:
            config = Config(header.box_size, header.mesh_shape)
    density, matter = paint_matter(files, header, config, types)
    for note in matter_notes(matter, types, files[0], "length_unit="):
        warnings.warn(note, stacklevel=2)
    return density, matter


def paint_matter(
    files: Sequence[Path], header: SnapshotHeader, config: Config, types: Sequence[int] | None
) -> tuple[Array, Matter]:
    """`snapshot_density` of files with a known header."""
    with raise_on_all_processes():
        check_box(header, config)
        columns = _columns(files, header)
        known = {kind for kind in columns if MASSES in columns[kind] or header.masses[kind] > 0}
        chosen = _choose(types, tuple(columns), known, header, files[0])
        for kind in chosen:
            check_arrays(files, header, kind, columns[kind])
    lattice = lattice_of(config.mesh_shape, sum(header.counts[kind] for kind in chosen))
    particles = (  # positions [Mpc/h] and masses [1e10 Msun/h] of all files; masses are 1 where none are known
        (x, masses[0] if masses else np.full(len(x), header.masses[kind] or 1.0))
        for kind in chosen
        for x, *masses in chunks(files, header, kind, columns[kind])
    )
    density, mass, squares = _paint(particles, replace(config, particle_shape=lattice, halo=1))
    if not mass > 0:
        raise ValueError(f"{files[0]}: its particles have no mass")
    matter = Matter(
        header=header,
        counts={kind: header.counts[kind] for kind in chosen},
        left_out=tuple(kind for kind, count in enumerate(header.counts) if count and kind not in chosen),
        omega=mass / math.prod(header.box_size) / CRITICAL_DENSITY if known.issuperset(chosen) else math.nan,
        shot_noise=math.prod(header.box_size) * squares / mass**2,
    )
    return density, matter


def matter_notes(matter: Matter, types: Sequence[int] | None, path: Path, option: str) -> list[str]:
    """Warnings about an assumed unit of length, and about a density of all types that is not Omega_m."""
    header, notes = matter.header, [note for note in [units_note(matter.header, path, option)] if note]
    if types is None and abs(matter.omega - header.Omega_m) > _COMPLETE * header.Omega_m:
        both = f"its particles have a density of {matter.omega:.3g}, and Omega_m is {header.Omega_m:.3g}"
        missing = "types or massive neutrinos" if LEAST_SHARE < matter.omega / header.Omega_m < 1 else "types"
        notes.append(f"{path}: {both}: {missing} are missing, or the unit of length or mass is another one")
    return notes


def lattice_of(mesh_shape: Shape3, particles: int) -> Shape3:
    """Lattice of the particles that are painted at a time, which divides over devices as the mesh does."""
    nx, ny, _ = mesh_shape
    return nx, ny, max(1, -(-min(_PAINTED, particles) // (nx * ny)))


def _columns(files: Sequence[Path], header: SnapshotHeader) -> dict[int, list[Column]]:
    """Arrays to read of each type with positions: the positions, and the masses where they are an array."""
    found: dict[int, list[Column]] = {}
    for path in files:
        with opened(path) as file:
            for kind, count in enumerate(read_counts(file, "NumPart_ThisFile")[: len(header.counts)]):
                if count and kind not in found:
                    found[kind] = [column for column in (POSITIONS, MASSES) if has_array(file, kind, column)]
    return {kind: found[kind] for kind in sorted(found) if POSITIONS in found[kind]}


def _choose(
    types: Sequence[int] | None, there: Sequence[int], known: set[int], header: SnapshotHeader, path: Path
) -> tuple[int, ...]:
    """The types to paint: by default all with masses, or else the only type, with equal masses."""
    if types is None:
        chosen = tuple(kind for kind in there if kind in known) or tuple(there)
    else:
        if np.ndim(types) != 1 or np.asarray(types).dtype.kind not in "iu":
            raise ArgumentError("types", types, "must be a list of whole numbers", "for example [0, 1, 4]")
        chosen = tuple(sorted({int(kind) for kind in types}))
        if not chosen or not set(chosen) <= set(there):
            of = ", ".join(f"{kind} ({header.counts[kind]} particles)" for kind in there)
            raise ArgumentError("types", list(types), f"must be among those of the snapshot, {of}")
    if not chosen:
        raise ValueError(f"{path}: the snapshot has no particles with positions")
    lacking = [kind for kind in chosen if kind not in known]
    if lacking and len(chosen) > 1:
        raise ArgumentError("types", list(chosen), f"includes {lacking[0]}, whose particles have no masses")
    return chosen


def _paint(particles: Iterator[tuple[np.ndarray, np.ndarray]], config: Config) -> tuple[Array, float, float]:
    """Density in units of its mean, sum of all masses, and sum of their squares."""
    waiting, mass, squares, unit = _Waiting(config), 0.0, 0.0, 0.0
    density = jax.device_put(jnp.zeros(config.mesh_shape), config.decomposition.sharding)
    for x, masses in particles:
        mass, squares = mass + float(masses.sum()), squares + float((masses**2).sum())
        unit = unit or float(masses.max(initial=0))  # else single precision may not hold masses
        waiting.add(x, masses / (unit or 1))
        while waiting.counts.max() >= waiting.capacity:
            density = density + waiting.paint()
    while waiting.counts.any():
        density = density + waiting.paint()
    mean = mass / math.prod(config.mesh_shape)
    return density * (unit / mean if mean else 0.0), mass, squares


class _Waiting:
    """Buffer of particles to be painted, by block of the mesh.

    Every process reads all particles and counts them by block, so that all processes paint at the same times. It
    stores only the particles of its own blocks.
    """

    def __init__(self, config: Config):
        self.config, self.sharding = config, config.decomposition.sharding
        px, py = config.decomposition.pdims
        self.shape: Shape3 = (config.particle_shape[0] // px, config.particle_shape[1] // py, config.particle_shape[2])
        self.capacity = math.prod(self.shape)
        self.counts = np.zeros((px, py), np.int64)
        mine = self.sharding.addressable_devices_indices_map(config.particle_shape).values()
        self.rows: dict[tuple[int, int], np.ndarray] = {self._block(index): np.zeros((0, 4)) for index in mine if index}

    def add(self, x: np.ndarray, masses: np.ndarray) -> None:
        """Add particles at positions x [Mpc/h]."""
        box, mesh = np.asarray(self.config.box_size), np.asarray(self.config.mesh_shape)
        x = x - box * np.floor(x / box)
        cell = np.minimum((x[:, :2] * (mesh / box)[:2]).astype(np.int64), mesh[:2] - 1)
        of_block = cell // (mesh[:2] // self.counts.shape)
        number = np.ravel_multi_index(tuple(of_block.T), self.counts.shape)
        self.counts += np.bincount(number, minlength=self.counts.size).reshape(self.counts.shape)
        particles = np.concatenate([x, masses[:, None]], 1)
        for block, before in self.rows.items():
            mine = number == block[0] * self.counts.shape[1] + block[1]
            self.rows[block] = np.concatenate([before, particles[mine]])

    def paint(self) -> Array:
        """Paint as many particles as the lattice of each block holds."""
        taken = {block: self._take(block) for block in self.rows}
        self.counts = np.maximum(self.counts - self.capacity, 0)
        shape, dtype = self.config.particle_shape, jnp.result_type(float)

        def array(columns: slice, shape: tuple[int, ...]) -> Array:
            def block(index: Any) -> np.ndarray:
                return taken[self._block(index)][..., columns].reshape(*self.shape, *shape[3:]).astype(dtype)

            return jax.make_array_from_callback(shape, self.sharding, block)

        return cic_paint(array(slice(0, 3), (*shape, 3)), self.config, array(slice(3, 4), shape))

    def _take(self, block: tuple[int, int]) -> np.ndarray:
        """Displacements and masses of the next particles of a block; the other sites of its lattice have no mass."""
        rows, self.rows[block] = np.split(self.rows[block], [self.capacity])
        out = np.zeros((self.capacity, 4))
        first = np.array([*block, 0]) * self.shape
        site = first + np.stack(np.unravel_index(np.arange(len(rows)), self.shape), -1)
        out[: len(rows)] = rows
        out[: len(rows), :3] -= site * (np.asarray(self.config.box_size) / self.config.particle_shape)
        return out

    def _block(self, index: tuple[slice, ...]) -> tuple[int, int]:
        return (index[0].start or 0) // self.shape[0], (index[1].start or 0) // self.shape[1]
