"""Write a snapshot: its particles as the chunks of its arrays, computed on the devices.

A chunk has rows of an array as the file holds them, and their checksum by HDF5's filter fletcher32.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array

from pmwd_dist._checks import check_choice
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write, remove, reserve, temporary, write_aside
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config, Vector3
from pmwd_dist.cosmology.parameters import parameters
from pmwd_dist.io.snapshot.base import GADGET, Part, Precision, SnapshotFormat
from pmwd_dist.io.snapshot.content import File
from pmwd_dist.io.snapshot.swift import SWIFT
from pmwd_dist.parallel.decomposition import Shape3
from pmwd_dist.parallel.distributed import barrier, exchange, is_main, raise_on_all_processes
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm import inputs
from pmwd_dist.pm.particles import Particles

Format = Literal["gadget", "swift"]
Compression = Literal["zstd"]
FORMATS: dict[Format, SnapshotFormat] = {"gadget": GADGET, "swift": SWIFT}
_HEADER_BYTES = 100_000
_ROWS = 1 << 17  # usual number of particles of a chunk
_MOST_ROWS = 1 << 20
_AHEAD = 2  # chunks on their way to the host

Chunk = dict[str, np.ndarray]  # words of 32 bits by the name of the array, the last one the checksum


def save_snapshot(
    path: str | Path,
    particles: Particles,
    cosmo: Any,
    config: Config,
    a: float,
    *,
    format: Format = "gadget",
    precision: Precision | None = None,
    compression: Compression | None = None,
) -> Path:
    """Write particles at scale factor a. Collective.

    Gadget's units are kpc/h, 1e10 Msun/h, km/s per sqrt(a); SWIFT's are Mpc, 1e10 Msun, km/s. Particle IDs are indices
    of lattice sites. With several processes, each writes its own particles to name.0.hdf5, name.1.hdf5, ..., and
    name.hdf5 shows them as one file.

    Args:
      path: path of the file.
      particles: particles at scale factor a, displacements and momenta [Mpc/h].
      cosmo: cosmology of the header.
      config: configuration of the simulation.
      a: scale factor.
      format: "gadget" or "swift".
      precision: precision of the positions, "single" or "double"; default: single for Gadget, double for SWIFT.
      compression: "zstd" writes smaller files, more slowly, and readers need hdf5plugin; default: no compression.

    Returns:
      The file of this process.

    Raises:
      ValueError: an option is unknown, the format can't hold the box, or the particles are of another config, or not
        finite in the precision of the file.
      OSError: the file can't be written; it is absent then.

    Examples:
      >>> pmd.save_snapshot("snapshot_z0.000.hdf5", solution.particles, cosmo, config, a=1.0)
    """
    check_on_host("save_snapshot", (particles, cosmo, a))
    options: Any = {"format": format, "precision": precision, "compression": compression}
    snapshot = Snapshot(particles, cosmo, config, a, **options)
    whole, path = Path(path), snapshot.path(Path(path))
    try:
        with raise_on_all_processes(), write_aside(path) as aside:
            snapshot.write(aside, snapshot.chunks())
        os.replace(temporary(path), path)  # the files of all processes are complete
        snapshot.join(whole)
    finally:
        remove(temporary(path))
    barrier("snapshot")  # a process may read the files of all next
    return path


class Snapshot:
    """A snapshot to write: its chunks come from the devices. Collective.

    Args and Raises as for `save_snapshot`.
    """

    def __init__(self, particles: Particles, cosmo: Any, config: Config, a: float, **options: Any):
        # Momenta are divided over devices as displacements are.
        a = inputs.scale_factor(a)
        particles = jax.device_put(inputs.checked_particles(particles, config, a), config.decomposition.sharding)
        parameters(cosmo)  # complete
        kind, self._filters = _checked(config, **options)
        blocks = [shard.data.shape[:3] for shard in particles.disp.addressable_shards if shard.replica_id == 0]
        part = Part(sum(map(math.prod, blocks)), jax.process_count(), cosmo, config, a, kind.positions)
        self._particles, self._kind, self._part = particles, kind, part
        types = tuple((name, code) for name, (code, _) in kind.arrays(part).items())
        self._layout = Layout(types, chunk_rows(blocks[0]), config.box_size, config.particle_shape)
        mass = kind.groups(part)["Header"]["MassTable"][1]
        self._scales = np.asarray([kind.length(part.h), kind.momentum(part.a), mass])
        _check_finite(particles, self._scales[1])

    def path(self, path: Path, process: int | None = None) -> Path:
        """The file of a process; default: of this one."""
        process = jax.process_index() if process is None else process
        return path if self._part.files == 1 else path.with_name(f"{path.stem}.{process}{path.suffix}")

    def chunks(self) -> Iterator[Chunk]:
        """Chunks on the host, in the order of the file."""
        return _chunks(self._particles, self._layout, self._scales)

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        """Write the file of this process."""
        reserve(path, self._part.count * self._kind.bytes_per_particle + _HEADER_BYTES)
        # Of HDF5 1.10 and newer: everything in the file has a checksum.
        with h5py.File(path, "w", libver=("v110", "v110"), locking=False) as file:
            particles = self._create_groups(file, self._part)
            for name, (shape, dtype, attributes) in self._arrays(self._part).items():
                options = {"chunks": (self._layout.rows, *shape[1:]), "fletcher32": True} | self._filters
                particles.create_dataset(name, shape, dtype, **options).attrs.update(attributes)
            arrays = dict(particles)  # h5py takes long to find one
            for number, chunk in enumerate(chunks):
                first = number * self._layout.rows
                for data, words in ((arrays[name], words) for name, words in chunk.items()):
                    if self._filters:
                        rows = words[:-1].view(data.dtype).reshape(-1, *data.shape[1:])
                        data[first : first + len(rows)] = rows
                    else:  # as it is in the file: HDF5 would copy it twice, and sum it up by one thread
                        data.id.write_direct_chunk((first, *(0 for _ in data.shape[1:])), words)

    def join(self, path: Path) -> None:
        """Write the file that shows those of several processes as one. Collective."""
        counts = [int(text) for text in exchange(str(self._part.count))]
        with raise_on_all_processes():
            if len(counts) > 1 and is_main():
                own = self._part
                part = Part(sum(counts), 1, own.cosmo, own.config, own.a, own.positions)
                with atomic_write(path) as aside, h5py.File(aside, "w", libver=("v110", "v110"), locking=False) as file:
                    particles = self._create_groups(file, part)
                    file["Header"].attrs["Virtual"] = np.ones(1, "i4")  # as of SWIFT
                    for name, (shape, dtype, attributes) in self._arrays(part).items():
                        layout, first = h5py.VirtualLayout(shape, dtype), 0
                        for process, count in enumerate(counts):
                            block = self.path(path, process).name, f"PartType1/{name}", (count, *shape[1:]), dtype
                            layout[first : first + count] = h5py.VirtualSource(*block)
                            first += count
                        particles.create_virtual_dataset(name, layout).attrs.update(attributes)

    def _arrays(self, part: Part) -> dict[str, tuple[tuple[int, ...], str, dict[str, Any]]]:
        """Shape, type and attributes of each array."""
        vectors, arrays = ("Coordinates", "Velocities"), self._kind.arrays(part)
        return {name: ((part.count, *(3,) * (name in vectors)), *about) for name, about in arrays.items()}

    def _create_groups(self, file: File, part: Part) -> Any:
        """Create all groups of a file, and return the one of the particles."""
        kind = self._kind
        # With the shape of the lattice, particle IDs are the indices of its sites.
        lattice = {"LatticeShape": part.config.particle_shape, "MeshShape": part.config.mesh_shape}
        for name, attributes in (kind.groups(part) | {"ParticleMesh": lattice}).items():
            file.create_group(name).attrs.update(attributes)
        if kind.groups is SWIFT.groups:
            file["DMParticles"] = h5py.SoftLink("/PartType1")
        return file.create_group("PartType1")


def _checked(
    config: Config, format: str, precision: str | None, compression: str | None
) -> tuple[SnapshotFormat, dict[str, Any]]:
    """The format, and the options of a dataset with its filters; ValueError if the format can't hold the box."""
    check_choice(format, "format", get_args(Format))
    check_choice(precision, "precision", (None, *get_args(Precision)))
    check_choice(compression, "compression", (None, *get_args(Compression)))
    kind: Any = FORMATS[format].of(precision)  # type: ignore[index]
    if kind.cubic and len(set(config.box_size)) > 1:
        raise ArgumentError("box_size", config.box_size, f"is not a cube, as format={format!r} needs", "use 'swift'")
    return kind, {} if compression is None else {"shuffle": True} | zstd_filter()


