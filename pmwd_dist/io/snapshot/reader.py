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
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import base, content
from pmwd_dist.io.snapshot.base import SnapshotHeader, has_lattice
from pmwd_dist.io.snapshot.content import File, Malformed, opened
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
      ValueError: not a snapshot, damaged, incomplete, larger than the memory, or of another box or lattice than config.
      OSError: a file is missing or can't be read.
    """
    if config is not None:
        check_config(config)
    files = snapshot_files(Path(path))
    header = read_header(files[0])
    _check_files(files, header)
    if config is None:
        config = Config(header.box_size, header.mesh_shape, header.particle_shape)
    _check(header, config)
    _check_memory(files[0], config)
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
    with opened(first) as file:
        count = _number_of_files(file)
    if count == 1:
        return [first]
    stem = re.sub(r"\.\d+$", "", first.stem)
    files: list[Path] = []
    while len(files) < count:  # a wrong number ends at the first file that is missing
        files.append(first.with_name(f"{stem}.{len(files)}{first.suffix}"))
        if not files[-1].exists():
            raise FileNotFoundError(2, f"the snapshot has {count} files, and one is missing", str(files[-1]))
    return files


def _number_of_files(file: File) -> int:
    counts = content.whole_numbers(base.header_of(file), "NumFilesPerSnapshot", 1)
    if len(counts) != 1:
        raise Malformed(f"has Header:NumFilesPerSnapshot = {counts}, which must be one number")
    return counts[0]


def read_header(path: Path) -> SnapshotHeader:
    """The header of one file of a snapshot.

    Raises:
      ValueError: not a snapshot of particles of type 1, or damaged.
      OSError: the file is missing, or can't be opened.
    """
    with opened(path) as file:
        if not content.has(file, "Header"):
            raise Malformed(f"is not a snapshot in a known format, {' or '.join(FORMATS)}: it has no group Header")
        return find_format(file).read_header(file)


def _check_files(files: list[Path], header: SnapshotHeader) -> None:
    """Raise ValueError unless the files are of one snapshot, and hold all its particles."""
    total = 0
    for path in files:
        with opened(path) as file:
            if repr(find_format(file).read_header(file)) != repr(header) or _number_of_files(file) != len(files):
                raise Malformed(f"is of another snapshot than {files[0].name}: their headers differ")
            total += _check_arrays(file)
    if total != math.prod(header.particle_shape):
        expected = math.prod(header.particle_shape)
        raise ValueError(f"{files[0]}: the snapshot holds {total} particles, and by its header {expected}")


def _check_arrays(file: File) -> int:
    """The number of particles in a file, whose arrays agree with each other and with the header."""
    group = content.member(file, "PartType1", h5py.Group)
    counts = {name: len(content.array(group, name, "f", 3)) for name in ("Coordinates", "Velocities")}
    if has_lattice(file):
        counts["ParticleIDs"] = len(content.array(group, "ParticleIDs", "iu", None))
    counts["Header:NumPart_ThisFile"] = base.read_count(file, "NumPart_ThisFile")
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise Malformed(f"has different numbers of particles: {found}")
    return counts["Coordinates"]


def _check_memory(path: Path, config: Config) -> None:
    """Raise ValueError if the particles can't fit into the memory of this machine."""
    each = 2 * 3 * jnp.dtype(jnp.result_type(float)).itemsize if config.decomposition.platform == "cpu" else 24
    need, (_, total) = each * math.prod(config.particle_shape) / jax.process_count(), available_memory()
    if need > total:
        raise ValueError(f"{path}: its particles need {size(need)} of memory, and this machine has {size(total)}")


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
        raise ValueError(
            f"{files[0]}: the snapshot lacks particles of its lattice of {shape}: some IDs are there twice"
        )
    return block


def _chunks(
    files: list[Path], name: str, header: SnapshotHeader, total: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Lattice indices of the particles of all files, and their positions or momenta [Mpc/h]."""
    before = 0
    for path in files:
        with opened(path) as file:
            group, kind = content.member(file, "PartType1", h5py.Group), find_format(file)
            unit = kind.length(header.h, file) if name == "Coordinates" else kind.momentum(header.a, file)
            data, ids = content.array(group, name, "f", 3), None
            if has_lattice(file):
                ids = content.array(group, "ParticleIDs", "iu", None)
            for low in range(0, len(data), _CHUNK):
                with np.errstate(all="ignore"):  # what is not finite is found
                    values = content.rows(data, low, low + _CHUNK).astype(float) / unit
                _check_values(values, name, header)
                sites = before + low + np.arange(len(values)) if ids is None else content.rows(ids, low, low + _CHUNK)
                if len(sites) and not 0 <= int(sites.min()) <= int(sites.max()) < total:
                    raise Malformed("holds more particles, or other particle IDs, than its header says")
                yield sites.astype(np.int64), values
            before += len(data)


def _check_values(values: np.ndarray, name: str, header: SnapshotHeader) -> None:
    """Raise Malformed unless values are finite in single precision, and positions are within a box of the box."""
    if not (np.abs(values) < np.finfo(np.float32).max).all():
        raise Malformed(f"holds {name} that are not finite")
    sides = np.asarray(header.box_size)
    if name == "Coordinates" and not ((values >= -sides) & (values <= 2 * sides)).all():
        raise Malformed(f"holds Coordinates far beyond its box of {header.box_size} Mpc/h")
