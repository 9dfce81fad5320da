"""Read the particles of a snapshot onto their lattice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import content
from pmwd_dist.io.snapshot.base import KM_S_PER_H0
from pmwd_dist.io.snapshot.content import Malformed, opened
from pmwd_dist.io.snapshot.files import snapshot_files
from pmwd_dist.io.snapshot.header import SnapshotHeader, has_lattice, read_header, units_note
from pmwd_dist.io.snapshot.particles import (
    CHUNK,
    IDS,
    POSITIONS,
    VELOCITIES,
    Names,
    array_of,
    check_arrays,
    check_box,
    check_positions,
    count_of,
    scale_of,
    scaled_rows,
)
from pmwd_dist.io.snapshot.units import LengthUnit
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.particles import Particles


def load_snapshot(
    path: str | Path, config: Config | None = None, *, length_unit: LengthUnit | None = None
) -> tuple[Particles, SnapshotHeader]:
    """Read the dark matter (type 1) of a snapshot onto the devices of a config.

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

    Examples:
      >>> particles, header = pmd.load_snapshot("snapshot_z0.000.hdf5", config)
    """
    if config is not None:
        check_config(config)
    files = snapshot_files(Path(path))
    header = read_header(files, length_unit)
    if header.counts[1] == 0:
        raise ValueError(f"{files[0]}: has no particles of type 1, dark matter")
    check_arrays(files, header, 1, (POSITIONS, VELOCITIES))
    if config is None:
        config = Config(header.box_size, header.mesh_shape, header.particle_shape)
    _check(header, config)
    _check_memory(files[0], config)
    if note := units_note(header, files[0], "length_unit="):
        warnings.warn(note, stacklevel=2)
    shape, dtype = (*config.particle_shape, 3), jnp.result_type(float)

    def array(names: Names) -> jax.Array:
        def read(index: Any) -> np.ndarray:
            return _read_block(files, names, header, index, config, length_unit).astype(dtype)

        return jax.make_array_from_callback(shape, config.decomposition.sharding, read)

    return Particles(array(POSITIONS), array(VELOCITIES)), header


def _check_memory(path: Path, config: Config) -> None:
    """Raise ValueError if the particles can't fit into the memory of this machine."""
    each = 2 * 3 * jnp.dtype(jnp.result_type(float)).itemsize if config.decomposition.platform == "cpu" else 24
    need, (_, total) = each * math.prod(config.particle_shape) / jax.process_count(), available_memory()
    if need > total:
        raise ValueError(f"{path}: its particles need {size(need)} of memory, and this machine has {size(total)}")


def _check(header: SnapshotHeader, config: Config) -> None:
    check_box(header, config)
    if header.particle_shape != config.particle_shape:
        constraint = f"is not that of the snapshot, {header.particle_shape}"
        raise ArgumentError("particle_shape", config.particle_shape, constraint)


def _read_block(
    files: Sequence[Path],
    names: Names,
    header: SnapshotHeader,
    index: tuple[slice, ...],
    config: Config,
    length_unit: str | None,
) -> np.ndarray:
    """Displacements [Mpc/h] or momenta [Mpc/h] of the lattice sites of one device."""
    shape, box = config.particle_shape, np.asarray(config.box_size)
    low = np.asarray([s.start or 0 for s in index[:3]])
    high = np.asarray([n if s.stop is None else s.stop for s, n in zip(index[:3], shape, strict=True)])
    block = np.full((*(high - low), 3), np.nan)
    for ids, values in _chunks(files, names, header, length_unit):
        site = np.stack(np.unravel_index(ids, shape), -1)
        mine = ((site >= low) & (site < high)).all(-1)
        site, x = site[mine], values[mine]
        if names is POSITIONS:
            x = x - site * (box / shape)
            x -= box * np.rint(x / box)
        block[tuple((site - low).T)] = x
    if np.isnan(block).any():
        raise ValueError(
            f"{files[0]}: the snapshot lacks particles of its lattice of {shape}: some IDs are there twice"
        )
    return block


def _chunks(
    files: Sequence[Path], names: Names, header: SnapshotHeader, length_unit: str | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Lattice indices of the particles of all files, and their positions or momenta [Mpc/h]."""
    before, total = 0, header.counts[1]
    for path in files:
        with opened(path) as file:
            if not count_of(file, 1):
                continue
            data = array_of(file, 1, names)
            ids = array_of(file, 1, IDS) if has_lattice(file) else None
            if names is POSITIONS:
                scale = scale_of("length", file, header, data, length_unit)
            else:  # peculiar velocities in km/s are KM_S_PER_H0 / a times momenta
                scale = scale_of("velocity", file, header, data) * header.a / KM_S_PER_H0
            for low in range(0, len(data), CHUNK):
                values = scaled_rows(data, low, scale)
                if names is POSITIONS:
                    check_positions(values, header)
                sites = before + low + np.arange(len(values)) if ids is None else content.rows(ids, low, low + CHUNK)
                if len(sites) and not 0 <= int(sites.min()) <= int(sites.max()) < total:
                    raise Malformed("holds more particles, or other particle IDs, than its header says")
                yield sites.astype(np.int64), values
            before += len(data)
