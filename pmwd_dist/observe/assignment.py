"""Catalogues on the mesh: counts of objects in cells by different windows, and the same window for a model."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_choice, check_flag, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.observe.filters import mean_of_meshes
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.distributed import to_devices
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import filtered_block
from pmwd_dist.parallel.inputs import check_on_host, numbers
from pmwd_dist.pm import fourier, inputs

Window = Literal["nearest", "cloud-in-cell", "triangular"]
_ORDERS: dict[Window, int] = {"nearest": 1, "cloud-in-cell": 2, "triangular": 3}  # cells along an axis
_AT_ONCE = 1 << 20  # objects
# Fourier amplitude of a lattice from which on its aliases change P(k): by about 10 % (nearest), or a third beyond half
# the Nyquist frequency.
_LOCKED: dict[Window, float] = {"nearest": 0.05, "cloud-in-cell": 0.15, "triangular": 0.15}
_MANY = 1000  # objects, of which fewer have more noise than this changes
_FEW, _NARROW = 10, 0.05  # objects, and part of the box in which so many suggest another unit


def counts_from_catalogue(
    positions: ArrayLike,
    config: Config,
    *,
    weights: ArrayLike | None = None,
    window: Window = "nearest",
    interlaced: bool = False,
) -> Float[Array, "nx ny nz"]:
    """Number of objects in each cell of the mesh, divided over devices like a density.

    Cell i is centred at i times its side, as in `cic_paint`. Counts by the nearest cell are whole numbers, as a Poisson
    likelihood expects. Spectra need interlaced counts by cloud-in-cell: aliases raise P(k) of the others towards the
    Nyquist frequency. A model of counts needs the same window, see `with_window`. Of a survey, the counts of random
    points times the ratio of both numbers are the expected counts without clustering.

    Args:
      positions: comoving positions, shape (objects, 3) [Mpc/h]; beyond the box they are repeated. All objects on every
        process.
      config: configuration of the simulation.
      weights: weight of each object, 0 or more; default: 1.
      window: "nearest", "cloud-in-cell" or "triangular" (triangular-shaped cloud), which share an object among 1, 8 or
        27 cells (Hockney & Eastwood 1988, ch. 5).
      interlaced: mean with counts on a mesh shifted by half a cell, as `interlaced_density`.

    Raises:
      ValueError: positions or weights have another shape, are traced or not finite, a weight is negative, or the window
        is unknown.

    Warns:
      UserWarning: ten or more objects span less than a twentieth of all sides of the box, or more than 20 times one.
        Objects keep to a lattice of half to four sites a cell, as galaxies at particles may do, and the window has
        aliases of it.

    Examples:
      >>> counts = observe.counts_from_catalogue(galaxies.columns["RedshiftSpacePosition"], config)
    """
    inputs.check_config(config)
    check_on_host("counts_from_catalogue", (positions, weights))
    check_choice(window, "window", get_args(Window))
    check_flag(interlaced, "interlaced")
    x = np.asarray(numbers(positions, "positions"))
    w = np.ones(len(x) if x.ndim else 0) if weights is None else np.asarray(numbers(weights, "weights"), float)
    if x.ndim != 2 or x.shape[1] != 3:
        raise ArgumentError("positions.shape", x.shape, "must be (objects, 3)")
    if w.shape != x.shape[:1]:
        raise ArgumentError("weights.shape", w.shape, f"must be {x.shape[:1]}")
    if missing := int(np.sum(~np.isfinite(x))):
        raise ArgumentError("positions", x, f"hold {missing} values that are not finite", show_value=False)
    check_number(w, "weights", 0, several=True, remedy="count objects of negative weight apart, and subtract them")
    if len(x) >= _FEW and not _NARROW < (span := float(np.max(np.ptp(x, axis=0) / config.box_size))) < 1 / _NARROW:
        text = f"positions: {len(x)} objects span {span:.2g} of the sides of the box, at most"
        warnings.warn(f"{text}; pass comoving positions in Mpc/h", stacklevel=2)
    aliased = len(x) >= _MANY and (window == "nearest" or not interlaced)
    if aliased and (share := _locked(x, config)) > _LOCKED[window] + 2 / math.sqrt(len(x)):
        text = f"positions: objects keep to a lattice (amplitude {share:.2g}), as particles near their sites:"
        change = "a factor of 3 at 0.2, beyond half the Nyquist frequency"
        if window == "nearest":
            change = "10 % at 0.05 and factors at 0.3"
        text += f" aliases of the window {window} change P(k), by up to {change}"
        warnings.warn(f'{text}; use window="cloud-in-cell", interlaced=True, or more particles', stacklevel=2)
    fields = [_painted(x, w, config, _ORDERS[window], shift) for shift in (0.0, 0.5)[: 1 + interlaced]]
    dtype = jnp.result_type(float)
    counts = [to_devices(field.astype(dtype), config.decomposition.sharding) for field in fields]
    return _interlaced(*counts, config) if interlaced else counts[0]


def _locked(x: np.ndarray, config: Config) -> float:
    """Fourier amplitude of positions along two axes, for up to 4 sites a cell: 1 of a lattice, 0 where none stands out.

    Random places, and groups of objects, have no wave that stands out from its neighbours. Lattices whose wave is on
    the mesh, with two cells and more a site, are power as any other.
    """

    def of_axis(places: np.ndarray, n: int) -> float:
        bins = 32 * n
        at = places % 1 * bins
        left = np.floor(at).astype(int)
        shares = {0: 1 - at + left, 1: at - left}  # linear: aliases of far shorter waves are below 0.02
        total = sum(np.bincount((left + i) % bins, share, bins) for i, share in shares.items())
        waves = np.abs(np.fft.rfft(total)) / len(places)
        above = n // 2
        peak = above + int(waves[above : 4 * n + 1].argmax())
        return float(waves[peak] * (waves[peak] > 4 * np.median(waves[peak // 2 : 3 * peak // 2 + 1])))

    return sorted(map(of_axis, (x / config.box_size).T, config.mesh_shape))[1]


def _painted(x: np.ndarray, weights: np.ndarray, config: Config, order: int, shift: float) -> np.ndarray:
    """Counts on a mesh that is shifted by some cells, with a window of an order."""
    shape, total = config.mesh_shape, np.zeros(config.mesh_shape)
    for low in range(0, len(x), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        cells = np.mod(x[part].astype(float), config.box_size) / config.cell_size - shift
        first = np.floor(cells + (0.5 if order % 2 else 0)).astype(int)
        d = cells - first
        shares = {
            1: {0: np.ones_like(d)},
            2: {0: 1 - d, 1: d},
            3: {-1: (0.5 - d) ** 2 / 2, 0: 0.75 - d**2, 1: (0.5 + d) ** 2 / 2},
        }[order]
        for offsets in itertools.product(shares, repeat=3):
            share = weights[part] * math.prod(shares[o][:, axis] for axis, o in enumerate(offsets))
            at = np.ravel_multi_index(tuple((first + offsets).T), shape, mode="wrap")
            total += np.bincount(at, share, total.size).reshape(shape)
    return total


@on_blocks(["field", "field"], "field")
def _interlaced(counts: Array, shifted: Array, config: Config) -> Array:
    return mean_of_meshes(counts, shifted, config)


@on_auto_axes
def with_window(density: Real[Array, "nx ny nz"], config: Config, window: Window) -> Float[Array, "nx ny nz"]:
    """A density with another window in place of cloud-in-cell, the one of a painted density.

    In Fourier space, by the ratio of windows: exact but for aliases. A nearest-cell density has more power on small
    scales, and may be negative where the painted one is about 0.

    Args:
      density: density from `density` or `tracer_density`.
      config: configuration of the simulation.
      window: "nearest", "cloud-in-cell" or "triangular".

    Raises:
      ValueError: the field is not on the mesh, or the window is unknown.

    Examples:
      >>> model = observe.with_window(observe.tracer_density(particles, weights, config), config, "nearest")
    """
    density = inputs.mesh_field(density, config, "density")
    check_choice(window, "window", get_args(Window))
    return density if window == "cloud-in-cell" else _with_window(density, config, _ORDERS[window])


@on_blocks(["field"], "field", static=["order"])
def _with_window(density: Array, config: Config, order: int) -> Array:
    def ratio() -> Array:
        return fourier.cic_window(config.mesh_shape, config, density.dtype, power=order / 2 - 1)

    return filtered_block(density, ratio, config.decomposition)
