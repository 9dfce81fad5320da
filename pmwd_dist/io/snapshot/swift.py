"""SWIFT's HDF5 snapshots, which swiftsimio and pynbody read: Mpc, 1e10 Msun, km/s, with a description of every unit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.expansion import background, expansion
from pmwd_dist.cosmology.growth import parameters_of
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY, Parameters, parameters
from pmwd_dist.cosmology.radiation import T_CMB
from pmwd_dist.io.snapshot.base import KM_S_PER_H0, TYPES, Attributes, Part, SnapshotFormat, counts, id_type
from pmwd_dist.io.snapshot.units import CM_PER_MPC, GRAM_PER_MASS
from pmwd_dist.parallel.distributed import on_main

_AGE = "Universe age [internal units]"
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_SECOND = CM_PER_MPC / 1e5  # Mpc s/km
_UNKNOWN = ("Git Branch", "Git Revision", "Git Date", "Compiler Name", "Compiler Version", "MPI library")
_UNKNOWN += ("FFTW library version", "GSL library version")
_CODE = {"Code": "pmwd-dist", "HDF5 library version": h5py.version.hdf5_version} | dict.fromkeys(_UNKNOWN, "unknown")
_UNITS = {
    "Unit length in cgs (U_L)": CM_PER_MPC,
    "Unit mass in cgs (U_M)": GRAM_PER_MASS,
    "Unit time in cgs (U_t)": _SECOND,
    "Unit current in cgs (U_I)": 1.0,
    "Unit temperature in cgs (U_T)": 1.0,
}


def _groups(part: Part) -> dict[str, Attributes]:
    """The groups that swiftsimio reads, and Policy and Parameters, by which pynbody recognises the format."""
    units, cosmology = _in_arrays(_UNITS), _cosmology(part)
    return {
        "Header": _header(part) | _in_arrays({"Time": cosmology[_AGE]}),
        "Cosmology": _in_arrays(cosmology),
        "Units": units,
        "InternalCodeUnits": units,
        "Code": {name: np.bytes_(text) for name, text in _CODE.items()},
        "Policy": _in_arrays({"cosmological integration": 1, "self gravity": 1, "hydro": 0}),
        "Parameters": {"Cosmology:a_end": str(part.a), "Cosmology:h": str(part.h)},
    }


def _arrays(part: Part) -> dict[str, tuple[str, Attributes]]:
    a = part.a
    return {
        "Coordinates": (part.positions, _described("Co-moving positions of the particles", a, length=1, a_power=1)),
        "Velocities": ("f4", _described("Peculiar velocities, a dx/dt", a, length=1, time=-1)),
        "ParticleIDs": (id_type(part), _described("Index of the site on the Lagrangian lattice", a)),
        "Masses": ("f4", _described("Masses of the particles", a, mass=1)),
    }


def _in_arrays(values: Attributes) -> Attributes:
    """Numbers in SWIFT's form, arrays of length one."""
    return {name: np.asarray([x], "i4" if isinstance(x, int) else float) for name, x in values.items()}


def _header(part: Part) -> Attributes:
    common = counts(part, part.mass / part.h)
    numbers = {
        "Redshift": 1 / part.a - 1,
        "Scale-factor": part.a,
        "Dimension": 3,
        "NumFilesPerSnapshot": part.files,
        "NumPartTypes": TYPES,
        "NumParticleTypes": TYPES,
        "Virtual": 0,
    }
    return (
        common
        | _in_arrays(numbers)
        | {
            "BoxSize": np.asarray(part.config.box_size) / part.h,
            "InitialMassTable": common["MassTable"],
            "Code": "pmwd-dist",
            "RunName": "pmwd-dist",
            "OutputType": "FullVolume",
        }
    )


@jit
def _densities(own: Parameters, a: Any) -> tuple[Any, ...]:
    """H0 t, a^3 (H / H0)^2, and densities of cold matter, dark energy, neutrinos, photons and massless neutrinos."""
    dtype = jnp.result_type(float)
    root = jnp.asarray([*(_NODES + 1) / 2, 1], dtype) * jnp.sqrt(a)
    rate = own.Omega_cb * expansion(background(own), 2 * jnp.log(root))[0]
    age = jnp.sum(jnp.asarray(_WEIGHTS, dtype) * (root**2 / jnp.sqrt(rate))[:-1]) * jnp.sqrt(a)  # int da / (a H)
    radiation = (0.0, 0.0) if own.n_eff is None else own.radiation
    return age, rate[-1], own.Omega_cb, own.Omega_de, own.Omega_nu, *radiation


def _cosmology(part: Part) -> dict[str, Any]:
    own = parameters(part.cosmo)
    tabulated = own.w_table is not None  # which SWIFT can't name: readers compute no other distances
    age, rate, Omega_cb, Omega_de, *others = map(float, _densities(own, part.a))
    square = rate / part.a**3  # (H / H0)^2
    w_0, w_a = (math.nan, math.nan) if tabulated else (float(part.cosmo.w0), float(part.cosmo.wa))
    return {
        "Cosmological run": 1,
        "Redshift": 1 / part.a - 1,
        "Scale-factor": part.a,
        _AGE: age / (100 * part.h),
        "h": part.h,
        "H0 [internal units]": 100 * part.h,
        "H [internal units]": 100 * part.h * math.sqrt(square),
        "Critical density [internal units]": CRITICAL_DENSITY * part.h**2 * square,
        "Omega_m": Omega_cb,
        "Omega_b": part.Omega_b,
        "Omega_cdm": part.Omega_c,
        "Omega_lambda": Omega_de,
        "Omega_k": float(part.cosmo.Omega_k),
        "w_0": w_0,
        "w_a": w_a,
        "w": w_0,
        **_radiation(own, *others),
    }


