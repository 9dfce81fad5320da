"""Read a snapshot, ours or of another code."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot.base import File, SnapshotHeader, has_lattice
from pmwd_dist.io.snapshot.formats import FORMATS, find_format
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.particles import Particles

_CHUNK = 1 << 22  # particles read at a time


def load_snapshot(path: str | Path, config: Config | None = None) -> tuple[Particles, SnapshotHeader]:
    """Read a snapshot, one file or all files of it, onto the devices of a config.

    Args:
      path: a file, any of several (name.0.hdf5), or their common name (name.hdf5).
      config: whose box and lattice must be those of the snapshot; default: one made from its header.

    Raises:
      ValueError: not a snapshot, incomplete, or of another box or lattice than config.
      OSError: a file is missing or can't be read.
    """
    if config is not None:
        check_config(config)
    files = snapshot_files(Path(path))
    header = read_header(files[0])
    if config is None:
        config = Config(header.box_size, header.mesh_shape, header.particle_shape)
    _check(header, config)
    shape, dtype = (*config.particle_shape, 3), jnp.result_type(float)

    def array(name: str) -> jax.Array:
        def read(index: Any) -> np.ndarray:
            return _read_block(files, name, header, index, config).astype(dtype)

        return jax.make_array_from_callback(shape, config.decomposition.sharding, read)

    return Particles(array("Coordinates"), array("Velocities")), header


def snapshot_files(path: Path) -> list[Path]:
    """All files of the snapshot to which this path belongs.

    Raises:
      OSError: one of them is missing.
    """
    first = path if path.exists() else path.with_name(f"{path.stem}.0{path.suffix}")
    if not first.exists():
        raise FileNotFoundError(2, "no such snapshot", str(path))
    with _opened(first) as file:
        count = int(np.ravel(file["Header"].attrs["NumFilesPerSnapshot"])[0])
    if count == 1:
        return [first]
    stem = re.sub(r"\.\d+$", "", first.stem)
    files = [first.with_name(f"{stem}.{i}{first.suffix}") for i in range(count)]
    for file_ in files:
        if not file_.exists():
            raise FileNotFoundError(2, f"the snapshot has {count} files, and one is missing", str(file_))
    return files


def read_header(path: Path) -> SnapshotHeader:
    """The header of one file of a snapshot.

    Raises:
      ValueError: not a snapshot of particles of type 1.
      OSError: the file can't be read.
    """
    with _opened(path) as file:
        try:
            return find_format(file).read_header(file)
        except (KeyError, IndexError) as error:
            cause = str(error).strip("\"'")
            known = ", ".join(FORMATS)
            raise ValueError(f"{path}: not a snapshot of dark matter in a known format, {known} ({cause})") from error


def _opened(path: Path) -> File:
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: not an HDF5 file, or damaged") from error


def _check(header: SnapshotHeader, config: Config) -> None:
    if not np.allclose(header.box_size, config.box_size, rtol=1e-5):
        raise ArgumentError("box_size", config.box_size, f"is not that of the snapshot, {header.box_size}")
    if header.particle_shape != config.particle_shape:
        constraint = f"is not that of the snapshot, {header.particle_shape}"
        raise ArgumentError("particle_shape", config.particle_shape, constraint)


def _read_block(
    files: list[Path], name: str, header: SnapshotHeader, index: tuple[slice, ...], config: Config
) -> np.ndarray:
    """Displacements [Mpc/h] or momenta [Mpc/h] of the lattice sites of one device."""
    shape, box = config.particle_shape, np.asarray(config.box_size)
    low = np.asarray([s.start or 0 for s in index[:3]])
    high = np.asarray([n if s.stop is None else s.stop for s, n in zip(index[:3], shape, strict=True)])
    block = np.full((*(high - low), 3), np.nan)
    for ids, values in _chunks(files, name, header, math.prod(shape)):
        site = np.stack(np.unravel_index(ids, shape), -1)
        mine = ((site >= low) & (site < high)).all(-1)
        site, x = site[mine], values[mine]
        if name == "Coordinates":
            x = x - site * (box / shape)
            x -= box * np.rint(x / box)
        block[tuple((site - low).T)] = x
    if np.isnan(block).any():
        raise ValueError(f"{files[0]}: the snapshot lacks particles of its lattice of {shape}, or holds NaN")
    return block


def _chunks(
    files: list[Path], name: str, header: SnapshotHeader, total: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Lattice indices of the particles of all files, and their positions or momenta [Mpc/h]."""
    before = 0
    for path in files:
        with _opened(path) as file:
            group, kind = file["PartType1"], find_format(file)
            unit = kind.length(header.h, file) if name == "Coordinates" else kind.momentum(header.a)
            for low in range(0, len(group[name]), _CHUNK):
                values = group[name][low : low + _CHUNK].astype(float) / unit
                if has_lattice(file):
                    ids = group["ParticleIDs"][low : low + _CHUNK].astype(np.int64)
                else:
                    ids = before + low + np.arange(len(values))
                if len(ids) and (ids.min() < 0 or ids.max() >= total):
                    raise ValueError(f"{path}: holds more particles, or other particle IDs, than its header says")
                yield ids, values
            before += len(group[name])