def zstd_filter() -> dict[str, Any]:
    """Options of a dataset that is compressed fast; ArgumentError without hdf5plugin."""
    try:
        import hdf5plugin
    except ImportError as error:
        remedy = "install it with `pip install hdf5plugin`"
        raise ArgumentError("compression", "zstd", "needs hdf5plugin", remedy) from error
    return dict(hdf5plugin.Zstd(clevel=1))


def _check_finite(particles: Particles, momentum: float) -> None:
    """Raise ValueError, on all processes, if values are not finite in single precision."""
    remedy = "look at the status of nbody"
    for name, values, factor in (("disp", particles.disp, 1.0), ("vel", particles.vel, momentum)):
        if not bool(_finite(values, np.asarray(factor, values.dtype))):
            constraint = "holds values that are not finite in the float32 of the file"
            raise ArgumentError(f"particles.{name}", values, constraint, remedy, show_value=False)


@jit
def _finite(values: Array, factor: Array) -> Array:
    return jnp.isfinite((values * factor).astype(np.float32)).all()


# --- chunks -------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Names and types of the arrays, particles of a chunk, sides of the box [Mpc/h], and shape of the lattice."""

    types: tuple[tuple[str, str], ...]
    rows: int
    box: Vector3
    lattice: Shape3


def chunk_rows(block: Shape3) -> int:
    """Number of particles of a chunk: a divisor of the number of particles of a device."""
    count = math.prod(block)
    divisors = np.arange(1, min(count, _MOST_ROWS) + 1)
    divisors = divisors[count % divisors == 0]
    return int(divisors[np.argmin(np.abs(np.log(divisors / _ROWS)))])


