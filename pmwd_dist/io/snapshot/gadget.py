"""Gadget's HDF5 snapshots: kpc/h, 1e10 Msun/h, km/s per sqrt(a)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import numpy as np

from pmwd_dist.io.snapshot import base
from pmwd_dist.io.snapshot.base import Part, SnapshotFormat
from pmwd_dist.io.snapshot.content import File
from pmwd_dist.io.snapshot.units import CM_PER_MPC, GRAM_PER_MASS

_LENGTH = 1e3  # yt and pynbody assume kpc/h, whatever unit a file names
_FLAGS = ("Flag_Sfr", "Flag_Cooling", "Flag_StellarAge", "Flag_Metals", "Flag_Feedback", "Flag_DoublePrecision")
_UNITS = {
    "UnitLength_in_cm": CM_PER_MPC / _LENGTH,
    "UnitMass_in_g": GRAM_PER_MASS,
    "UnitVelocity_in_cm_per_s": 1e5,
}


@final
class Gadget(SnapshotFormat):
    """Gadget-4's HDF5 format, which pynbody and yt read."""

    name: ClassVar = "gadget"
    bytes_per_particle: ClassVar = 32
    cubic: ClassVar = True

    def length(self, h: float) -> float:
        """1000 kpc/h."""
        del h
        return _LENGTH

    def momentum(self, a: float) -> float:
        """Velocities are peculiar velocities over sqrt(a), in km/s."""
        return base.KM_S_PER_H0 / a / math.sqrt(a)

    def write_header(self, file: File, part: Part) -> None:
        """Write Header and Parameters."""
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
            **base.counts(part, part.mass),
            **dict.fromkeys(_FLAGS, np.int32(0)),
        }
        file.create_group("Header").attrs.update(header)
        file.create_group("Parameters").attrs.update(physics | _UNITS)

    def create_datasets(self, file: File, part: Part) -> None:
        """Create the datasets; single precision resolves a box of 1 Gpc/h to 0.06 kpc/h."""
        group = base.create_particles(file, part, "f4")
        _describe(group["Coordinates"], CM_PER_MPC / _LENGTH, a_scaling=1.0, h_scaling=-1.0, length_scaling=1.0)
        _describe(group["Velocities"], 1e5, a_scaling=0.5, velocity_scaling=1.0)


def _describe(data: Any, to_cgs: float, **powers: float) -> None:
    """Write Gadget-4's description of a dataset; powers that aren't named are zero."""
    names = ("a_scaling", "h_scaling", "length_scaling", "mass_scaling", "velocity_scaling")
    data.attrs.update(dict.fromkeys(names, 0.0) | powers | {"to_cgs": to_cgs})
