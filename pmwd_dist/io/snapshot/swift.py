"""SWIFT's HDF5 snapshots: Mpc, 1e10 Msun, km/s, with a description of every unit."""

from __future__ import annotations

from typing import Any, ClassVar, final

import h5py
import numpy as np

from pmwd_dist.io.snapshot import base
from pmwd_dist.io.snapshot.base import Part, SnapshotFormat
from pmwd_dist.io.snapshot.content import File
from pmwd_dist.io.snapshot.units import CM_PER_MPC, GRAM_PER_MASS

_SECOND = CM_PER_MPC / 1e5  # Mpc s/km
_U_L, _U_T = "Unit length in cgs (U_L)", "Unit time in cgs (U_t)"
_RADIATION = ("Omega_r", "Omega_g", "Omega_nu_0", "N_eff", "N_ur", "M_nu_eV", "deg_nu")


@final
class Swift(SnapshotFormat):
    """SWIFT's format, which swiftsimio and pynbody read."""

    name: ClassVar = "swift"
    bytes_per_particle: ClassVar = 48
    cubic: ClassVar = False

    def length(self, h: float) -> float:
        """Mpc per Mpc/h."""
        return 1 / h

    def momentum(self, a: float) -> float:
        """Velocities are peculiar velocities, in km/s."""
        return base.KM_S_PER_H0 / a

    def write_header(self, file: File, part: Part) -> None:
        """Write the groups that swiftsimio reads, and Policy and Parameters, by which pynbody recognises the format."""
        file.create_group("Header").attrs.update(_header(part, self.length(part.h)))
        file.create_group("Cosmology").attrs.update(_cosmology(part))
        units = {
            _U_L: _one(CM_PER_MPC),
            "Unit mass in cgs (U_M)": _one(GRAM_PER_MASS),
            _U_T: _one(_SECOND),
            "Unit current in cgs (U_I)": _one(1.0),
            "Unit temperature in cgs (U_T)": _one(1.0),
        }
        file.create_group("Units").attrs.update(units)
        file.create_group("InternalCodeUnits").attrs.update(units)
        file.create_group("Code").attrs.update({"Code": "pmwd-dist"})
        policy = {"cosmological integration": 1, "self gravity": 1, "hydro": 0}
        file.create_group("Policy").attrs.update({name: np.asarray([on], "i4") for name, on in policy.items()})
        file.create_group("Parameters").attrs.update({"Cosmology:a_end": str(part.a), "Cosmology:h": str(part.h)})

    def create_datasets(self, file: File, part: Part) -> None:
        """Create the datasets, masses included, with positions in double precision as in SWIFT."""
        group, a = base.create_particles(file, part, "f8"), part.a
        file["DMParticles"] = h5py.SoftLink("/PartType1")
        masses = base.create_array(group, "Masses", (part.count,), "f4")
        masses[...] = np.float32(part.mass / part.h)
        _describe(group["Coordinates"], "Co-moving positions of the particles", a, length=1, a_power=1)
        _describe(group["Velocities"], "Peculiar velocities, a dx/dt", a, length=1, time=-1)
        _describe(group["ParticleIDs"], "Index of the site on the Lagrangian lattice", a)
        _describe(masses, "Masses of the particles", a, mass=1)


def _one(value: float) -> np.ndarray:
    """A number in SWIFT's form, an array of length one."""
    return np.asarray([value], float)


def _header(part: Part, length: float) -> dict[str, Any]:
    common, types = base.counts(part, part.mass / part.h), np.asarray([base.TYPES], "i4")
    return common | {
        "Time": _one(part.a),
        "Redshift": _one(1 / part.a - 1),
        "Scale-factor": _one(part.a),
        "Dimension": np.asarray([3], "i4"),
        "BoxSize": np.asarray(part.config.box_size) * length,
        "NumFilesPerSnapshot": np.asarray([part.files], "i4"),
        "NumPartTypes": types,
        "NumParticleTypes": types,
        "InitialMassTable": common["MassTable"],
        "Virtual": np.asarray([0], "i4"),
        "Code": "pmwd-dist",
        "RunName": "pmwd-dist",
        "OutputType": "FullVolume",
    }


def _cosmology(part: Part) -> dict[str, Any]:
    return {
        "Cosmological run": np.asarray([1], "i4"),
        "Redshift": _one(1 / part.a - 1),
        "Scale-factor": _one(part.a),
        "h": _one(part.h),
        "H0 [internal units]": _one(100 * part.h),
        "Omega_m": _one(part.Omega_m),
        "Omega_b": _one(part.Omega_b),
        "Omega_cdm": _one(part.Omega_m - part.Omega_b),
        "Omega_lambda": _one(part.Omega_lambda),
        "Omega_k": _one(float(part.cosmo.Omega_k)),
        "w_0": _one(float(part.cosmo.w0)),
        "w_a": _one(float(part.cosmo.wa)),
        "w": _one(float(part.cosmo.w0)),
        **dict.fromkeys(_RADIATION, _one(0.0)),  # swiftsimio requires these
    }


def _describe(data: Any, text: str, a: float, **powers: int) -> None:
    """Write SWIFT's description of a dataset, from the powers of length, mass, time and a in its unit."""
    length, mass, time, a_power = (powers.get(name, 0) for name in ("length", "mass", "time", "a_power"))
    cgs = CM_PER_MPC**length * GRAM_PER_MASS**mass * _SECOND**time
    exponents = {"U_L": length, "U_M": mass, "U_t": time, "U_I": 0, "U_T": 0, "h-scale": 0, "a-scale": a_power}
    data.attrs.update({f"{name} exponent": _one(power) for name, power in exponents.items()})
    data.attrs["Conversion factor to CGS (not including cosmological corrections)"] = _one(cgs)
    data.attrs["Conversion factor to physical CGS (including cosmological corrections)"] = _one(cgs * a**a_power)
    data.attrs["Description"] = text
    data.attrs["Expression for physical CGS units"] = _expression(length, mass, time, a_power)
    data.attrs["Value stored as physical"] = np.asarray([0 if a_power else 1], "i4")
    data.attrs["Property can be converted to comoving"] = np.asarray([1], "i4")


def _expression(length: int, mass: int, time: int, a_power: int) -> str:
    factors = {"a": a_power, "U_L": length, "U_M": mass, "U_t": time}
    powers = {name: power for name, power in factors.items() if power}
    named = " ".join(name if power == 1 else f"{name}^{power}" for name, power in powers.items())
    in_cgs = " ".join(f"{unit}^{powers[n]}" for n, unit in (("U_L", "cm"), ("U_M", "g"), ("U_t", "s")) if n in powers)
    return f"{named}  [ {in_cgs} ]" if named else "[ - ]"
