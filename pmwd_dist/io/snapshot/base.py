"""A snapshot format, tables of its groups and arrays; and Gadget's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY, parameters
from pmwd_dist.io.snapshot.units import CM_PER_MPC, GRAM_PER_MASS

KM_S_PER_H0 = 100.0  # H0 times 1 Mpc/h [km/s]
TYPES = 6  # kinds of particles; ours are of type 1, dark matter

Attributes = dict[str, Any]
Precision = Literal["single", "double"]


class Part:
    """The part of a snapshot in one file, and the numbers in its header, masses in 1e10 Msun/h."""

    def __init__(self, count: int, files: int, cosmo: Any, config: Config, a: float, positions: str):
        self.count, self.files, self.cosmo, self.config, self.a = count, files, cosmo, config, float(a)
        self.positions = positions
        self.h, self.Omega_b = float(cosmo.h), float(cosmo.Omega_b)
        self.Omega_c = float(cosmo.Omega_c)
        cold = self.Omega_c + self.Omega_b
        self.Omega_m = cold + float(parameters(cosmo).Omega_nu)
        self.Omega_lambda = 1 - float(cosmo.Omega_k) - self.Omega_m
        volume = math.prod(config.box_size) / math.prod(config.particle_shape)
        self.mass = cold * CRITICAL_DENSITY * volume


class SnapshotFormat(NamedTuple):
    """A snapshot format."""

    positions: str  # their type, f4 or f8
    others: int  # largest number of bytes of a particle without its position
    cubic: bool  # whether it holds cubic boxes only
    length: Callable[[float], float]  # per Mpc/h, by h
    momentum: Callable[[float], float]  # per canonical one [Mpc/h], by a; KM_S_PER_H0 / a for peculiar ones in km/s
    groups: Callable[[Part], dict[str, Attributes]]  # without the particles
    arrays: Callable[[Part], dict[str, tuple[str, Attributes]]]  # of the particles: type, description of the unit

    def of(self, precision: Precision | None) -> SnapshotFormat:
        """This format with positions in another precision; None for its own."""
        return self._replace(positions={None: self.positions, "single": "f4", "double": "f8"}[precision])

    @property
    def bytes_per_particle(self) -> int:
        """Largest number of bytes of a particle."""
        return 3 * np.dtype(self.positions).itemsize + self.others


def counts(part: Part, mass: float) -> Attributes:
    """Numbers and masses of the particles of each type, attributes that Gadget and SWIFT share."""
    total, dark = math.prod(part.config.particle_shape), np.arange(TYPES) == 1
    return {
        "NumPart_ThisFile": (dark * part.count).astype("u4"),
        "NumPart_Total": (dark * (total % 2**32)).astype("u4"),
        "NumPart_Total_HighWord": (dark * (total // 2**32)).astype("u4"),
        "MassTable": dark * mass,
    }


def id_type(part: Part) -> str:
    """Type of the particle IDs."""
    return "u4" if math.prod(part.config.particle_shape) <= 2**32 else "u8"


# --- Gadget-4's HDF5 snapshots, which pynbody and yt read: kpc/h, 1e10 Msun/h, km/s per sqrt(a) ---------------

_LENGTH = 1e3  # yt and pynbody assume kpc/h, whatever unit a file names
_FLAGS = ("Flag_Sfr", "Flag_Cooling", "Flag_StellarAge", "Flag_Metals", "Flag_Feedback", "Flag_DoublePrecision")
_UNITS = {"UnitLength_in_cm": CM_PER_MPC / _LENGTH, "UnitMass_in_g": GRAM_PER_MASS, "UnitVelocity_in_cm_per_s": 1e5}
_POWERS = dict.fromkeys(("a_scaling", "h_scaling", "length_scaling", "mass_scaling", "velocity_scaling"), 0.0)


def _groups(part: Part) -> dict[str, Attributes]:
    physics = {
        "Omega0": part.Omega_m,
        "OmegaBaryon": part.Omega_b,
        "OmegaLambda": part.Omega_lambda,
        "HubbleParam": part.h,
        "BoxSize": part.config.box_size[0] * _LENGTH,
    }
    header = {
        "Time": part.a,
        "Redshift": 1 / part.a - 1,
        "NumFilesPerSnapshot": np.int32(part.files),
        **physics,
        **counts(part, part.mass),
        **dict.fromkeys(_FLAGS, np.int32(0)),
    }
    return {"Header": header, "Parameters": physics | _UNITS}


def _arrays(part: Part) -> dict[str, tuple[str, Attributes]]:
    positions = {"to_cgs": CM_PER_MPC / _LENGTH, "a_scaling": 1.0, "h_scaling": -1.0, "length_scaling": 1.0}
    return {
        "Coordinates": (part.positions, _POWERS | positions),
        "Velocities": ("f4", _POWERS | {"to_cgs": 1e5, "a_scaling": 0.5, "velocity_scaling": 1.0}),
        "ParticleIDs": (id_type(part), {}),
    }


GADGET = SnapshotFormat(
    positions="f4",  # resolves a box of 1 Gpc/h to 0.06 kpc/h
    others=20,
    cubic=True,
    length=lambda _: _LENGTH,
    momentum=lambda a: KM_S_PER_H0 / a / math.sqrt(a),
    groups=_groups,
    arrays=_arrays,
)
