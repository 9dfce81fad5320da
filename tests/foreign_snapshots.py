"""Snapshots as other codes write them, each with its own units, names and places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

CM, GRAM = 3.085678e24, 1.989e43  # Mpc and 1e10 Msun, rounded as codes round them
BOX, H, A, OMEGA_M = 100.0, 0.7, 0.5, 0.3


@dataclass
class Kind:
    """Particles of one type: positions [Mpc/h], peculiar velocities [km/s], masses [1e10 Msun/h]."""

    x: np.ndarray
    v: np.ndarray
    mass: np.ndarray

    def part(self, low: int, high: int) -> Kind:
        return Kind(self.x[low:high], self.v[low:high], self.mass[low:high])


def universe(counts: dict[int, int], seed: int = 0) -> dict[int, Kind]:
    """Particles at random in half of the box, of different masses, with the mean density of matter."""
    rng, kinds = np.random.default_rng(seed), {}
    for kind, count in counts.items():
        x = rng.uniform(0, BOX, (count, 3)) * [0.5 if kind else 1.0, 1, 1]
        kinds[kind] = Kind(x, rng.normal(0, 300, (count, 3)), rng.uniform(0.5, 2, count) * (kind + 1))
        if kind == 1:
            kinds[kind].mass[:] = 1.5  # in the table of the header, where a code has one
    total = sum(kind.mass.sum() for kind in kinds.values())
    for kind in kinds.values():
        kind.mass *= OMEGA_M * 27.7536627 * BOX**3 / total
    return kinds


def _write(
    path: Path,
    kinds: dict[int, Kind],
    scales: tuple[float, float, float],
    *,
    header: dict[str, Any] | None = None,
    names: tuple[str, str] = ("Velocities", "Masses"),
    table: bool = True,
    types: int = 6,
    totals: list[int] | None = None,
    files: int = 1,
) -> h5py.File:
    """An open file with lengths, velocities and masses times these factors; dark matter has its mass in the header."""
    counts, masses = [0] * types, [0.0] * types
    file = h5py.File(path, "w")
    for kind, particles in kinds.items():
        counts[kind] = len(particles.x)
        if not len(particles.x):
            continue
        group = file.create_group(f"PartType{kind}")
        group["Coordinates"] = (particles.x * scales[0]).astype("f8")
        group[names[0]] = (particles.v * scales[1]).astype("f4")
        group["ParticleIDs"] = np.arange(len(particles.x), dtype="u8")
        if table and kind == 1:
            masses[kind] = particles.mass[0] * scales[2]
        else:
            group[names[1]] = (particles.mass * scales[2]).astype("f4")
    attributes = {"Redshift": 1 / A - 1, "Time": A, "BoxSize": BOX * scales[0], "NumFilesPerSnapshot": files}
    attributes |= {"NumPart_ThisFile": counts, "NumPart_Total": totals or counts, "MassTable": masses}
    file.create_group("Header").attrs.update(attributes | (header or {}))
    return file


_COSMOLOGY = {"HubbleParam": H, "Omega0": OMEGA_M, "OmegaLambda": 1 - OMEGA_M}
_OF_MPC = {"UnitLength_in_cm": CM, "UnitMass_in_g": GRAM, "UnitVelocity_in_cm_per_s": 1e5}
_OF_KPC = _OF_MPC | {"UnitLength_in_cm": CM / 1e3}


def gadget2(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """No units: kpc/h."""
    _write(path, kinds, (1e3, A**-0.5, 1), header=_COSMOLOGY, **options).close()


def gadget_units(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """A group Units: Mpc/h."""
    with _write(path, kinds, (1, A**-0.5, 1), header=_COSMOLOGY, **options) as file:
        file.create_group("Units").attrs.update(_OF_MPC)


def gadget4(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """Units and cosmology in Parameters, and a description of each array: Mpc/h, m/s."""
    with _write(path, kinds, (1, 1e3 * A**-0.5, 1), **options) as file:
        file.create_group("Parameters").attrs.update(_COSMOLOGY | _OF_MPC | {"UnitVelocity_in_cm_per_s": 100.0})
        for group in (file[f"PartType{kind}"] for kind in kinds if f"PartType{kind}" in file):
            group["Coordinates"].attrs.update({"to_cgs": CM, "a_scaling": 1.0, "h_scaling": -1.0})
            group["Velocities"].attrs.update({"to_cgs": 100.0, "a_scaling": 0.5, "h_scaling": 0.0})
            group["ParticleIDs"].attrs.update({"to_cgs": 0.0, "a_scaling": 0.0, "h_scaling": 0.0})


def arepo(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """Units in the header: Mpc/h; tracers without positions."""
    with _write(path, kinds, (1, A**-0.5, 1), header=_COSMOLOGY | _OF_MPC, **options) as file:
        file["PartType3/TracerID"] = np.arange(7)
        for name in ("NumPart_ThisFile", "NumPart_Total"):
            file["Header"].attrs[name] = file["Header"].attrs[name] + np.array([0, 0, 0, 7, 0, 0])


def gizmo(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """Units in the header, which contain h: lengths are in Mpc/h as those of Gadget are."""
    header = {"HubbleParam": H, "Omega_Matter": OMEGA_M, "UnitLength_In_CGS": CM / H, "UnitMass_In_CGS": GRAM / H}
    header["UnitVelocity_In_CGS"] = 1e5
    _write(path, kinds, (1, A**-0.5, 1), header=header, **options).close()


def eagle(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """A group Units and exponents of each array, with other names: Mpc/h."""
    names = ("Velocity", "Mass")
    with _write(path, kinds, (1, A**-0.5, 1), header=_COSMOLOGY, names=names, **options) as file:
        file.create_group("Units").attrs.update(_OF_MPC)
        exponents = {"Coordinates": (CM, 1, -1), "Velocity": (1e5, 0.5, 0), "Mass": (GRAM, 0, -1)}
        for group in (file[f"PartType{kind}"] for kind in kinds if f"PartType{kind}" in file):
            for name in exponents.keys() & group.keys():
                cgs, a_power, h_power = exponents[name]
                group[name].attrs.update(
                    {"CGSConversionFactor": cgs, "aexp-scale-exponent": a_power, "h-scale-exponent": h_power}
                )


def eagle_exponents(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """Only exponents of each array, of a code with physical velocities in m/s and lengths in kpc."""
    with _write(path, kinds, (1e3 / H, 1e3, 1 / H), header=_COSMOLOGY, table=False, **options) as file:
        exponents = {"Coordinates": (CM / 1e3, 1, 0), "Velocities": (100.0, 0, 0), "Masses": (GRAM, 0, 0)}
        for group in (file[f"PartType{kind}"] for kind in kinds if f"PartType{kind}" in file):
            for name in exponents.keys() & group.keys():
                cgs, a_power, h_power = exponents[name]
                group[name].attrs.update(
                    {"CGSConversionFactor": cgs, "aexp-scale-exponent": a_power, "h-scale-exponent": h_power}
                )


def swift(path: Path, kinds: dict[int, Kind], **options: Any) -> None:
    """Arrays of length one, seven types, masses of all particles, Mpc and km/s without h."""
    header = {"Redshift": [1 / A - 1], "BoxSize": [BOX / H] * 3, "NumPart_Total_HighWord": [0] * 7}
    options = {"table": False, "types": 7} | options
    with _write(path, kinds, (1 / H, 1, 1 / H), header=header, **options) as file:
        file.create_group("Cosmology").attrs.update({"h": [H], "Omega_m": [OMEGA_M], "Omega_b": [0.05]})
        units = {
            "Unit length in cgs (U_L)": [CM],
            "Unit mass in cgs (U_M)": [GRAM],
            "Unit time in cgs (U_t)": [CM / 1e5],
        }
        file.create_group("Units").attrs.update(units)
        factor = "Conversion factor to CGS (not including cosmological corrections)"
        for group in (file[f"PartType{kind}"] for kind in kinds if f"PartType{kind}" in file):
            for name, cgs, a_power in (("Coordinates", CM, 1.0), ("Velocities", 1e5, 0.0), ("Masses", GRAM, 0.0)):
                exponents = {"a-scale exponent": [a_power], "h-scale exponent": [0.0]}
                group[name].attrs.update({factor: [cgs]} | exponents)


LAYOUTS: dict[str, Callable[..., None]] = {
    writer.__name__: writer for writer in (gadget2, gadget_units, gadget4, arepo, gizmo, eagle, eagle_exponents, swift)
}


def write_set(folder: Path, name: str, kinds: dict[int, Kind], writer: Callable[..., None], files: int) -> None:
    """A set of files in a folder; each type is in one of them only, as is legal."""
    folder.mkdir(parents=True, exist_ok=True)
    totals = [len(kinds[kind].x) if kind in kinds else 0 for kind in range(7 if writer is swift else 6)]
    for number in range(files):
        mine = {kind: particles for kind, particles in kinds.items() if kind % files == number}
        writer(folder / f"{name}.{number}.hdf5", mine, totals=totals, files=files)
