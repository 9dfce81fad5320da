"""The parts of a snapshot format, and those that all formats share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pmwd_dist.config import Config, Vector3
from pmwd_dist.parallel.decomposition import Shape3

KM_S_PER_H0 = 100.0  # H0 times 1 Mpc/h [km/s]
CM_PER_MPC = 3.085677581e24
GRAM_PER_MASS = 1.98841e43  # 1e10 Msun
_CRITICAL_DENSITY = 27.7536627  # 3 H0^2 / (8 pi G) [1e10 Msun/h (Mpc/h)^-3]
TYPES = 6  # kinds of particles; ours are of type 1, dark matter

# h5py types whatever lies in a file as one of three kinds of objects, so files and groups are Any.
File = Any


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
    def momentum(self, a: float) -> float:
        """Velocities of a file per canonical momentum [Mpc/h]; peculiar velocities are KM_S_PER_H0 / a times it."""

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
        """The header of an open file; KeyError or IndexError if it is not a snapshot with dark matter."""


def write_lattice(file: File, config: Config) -> None:
    """Write a group of our own that says what the particle IDs mean."""
    own = file.create_group("ParticleMesh")
    own.attrs["LatticeShape"] = np.asarray(config.particle_shape, "i8")
    own.attrs["MeshShape"] = np.asarray(config.mesh_shape, "i8")


def has_lattice(file: File) -> bool:
    """Whether particle IDs are indices of lattice sites, as in snapshots of our own."""
    return "ParticleMesh" in file


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
    group = file.create_group("PartType1")
    group.create_dataset("Coordinates", (part.count, 3), precision)
    group.create_dataset("Velocities", (part.count, 3), "f4")
    total = math.prod(part.config.particle_shape)
    group.create_dataset("ParticleIDs", (part.count,), "u4" if total <= 2**32 else "u8")
    return group


def read_shapes(file: File) -> tuple[Shape3, Shape3]:
    """Lattice and mesh of a file."""
    if has_lattice(file):
        own = file["ParticleMesh"].attrs
        return _shape(own["LatticeShape"]), _shape(own["MeshShape"])
    header = file["Header"].attrs
    total = int(header["NumPart_Total"][1])
    if "NumPart_Total_HighWord" in header:
        total += int(header["NumPart_Total_HighWord"][1]) * 2**32
    if total == 0:
        raise KeyError("no particles of type 1")
    side = round(total ** (1 / 3))
    lattice = (side, side, side) if side**3 == total else (total, 1, 1)
    return lattice, (side, side, side)


def read_sides(file: File, length: float) -> Vector3:
    """Sides of the box [Mpc/h], in a file with so many lengths per Mpc/h."""
    x, y, z = (np.broadcast_to(np.ravel(file["Header"].attrs["BoxSize"]), 3) / length).tolist()
    return x, y, z


def _shape(values: Any) -> Shape3:
    nx, ny, nz = map(int, values)
    return nx, ny, nz


def scalar(value: Any) -> float:
    """A number that a file holds as such, or as an array of one."""
    return float(np.ravel(value)[0])
