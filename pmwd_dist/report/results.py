"""Power spectra and density slabs of a run, and their files."""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist.io.arrays import Arrays, read_arrays, reading
from pmwd_dist.report.tables import Table, read_table

_VOLUME = "(Mpc/h)^3"
_UNITS = {"k": "h/Mpc", "power": _VOLUME, "modes": "", "linear power": _VOLUME, "shot noise": _VOLUME}
_REMEDY = "restore it from a copy, or run again in another folder"


def spectrum_table(measured: Any, linear: np.ndarray, shot_noise: float) -> Table:
    """Table of a spectrum of `power_spectrum` and of linear theory [(Mpc/h)^3], without bins that hold no mode.

    The volume per particle is a column, NaN if it isn't known. It is not subtracted: particles of a simulation begin on
    a lattice.
    """
    some = np.asarray(measured.modes) > 0
    values = (measured.k, measured.power, measured.modes, linear, np.full(len(some), shot_noise))
    columns = {name: np.asarray(x, float)[some] for name, x in zip(_UNITS, values, strict=True)}
    return Table("", columns, {name: unit for name, unit in _UNITS.items() if unit})


def read_spectra(folder: Path, names: Container[str] | None = None) -> dict[float, Table]:
    """Read the spectra of a run's folder by redshift, all or only the files `names`, from the lowest redshift on.

    Raises:
      ValueError: a file does not hold a spectrum.
      OSError: a file can't be read, or is no regular file.
    """
    spectra = dict[float, Table]()
    for path in folder.glob("power_z*.csv"):
        match = re.fullmatch(r"power_z(-?\d+\.\d+)\.csv", path.name)
        if match is None or (names is not None and path.name not in names):
            continue
        table = read_table(path)
        with reading(path, _REMEDY):
            spectra[float(match.group(1))] = Table("", {name: table[name] for name in _UNITS}, table.units)
    return dict(sorted(spectra.items()))


def read_slab(path: Path) -> Arrays:
    """Read the density of a slab and its redshift `z`, `sides` and `thickness` [Mpc/h] from their file.

    Raises:
      ArrayFileError: the file is missing or damaged, or holds something else.
    """
    found = read_arrays(path, shapes={"z": (), "sides": (2,), "thickness": ()}, remedy=_REMEDY)
    with reading(path, _REMEDY):
        return found | {"density": found["density"].astype(float)}
