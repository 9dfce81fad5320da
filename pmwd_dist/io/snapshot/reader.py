"""Read the particles of a snapshot onto their lattice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot.base import KM_S_PER_H0
from pmwd_dist.io.snapshot.files import snapshot_files
from pmwd_dist.io.snapshot.header import SnapshotHeader, read_header, units_note
from pmwd_dist.io.snapshot.lattice import OWN, Sites, displacements
from pmwd_dist.io.snapshot.particles import ORDER, POSITIONS, VELOCITIES, Column, check_arrays, check_box, chunks
from pmwd_dist.io.snapshot.units import LengthUnit
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.particles import Particles

_ROUNDED = (
    "IDs and order of the particles follow no lattice, and displacements are too large to find sites from positions; "
    "start from an earlier time, or write IDs in the order of the lattice"
)


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
    with raise_on_all_processes():
        files = snapshot_files(Path(path))
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


def read_particles(files: Sequence[Path], header: SnapshotHeader, sites: Sites, config: Config) -> Particles:
    """The particles of type 1 on their sites, divided over the devices. Collective."""
    shape, dtype = (*config.particle_shape, 3), jnp.result_type(float)

    def array(column: Column) -> jax.Array:
        def read(index: Any) -> np.ndarray:
            return _read_block(files, column, header, sites, index, config, dtype)

        return jax.make_array_from_callback(shape, config.decomposition.sharding, read)

    with raise_on_all_processes():
        particles = Particles(array(POSITIONS), array(VELOCITIES))
    count = jit(lambda disp: jnp.isnan(disp[..., 0]).sum(), out_shardings=config.decomposition.replicated)
    if missing := int(count(particles.disp)):
        raise ValueError(
            f"{files[0]}: {missing} sites of the lattice of {config.particle_shape} lack particles, and others have "
            f"several: {_ROUNDED if sites.column is None else 'some IDs are there twice'}"
        )
    return particles.made_for(config, header.a)


def check_memory(path: Path, config: Config) -> None:
    """Raise ValueError if the particles can't fit into the memory of this machine."""
    each = 2 * 3 * jnp.dtype(jnp.result_type(float)).itemsize if config.decomposition.platform == "cpu" else 24
    need, (_, total) = each * math.prod(config.particle_shape) / jax.process_count(), available_memory()
    if need > total:
        raise ValueError(f"{path}: its particles need {size(need)} of memory, and this machine has {size(total)}")


def _read_block(
    files: Sequence[Path],
    column: Column,
    header: SnapshotHeader,
    rule: Sites,
    index: tuple[slice, ...],
    config: Config,
    dtype: Any,
) -> np.ndarray:
    """Displacements [Mpc/h] or momenta [Mpc/h] of the lattice sites of one device."""
    shape = config.particle_shape
    low = [s.start or 0 for s in index[:3]]
    high = [n if s.stop is None else s.stop for s, n in zip(index[:3], shape, strict=True)]
    block = np.full((*np.subtract(high, low), 3), np.nan, dtype)
    places = [POSITIONS] if rule.column is None and column is not POSITIONS else []
    for numbers, *others, values in chunks(files, header, 1, (rule.column or ORDER, *places, column)):
        if header.indexed and len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < header.counts[1]:
            raise ValueError(f"{files[0]}: holds other particle IDs than its header says")
        sites = rule.of(numbers, others[0] if others else values, config)
        mine = np.logical_and.reduce([(s >= a) & (s < b) for s, a, b in zip(sites, low, high, strict=True)])
        sites, x = ([site[mine] for site in sites], values[mine]) if not mine.all() else (sites, values)
        # Peculiar velocities [km/s] become momenta.
        x = displacements(x, sites, config) if column is POSITIONS else x * (header.a / KM_S_PER_H0)
        block[tuple(site - first for site, first in zip(sites, low, strict=True))] = x
    return block
