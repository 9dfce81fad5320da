"""Snapshots that other codes read: Gadget HDF5 (pynbody, yt) and SWIFT (swiftsimio). One file a process."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._files import atomic_write, reserve
from pmwd_dist.config import Config
from pmwd_dist.io import _snapshot_format as layout
from pmwd_dist.io._snapshot_format import KM_S_PER_H0, Units
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.pm.particles import Particles

Format = Literal["gadget", "swift"]
_HEADER_BYTES = 100_000
_CHUNK = 1 << 22  # particles written or read at a time


@dataclass(frozen=True)
class SnapshotHeader:
    """What a snapshot says about itself.

    Args:
      a: scale factor.
      box_size: three sides [Mpc/h].
      particle_shape: Lagrangian lattice, to whose sites the particle IDs are the index; for a snapshot of
        another code the lattice that its number of particles fills, in the order of the file.
      mesh_shape: force mesh; the lattice where it isn't known.
      Omega_m, Omega_b, h: of the cosmology; Omega_b is NaN where it isn't known.
      format: "gadget" or "swift".
    """

    a: float
    box_size: tuple[float, float, float]
    particle_shape: tuple[int, int, int]
    mesh_shape: tuple[int, int, int]
    Omega_m: float
    Omega_b: float
    h: float
    format: Format

    @property
    def redshift(self) -> float:
        """Redshift."""
        return 1 / self.a - 1


def save_snapshot(
    path: str | Path, particles: Particles, cosmo: Any, config: Config, a: float, *, format: Format = "gadget"
) -> Path:
    """Write particles at scale factor a; collective where a program has several processes.

    Gadget: kpc/h, 1e10 Msun/h, km/s per sqrt(a). SWIFT: Mpc, 1e10 Msun, km/s. Particle IDs are the index of the
    lattice site. With several processes, each writes its own particles to name.0.hdf5, name.1.hdf5, ...

    Returns:
      The file of this process.

    Raises:
      ValueError: an unknown format, or a box that the format can't hold.
      OSError: the file can't be written; there is none then.
    """
    if format not in ("gadget", "swift"):
        raise ValueError(f'format={format!r} is not known; use "gadget" or "swift"')
    if format == "gadget" and len(set(config.box_size)) > 1:
        raise ValueError(f'box_size={config.box_size} is not a cube, as format="gadget" needs; use format="swift"')
    path = _file_of_process(Path(path), jax.process_index(), jax.process_count())
    count = sum(math.prod(shape) for _, shape in _blocks(particles.disp))
    units = layout.units(format, float(cosmo.h))
    with atomic_write(path, guard=raise_on_all_processes()) as aside:
        reserve(aside, count * layout.particle_bytes(format) + _HEADER_BYTES)
        with h5py.File(aside, "w") as file:
            layout.write_header(file, units, count, cosmo, config, a)
            _write_particles(file, particles, units, config, a)
    return path


def load_snapshot(path: str | Path, config: Config | None = None) -> tuple[Particles, SnapshotHeader]:
    """Read a snapshot, one file or all files of it, onto the devices of a config.

    Args:
      path: a file, any of several (name.0.hdf5), or their common name (name.hdf5).
      config: whose box and lattice must be those of the snapshot; default: one made from its header.

    Raises:
      ValueError: not a snapshot, incomplete, or of another box or lattice than config.
      OSError: a file is missing or can't be read.
    """
    files = snapshot_files(Path(path))
    header = read_header(files[0])
    if config is None:
        config = Config(header.box_size, header.mesh_shape, header.particle_shape)
    _check(header, config)
    shape = (*config.particle_shape, 3)

    def array(name: str) -> jax.Array:
        dtype = jnp.result_type(float)
        read = lambda index: _read_block(files, name, header, index, config).astype(dtype)  # noqa: E731
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
            return SnapshotHeader(**layout.read_header(file))
        except (KeyError, IndexError) as error:
            raise ValueError(f"{path}: not a Gadget or SWIFT snapshot with dark matter ({_text(error)})") from error


def _opened(path: Path) -> Any:  # h5py types whatever lies in a file as one of three
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: not an HDF5 file, or damaged") from error


def _text(error: Exception) -> str:
    return str(error).strip("\"'")


def _file_of_process(path: Path, process: int, count: int) -> Path:
    return path if count == 1 else path.with_name(f"{path.stem}.{process}{path.suffix}")


def _blocks(array: jax.Array) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """First lattice site and shape of each block that this process writes."""
    return [(_start(s.index), s.data.shape[:3]) for s in array.addressable_shards if s.replica_id == 0]


def _start(index: tuple[slice, ...]) -> tuple[int, int, int]:
    starts = [s.start or 0 for s in index[:3]]
    return starts[0], starts[1], starts[2]


def _write_particles(file: Any, particles: Particles, units: Units, config: Config, a: float) -> None:
    data = layout.create_datasets(file, units, config, sum(math.prod(n) for _, n in _blocks(particles.disp)), a)
    velocity = KM_S_PER_H0 / a * units.velocity(a)
    done = 0
    for disp, vel in zip(particles.disp.addressable_shards, particles.vel.addressable_shards, strict=True):
        if disp.replica_id != 0:
            continue
        host_disp, host_vel, start = np.asarray(disp.data), np.asarray(vel.data), _start(disp.index)
        for planes in _plane_chunks(host_disp.shape):
            first = (start[0] + planes.start, start[1], start[2])
            x = _coordinates(host_disp[planes], first, config) * units.length
            to = slice(done, done + math.prod(x.shape[:3]))
            data["Coordinates"][to] = _within_box(x, data["Coordinates"].dtype, config, units).reshape(-1, 3)
            data["Velocities"][to] = (host_vel[planes] * velocity).reshape(-1, 3)
            data["ParticleIDs"][to] = _ids(x.shape[:3], first, config).ravel()
            done = to.stop


def _coordinates(disp: np.ndarray, first: tuple[int, int, int], config: Config) -> np.ndarray:
    """Positions of a block of particles in the periodic box [Mpc/h], in double precision."""
    x = disp.astype(float)
    for axis, (n, box) in enumerate(zip(config.particle_shape, config.box_size, strict=True)):
        sites = (first[axis] + np.arange(disp.shape[axis])) * (box / n)
        x[..., axis] += sites.reshape([-1 if other == axis else 1 for other in range(3)])
        x[..., axis] -= box * np.floor(x[..., axis] / box)
    return x


def _within_box(x: np.ndarray, dtype: np.dtype, config: Config, units: Units) -> np.ndarray:
    """In the precision of the file; rounding may end on the far side of the box, where no particle may be."""
    coordinates = x.astype(dtype)
    coordinates[coordinates >= (np.asarray(config.box_size) * units.length).astype(dtype)] = 0
    return coordinates


def _ids(shape: tuple[int, ...], first: tuple[int, int, int], config: Config) -> np.ndarray:
    """Indices of lattice sites, in C order."""
    _, ny, nz = config.particle_shape
    i, j, k = (start + np.arange(n) for start, n in zip(first, shape, strict=True))
    return (i[:, None, None] * ny + j[:, None]) * nz + k


def _plane_chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, _CHUNK // math.prod(shape[1:3]))
    for low in range(0, shape[0], step):
        yield slice(low, min(low + step, shape[0]))


def _check(header: SnapshotHeader, config: Config) -> None:
    if not np.allclose(header.box_size, config.box_size, rtol=1e-5):
        raise ValueError(f"box_size={config.box_size} is not that of the snapshot, {header.box_size}")
    if header.particle_shape != config.particle_shape:
        raise ValueError(f"particle_shape={config.particle_shape} is not that of the snapshot, {header.particle_shape}")


def _read_block(
    files: list[Path], name: str, header: SnapshotHeader, index: tuple[slice, ...], config: Config
) -> np.ndarray:
    """Displacements [Mpc/h] or momenta [Mpc/h] of the lattice sites of one device."""
    shape, box = config.particle_shape, np.asarray(config.box_size)
    low = np.asarray(_start(index))
    high = np.asarray([n if s.stop is None else s.stop for s, n in zip(index[:3], shape, strict=True)])
    block = np.full((*(high - low), 3), np.nan)
    units = layout.units(header.format, header.h)
    for ids, values, in_file in _chunks(files, name, math.prod(shape)):
        site = np.stack(np.unravel_index(ids, shape), -1)
        mine = ((site >= low) & (site < high)).all(-1)
        site, x = site[mine], values[mine].astype(float)
        if name == "Velocities":
            x = x / (KM_S_PER_H0 / header.a * units.velocity(header.a))
        else:
            x = x / (in_file or units.length) - site * (box / shape)
            x -= box * np.rint(x / box)
        block[tuple((site - low).T)] = x
    if np.isnan(block).any():
        raise ValueError(f"{files[0]}: the snapshot lacks particles of its lattice of {shape}, or holds NaN")
    return block


def _chunks(files: list[Path], name: str, total: int) -> Iterator[tuple[np.ndarray, np.ndarray, float | None]]:
    """Lattice indices and values of the particles of all files, and the file's own unit of length per Mpc/h."""
    before = 0
    for path in files:
        with _opened(path) as file:
            group, unit = file["PartType1"], layout.length_unit(file)
            for low in range(0, len(group[name]), _CHUNK):
                values = group[name][low : low + _CHUNK]
                own = before + low + np.arange(len(values))
                ids = group["ParticleIDs"][low : low + _CHUNK].astype(np.int64) if layout.has_lattice(file) else own
                if len(ids) and (ids.min() < 0 or ids.max() >= total):
                    raise ValueError(f"{path}: holds more particles, or other particle IDs, than its header says")
                yield ids, values, unit
            before += len(group[name])