def _chunks(particles: Particles, layout: Layout, scales: Any) -> Iterator[Chunk]:
    """The chunks of the particles of this process, in the order of the file; a few of them exist at a time.

    `scales` are length and momentum of a Mpc/h, and the mass of a particle, in the units of the file.
    """
    waiting = deque[dict[str, Array]]()
    for disp, vel in zip(particles.disp.addressable_shards, particles.vel.addressable_shards, strict=True):
        first, gpu = np.asarray([s.start or 0 for s in disp.index[:3]]), disp.device.platform == "gpu"
        # A GPU copies into pinned memory by itself, and NumPy uses that memory without a copy.
        host = SingleDeviceSharding(disp.device, memory_kind="pinned_host") if gpu else None
        for start in range(0, math.prod(disp.data.shape[:3]), layout.rows) if disp.replica_id == 0 else ():
            with jax.enable_x64(True):  # for positions and IDs
                chunk = _chunk(disp.data, vel.data, np.int64(start), first, scales, layout)
            waiting.append(jax.device_put(chunk, host))
            if len(waiting) > _AHEAD:
                yield jax.tree.map(np.asarray, waiting.popleft())
    yield from (jax.tree.map(np.asarray, chunk) for chunk in waiting)


@partial(jit, static_argnames="layout")
def _chunk(disp: Array, vel: Array, start: Array, first: Array, scales: Any, layout: Layout) -> dict[str, Array]:
    """Rows from `start` of the particles of a device, whose block of the lattice begins at the site `first`."""
    _, ly, lz = (np.int32(n) for n in disp.shape[:3])
    plane = start // (ly * lz)
    row = (start - plane * (ly * lz)).astype(np.int32) + jax.lax.iota(np.int32, layout.rows)
    line = row // lz
    sites = [(plane + first[0]).astype(np.int32) + line // ly, first[1].astype(np.int32) + line % ly]
    sites.append(first[2].astype(np.int32) + row % lz)
    disp, vel = (jax.lax.dynamic_slice_in_dim(x.reshape(-1, 3), start, layout.rows) for x in (disp, vel))
    types = {name: np.dtype(code) for name, code in layout.types}
    length, momentum, mass = scales
    i, j, k = (x.astype(types["ParticleIDs"]) for x in sites)
    values = {
        "Coordinates": _positions(disp, sites, length, types["Coordinates"], layout),
        "Velocities": vel * momentum.astype(vel.dtype),
        "ParticleIDs": (i * layout.lattice[1] + j) * layout.lattice[2] + k,
        "Masses": jnp.full(layout.rows, mass),
    }
    in_file = {name: values[name].astype(dtype) for name, dtype in types.items()}
    words = {name: jax.lax.bitcast_convert_type(x, np.uint32).reshape(-1) for name, x in in_file.items()}
    return {name: jnp.append(x, _fletcher32(x)) for name, x in words.items()}


def _positions(disp: Array, sites: Sequence[Array], length: Array, dtype: np.dtype, layout: Layout) -> Array:
    """Positions in the periodic box; they are rounded once, to the type of the file."""
    columns = list[Array]()
    for axis, (box, n) in enumerate(zip(layout.box, layout.lattice, strict=True)):
        x = sites[axis] * (box / n) + disp[:, axis].astype(np.float64)
        x = ((x - box * jnp.floor(x / box)) * length).astype(dtype)
        # Zero for positions that round up to the side of the box, and displacements too large to be resolved.
        columns.append(jnp.where((x >= 0) & (x < (box * length).astype(dtype)), x, jnp.zeros_like(x)))
    return jnp.stack(columns, -1)


def _fletcher32(words: Array) -> Array:
    """Checksum of the bytes of a chunk as HDF5 stores it.

    Of big-endian numbers w_i of 16 bits: sum w_i, and sum (n - i) w_i in the upper half, both modulo 2^16 - 1. A sum is
    zero only if all numbers are. Modulo 2^16 - 1, the bytes of a number are swapped by a factor of 256.
    """
    low, high = words & np.uint32(0xFFFF), words >> np.uint32(16)
    both = (low + high).astype(np.uint64)
    left = np.uint64(2 * words.size) - np.uint64(2) * jax.lax.iota(np.uint64, words.size)
    base = np.uint64(0xFFFF)
    first, second = (
        jnp.where(total == 0, total, (total % base * np.uint64(256) + base - np.uint64(1)) % base + np.uint64(1))
        for total in (both.sum(), (left * both - high.astype(np.uint64)).sum())
    )
    return (second << np.uint64(16) | first).astype(np.uint32)
