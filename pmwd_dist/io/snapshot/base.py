"""The interface of a snapshot format, and functions that all formats share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.io.snapshot.content import File

KM_S_PER_H0 = 100.0  # H0 times 1 Mpc/h [km/s]
CRITICAL_DENSITY = 27.7536627  # 3 H0^2 / (8 pi G) [1e10 Msun/h (Mpc/h)^-3]
TYPES = 6  # kinds of particles; ours are of type 1, dark matter
_ROWS = 1 << 16  # particles in a chunk of an array, which has a checksum


class Part:
    """The part of a snapshot in one file, and the numbers in its header.

    Args:
      count: number of particles in this file.
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
        self.mass = self.Omega_m * CRITICAL_DENSITY * volume


class SnapshotFormat(ABC):
    """A snapshot format: its units, groups and attributes. `FORMATS` lists the subclasses."""

    name: ClassVar[str]
    bytes_per_particle: ClassVar[int]  # at most
    cubic: ClassVar[bool]  # whether it holds cubic boxes only

    @abstractmethod
    def length(self, h: float) -> float:
        """Lengths per Mpc/h."""

    @abstractmethod
    def momentum(self, a: float) -> float:
        """Velocities per canonical momentum [Mpc/h]; KM_S_PER_H0 / a for peculiar velocities in km/s."""

    @abstractmethod
    def write_header(self, file: File, part: Part) -> None:
        """Write all groups except the particles."""

    @abstractmethod
    def create_datasets(self, file: File, part: Part) -> None:
        """Create Coordinates, Velocities and ParticleIDs in PartType1, with a description of their units."""


def write_lattice(file: File, config: Config) -> None:
    """Write the shapes of lattice and mesh, which make particle IDs the indices of lattice sites."""
    own = file.create_group("ParticleMesh")
    own.attrs["LatticeShape"] = np.asarray(config.particle_shape, "i8")
    own.attrs["MeshShape"] = np.asarray(config.mesh_shape, "i8")


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
    """Create an array with HDF5's checksums, in chunks of equal length, the last almost full."""
    chunks = max(1, -(-shape[0] // _ROWS))
    length = max(1, -(-shape[0] // chunks))
    return group.create_dataset(name, shape, dtype, chunks=(length, *shape[1:]), fletcher32=True)
