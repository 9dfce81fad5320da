"""What Gadget's and SWIFT's HDF5 snapshots look like: groups, attributes, units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from pmwd_dist.config import Config

KM_S_PER_H0 = 100.0  # H0 times 1 Mpc/h [km/s]
CRITICAL_DENSITY = 27.7536627  # 3 H0^2 / (8 pi G) [1e10 Msun/h (Mpc/h)^-3]
_CM_PER_MPC = 3.085677581e24
_GRAM = 1.98841e43  # 1e10 Msun
_TYPES = 6


@dataclass(frozen=True)
class Units:
    """Units of a format.

    Args:
      format: "gadget" or "swift".
      length: lengths per Mpc/h.
      mass: masses per 1e10 Msun/h.
      cm, gram: in cgs.
    """

    format: str
    length: float
    mass: float
    cm: float
    gram: float

    def velocity(self, a: float) -> float:
        """Velocities per peculiar velocity [km/s]."""
        return 1.0 if self.format == "swift" else 1 / math.sqrt(a)


def units(format: str, h: float) -> Units:
    """kpc/h, 1e10 Msun/h for Gadget; Mpc, 1e10 Msun for SWIFT."""
    if format == "swift":
        return Units("swift", 1 / h, 1 / h, _CM_PER_MPC, _GRAM)
    # yt and pynbody take kpc/h for granted, whatever unit a file says that it has.
    return Units("gadget", 1e3, 1.0, _CM_PER_MPC / 1e3, _GRAM)


def particle_bytes(format: str) -> int:
    """Bytes a particle, at most."""
    return 48 if format == "swift" else 32


def write_header(file: Any, units: Units, count: int, cosmo: Any, config: Config, a: float) -> None:
    """Header and cosmology of a file with this many particles."""
    write = _swift_header if units.format == "swift" else _gadget_header
    write(file, units, count, cosmo, config, a)
    # Our own: what the particle IDs mean.
    own = file.create_group("ParticleMesh")
    own.attrs["LatticeShape"] = np.asarray(config.particle_shape, "i8")
    own.attrs["MeshShape"] = np.asarray(config.mesh_shape, "i8")


def _by_type(value: Any, dtype: str) -> np.ndarray:
    out = np.zeros(_TYPES, dtype)
    out[1] = value
    return out


def _omegas(cosmo: Any) -> tuple[float, float, float]:
    """Densities of matter, baryons and dark energy."""
    baryons = float(cosmo.Omega_b)
    matter = float(cosmo.Omega_c) + baryons
    return matter, baryons, 1 - float(cosmo.Omega_k) - matter


def particle_mass(Omega_m: float, config: Config) -> float:
    """Mass of a particle [1e10 Msun/h]."""
    return Omega_m * CRITICAL_DENSITY * math.prod(config.box_size) / math.prod(config.particle_shape)


def _common(count: int, config: Config, mass: float) -> dict[str, Any]:
    import jax

    total = math.prod(config.particle_shape)
    return {
        "NumPart_ThisFile": _by_type(count, "u4"),
        "NumPart_Total": _by_type(total % 2**32, "u4"),
        "NumPart_Total_HighWord": _by_type(total // 2**32, "u4"),
        "MassTable": _by_type(mass, "f8"),
        "NumFilesPerSnapshot": np.int32(jax.process_count()),
    }


def _gadget_header(file: Any, units: Units, count: int, cosmo: Any, config: Config, a: float) -> None:
    matter, baryons, dark_energy = _omegas(cosmo)
    physics = {
        "Omega0": matter,
        "OmegaBaryon": baryons,
        "OmegaLambda": dark_energy,
        "HubbleParam": float(cosmo.h),
        "BoxSize": config.box_size[0] * units.length,
    }
    header = {"Time": float(a), "Redshift": 1 / float(a) - 1, **physics}
    header |= _common(count, config, particle_mass(matter, config) * units.mass)
    header |= dict.fromkeys(
        ("Flag_Sfr", "Flag_Cooling", "Flag_StellarAge", "Flag_Metals", "Flag_Feedback", "Flag_DoublePrecision"),
        np.int32(0),
    )
    in_cgs = {
        "UnitLength_in_cm": units.cm,
        "UnitMass_in_g": units.gram,
        "UnitVelocity_in_cm_per_s": 1e5,
    }
    file.create_group("Header").attrs.update(header)
    file.create_group("Parameters").attrs.update(physics | in_cgs)


def _swift_header(file: Any, units: Units, count: int, cosmo: Any, config: Config, a: float) -> None:
    matter, baryons, dark_energy = _omegas(cosmo)
    h, one = float(cosmo.h), lambda value: np.asarray([value], float)
    counts = _common(count, config, particle_mass(matter, config) * units.mass)
    scalars = {"Time": one(a), "Redshift": one(1 / a - 1), "Scale-factor": one(a), "Dimension": np.asarray([3], "i4")}
    header = (
        counts
        | scalars
        | {
            "BoxSize": np.asarray(config.box_size) * units.length,
            "NumFilesPerSnapshot": np.asarray([counts["NumFilesPerSnapshot"]], "i4"),
            "NumPartTypes": np.asarray([_TYPES], "i4"),
            "Virtual": np.asarray([0], "i4"),
            "Code": "pmwd-dist",
            "RunName": "pmwd-dist",
            "OutputType": "FullVolume",
            "InitialMassTable": counts["MassTable"],
            "NumParticleTypes": np.asarray([_TYPES], "i4"),
        }
    )
    cosmology = {
        "Cosmological run": np.asarray([1], "i4"),
        "Redshift": one(1 / a - 1),
        "Scale-factor": one(a),
        "h": one(h),
        "H0 [internal units]": one(100 * h),
        "Omega_m": one(matter),
        "Omega_b": one(baryons),
        "Omega_cdm": one(matter - baryons),
        "Omega_lambda": one(dark_energy),
        "Omega_k": one(float(cosmo.Omega_k)),
        # No radiation and no neutrinos, as swiftsimio wants to be told.
        **dict.fromkeys(("Omega_r", "Omega_g", "Omega_nu_0", "N_eff", "N_ur", "M_nu_eV", "deg_nu"), one(0.0)),
        "w_0": one(float(cosmo.w0)),
        "w_a": one(float(cosmo.wa)),
        "w": one(float(cosmo.w0)),
    }
    in_cgs = {
        "Unit length in cgs (U_L)": one(units.cm),
        "Unit mass in cgs (U_M)": one(units.gram),
        "Unit time in cgs (U_t)": one(units.cm / 1e5),
        "Unit current in cgs (U_I)": one(1.0),
        "Unit temperature in cgs (U_T)": one(1.0),
    }
    file.create_group("Header").attrs.update(header)
    file.create_group("Cosmology").attrs.update(cosmology)
    file.create_group("Units").attrs.update(in_cgs)
    file.create_group("InternalCodeUnits").attrs.update(in_cgs)
    file.create_group("Code").attrs.update({"Code": "pmwd-dist"})


def create_datasets(file: Any, units: Units, config: Config, count: int, a: float) -> dict[str, Any]:
    """The datasets of the dark matter of a file, still without values (but for masses)."""
    group = file.create_group("PartType1")
    total = math.prod(config.particle_shape)
    # Single precision is Gadget's habit: a box of 1 Gpc/h is resolved to 0.06 kpc/h. SWIFT's is double.
    position = "f8" if units.format == "swift" else "f4"
    data = {
        "Coordinates": group.create_dataset("Coordinates", (count, 3), position),
        "Velocities": group.create_dataset("Velocities", (count, 3), "f4"),
        "ParticleIDs": group.create_dataset("ParticleIDs", (count,), "u4" if total <= 2**32 else "u8"),
    }
    if units.format == "swift":
        file["DMParticles"] = h5py.SoftLink("/PartType1")
        mass = file["Header"].attrs["MassTable"][1]
        masses = group.create_dataset("Masses", data=np.full(count, mass, "f4"))
        _swift_units(data["Coordinates"], "Co-moving positions of the particles", units, a, length=1, a_power=1)
        _swift_units(data["Velocities"], "Peculiar velocities, a dx/dt", units, a, length=1, time=-1)
        _swift_units(data["ParticleIDs"], "Index of the site on the Lagrangian lattice", units, a)
        _swift_units(masses, "Masses of the particles", units, a, mass=1)
    else:
        _gadget_units(data["Coordinates"], units.cm, a_scaling=1.0, h_scaling=-1.0, length_scaling=1.0)
        _gadget_units(data["Velocities"], 1e5, a_scaling=0.5, velocity_scaling=1.0)
    return data


def _gadget_units(data: Any, to_cgs: float, **powers: float) -> None:
    """Gadget-4's description of a dataset; what isn't named is zero."""
    names = ("a_scaling", "h_scaling", "length_scaling", "mass_scaling", "velocity_scaling")
    data.attrs.update(dict.fromkeys(names, 0.0) | powers | {"to_cgs": to_cgs})


def _swift_units(data: Any, text: str, units: Units, a: float, **powers: int) -> None:
    """SWIFT's description of a dataset, by the powers of length, mass, time and a in its unit."""
    length, mass, time, a_power = (powers.get(name, 0) for name in ("length", "mass", "time", "a_power"))
    cgs = units.cm**length * units.gram**mass * (units.cm / 1e5) ** time
    exponents = {"U_L": length, "U_M": mass, "U_t": time, "U_I": 0, "U_T": 0, "h-scale": 0, "a-scale": a_power}
    data.attrs.update({f"{name} exponent": np.asarray([power], float) for name, power in exponents.items()})
    physical = np.asarray([cgs * a**a_power])
    data.attrs["Conversion factor to CGS (not including cosmological corrections)"] = np.asarray([cgs])
    data.attrs["Conversion factor to physical CGS (including cosmological corrections)"] = physical
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


