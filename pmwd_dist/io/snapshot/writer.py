"""Write a snapshot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import h5py
import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write, reserve
from pmwd_dist.config import Config
from pmwd_dist.cosmology.parameters import parameters
from pmwd_dist.io.snapshot.base import Part, SnapshotFormat
from pmwd_dist.io.snapshot.content import File
from pmwd_dist.io.snapshot.gadget import GADGET
from pmwd_dist.io.snapshot.swift import SWIFT
from pmwd_dist.parallel.decomposition import Shape3
from pmwd_dist.parallel.distributed import barrier, raise_on_all_processes
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm import inputs
from pmwd_dist.pm.particles import Particles

Format = Literal["gadget", "swift"]
FORMATS: dict[Format, SnapshotFormat] = {"gadget": GADGET, "swift": SWIFT}
_HEADER_BYTES = 100_000
_CACHE = 1 << 25  # bytes of HDF5's chunk cache
_CHUNK = 1 << 22  # particles written at a time
_ROWS = 1 << 16  # particles in a chunk of an array, which has a checksum


def save_snapshot(
    path: str | Path, particles: Particles, cosmo: Any, config: Config, a: float, *, format: Format = "gadget"
) -> Path:
    """Write particles at scale factor a. Collective.

    Gadget's units are kpc/h, 1e10 Msun/h, km/s per sqrt(a); SWIFT's are Mpc, 1e10 Msun, km/s. Particle IDs are indices
    of lattice sites. With several processes, each writes its own particles to name.0.hdf5, name.1.hdf5, ...

    Args:
      path: path of the file.
      particles: particles at scale factor a, displacements and momenta [Mpc/h].
      cosmo: cosmology of the header.
      config: configuration of the simulation.
      a: scale factor.
      format: "gadget" or "swift".

    Returns:
      The file of this process.

    Raises:
      ValueError: the format is unknown or can't hold the box, or the particles are of another config, or not finite in
        the precision of the file.
      OSError: the file can't be written; it is absent then.

    Examples:
      >>> pmd.save_snapshot("snapshot_z0.000.hdf5", solution.particles, cosmo, config, a=1.0)
    """
    check_on_host("save_snapshot", (particles, cosmo, a))
    # Momenta are divided over devices as displacements are.
    particles = jax.device_put(inputs.checked_particles(particles, config), config.decomposition.sharding)
    a = inputs.scale_factor(a)
    parameters(cosmo)  # complete
    if format not in FORMATS:
        raise ArgumentError("format", format, "is not known", f"use {' or '.join(map(repr, FORMATS))}")
    kind = FORMATS[format]
    if kind.cubic and len(set(config.box_size)) > 1:
        raise ArgumentError("box_size", config.box_size, f"is not a cube, as format={format!r} needs", "use 'swift'")
    files = jax.process_count()
    path = _file_of_process(Path(path), jax.process_index(), files)
    count = sum(math.prod(s.data.shape[:3]) for s in particles.disp.addressable_shards if s.replica_id == 0)
    part = Part(count, files, cosmo, config, a)
    with atomic_write(path, guard=raise_on_all_processes()) as aside:
        reserve(aside, count * kind.bytes_per_particle + _HEADER_BYTES)
        # Of HDF5 1.10 and newer: everything in the file has a checksum.
        with h5py.File(aside, "w", libver=("v110", "v110"), rdcc_nbytes=_CACHE) as file:
            _create(file, kind, part)
            _write_particles(file, particles, kind, part)
    barrier("snapshot")  # a process may read the files of all next
    return path


def _file_of_process(path: Path, process: int, count: int) -> Path:
    return path if count == 1 else path.with_name(f"{path.stem}.{process}{path.suffix}")


def _create(file: File, kind: SnapshotFormat, part: Part) -> None:
    """Create all groups and arrays, in chunks of equal length, the last almost full."""
    # With the shape of the lattice, particle IDs are the indices of its sites.
    lattice = {"LatticeShape": part.config.particle_shape, "MeshShape": part.config.mesh_shape}
    for name, attributes in (kind.groups(part) | {"ParticleMesh": lattice}).items():
        file.create_group(name).attrs.update(attributes)
    particles = file.create_group("PartType1")
    chunks = max(1, -(-part.count // _ROWS))
    for name, (dtype, attributes) in kind.arrays(part).items():
        shape = (part.count, 3) if name in ("Coordinates", "Velocities") else (part.count,)
        chunk = (max(1, -(-part.count // chunks)), *shape[1:])
        particles.create_dataset(name, shape, dtype, chunks=chunk, fletcher32=True).attrs.update(attributes)
    if kind is SWIFT:
        file["DMParticles"] = h5py.SoftLink("/PartType1")


def _write_particles(file: File, particles: Particles, kind: SnapshotFormat, part: Part) -> None:
    data, config, mass = file["PartType1"], part.config, file["Header"].attrs["MassTable"][1]
    length, momentum, done = kind.length(part.h), kind.momentum(part.a), 0
    for disp, vel in zip(particles.disp.addressable_shards, particles.vel.addressable_shards, strict=True):
        if disp.replica_id != 0:
            continue
        host_disp, host_vel = np.asarray(disp.data), np.asarray(vel.data)
        x0, y0, z0 = (s.start or 0 for s in disp.index[:3])
        step = max(1, _CHUNK // math.prod(host_disp.shape[1:3]))
        for low in range(0, len(host_disp), step):
            first, block = (x0 + low, y0, z0), host_disp[low : low + step]
            with np.errstate(over="ignore"):  # _check_finite finds infinite numbers
                velocities = (host_vel[low : low + step] * momentum).astype(data["Velocities"].dtype)
            coordinates = _coordinates(block, first, config, length).astype(data["Coordinates"].dtype)
            # A position that rounds up to the side of the box becomes zero.
            coordinates[coordinates >= (np.asarray(config.box_size) * length).astype(coordinates.dtype)] = 0
            _check_finite(coordinates, "disp")
            _check_finite(velocities, "vel")
            ids = _ids(block.shape[:3], first, config).ravel()
            values = {
                "Coordinates": coordinates.reshape(-1, 3),
                "Velocities": velocities.reshape(-1, 3),
                "ParticleIDs": ids,
                "Masses": mass,
            }
            for name, array in data.items():
                array[done : done + len(ids)] = values[name]
            done += len(ids)


def _check_finite(values: np.ndarray, name: str) -> None:
    if not np.isfinite(values).all():
        constraint = f"holds values that are not finite in the {values.dtype} of the file"
        raise ArgumentError(f"particles.{name}", values, constraint, "look at the status of nbody", show_value=False)


def _coordinates(disp: np.ndarray, first: Shape3, config: Config, length: float) -> np.ndarray:
    """Positions of a block of particles in the periodic box, in double precision; `length` is the unit per Mpc/h."""
    x = disp.astype(float)
    for axis, (n, box) in enumerate(zip(config.particle_shape, config.box_size, strict=True)):
        sites = (first[axis] + np.arange(disp.shape[axis])) * (box / n)
        x[..., axis] += sites.reshape([-1 if other == axis else 1 for other in range(3)])
        x[..., axis] -= box * np.floor(x[..., axis] / box)
    return x * length


def _ids(shape: tuple[int, ...], first: Shape3, config: Config) -> np.ndarray:
    """Indices of lattice sites, in C order."""
    _, ny, nz = config.particle_shape
    i, j, k = (start + np.arange(n) for start, n in zip(first, shape, strict=True))
    return (i[:, None, None] * ny + j[:, None]) * nz + k
