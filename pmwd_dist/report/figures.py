"""Figures of a run: power spectra against linear theory, and the density of a slab."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist.io.arrays import read_arrays, reading, write_arrays
from pmwd_dist.report.style import colours, finish_axis, new_figure, save, styled
from pmwd_dist.report.tables import Table, read_table, write_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

_VOLUME = "(Mpc/h)^3"
_COLUMNS = {"k": "h/Mpc", "power": _VOLUME, "modes": "", "linear power": _VOLUME, "shot noise": _VOLUME}
_REMEDY = "restore it from a copy, or run again in another folder"
_FLOOR = 0.05  # smallest density that is drawn, per mean density


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

    @property
    def nyquist(self) -> float:
        """Nyquist frequency of a cubic lattice of the particles [h/Mpc]."""
        return math.pi / self.shot_noise ** (1 / 3)


@dataclass(frozen=True)
class Slab:
    """Density of a slab, averaged along its thickness.

    Args:
      z: redshift.
      density: 1 + delta, shape (nx, ny).
      sides: sides of the box along x and y [Mpc/h].
      thickness: depth along the line of sight [Mpc/h].
    """

    z: float
    density: np.ndarray
    sides: tuple[float, float]
    thickness: float


def write_spectrum(path: Path, spectrum: Spectrum) -> None:
    """Write a spectrum as CSV with one row of names and units.

    Raises:
      OSError: the file can't be written.
    """
    shot_noise = np.full_like(spectrum.k, spectrum.shot_noise)
    values = (spectrum.k, spectrum.power, spectrum.modes, spectrum.linear, shot_noise)
    columns = {name: x[spectrum.modes > 0] for name, x in zip(_COLUMNS, values, strict=True)}
    write_table(path, Table("", columns, {name: unit for name, unit in _COLUMNS.items() if unit}))


def write_slab(path: Path, slab: Slab) -> None:
    """Write a slab as an npz file, which `read_slab` reads.

    Raises:
      OSError: the file can't be written.
    """
    values = {"z": slab.z, "density": slab.density, "sides": slab.sides, "thickness": slab.thickness}
    write_arrays(path, {name: np.asarray(value) for name, value in values.items()}, {})


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


def read_slab(path: Path) -> Slab:
    """Read a slab from its npz file.

    Raises:
      ArrayFileError: the file is missing or damaged, or holds something else.
    """
    found = read_arrays(path, shapes={"z": (), "sides": (2,), "thickness": ()}, remedy=_REMEDY)
    with reading(path, _REMEDY):
        x, y = map(float, found["sides"])
        return Slab(float(found["z"]), found["density"].astype(float), (x, y), float(found["thickness"]))


def draw_spectra(path: Path, spectra: Sequence[Spectrum]) -> None:
    """Draw P(k) with linear theory at each redshift, and their ratio below.

    Raises:
      OSError: the figure can't be written.
    """
    with styled():
        figure = new_figure(figsize=(8, 8.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
        for spectrum, colour in zip(spectra, colours(len(spectra)), strict=True):
            _draw_spectrum(upper, lower, spectrum, colour)
        _finish_power(upper, lower, spectra)
        save(figure, path)


def _draw_spectrum(upper: Axes, lower: Axes, spectrum: Spectrum, colour: ColorType) -> None:
    k, known = spectrum.k, np.isfinite(spectrum.linear) & (spectrum.linear > 0)
    upper.loglog(k, spectrum.power, color=colour, lw=2.2, label=f"$z = {spectrum.z:g}$")
    upper.loglog(k[known], spectrum.linear[known], color=colour, lw=1.3, ls=(0, (5, 3)))
    ratio = spectrum.power[known] / spectrum.linear[known]
    # A mode and its conjugate count twice but scatter as one: the mean of a bin scatters by sqrt(2 / modes).
    scatter = ratio * np.sqrt(2 / spectrum.modes[known])
    lower.fill_between(k[known], ratio - scatter, ratio + scatter, color=colour, alpha=0.18, lw=0)
    lower.loglog(k[known], ratio, color=colour, lw=2.2)


def _finish_power(upper: Axes, lower: Axes, spectra: Sequence[Spectrum]) -> None:
    upper.plot([], [], color="0.35", lw=1.3, ls=(0, (5, 3)), label="linear theory")
    _draw_sampling(upper, lower, spectra)
    lower.fill_between([], [], color="0.35", alpha=0.25, lw=0, label=r"scatter of the modes, $1\,\sigma$")
    lower.legend(loc="upper left", fontsize=12)
    upper.legend(loc="lower left", frameon=True, framealpha=1, edgecolor="none")  # over the line of the shot noise
    upper.set_ylabel(r"$P(k)$  [(Mpc/$h)^3$]")
    lower.axhline(1, color="0.35", lw=1)
    lower.set_ylabel(r"$P$ / linear theory")
    lower.set_xlabel(r"$k$  [$h$/Mpc]")
    nyquists = [spectrum.nyquist for spectrum in spectra if math.isfinite(spectrum.shot_noise)]
    for axes in (upper, lower):
        finish_axis(axes, np.concatenate([*(spectrum.k for spectrum in spectra), nyquists]))
    ratios = np.concatenate([s.power / s.linear for s in spectra])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if len(ratios):
        lower.set_ylim(min(0.6, ratios.min() * 0.9), max(1.7, ratios.max() * 1.15))
    _label_ratio_axis(lower)


def _draw_sampling(upper: Axes, lower: Axes, spectra: Sequence[Spectrum]) -> None:
    """Draw the Nyquist frequency and the shot noise of the particles."""
    style: Any = {"color": "0.35", "lw": 1.3, "ls": ":"}
    known = [spectrum for spectrum in spectra if math.isfinite(spectrum.shot_noise)]
    for i, spectrum in enumerate({spectrum.shot_noise: spectrum for spectrum in known}.values()):
        label = r"shot noise $V/N$ (not subtracted)" if i == 0 else None
        upper.axhline(spectrum.shot_noise, **style, label=label)
        label = "particle Nyquist frequency" if i == 0 else None
        for axes in (upper, lower):
            axes.axvline(spectrum.nyquist, **(style | {"ls": "-."}), label=label if axes is upper else None)


def _label_ratio_axis(axes: Axes) -> None:
    from matplotlib.ticker import NullFormatter

    low, high = axes.get_ylim()
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if low <= t <= high]
    if high / low > 12:
        ticks = [t for t in ticks if t not in (1.5, 3)]
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_slab(path: Path, slab: Slab) -> None:
    """Draw the density of a slab on a logarithmic scale.

    Raises:
      OSError: the figure can't be written.
    """
    x, y = slab.sides
    # The logarithm is interpolated between cells: interpolated densities show peaks as squares.
    logarithm = np.log10(np.maximum(slab.density, _FLOOR))
    low = min(float(np.quantile(logarithm, 0.01)), np.log10(0.8))
    high = max(float(np.quantile(logarithm, 0.9995)), np.log10(1.25))
    with styled(outward=True):
        figure = new_figure(figsize=(8.6, 1.2 + 6.6 * min(y / x, 1.4)))
        axes = figure.subplots()
        image = axes.imshow(
            logarithm.T,
            origin="lower",
            extent=(0, x, 0, y),
            vmin=low,
            vmax=high,
            cmap="inferno",
            interpolation="bicubic",
        )
        bar = figure.colorbar(image, ax=axes, extend="both", fraction=0.046 * min(y / x, 1), pad=0.03)
        ticks = _density_ticks(10**low, 10**high)
        bar.set_ticks([float(np.log10(t)) for t in ticks], labels=[f"{t:g}" for t in ticks])
        bar.set_label(r"density / mean,  $1 + \delta$")
        axes.set_xlabel(r"$x$  [Mpc/$h$]")
        axes.set_ylabel(r"$y$  [Mpc/$h$]")
        axes.set_title(f"redshift {slab.z:.3g}, mean over $0 < z < {slab.thickness:.3g}$ Mpc/$h$", fontsize=15, pad=10)
        save(figure, path)


def _density_ticks(low: float, high: float) -> list[float]:
    coarse = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]
    fine = [0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5]
    return [tick for tick in (coarse if high / low > 6 else fine) if low <= tick <= high]
