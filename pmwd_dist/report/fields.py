"""Figures of fields: density of a slice, planes side by side, maps of the convergence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.report.spectra import angular_power
from pmwd_dist.report.style import figure_of, make_axes, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMOVING = (r"$x$  [Mpc/$h$]", r"$y$  [Mpc/$h$]")  # labels of the axes of a plane
_FLOOR = 0.05  # smallest density that is drawn, per mean density
_STICKS = 28  # along each side of a map


@styled(outward=True)
def density(
    field: Any, box_size: Any, *, thickness: float | None = None, velocity: Any = None, axes: Any = None
) -> Figure:
    """Draw the density of a slice on a logarithmic scale, averaged along its thickness.

    Args:
      field: 1 + delta, averaged over the first planes along z, shape (nx, ny, nz); or such a mean, shape (nx, ny).
      box_size: side of the box, or its sides [Mpc/h], or a Config.
      thickness: thickness of the slice [Mpc/h]; default: a tenth of the box, at least a plane.
      velocity: mean velocity of the slice along x and y, drawn as arrows, shape (2, nx, ny) [km/s].
      axes: axes; default: a new figure.

    Raises:
      ValueError: the field has another shape.

    Examples:
      >>> field = pmd.density(solution.particles, config)
      >>> figure = pmd.plot.density(field, config.box_size, thickness=16.0)
      >>> figure.savefig("density.png")
    """
    if np.ndim(field) not in (2, 3):
        raise ArgumentError("field", field, "must have the shape (nx, ny, nz) or (nx, ny)", "pass the density first")
    sides = np.atleast_1d(getattr(box_size, "box_size", box_size)).tolist()
    x, y, *z = sides * 3 if len(sides) == 1 else sides
    if thickness is not None:
        check_number(thickness, "thickness", 0, z[0], unit="Mpc/h")
    if np.ndim(field) == 3:
        share = 0.1 if thickness is None else thickness / z[0]
        field = field[:, :, : max(1, round(share * field.shape[2]))].mean(axis=2)
    # The logarithm is interpolated between cells: interpolated densities show peaks as squares.
    logarithm = np.log10(np.maximum(np.asarray(field, float), _FLOOR))
    low = min(float(np.quantile(logarithm, 0.01)), np.log10(0.8))
    high = max(float(np.quantile(logarithm, 0.9995)), np.log10(1.25))
    (ax,) = make_axes(axes, (8.6, 1.2 + 6.6 * min(y / x, 1.4)))
    scale: Any = {"vmin": low, "vmax": high, "cmap": "inferno", "interpolation": "bicubic"}
    image = ax.imshow(logarithm.T, origin="lower", extent=(0, x, 0, y), **scale)
    bar = figure_of(ax).colorbar(image, ax=ax, extend="both", fraction=0.046 * min(y / x, 1), pad=0.03)
    coarse = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]
    fine = [0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5]
    ticks = [t for t in (coarse if 10 ** (high - low) > 6 else fine) if 10**low <= t <= 10**high]
    bar.set_ticks([float(np.log10(t)) for t in ticks], labels=[f"{t:g}" for t in ticks])
    bar.set_label(r"density / mean,  $1 + \delta$")
    if velocity is not None:
        _draw_arrows(ax, np.asarray(velocity, float), (x, y))
    ax.set_xlabel(COMOVING[0])
    ax.set_ylabel(COMOVING[1])
    return figure_of(ax)


def _draw_arrows(axes: Axes, velocity: np.ndarray, sides: tuple[float, float]) -> None:
    some = [np.arange(n)[n // _STICKS // 2 :: max(1, n // _STICKS)] for n in velocity.shape[1:]]
    u, v = velocity[:, some[0][:, None], some[1]]
    places = [x * side / n for x, side, n in zip(some, sides, velocity.shape[1:], strict=True)]
    typical = max(float(np.percentile(np.hypot(u, v), 95)), 1e-30)
    style: Any = {"scale": typical * len(some[0]) / 1.6, "color": "white", "alpha": 0.75, "width": 2e-3}
    speed = float(f"{typical:.1g}")
    key: Any = {"labelpos": "W", "color": "0.3"}
    axes.quiverkey(axes.quiver(*places, u.T, v.T, **style), 0.9, -0.08, speed, f"{speed:g} km/s", **key)


@styled(outward=True)
def planes(
    images: Sequence[tuple[str, np.ndarray]],
    sides: Sequence[float],
    *,
    labels: tuple[str, str] = COMOVING,
    quantity: str | Sequence[str] = "",
    alike: Sequence[int] = (),
    axes: Any = None,
) -> Figure:
    """Draw planes of fields, in rows of two, or three if there are three.

    Args:
      images: titles and planes, each of shape (nx, ny); NaN is white.
      sides: sides of the planes, the first two of `config.box_size` [Mpc/h] or others.
      labels: labels of the axes.
      quantity: label of the colours with their unit, one for all planes or one for each.
      alike: indices in `images` of the planes that share a colour scale.
      axes: axes, one for each plane; default: a new figure.

    Examples:
      >>> images = [("truth", noise[:, :, 0]), ("mean of the draws", chain.noise_mean[:, :, 0])]
      >>> pmd.plot.planes(images, config.box_size, alike=(0, 1))
    """
    columns = 3 if len(images) == 3 else min(len(images), 2)
    rows = math.ceil(len(images) / columns)
    grid = make_axes(axes, (4.4 * columns, 4.2 * rows), rows, columns, gridspec_kw={"wspace": 0.06})
    shared = [images[i][1] for i in alike]
    scale = {"vmin": min(map(np.nanmin, shared)), "vmax": max(map(np.nanmax, shared))} if shared else {}
    for i, (ax, (name, values)) in enumerate(zip(grid, images, strict=False)):
        how: Any = {"extent": (0, sides[0], 0, sides[1]), **(scale if i in alike else {})}
        image = ax.imshow(np.asarray(values).T, origin="lower", cmap="inferno", **how)
        ax.set_title(name, fontsize=13)
        ax.set_xlabel(labels[0])
        if i % columns == 0:
            ax.set_ylabel(labels[1])
        label = quantity if isinstance(quantity, str) else quantity[i]
        figure_of(ax).colorbar(image, ax=ax, shrink=0.7, label=label)
    for ax in grid[len(images) :]:
        ax.set_axis_off()
    return figure_of(grid[0])


@styled(outward=True)
def convergence(
    kappa: Any,
    *,
    shear: Any = None,
    field: float | None = None,
    quantity: str = r"convergence $\kappa$",
    axes: Any = None,
) -> Figure:
    """Draw a map of the convergence: a flat sky with sticks along the shear, or the sphere in Mollweide's projection.

    Args:
      kappa: convergence of `observe.convergence`: rays of shape (n, n), or HEALPix pixels in RING order; NaN is white.
      shear: shear of `observe.shear` along the rays, shape (2, n, n).
      field: side of the field of view of a flat sky [degrees].
      quantity: label of the colours.
      axes: axes; default: a new figure.

    Examples:
      >>> kappa = observe.convergence(shells, cosmo, cone, source=1.0, field=5.0, pixels=128)
      >>> pmd.plot.convergence(kappa, field=5.0)
    """
    from matplotlib.ticker import MaxNLocator

    kappa = np.asarray(kappa, float)
    low, high = np.nanpercentile(kappa, [0.5, 99.7])
    style: Any = {"origin": "lower", "cmap": "magma", "vmin": low, "vmax": high}
    bar: Any = {"label": quantity, "extend": "both"}
    if kappa.ndim == 2:
        half = (field or 1.0) / 2
        (ax,) = make_axes(axes, (6.6, 5.6))
        image = ax.imshow(kappa.T, extent=(-half, half, -half, half), interpolation="bicubic", **style)
        if shear is not None:
            _draw_sticks(ax, np.asarray(shear, float), 2 * half)
        ax.set_xlabel("degrees" if field else "")
        ax.set_ylabel("degrees" if field else "")
        bar["shrink"] = 0.9
    else:
        shown, inside = _mollweide(kappa, round((kappa.size / 12) ** 0.5))
        (ax,) = make_axes(axes, (9.6, 5.4))
        image = ax.imshow(np.ma.masked_array(shown, ~inside | np.isnan(shown)), extent=(-2, 2, -1, 1), **style)
        ax.set_axis_off()
        bar |= {"orientation": "horizontal", "shrink": 0.55, "pad": 0.02, "ticks": MaxNLocator(5)}
    figure_of(ax).colorbar(image, ax=ax, **bar)
    return figure_of(ax)


@styled(outward=True)
def lensed_maps(
    names: Sequence[str],
    maps: np.ndarray,
    *,
    shear: np.ndarray | None = None,
    field: float | None = None,
    galaxies: Sequence[tuple[str, np.ndarray]] = (),
    spectra: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """Draw maps of the convergence of several sources, those of galaxies, and angular power spectra, in rows.

    Arguments are those of `convergence` for each source, names and maps of galaxies, and those of `angular_power`, for
    each of its panels.
    """
    from matplotlib.figure import Figure

    shown: list[Any] = [
        partial(_titled_map, name, values, field=field, shear=None if shear is None else shear[i])
        for i, (name, values) in enumerate(zip(names, maps, strict=True))
    ]
    counted = [partial(_titled_map, *each, field=field, quantity="overdensity of galaxies") for each in galaxies]
    drawn = [partial(angular_power, **panel) for panel in spectra]
    rows = [shown + drawn] if field is not None and not galaxies else [row for row in (shown, counted, drawn) if row]
    width = max(sum(6.6 if field is not None or draw in drawn else 9.6 for draw in row) for row in rows)
    figure = Figure(figsize=(width, 5.6 * len(rows)), layout="constrained")
    parts: Any = figure.subfigures(len(rows), 1, squeeze=False)
    for part, row in zip(parts[:, 0], rows, strict=True):
        for i, draw in enumerate(row, 1):
            draw(axes=part.add_subplot(1, len(row), i))
    return figure


def _titled_map(title: str, values: np.ndarray, *, axes: Axes, **options: Any) -> None:
    axes.set_title(title, fontsize=14)
    convergence(values, axes=axes, **options)


def _draw_sticks(axes: Axes, shear: np.ndarray, field: float) -> None:
    rays = shear.shape[1]
    step = max(1, rays // _STICKS)
    place = ((np.arange(rays) + 0.5) / rays - 0.5)[step // 2 :: step] * field
    gamma = shear[:, step // 2 :: step, step // 2 :: step]
    length, angle = np.hypot(*gamma), np.arctan2(gamma[1], gamma[0]) / 2
    sticks: Any = {"headwidth": 0, "headlength": 0, "headaxislength": 0, "pivot": "mid", "width": 0.0022}
    u, v = length * np.cos(angle), length * np.sin(angle)
    scale = max(float(np.percentile(length, 95)), 1e-30) * len(place)
    axes.quiver(place, place, u.T, v.T, scale=scale, alpha=0.75, color="white", **sticks)


def _mollweide(values: np.ndarray, nside: int, width: int = 1600) -> tuple[np.ndarray, np.ndarray]:
    """A map in Mollweide's equal-area projection, longitudes rising to the left, and the mask of its ellipse."""
    from pmwd_dist.observe.healpix import nearest_pixel  # and JAX, which no other figure needs

    x, y = np.meshgrid(np.linspace(-2, 2, width), np.linspace(-1, 1, width // 2))
    inside = (x / 2) ** 2 + y**2 < 1
    auxiliary = np.arcsin(np.where(inside, y, 0))
    sine = (2 * auxiliary + np.sin(2 * auxiliary)) / np.pi
    longitude = -np.pi * np.where(inside, x, 0) / 2 / np.cos(auxiliary)
    cosine = np.sqrt(1 - sine**2)
    direction = np.stack([cosine * np.cos(longitude), cosine * np.sin(longitude), sine], -1)
    return values[np.asarray(nearest_pixel(nside, direction))], inside