def read_header(file: Any) -> dict[str, Any]:
    """The fields of a SnapshotHeader."""
    header = file["Header"].attrs
    swift = "Cosmology" in file and "Units" in file
    cosmology = file["Cosmology"].attrs if swift else header
    if not swift and "HubbleParam" not in header:
        cosmology = file["Parameters"].attrs
    h = _scalar(cosmology["h" if swift else "HubbleParam"])
    length = length_unit(file) or units("swift" if swift else "gadget", h).length
    sides = np.broadcast_to(np.ravel(header["BoxSize"]), 3) / length
    total = int(header["NumPart_Total"][1])
    if "NumPart_Total_HighWord" in header:
        total += int(header["NumPart_Total_HighWord"][1]) * 2**32
    lattice, mesh = _shapes(file, total)
    baryons = cosmology.get("Omega_b" if swift else "OmegaBaryon", np.nan)
    return {
        "a": _scalar(header["Scale-factor"]) if swift else 1 / (1 + _scalar(header["Redshift"])),
        "box_size": tuple(float(side) for side in sides),
        "particle_shape": lattice,
        "mesh_shape": mesh,
        "Omega_m": _scalar(cosmology["Omega_m" if swift else "Omega0"]),
        "Omega_b": _scalar(baryons),
        "h": h,
        "format": "swift" if swift else "gadget",
    }


def length_unit(file: Any) -> float | None:
    """Lengths per Mpc/h by what a Gadget file says of its own units; None if it doesn't."""
    parameters = file["Parameters"].attrs if "Parameters" in file else {}
    cm = parameters.get("UnitLength_in_cm")
    return None if cm is None or "Cosmology" in file else _CM_PER_MPC / _scalar(cm)


def has_lattice(file: Any) -> bool:
    """Whether particle IDs are indices of lattice sites: in snapshots of our own."""
    return "ParticleMesh" in file


def _shapes(file: Any, total: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if has_lattice(file):
        own = file["ParticleMesh"].attrs
        return tuple(map(int, own["LatticeShape"])), tuple(map(int, own["MeshShape"]))
    if total == 0:
        raise KeyError("no particles of type 1")
    side = round(total ** (1 / 3))
    lattice = (side, side, side) if side**3 == total else (total, 1, 1)
    return lattice, (side, side, side)


def _scalar(value: Any) -> float:
    return float(np.ravel(value)[0])
