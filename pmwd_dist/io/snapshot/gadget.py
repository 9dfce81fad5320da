"""Gadget-4's HDF5 snapshots, which pynbody and yt read: kpc/h, 1e10 Msun/h, km/s per sqrt(a)."""

from __future__ import annotations

import math

import numpy as np

from pmwd_dist.io.snapshot.base import KM_S_PER_H0, Attributes, Part, SnapshotFormat, counts, id_type
from pmwd_dist.io.snapshot.units import CM_PER_MPC, GRAM_PER_MASS

_LENGTH = 1e3  # yt and pynbody assume kpc/h, whatever unit a file names
_FLAGS = ("Flag_Sfr", "Flag_Cooling", "Flag_StellarAge", "Flag_Metals", "Flag_Feedback", "Flag_DoublePrecision")
_UNITS = {
    "UnitLength_in_cm": CM_PER_MPC / _LENGTH,
    "UnitMass_in_g": GRAM_PER_MASS,
    "UnitVelocity_in_cm_per_s": 1e5,
}
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
