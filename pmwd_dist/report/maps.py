"""Figures of a light cone: maps of the convergence, on a flat sky or the sphere, and its power."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import jax.numpy as jnp
import numpy as np

from pmwd_dist.observe.healpix import nearest_pixel
from pmwd_dist.report.style import COLOURS, finish_axis, new_figure, save, styled
from pmwd_dist.report.tables import Table, read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIELDS, SPECTRA, FIGURE = "light_cone.hdf5", "convergence_power.csv", "convergence.png"
_STICKS = 28  # along each side of a map


def draw_light_cone(folder: Path) -> Path:
    """Draw the convergence of each source, and its power, from the files of a run, and return the path of the figure.

    Raises:
      ValueError: a file does not hold a light cone.
      OSError: a file can't be read or written.
    """
    path = folder / FIELDS
    try:
        with h5py.File(path) as file:
            about: dict[str, Any] = dict(file.attrs)
            convergence = np.asarray(file["convergence"], float)
            shear = np.asarray(file["shear"], float) if "shear" in file else None
            sources = [float(z) for z in np.asarray(about["sources"])]
            flat = about["sky"] == "flat"
    except KeyError as error:
        raise ValueError(f"{path}: not a light cone of this program ({error})") from error
    with styled(outward=True):
        if flat and shear is not None:
            figure = _flat(convergence, shear, sources, float(about["field"]), _spectra(folder))
        else:
            figure = _spheres(convergence, sources, int(about["nside"]), _spectra(folder))
        save(figure, folder / FIGURE)
    return folder / FIGURE


def _spectra(folder: Path) -> Table | None:
    return read_table(folder / SPECTRA) if (folder / SPECTRA).is_file() else None


def _flat(
    convergence: np.ndarray, shear: np.ndarray, sources: list[float], field: float, table: Table | None
) -> Figure:
    """Map of each source with sticks along the shear, and the spectra at the right."""
    panels = len(sources) + (table is not None)
    figure = new_figure(figsize=(6.6 * panels, 5.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, panels))
    for i, z in enumerate(sources):
        _draw_flat(figure, axes[i], convergence[i], shear[i], z, field)
    if table is not None:
        with styled():
            _draw_power(axes[-1], table, sources)
    return figure


def _draw_flat(figure: Figure, axes: Axes, kappa: np.ndarray, shear: np.ndarray, z: float, field: float) -> None:
    low, high = np.percentile(kappa, [0.5, 99.7])
    image = axes.imshow(
        kappa.T, origin="lower", extent=(-field / 2, field / 2, -field / 2, field / 2), cmap="magma",
        vmin=low, vmax=high, interpolation="bicubic",
    )  # fmt: skip
    rays = len(kappa)
    step = max(1, rays // _STICKS)
    place = ((np.arange(rays) + 0.5) / rays - 0.5)[step // 2 :: step] * field
    gamma = shear[:, step // 2 :: step, step // 2 :: step]
    length, angle = np.hypot(*gamma), np.arctan2(gamma[1], gamma[0]) / 2
    sticks: Any = {"headwidth": 0, "headlength": 0, "headaxislength": 0, "pivot": "mid", "width": 0.0022}
    u, v = length * np.cos(angle), length * np.sin(angle)
    scale = max(float(np.percentile(length, 95)), 1e-30) * len(place)
    axes.quiver(place, place, u.T, v.T, scale=scale, alpha=0.75, color="white", **sticks)
    axes.set_xlabel("degrees")
    axes.set_ylabel("degrees")
    axes.set_title(f"convergence and shear, sources at $z = {z:g}$", fontsize=14)
    figure.colorbar(image, ax=axes, label=r"convergence $\kappa$", shrink=0.9, extend="both")


def _draw_power(axes: Axes, table: Table, sources: list[float]) -> None:
    """l (l + 1) C_l / 2 pi with its scatter, and linear theory."""
    ell = table["l"]
    factor = ell * (ell + 1) / (2 * np.pi)
    colours = [*COLOURS] * (1 + len(sources) // len(COLOURS))
    for z, colour in zip(sources, colours, strict=False):
        power, error, linear = (factor * table[f"{name} z={z:g}"] for name in ("C_l", "error", "linear"))
        axes.fill_between(ell, np.maximum(power - error, 1e-30), power + error, color=colour, alpha=0.2, lw=0)
        axes.plot(ell, power, "o-", ms=4, color=colour, lw=1.8, label=f"$z = {z:g}$")
        axes.plot(ell, linear, color=colour, lw=1.4, ls=(0, (5, 3)))
    axes.plot([], [], color="0.35", lw=1.4, ls=(0, (5, 3)), label="linear theory")
    axes.set_yscale("log")
    values = np.concatenate([factor * table[f"{kind} z={z:g}"] for kind in ("C_l", "linear") for z in sources])
    values = values[values > 0]
    if len(values):
        axes.set_ylim(max(values.min() * 0.5, values.max() * 1e-4), values.max() * 2)
    finish_axis(axes, ell)
    axes.set_xlabel(r"multipole $\ell$")
    axes.set_ylabel(r"$\ell(\ell+1)\,C_\ell^{\kappa\kappa} / 2\pi$")
    axes.set_title("power of the convergence", fontsize=14)
    axes.legend(fontsize=12)


def _spheres(convergence: np.ndarray, sources: list[float], nside: int, table: Table | None) -> Figure:
    """Map of each source in Mollweide's projection, one below the other, and the spectra at the bottom."""
    rows = len(sources) + (table is not None)
    heights = [1.0] * len(sources) + [1.1] * (table is not None)
    figure = new_figure(figsize=(9.6, 5.4 * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, 1, height_ratios=heights))
    for i, z in enumerate(sources):
        image, inside = _mollweide(convergence[i], nside)
        low, high = np.percentile(convergence[i], [0.5, 99.7])
        shown = axes[i].imshow(
            np.ma.masked_array(image, ~inside), origin="lower", extent=(-2, 2, -1, 1), cmap="magma", vmin=low, vmax=high
        )
        axes[i].set_axis_off()
        axes[i].set_title(f"convergence of the whole sky, sources at $z = {z:g}$", fontsize=14)
        figure.colorbar(
            shown, ax=axes[i], label=r"convergence $\kappa$", orientation="horizontal", shrink=0.55, pad=0.02,
            extend="both",
        )  # fmt: skip
    if table is not None:
        with styled():
            _draw_power(axes[-1], table, sources)
    return figure


def _mollweide(values: np.ndarray, nside: int, width: int = 1600) -> tuple[np.ndarray, np.ndarray]:
    """A map in Mollweide's equal-area projection, longitudes rising to the left, and the mask of its ellipse."""
    x, y = np.meshgrid(np.linspace(-2, 2, width), np.linspace(-1, 1, width // 2))
    inside = (x / 2) ** 2 + y**2 < 1
    auxiliary = np.arcsin(np.where(inside, y, 0))
    sine = (2 * auxiliary + np.sin(2 * auxiliary)) / np.pi
    longitude = -np.pi * np.where(inside, x, 0) / 2 / np.cos(auxiliary)
    cosine = np.sqrt(1 - sine**2)
    direction = np.stack([cosine * np.cos(longitude), cosine * np.sin(longitude), sine], -1)
    return values[np.asarray(nearest_pixel(nside, jnp.asarray(direction)))], inside
