"""Power spectra and density slabs of a run, and their files."""

from __future__ import annotations

import math
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmwd_dist.io.arrays import Arrays, read_arrays, reading
from pmwd_dist.report.tables import Table, read_table, write_table

_VOLUME = "(Mpc/h)^3"
_COLUMNS = {"k": "h/Mpc", "power": _VOLUME, "modes": "", "linear power": _VOLUME, "shot noise": _VOLUME}
_REMEDY = "restore it from a copy, or run again in another folder"


@dataclass(frozen=True)
class Spectrum:
    """Measured power spectrum and linear theory at one redshift.

    Args:
      z: redshift.
      k: wavenumbers [h/Mpc].
      power: measured power [(Mpc/h)^3].
      modes: number of modes, conjugates included.
      linear: linear theory [(Mpc/h)^3].
      shot_noise: volume per particle [(Mpc/h)^3], NaN if it isn't known. It is not subtracted: particles of a
        simulation begin on a lattice.
    """

    z: float
    k: np.ndarray
    power: np.ndarray
    modes: np.ndarray
    linear: np.ndarray
    shot_noise: float = math.nan


def write_spectrum(path: Path, spectrum: Spectrum) -> None:
    """Write a spectrum as CSV with one row of names and units.

    Raises:
      OSError: the file can't be written.
    """
    shot_noise = np.full_like(spectrum.k, spectrum.shot_noise)
    values = (spectrum.k, spectrum.power, spectrum.modes, spectrum.linear, shot_noise)
    columns = {name: x[spectrum.modes > 0] for name, x in zip(_COLUMNS, values, strict=True)}
    write_table(path, Table("", columns, {name: unit for name, unit in _COLUMNS.items() if unit}))


def read_spectra(folder: Path, names: Container[str] | None = None) -> list[Spectrum]:
    """Read the spectra of a run's folder, all or only the files `names`, from the lowest redshift on.

    Raises:
      ValueError: a file does not hold a spectrum.
      OSError: a file can't be read, or is no regular file.
    """
    spectra = []
    for path in folder.glob("power_z*.csv"):
        match = re.fullmatch(r"power_z(-?\d+\.\d+)\.csv", path.name)
        if match is None or (names is not None and path.name not in names):
            continue
        table = read_table(path)
        with reading(path, _REMEDY):
            k, power, modes, linear, shot_noise = (table[name] for name in _COLUMNS)
        spectra.append(Spectrum(float(match.group(1)), k, power, modes, linear, float(shot_noise[0])))
    return sorted(spectra, key=lambda spectrum: spectrum.z)


def read_slab(path: Path) -> Arrays:
    """Read the density of a slab and its redshift `z`, `sides` and `thickness` [Mpc/h] from their file.

    Raises:
      ArrayFileError: the file is missing or damaged, or holds something else.
    """
    found = read_arrays(path, shapes={"z": (), "sides": (2,), "thickness": ()}, remedy=_REMEDY)
    with reading(path, _REMEDY):
        return found | {"density": found["density"].astype(float)}
