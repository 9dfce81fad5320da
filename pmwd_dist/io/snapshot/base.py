"""The parts of a snapshot format, and those that all formats share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import h5py
import numpy as np

from pmwd_dist.config import Config, Vector3
from pmwd_dist.io.snapshot import content
from pmwd_dist.io.snapshot.content import File, Malformed
from pmwd_dist.parallel.decomposition import Shape3

KM_S_PER_H0 = 100.0  # H0 times 1 Mpc/h [km/s]
CM_PER_MPC = 3.085677581e24
GRAM_PER_MASS = 1.98841e43  # 1e10 Msun
_CRITICAL_DENSITY = 27.7536627  # 3 H0^2 / (8 pi G) [1e10 Msun/h (Mpc/h)^-3]
TYPES = 6  # kinds of particles; ours are of type 1, dark matter
# Ranges of what a header holds: wide, but without what no universe has.
HUBBLE, OMEGA, REDSHIFT, SCALE = (1e-3, 1e3), (0.0, 1e3), (-0.999, 1e6), (1e-6, 1e3)
_SIDE = 1e-9, 1e9  # of a box [Mpc/h]
_CENTIMETRES = 1e-3, 1e33  # of a unit of length
_ROWS = 1 << 16  # particles in a chunk of an array, which has a checksum


@dataclass(frozen=True)
class SnapshotHeader:
    """Header of a snapshot.

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
    box_size: Vector3
    particle_shape: Shape3
    mesh_shape: Shape3
    Omega_m: float
    Omega_b: float
    h: float
    format: str

    @property
    def redshift(self) -> float:
        """Redshift."""
        return 1 / self.a - 1


class Part:
    """The part of a snapshot that one file holds, and the numbers in its header.

    Args:
      count: particles in this file.
      files: number of files of the snapshot.
      cosmo: cosmology; its h, Omega_b, Omega_m and Omega_lambda are attributes.
      config: the simulation; the mass of a particle [1e10 Msun/h] is an attribute.
      a: scale factor.
    """

    def __init__(self, count: int, files: int, cosmo: Any, config: Config, a: float):
        self.count, self.files, self.cosmo, self.config, self.a = count, files, cosmo, config, float(a)
        self.h, self.Omega_b = float(cosmo.h), float(cosmo.Omega_b)
        self.Omega_m = float(cosmo.Omega_c) + self.Omega_b
        self.Omega_lambda = 1 - float(cosmo.Omega_k) - self.Omega_m
        volume = math.prod(config.box_size) / math.prod(config.particle_shape)
        self.mass = self.Omega_m * _CRITICAL_DENSITY * volume


class SnapshotFormat(ABC):
    """A snapshot format: its units, groups and attributes. A new one is a subclass, listed in `formats`."""

    name: ClassVar[str]
    bytes_per_particle: ClassVar[int]  # at most
    cubic: ClassVar[bool]  # whether it holds cubic boxes only

    @abstractmethod
    def length(self, h: float, file: File | None = None) -> float:
        """Lengths per Mpc/h; of an open file by its own unit, if it names one."""

    @abstractmethod
    def momentum(self, a: float, file: File | None = None) -> float:
        """Velocities per canonical momentum [Mpc/h]; of an open file by its own unit, if it names one.

        Peculiar velocities in km/s are KM_S_PER_H0 / a times it.
        """

    @abstractmethod
    def write_header(self, file: File, part: Part) -> None:
        """Write all groups but those of the particles."""

    @abstractmethod
    def create_datasets(self, file: File, part: Part) -> None:
        """Create Coordinates, Velocities and ParticleIDs in PartType1, with a description of their units."""

    @abstractmethod
    def matches(self, file: File) -> bool:
        """Whether an open file is of this format."""

    @abstractmethod
    def read_header(self, file: File) -> SnapshotHeader:
        """The header of an open file; Malformed if it is not a snapshot with dark matter."""


def write_lattice(file: File, config: Config) -> None:
    """Write a group of our own that says what the particle IDs mean."""
    own = file.create_group("ParticleMesh")
    own.attrs["LatticeShape"] = np.asarray(config.particle_shape, "i8")
    own.attrs["MeshShape"] = np.asarray(config.mesh_shape, "i8")


def has_lattice(file: File) -> bool:
    """Whether particle IDs are indices of lattice sites, as in snapshots of our own."""
    return content.has(file, "ParticleMesh")


