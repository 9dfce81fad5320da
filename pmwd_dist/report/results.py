"""Results of a run at its redshifts: their files, and the figures that are drawn from them.

Functions raise ValueError for damaged data, and OSError for files that can't be read or written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pmwd_dist.io.arrays import Arrays, read_arrays, reading
from pmwd_dist.io.snapshot import content
from pmwd_dist.report import plot
from pmwd_dist.report.style import drawing_errors, save
from pmwd_dist.report.tables import Table, read_table

POWER, CONVERGENCE = "power.png", "convergence.png"
LIGHT_CONE, CONVERGENCE_POWER = "light_cone.hdf5", "convergence_power.csv"
POLES = (0, 2, 4)
_NAME = re.compile(r"[a-z]+_z(-?\d+\.\d{3})")  # of data, without the suffix
_VOLUME = "(Mpc/h)^3"
_UNITS = {"k": "h/Mpc", "power": _VOLUME, "modes": "", "linear power": _VOLUME, "shot noise": _VOLUME}
_REMEDY = "restore it from a copy, or run again in another folder"


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
    return Table("", columns, {name: _UNITS.get(name, _VOLUME) for name in columns if name != "modes"})


def read_spectra(folder: Path) -> dict[float, Table]:
    """Read the spectra of a run's folder by redshift, from the lowest one on."""
    spectra = dict[float, Table]()
    for path in folder.glob("power_z*.csv"):
        if (match := _NAME.fullmatch(path.stem)) is None:
            continue
        table = read_table(path)
        with reading(path, _REMEDY):
            spectra[float(match.group(1))] = Table("", {name: table[name] for name in _UNITS}, table.units)
    return dict(sorted(spectra.items()))


def read_slab(path: Path) -> Arrays:
    """Read the density of a slab and its redshift `z`, `sides` and `thickness` [Mpc/h] from their file."""
    found = read_arrays(path, shapes={"z": (), "sides": (2,), "thickness": ()}, remedy=_REMEDY)
    with reading(path, _REMEDY):
        return found | {"density": found["density"].astype(float)}


def figures(folder: Path) -> list[Path]:
    """Figures of the data in a run's folder."""
    found = list[Path]()
    for name in ("power", "density", *_TABLES):
        data = folder.glob(f"{name}_z*.{'npz' if name == 'density' else 'csv'}")
        drawn = [path.with_suffix(".png") for path in sorted(data) if _NAME.fullmatch(path.stem)]
        found += [folder / POWER] * bool(drawn) if name == "power" else drawn
    return found + [folder / CONVERGENCE] * (folder / LIGHT_CONE).is_file()


def redraw(folder: Path) -> list[Path]:
    """Draw all figures of a run's folder from its data."""
    paths = figures(folder)
    for path in paths:
        draw(path)
    return paths


def draw(path: Path) -> None:
    """Draw one of the figures of a run's folder from the data there."""
    with drawing_errors(path):
        save(_figure(path), path)


def _figure(path: Path) -> Any:
    if path.name == POWER:
        return _power(read_spectra(path.parent))
    if path.name == CONVERGENCE:
        return _convergence(path.parent)
    name = path.stem.partition("_")[0]
    if name not in _TABLES:
        return _density(read_slab(path.with_suffix(".npz")))
    table = read_table(path.with_suffix(".csv"))
    try:
        figure = _TABLES[name](table)
    except KeyError as error:
        raise ValueError(f"{path.with_suffix('.csv')}: has no column {error}") from error
    figure.axes[0].set_title(table.title, fontsize=14, pad=10)
    return figure


def _power(spectra: Mapping[float, Table]) -> Any:
    """P(k) with linear theory at each redshift, and their ratio below."""
    measured = [SimpleNamespace(**table.columns) for table in spectra.values()]
    linear = [table["linear power"] for table in spectra.values()]
    labels, noise = [f"$z = {z:g}$" for z in spectra], float(next(iter(spectra.values()))["shot noise"][0])
    return plot.power(measured, linear, labels=labels, shot_noise=noise)


def _density(slab: Arrays) -> Any:
    """Density of a slab."""
    figure = plot.density(slab["density"], slab["sides"].tolist())
    title = f"redshift {slab['z']:.3g}, mean over $0 < z < {slab['thickness']:.3g}$ Mpc/$h$"
    figure.axes[0].set_title(title, fontsize=15, pad=10)
    return figure


def _poles(table: Table) -> Any:
    measured, linear = (
        SimpleNamespace(
            k=table["k"], modes=table["modes"], poles=POLES, power=[table[f"{kind}P{pole}"] for pole in POLES]
        )
        for kind in ("", "linear ")
    )
    return plot.multipoles(measured, linear, error=[table[f"error of P{pole}"] for pole in POLES])


def _bispectrum(table: Table) -> Any:
    columns = {"bispectrum": "B", "scatter": "error of B", "triangles": "triangles"}
    sides = np.stack([table[f"k{i}"] for i in (1, 2, 3)], axis=1)
    found = SimpleNamespace(k=sides, **{name: table[column] for name, column in columns.items()})
    return plot.bispectrum(found, table["tree level"])


def _cross(table: Table) -> Any:
    found = SimpleNamespace(k=table["k"], correlation=table["r"], transfer=table["T"], modes=table["modes"])
    return plot.cross(found)


def _pdf(table: Table) -> Any:
    found = SimpleNamespace(values=table["density"], density=table["probability density"], cells=table["cells"])
    return plot.pdf(found)


def _convergence(folder: Path) -> Any:
    """Convergence of each source, and its power."""
    from matplotlib.figure import Figure

    path, spectra = folder / LIGHT_CONE, folder / CONVERGENCE_POWER
    table = read_table(spectra) if spectra.is_file() else None
    with content.opened(path) as file:
        maps = _maps(file, "convergence")
        gamma = _maps(file, "shear") if content.has(file, "shear") else None
        sources = content.values(file, "sources").tolist()
        side = float(content.values(file, "field")[0]) if file.attrs.get("sky") == "flat" else None
    panels = len(sources) + (table is not None)
    size = (9.6, 5.4 * panels) if side is None else (6.6 * panels, 5.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = np.ravel(figure.subplots(*((panels, 1) if side is None else (1, panels))))
    for i, (kappa, z) in enumerate(zip(maps, sources, strict=True)):
        axes[i].set_title(f"sources at $z = {z:g}$", fontsize=14)
        sticks = None if side is None or gamma is None else gamma[i]
        plot.convergence(kappa, shear=sticks, field=side, axes=axes[i])
    if table is not None:
        spectra = [SimpleNamespace(ell=table["l"], power=table[f"C_l z={z:g}"], modes=table["modes"]) for z in sources]
        labels, linear = [f"$z = {z:g}$" for z in sources], [table[f"linear z={z:g}"] for z in sources]
        plot.angular_power(spectra, linear, labels=labels, axes=axes[-1])
    return figure


def _maps(file: content.File, name: str) -> np.ndarray:
    data = content.member(file, name, content.DATASET)
    content.check_storage(data, name)
    return content.rows(data, 0, None).astype(float)


_TABLES: dict[str, Callable[[Table], Any]] = {
    "multipoles": _poles, "galaxies": _poles, "bispectrum": _bispectrum, "cross": _cross, "pdf": _pdf
}  # fmt: skip
