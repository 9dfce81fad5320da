"""Figures and page of an inference: traces, corner, bands of spectra, slices, and the page that shows them all."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist._files import atomic_write
from pmwd_dist.report.style import COLOURS, colours, finish_axis, new_figure, save, styled

Rows = Mapping[str, Mapping[str, float]]
_COLUMNS = ("mean", "sd", "rhat", "ess_bulk", "ess_tail", "gradients_per_ess")
_OF_FIT = ("ratio", "z", "p")
COMOVING = (r"$x$  [Mpc/$h$]", r"$y$  [Mpc/$h$]")  # labels of the axes of a plane
_TRUTH: Any = {"color": "0.25", "lw": 1.3, "ls": (0, (5, 3))}


def write_summary(path: Path, rows: Rows) -> None:
    """Write the summary as CSV.

    Raises:
      OSError: the file can't be written.
    """
    _write_rows(path, "parameter", _COLUMNS, rows)


def write_fit(path: Path, rows: Rows) -> None:
    """Write the checks of the fit as CSV, by statistic.

    Raises:
      OSError: the file can't be written.
    """
    _write_rows(path, "statistic", _OF_FIT, rows)


def _write_rows(path: Path, head: str, columns: tuple[str, ...], rows: Rows) -> None:
    lines = [",".join((head, *columns))]
    lines += [",".join([name, *(f"{row[column]:.6g}" for column in columns)]) for name, row in rows.items()]
    with atomic_write(path) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table_lines(rows: Rows, truth: Mapping[str, float]) -> list[str]:
    """Lines of the summary for a terminal."""
    heads = ("mean", "sd", "R-hat", "ESS bulk", "ESS tail", "gradients/ESS", *(("truth",) if truth else ()))
    lines = [f"{'':12}" + "".join(f"{head:>14}" for head in heads)]
    for name, row in rows.items():
        formats = ("14.4f", "14.4f", "14.4f", "14.0f", "14.0f", "14.1f")
        line = f"{name:12}" + "".join(f"{row[c]:{f}}" for c, f in zip(_COLUMNS, formats, strict=True))
        lines.append(line + (f"{truth[name]:14.4f}" if name in truth else ""))
    return lines


def fit_lines(rows: Rows) -> list[str]:
    """Lines of the checks of the fit for a terminal."""
    width = max(map(len, rows), default=0)
    lines = [f"{'checks of the fit':{width}}{'data / model':>14}{'z':>8}{'p':>10}"] if rows else []
    for name, row in rows.items():
        ratio = "" if np.isnan(row["ratio"]) else f"{row['ratio']:.3f}"
        lines.append(f"{name:{width}}{ratio:>14}{row['z']:8.2f}{row['p']:10.2g}")
    return lines


def draw_traces(path: Path, draws: Mapping[str, np.ndarray], truth: Mapping[str, float]) -> None:
    """Draw each parameter of each chain, draw by draw.

    Raises:
      OSError: the figure can't be written.
    """
    with styled():
        figure = new_figure(figsize=(9, 1.8 * len(draws) + 0.8), layout="constrained")
        panels = np.atleast_1d(figure.subplots(len(draws), 1, sharex=True))
        for axes, (name, x) in zip(panels, draws.items(), strict=True):
            for chain, colour in zip(x, colours(len(x)), strict=True):
                axes.plot(chain, color=colour, lw=0.7)
            if name in truth:
                axes.axhline(truth[name], **_TRUTH)
            axes.set_ylabel(name)
        panels[-1].set_xlabel("draw")
        save(figure, path)


def draw_corner(path: Path, draws: Mapping[str, np.ndarray], truth: Mapping[str, float]) -> None:
    """Draw the distribution of each parameter and of each pair, over all chains.

    Raises:
      OSError: the figure can't be written.
    """
    names, count = list(draws), len(draws)
    with styled(outward=True):
        figure = new_figure(figsize=(2.6 * count + 1, 2.6 * count + 1), layout="constrained")
        panels = np.atleast_2d(figure.subplots(count, count, sharex="col"))
        for i, row in enumerate(names):
            for j, column in enumerate(names):
                axes = panels[i, j]
                if j > i:
                    axes.set_axis_off()
                elif i == j:
                    axes.hist(draws[row].ravel(), 40, color=COLOURS[0], histtype="step", density=True)
                    axes.set_yticks([])
                else:
                    axes.hexbin(draws[column].ravel(), draws[row].ravel(), gridsize=30, cmap="Blues", mincnt=1, lw=0)
                if j <= i and column in truth:
                    axes.axvline(truth[column], **_TRUTH)
                if j < i and row in truth:
                    axes.axhline(truth[row], **_TRUTH)
                if i == count - 1:
                    axes.set_xlabel(column)
                if j == 0 and i > 0:
                    axes.set_ylabel(row)
        save(figure, path)


def draw_bands(
    path: Path,
    k: np.ndarray,
    panels: Mapping[str, tuple[np.ndarray, np.ndarray | None, str]],
    along: str = r"$k$  [$h$/Mpc]",
) -> None:
    """Draw medians of curves with bands of 68 % and 95 %.

    Args:
      path: path of the figure.
      k: wavenumbers or multipoles, shape (k,).
      panels: curves of shape (draws, k), a reference curve or None, and its name, by label of the panel.
      along: label of the axis of k.

    Raises:
      OSError: the figure can't be written.
    """
    with styled():
        figure = new_figure(figsize=(8, 2.6 * len(panels) + 0.8), layout="constrained")
        grid = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for axes, (label, (curves, reference, name)) in zip(grid, panels.items(), strict=True):
            some = np.isfinite(curves).any(axis=0)  # r(k) of constant data is not finite
            levels = np.nanpercentile(np.where(some, curves, 0), [2.5, 16, 50, 84, 97.5], axis=0)
            low, below, middle, above, high = np.where(some, levels, np.nan)
            axes.fill_between(k, low, high, color=COLOURS[0], alpha=0.15, lw=0, label="95 % of the samples")
            axes.fill_between(k, below, above, color=COLOURS[0], alpha=0.3, lw=0, label="68 %")
            axes.plot(k, middle, color=COLOURS[0], lw=2)
            if reference is not None:
                axes.plot(k, reference, label=name, **_TRUTH)
            if "P(k)" in label or "C_" in label:
                axes.set_yscale("log")
            axes.set_ylabel(label, fontsize=12)
            finish_axis(axes, k)
        grid[0].legend(fontsize=11)
        grid[-1].set_xlabel(along)
        save(figure, path)


def draw_slices(
    path: Path,
    images: Sequence[tuple[str, np.ndarray]],
    sides: tuple[float, float],
    labels: tuple[str, str] = COMOVING,
    quantity: str | Sequence[str] = "",
    alike: Sequence[int] = (),
    place: str = "",
) -> None:
    """Draw planes of fields side by side.

    Args:
      path: path of the picture.
      images: titles and planes, each of shape (nx, ny); NaN is white.
      sides: sides of the planes.
      labels: labels of the axes.
      quantity: label of the colours with their unit, one for all planes or one for each.
      alike: indices in `images` of the planes that share a colour scale.
      place: title of the picture.

    Raises:
      OSError: the figure can't be written.
    """
    with styled(outward=True):
        figure = new_figure(figsize=(4.4 * len(images), 4.2), layout="constrained")
        grid = np.atleast_1d(figure.subplots(1, len(images), gridspec_kw={"wspace": 0.06}))
        shared = [images[i][1] for i in alike]
        scale = {"vmin": min(map(np.nanmin, shared)), "vmax": max(map(np.nanmax, shared))} if shared else {}
        for i, (axes, (title, values)) in enumerate(zip(grid, images, strict=True)):
            how: Any = {"extent": (0, sides[0], 0, sides[1]), **(scale if i in alike else {})}
            image = axes.imshow(values.T, origin="lower", cmap="inferno", **how)
            axes.set_title(title, fontsize=13)
            axes.set_xlabel(labels[0])
            label = quantity if isinstance(quantity, str) else quantity[i]
            figure.colorbar(image, ax=axes, shrink=0.7, label=label)
        grid[0].set_ylabel(labels[1])
        if place:
            figure.suptitle(place, fontsize=13)
        save(figure, path)


def write_page(
    path: Path, table: Sequence[str], reasons: Sequence[str], about: Sequence[str], images: Sequence[str]
) -> None:
    """Write the page with the verdict, the table and the pictures.

    Raises:
      OSError: the file can't be written.
    """
    verdict = "The chains pass all checks." if not reasons else "Not converged:"
    items = "".join(f"<li>{html.escape(reason)}</li>" for reason in reasons)
    pictures = "".join(f'<p><img src="{name}" style="max-width:100%"></p>' for name in images)
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Inference</title>'
        '<body style="font-family:sans-serif;max-width:60em;margin:2em auto">'
        f"<h1>Inference</h1><p><b>{verdict}</b></p><ul>{items}</ul>"
        f"<pre>{html.escape(chr(10).join(table))}</pre><p>{html.escape(', '.join(about))}</p>{pictures}</body></html>\n"
    )
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")