def _radiation(own: Parameters, Omega_nu: float, photons: float, neutrinos: float) -> dict[str, float]:
    """Photons and neutrinos: SWIFT counts neutrinos as massless (ur) or massive (nu), and neither as matter."""
    n_eff, massive = float(own.n_eff or 0), own.m_nu is not None
    massless = 0.0 if massive else neutrinos
    return {
        "T_CMB_0 [K]": T_CMB * bool(photons),
        "Omega_g": photons,
        "Omega_ur": massless,
        "Omega_r": photons + massless,
        "Omega_nu_0": Omega_nu,
        "N_eff": n_eff,
        "N_ur": 0.0 if massive else n_eff,
        "N_nu": float(massive),
        "M_nu_eV": float(own.m_nu or 0) / 3,
        "deg_nu": 3.0 * massive,
    }


def _described(text: str, a: float, *, length: int = 0, mass: int = 0, time: int = 0, a_power: int = 0) -> Attributes:
    """SWIFT's description of an array, from the powers of length, mass, time and a in its unit."""
    cgs = CM_PER_MPC**length * GRAM_PER_MASS**mass * _SECOND**time
    powers = {"U_L": length, "U_M": mass, "U_t": time, "U_I": 0, "U_T": 0, "h-scale": 0, "a-scale": a_power}
    numbers: Attributes = {
        **{f"{name} exponent": float(power) for name, power in powers.items()},
        "Conversion factor to CGS (not including cosmological corrections)": cgs,
        "Conversion factor to physical CGS (including cosmological corrections)": cgs * a**a_power,
        "Value stored as physical": 0 if a_power else 1,
        "Property can be converted to comoving": 1,
    }
    return _in_arrays(numbers) | {"Description": text}


def save_groups(path: str | Path, halos: Any, cosmo: Any, config: Config) -> None:
    """Write halos as SWIFT's catalogue of friends-of-friends groups, which swiftsimio opens. Collective.

    The group `Groups` has `GroupIDs`, `Sizes` (numbers of particles), `Masses` [1e10 Msun], `Centres` of mass and
    `Cores`, comoving [Mpc], and peculiar `Velocities` [km/s].

    Args:
      path: path of the file.
      halos: halos of `observe.friends_of_friends`.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.

    Raises:
      ValueError: the halos are not a HaloCatalogue, or of another box or cosmology.
      OSError: the file can't be written; it is absent then.

    Examples:
      >>> pmd.save_groups("groups.hdf5", observe.friends_of_friends(particles, cosmo, config), cosmo, config)
    """
    if not hasattr(halos, "core"):
        raise ArgumentError("halos", halos, "must be a HaloCatalogue", "call friends_of_friends", show_value=False)
    halos.check_made_for(config, cosmo)
    on_main(write_groups, Path(path), halos, cosmo, config)


def write_groups(path: Path, halos: Any, cosmo: Any, config: Config) -> None:
    """`save_groups` on this process alone."""
    own, a, count = parameters_of(cosmo), float(halos.about["a"]), len(halos)
    h = float(own.h)
    groups = _groups(Part(0, 1, own, config, a, "f8"))
    numbers = {"NumGroup_ThisFile": count, "NumGroup_Total": count, "NumFilesPerSnapshot": 1}
    groups["Header"] |= _in_arrays(numbers) | {"OutputType": "FOF"}
    length: Any = {"length": 1, "a_power": 1}
    columns: dict[str, tuple[np.ndarray, str, dict[str, int]]] = {
        "GroupIDs": (halos.columns["halo_id"], "Least index of a lattice site in the group", {}),
        "Sizes": (halos.number, "Numbers of particles", {}),
        "Masses": (halos.mass / h / 1e10, "Masses of all particles", {"mass": 1}),
        "Centres": (halos.position / h, "Co-moving centres of mass", length),
        "Cores": (halos.core / h, "Co-moving densest places", length),
        "Velocities": (halos.velocity, "Mean peculiar velocities, a dx/dt", {"length": 1, "time": -1}),
    }
    with atomic_write(path) as aside, h5py.File(aside, "w", locking=False) as file:
        for name, attributes in (groups | {"Groups": {}}).items():
            file.create_group(name).attrs.update(attributes)
        for name, (values, text, powers) in columns.items():
            file.create_dataset(f"Groups/{name}", data=values).attrs.update(_described(text, a, **powers))


SWIFT = SnapshotFormat(
    positions="f8",  # as in SWIFT
    others=24,
    cubic=False,
    length=lambda h: 1 / h,
    momentum=lambda a: KM_S_PER_H0 / a,
    groups=_groups,
    arrays=_arrays,
)
