"""Figures of the observables of a run: multipoles, r(k) and T(k), the one-point distribution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist.report.style import COLOURS, finish_axis, new_figure, save, styled
from pmwd_dist.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POLES = {0: "monopole", 2: "quadrupole", 4: "hexadecapole"}


def draw_table(path: Path, draw: Callable[[Any, Table], None], table: Table) -> None:
    """Draw the table of an observable.

    Raises:
      ValueError: the table is not one of this observable.
      OSError: the figure can't be written.
    """
    with styled():
        figure = new_figure(figsize=(8, 6.4), layout="constrained")
        axes = figure.subplots()
        try:
            draw(axes, table)
        except KeyError as error:
            raise ValueError(f"{path.with_suffix('.csv')}: has no column {error}") from error
        axes.set_title(table.title, fontsize=14, pad=10)
        save(figure, path)


def draw_poles(axes: Axes, table: Table) -> None:
    """k P_l with the scatter of the modes, and linear theory, both in bins that are merged at large k."""
    groups = _groups(table["k"])
    k = _mean(table, "k", groups)
    for (pole, name), colour in zip(_POLES.items(), COLOURS, strict=False):
        power, linear = (k * _mean(table, f"{kind}P{pole}", groups) for kind in ("", "linear "))
        error = k * _error(table, f"error of P{pole}", groups)
        marks: Any = {"fmt": "o", "color": colour, "ms": 4.5, "lw": 1.4, "alpha": 0.45 if pole == 4 else 1.0}
        axes.errorbar(k, power, error, **marks, label=rf"$\ell = {pole}$, {name}")
        axes.plot(k, linear, color=colour, lw=1.6, ls=(0, (5, 3)), alpha=marks["alpha"])
    axes.plot([], [], color="0.35", lw=1.6, ls=(0, (5, 3)), label="linear theory (Kaiser)")
    axes.axhline(0, color="0.35", lw=1)
    finish_axis(axes, k)
    lines = np.concatenate([k * _mean(table, f"{kind}P{pole}", groups) for kind in ("", "linear ") for pole in (0, 2)])
    lines = lines[np.isfinite(lines)]
    if len(lines):
        low, high = min(0.0, float(np.quantile(lines, 0.02))), float(lines.max())
        axes.set_ylim(low - 0.2 * (high - low), high + 0.15 * (high - low))
    axes.set_xlabel(r"$k$  [$h$/Mpc]")
    axes.set_ylabel(r"$k\,P_\ell(k)$  [(Mpc/$h)^2$]")
    axes.legend(fontsize=12, loc="best")


def _groups(k: np.ndarray) -> np.ndarray:
    """Index of the merged bin of each bin; merged bins are at least 6 % wide."""
    numbers, start = np.zeros(len(k), int), k[0]
    for i in range(1, len(k)):
        wide = k[i] > start * 1.06
        numbers[i] = numbers[i - 1] + wide
        start = k[i] if wide else start
    return numbers


def _mean(table: Table, name: str, groups: np.ndarray) -> np.ndarray:
    modes = table["modes"]
    return np.bincount(groups, modes * table[name]) / np.bincount(groups, modes)


def _error(table: Table, name: str, groups: np.ndarray) -> np.ndarray:
    modes = table["modes"]
    return np.sqrt(np.bincount(groups, (modes * table[name]) ** 2)) / np.bincount(groups, modes)


def draw_bispectrum(axes: Axes, table: Table) -> None:
    """B, measured and at tree level, by wavenumber where all triangles are equilateral, else by index of the bin."""
    sides = np.stack([table[f"k{i}"] for i in (1, 2, 3)])
    same = bool((sides == sides[0]).all())
    x = sides[0] if same else np.arange(1.0, sides.shape[1] + 1)
    value, error = table["B"], table["error of B"]
    some = value > 0
    low = np.minimum(error, 0.999 * np.abs(value))
    marks: Any = {"fmt": "o", "color": COLOURS[0], "ms": 4.5, "lw": 1.4}
    axes.errorbar(x[some], value[some], np.stack([low, error])[:, some], **marks, label="measured")
    axes.plot(x, table["tree level"], color=COLOURS[1], lw=1.6, label="tree level")
    axes.set_yscale("log")
    shown = np.concatenate([value[some], table["tree level"][table["tree level"] > 0]])
    if len(shown):
        axes.set_ylim(0.4 * float(shown.min()), 2.5 * float(shown.max()))
    if same:
        finish_axis(axes, x)
    axes.set_xlabel(r"$k$  [$h$/Mpc]" if same else r"bin of triangles, $k_1 \leq k_2 \leq k_3$")
    axes.set_ylabel(r"$B(k_1, k_2, k_3)$  [(Mpc/$h)^6$]")
    axes.legend(fontsize=12)


def draw_cross(axes: Axes, table: Table) -> None:
    """Draw r(k) and T(k)."""
    k = table["k"]
    axes.plot(k, table["r"], color=COLOURS[0], lw=2.2, label=r"correlation $r(k)$")
    axes.plot(k, table["T"], color=COLOURS[1], lw=2.2, label=r"transfer function $T(k)$")
    axes.axhline(1, color="0.35", lw=1)
    finish_axis(axes, k)
    axes.set_ylim(0, max(1.25, 1.1 * float(np.nanmax(np.minimum(table["T"], 4)))))
    axes.set_xlabel(r"$k$  [$h$/Mpc]")
    axes.set_ylabel(r"$r(k)$,  $T(k)$")
    axes.legend(fontsize=12)


def draw_pdf(axes: Axes, table: Table) -> None:
    """Draw the one-point distribution with its Poisson scatter."""
    density, probability, cells = table["density"], table["probability density"], table["cells"]
    some = cells > 0
    scatter = probability[some] / np.sqrt(np.maximum(cells[some], 1))
    axes.fill_between(
        density[some], (probability[some] - scatter).clip(1e-300), probability[some] + scatter,
        color=COLOURS[0], alpha=0.2, lw=0,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.plot(density[some], probability[some], color=COLOURS[0], lw=2.2)
    axes.set_ylim(bottom=0.3 * float(probability[some].min()) if some.any() else None)
    axes.set_xlabel(r"density / mean,  $1 + \delta$")
    axes.set_ylabel(r"probability density")
    finish_axis(axes, density[some] if some.any() else density)
