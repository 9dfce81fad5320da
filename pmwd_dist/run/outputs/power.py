"""The power spectrum of matter at each redshift, with linear theory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pmwd_dist.io.arrays import reading
from pmwd_dist.observe.power import power_spectrum, shot_noise
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table, read_table, write_table
from pmwd_dist.run.outputs.base import MPC3, PER_MPC, RESTORE, Drawing, Output, View, check_finite

_UNITS = {"k": PER_MPC, "power": MPC3, "modes": "", "linear power": MPC3, "shot noise": MPC3}


class Power(Output):
    """Power spectrum of matter, at each output."""

    name = "power"
    suffix = "csv"
    figure = "power.png"
    caption = Caption(
        "Matter power spectrum",
        "P(k) with linear theory (dashed), and their ratio with the scatter of the modes. The dotted line is the shot "
        "noise of random particles. Particles that begin on a lattice do not have it.",
        "a ratio of 1 within the scatter at small k. At late times it rises at large k, before the limited force "
        "resolution lowers it towards the particle Nyquist frequency.",
    )

    def names(self, z: float) -> list[str]:
        return [self.file(z, "csv"), self.figure]

    def measure(self, view: View) -> Table:
        """Power spectrum of the density, and of linear theory.

        With massive neutrinos both are spectra of cold matter, and the one of all matter is a column.
        """
        spectrum, a, table = power_spectrum(view.density, view.config), 1 / (1 + view.z), view.simulation.growth
        # linear_power is singular at k = 0, the mean wavenumber of a bin without modes.
        k, response = np.maximum(np.asarray(spectrum.k, float), 1e-8), table.response
        linear = view.simulation.linear_power(k) * np.asarray(table.linear(k, a)[0], float) ** 2
        total = None if response is None else np.asarray(spectrum.power * response.total(k, a) ** 2)
        found = spectrum_table(spectrum, linear, shot_noise(view.config), total)
        check_finite(found["power"], f"the density at z = {view.z:g}", "exceeds the halo, or is not a number")
        return found

    def write(self, folder: Path, z: float, values: Table) -> None:
        write_table(folder / self.file(z, "csv"), values)

    @classmethod
    def read(cls, folder: Path) -> dict[float, Table]:
        """The spectra of a folder by redshift, from the lowest one on."""
        spectra = dict[float, Table]()
        for z, path in sorted(cls.data(folder)):
            table = read_table(path)
            with reading(path, RESTORE):
                spectra[z] = Table("", {name: table[name] for name in _UNITS}, table.units)
        return spectra

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        spectra = cls.read(path)
        measured = [SimpleNamespace(**table.columns) for table in spectra.values()]
        linear = [table["linear power"] for table in spectra.values()]
        labels, noise = [f"$z = {z:g}$" for z in spectra], float(next(iter(spectra.values()))["shot noise"][0])
        return partial(plot.power, measured, linear, labels=labels, shot_noise=noise)


def spectrum_table(measured: Any, linear: np.ndarray, shot_noise: float, total: np.ndarray | None = None) -> Table:
    """Table of a spectrum of `power_spectrum` and of linear theory [(Mpc/h)^3], without bins that hold no mode.

    The volume per particle is a column, NaN if it isn't known. It is not subtracted: particles of a simulation begin on
    a lattice. With massive neutrinos, total is the spectrum of all matter.
    """
    some = np.asarray(measured.modes) > 0
    values = (measured.k, measured.power, measured.modes, linear, np.full(len(some), shot_noise))
    columns = {name: np.asarray(x, float)[some] for name, x in zip(_UNITS, values, strict=True)}
    if total is not None:
        columns["total power"] = np.asarray(total, float)[some]
    return Table("", columns, {name: _UNITS.get(name, MPC3) for name in columns if name != "modes"})