def counts(part: Part, mass: float) -> dict[str, np.ndarray]:
    """Numbers and masses of the particles of each type, attributes that Gadget and SWIFT share."""
    total = math.prod(part.config.particle_shape)
    return {
        "NumPart_ThisFile": _by_type(part.count, "u4"),
        "NumPart_Total": _by_type(total % 2**32, "u4"),
        "NumPart_Total_HighWord": _by_type(total // 2**32, "u4"),
        "MassTable": _by_type(mass, "f8"),
    }


def _by_type(value: float, dtype: str) -> np.ndarray:
    out = np.zeros(TYPES, dtype)
    out[1] = value
    return out


def create_particles(file: File, part: Part, precision: str) -> Any:
    """Create the group of the dark matter, with positions in this precision, without values."""
    group, count = file.create_group("PartType1"), part.count
    total = math.prod(part.config.particle_shape)
    create_array(group, "Coordinates", (count, 3), precision)
    create_array(group, "Velocities", (count, 3), "f4")
    create_array(group, "ParticleIDs", (count,), "u4" if total <= 2**32 else "u8")
    return group


def create_array(group: Any, name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Create an array with HDF5's checksums, in chunks of equal length, of which the last is almost full."""
    chunks = max(1, -(-shape[0] // _ROWS))
    length = max(1, -(-shape[0] // chunks))
    return group.create_dataset(name, shape, dtype, chunks=(length, *shape[1:]), fletcher32=True)


def read_shapes(file: File) -> tuple[Shape3, Shape3]:
    """Lattice and mesh of a file; Malformed if it has none."""
    total = read_count(file, "NumPart_Total")
    if has_lattice(file):
        own = content.member(file, "ParticleMesh", h5py.Group)
        lattice, mesh = _shape(own, "LatticeShape"), _shape(own, "MeshShape")
        if math.prod(lattice) != total:
            raise Malformed(f"has a lattice of {lattice}, but {total} particles")
        return lattice, mesh
    if total == 0:
        raise Malformed("has no particles of type 1, dark matter")
    side = round(total ** (1 / 3))
    lattice = (side, side, side) if side**3 == total else (total, 1, 1)
    return lattice, (side, side, side)


def header_of(file: File) -> Any:
    """The group Header."""
    return content.member(file, "Header", h5py.Group)


def read_count(file: File, name: str) -> int:
    """Particles of type 1 by an attribute of the header, of which there is one for each type; Malformed if not."""
    header = header_of(file)
    count = _of_type(header, name)
    high = f"{name}_HighWord"
    return count + (_of_type(header, high) * 2**32 if content.has_value(header, high) else 0)


def _of_type(header: Any, name: str) -> int:
    counts = content.whole_numbers(header, name, 0)
    if len(counts) < 2:
        raise Malformed(f"has one number in Header:{name}, and must have one for each type of particles")
    return counts[1]


def read_sides(file: File, length: float) -> Vector3:
    """Sides of the box [Mpc/h], in a file with so many lengths per Mpc/h; Malformed if they are none."""
    sides = content.values(header_of(file), "BoxSize") / length
    low, high = _SIDE
    if len(sides) not in (1, 3) or not ((sides >= low) & (sides <= high)).all():
        constraint = f"must be one side of the box or three, of {low:g} to {high:g} Mpc/h"
        raise Malformed(f"has Header:BoxSize = {(sides * length).tolist()}, which {constraint}")
    x, y, z = np.broadcast_to(sides, 3).tolist()
    return x, y, z


def optional(group: Any, name: str, low: float, high: float) -> float:
    """A number among the attributes of a group, NaN if it isn't there; Malformed if it is none."""
    return content.number(group, name, low, high) if content.has_value(group, name) else math.nan


def length_unit(group: Any, name: str) -> float:
    """A unit of length [cm] among the attributes of a group; Malformed if it is none."""
    return content.number(group, name, *_CENTIMETRES)


def _shape(group: Any, name: str) -> Shape3:
    shape = content.whole_numbers(group, name, 1)
    if len(shape) != 3 or max(shape) >= 2**31:
        raise Malformed(f"has ParticleMesh:{name} = {shape}, which must be three numbers of cells")
    return shape[0], shape[1], shape[2]
