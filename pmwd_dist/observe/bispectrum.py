"""Bispectrum of a field on the mesh, in bins of triangles of wavevectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_ascending, check_choice, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.observe.power import Deconvolve, bin_sums, check_deconvolve, inverse_window, linear_power_at, mean
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import irfft_block, rfft_block, sequence_after
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm import fourier, inputs

Triangles = Literal["all", "isosceles", "equilateral"]
_KINDS = {"all": (1, 2, 3), "isosceles": (1, 2), "equilateral": (1,)}  # numbers of different sides
_BELOW = 1e-5  # relative margin beyond the rounding of wavenumbers in single precision
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)  # quadrature over a shell


class Bispectrum(eqx.Module):
    """A bispectrum in bins of triangles, with sides in three shells of wavenumbers.

    Means are NaN in bins without triangles or modes.

    Args:
      k: mean wavenumbers of the modes of the three shells, ascending [h/Mpc].
      bispectrum: mean of delta(k1) delta(k2) delta(k3) over the closed triangles of each bin [(Mpc/h)^6].
      triangles: number of closed triangles, mirror images and permutations counted separately.
      power: mean power of the modes of the three shells [(Mpc/h)^3].
      volume: volume of the box [(Mpc/h)^3].
      shells: indices of the three shells, ascending.
    """

    k: Float[Array, "bins 3"]
    bispectrum: Float[Array, " bins"]
    triangles: Float[Array, " bins"]
    power: Float[Array, "bins 3"]
    volume: float = eqx.field(static=True)
    shells: tuple[tuple[int, int, int], ...] = eqx.field(static=True)

    @property
    def reduced(self) -> Array:
        """Q = B / (P1 P2 + P2 P3 + P3 P1), with the measured power; NaN where it is zero."""
        one, two, three = self.power.T
        return self.bispectrum / (one * two + two * three + three * one)

    @property
    def scatter(self) -> Array:
        """Standard deviation for a Gaussian field of this power, sqrt(s V P1 P2 P3 / triangles) [(Mpc/h)^6].

        s is the number of permutations of a triangle in its bin (Scoccimarro et al. 1998, eq. A16).
        """
        same = np.array([math.factorial(max(map(bin_.count, bin_))) for bin_ in self.shells])
        squares = jnp.asarray(same) * self.volume * jnp.prod(self.power, axis=1)
        return jnp.sqrt(mean(squares, self.triangles))


@on_auto_axes
def bispectrum(
    field: Real[Array, "nx ny nz"],
    config: Config,
    *,
    edges: Sequence[float] | np.ndarray | None = None,
    triangles: Triangles = "all",
    deconvolve: Deconvolve = True,
) -> Bispectrum:
    """Bispectrum of a field such as `density`, by transforms (Scoccimarro 2000; Tomlinson, Jeong & Kim 2019).

    The modes of each shell are transformed back. The product of three such fields, summed over cells, is the sum over
    all closed triangles with a side in each shell; the same with modes of 1 counts the triangles. The sum is exact up
    to 2/3 of the Nyquist frequency, beyond which aliases close triangles. It takes a mesh field and two transforms for
    each shell, and derivatives as many again. The shot noise of random points, (P1 + P2 + P3) / n + 1 / n^2, is not
    subtracted. That of counts that are drawn in cells has no window: measure B and P with deconvolve=False.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      config: configuration of the simulation.
      edges: edges of the shells in wavenumber, ascending [h/Mpc]; default: `bispectrum_edges(config)`.
      triangles: "all" bins with closed triangles, "isosceles" or "equilateral" ones: two sides or three in a shell.
      deconvolve: deconvolution of the cloud-in-cell window, see `power_spectrum`.

    Raises:
      ValueError: the field is not on the mesh or not real, or another argument is out of its range.

    Examples:
      >>> found = pmd.observe.bispectrum(density, config, triangles="equilateral")
      >>> found.k, found.bispectrum, found.scatter
    """
    check_deconvolve(deconvolve)
    field = inputs.mesh_field(field, config)
    check_choice(triangles, "triangles", tuple(_KINDS))
    edges = bispectrum_edges(config) if edges is None else _checked_edges(edges, config)
    return _bispectrum(field, config, edges=edges, bins=_closed_bins(edges, triangles), deconvolve=deconvolve)


def bispectrum_edges(config: Config, shells: int = 8, k_max: float | None = None) -> tuple[float, ...]:
    """Edges of shells of equal width, from half the smallest fundamental mode on [h/Mpc].

    Args:
      config: configuration of the simulation.
      shells: number of shells.
      k_max: last edge [h/Mpc]; default: 2/3 of the smallest Nyquist frequency.

    Raises:
      ValueError: `shells` is not a positive integer, or `k_max` is out of its range.
    """
    shells = whole_number(shells, "shells", least=1)
    low, high = math.pi / max(config.box_size), _largest(config)
    if k_max is not None and not low < k_max <= high * (1 + _BELOW):
        constraint = f"must be {low:.4g} to {high:.4g} h/Mpc, 2/3 of the Nyquist frequency"
        raise ArgumentError("k_max", k_max, constraint, "use a finer mesh for more: beyond, triangles close by aliases")
    return tuple(np.linspace(low, high if k_max is None else min(k_max, high), shells + 1).tolist())


@on_auto_axes
def tree_bispectrum(
    power: Callable[[np.ndarray], np.ndarray], edges: Sequence[float], shells: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """Bispectrum of matter at second order of perturbation theory, as means over bins of triangles [(Mpc/h)^6].

    2 F2(k1, k2) P1 P2 and its permutations (Fry 1984), with F2 in an Einstein-de Sitter universe. The mean is an
    integral over closed triangles, k1 k2 k3 dk1 dk2 dk3, by quadrature.

    Args:
      power: linear P(k) [(Mpc/h)^3], a function of k [h/Mpc].
      edges: edges of the shells [h/Mpc].
      shells: indices of the shells of the three sides of each bin, as in `Bispectrum`.

    Raises:
      ValueError: edges that don't ascend from 0 or more, shells beyond them, or a P(k) that is negative or not finite.
    """
    edges = check_ascending(edges, "edges")
    low, high = np.asarray(edges[:-1]), np.asarray(edges[1:])
    nodes = (low[:, None] + high[:, None]) / 2 + (high - low)[:, None] / 2 * _NODES
    powers = np.asarray(linear_power_at(nodes.ravel(), power), float).reshape(nodes.shape)
    check_number(shells, "shells", 0, len(edges) - 2, several=True)
    found = np.empty(len(shells))
    for n, sides in enumerate(shells):
        k = np.meshgrid(*(nodes[i] for i in sides), indexing="ij")
        p = np.meshgrid(*(powers[i] for i in sides), indexing="ij")
        closed = (k[0] <= k[1] + k[2]) & (k[1] <= k[2] + k[0]) & (k[2] <= k[0] + k[1])
        weight = np.einsum("i,j,k->ijk", _WEIGHTS, _WEIGHTS, _WEIGHTS) * k[0] * k[1] * k[2] * closed
        value = sum(2 * _f2(k[i], k[j], k[3 - i - j]) * p[i] * p[j] for i, j in ((0, 1), (1, 2), (0, 2)))
        found[n] = np.sum(weight * value) / max(float(np.sum(weight)), 1e-300)
    return found


def _f2(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Second-order kernel for two sides of a triangle and the third."""
    cosine = np.clip((c**2 - a**2 - b**2) / (2 * a * b), -1, 1)
    return 5 / 7 + cosine / 2 * (a / b + b / a) + 2 / 7 * cosine**2


def _largest(config: Config) -> float:
    """Largest edge: just below 2/3 of the Nyquist frequency, where aliases close triangles."""
    return (1 - _BELOW / 2) * 2 / 3 * math.pi / max(config.cell_size)


def _checked_edges(edges: Any, config: Config) -> tuple[float, ...]:
    values, high = check_ascending(edges, "edges"), _largest(config)
    if values[0] <= 0 or values[-1] > high * (1 + _BELOW):
        constraint = f"must lie between 0 and {high:.4g} h/Mpc, 2/3 of the Nyquist frequency"
        raise ArgumentError("edges", values, constraint, "beyond, triangles close by aliases: use a finer mesh")
    return tuple(np.minimum(values, high).tolist())


def _closed_bins(edges: tuple[float, ...], triangles: Triangles) -> tuple[tuple[int, int, int], ...]:
    """Ascending triples of shells with closed triangles."""
    every = itertools.combinations_with_replacement(range(len(edges) - 1), 3)
    kinds = _KINDS[triangles]
    return tuple(
        bin_ for bin_ in every if len({*bin_}) in kinds and edges[bin_[2]] < edges[bin_[0] + 1] + edges[bin_[1] + 1]
    )


@on_blocks(["field"], "whole", static=["edges", "bins", "deconvolve"])
def _bispectrum(
    field: Array,
    config: Config,
    *,
    edges: tuple[float, ...],
    bins: tuple[tuple[int, int, int], ...],
    deconvolve: Deconvolve,
) -> Bispectrum:
    decomposition, dtype = config.decomposition, field.dtype
    volume, cells, count = math.prod(config.box_size), math.prod(config.mesh_shape), len(edges) - 1
    modes = rfft_block(field, decomposition) * jnp.sqrt(inverse_window(config, dtype, deconvolve)) / cells
    shell, k = _shell_of_modes(edges, config, dtype)
    products = _products(modes, shell, count, bins, config)
    # In sequence: both sets of fields at a time would take twice the memory.
    ones, products = sequence_after(jax.lax.stop_gradient(jnp.ones_like(modes)), products)
    triangles = _products(ones, shell, count, bins, config)
    power, k, number = bin_sums([jnp.abs(modes) ** 2, k], shell, count, config)
    products, triangles = (jax.lax.psum(x, decomposition.names) for x in (products, triangles))
    # Numbers of triangles are integers but for rounding errors.
    triangles = jnp.rint(jax.lax.stop_gradient(triangles) / cells)
    sides = np.asarray(bins).reshape(-1, 3)
    found = mean(products, triangles) * (volume**2 / cells)
    return Bispectrum(mean(k, number)[sides], found, triangles, mean(power, number)[sides] * volume, volume, bins)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def _shell_of_modes(edges: tuple[float, ...], config: Config, dtype: Any) -> tuple[Array, Array]:
    """Index of the shell of each mode, the number of shells outside of all, and the wavenumber."""
    k = jnp.sqrt(fourier.k_squared(config.mesh_shape, config, dtype))
    shell = jnp.searchsorted(jnp.asarray(edges, dtype), k, side="right") - 1
    counted = (shell >= 0) & (fourier.mode_count(config.mesh_shape, config, dtype) > 0)
    return jnp.where(counted, shell, len(edges) - 1), k


def _products(modes: Array, shell: Array, shells: int, bins: Sequence[tuple[int, int, int]], config: Config) -> Array:
    """Sums over the local cells of products of three fields, each made of the modes of one shell."""
    decomposition, cells = config.decomposition, math.prod(config.mesh_shape)

    def of_shell(i: Array) -> Array:
        return irfft_block(jnp.where(shell == i, modes, 0), config.mesh_shape[2], decomposition) * cells

    fields = jax.lax.map(jax.checkpoint(of_shell), jnp.arange(shells))

    @jax.checkpoint
    def product(sides: Array) -> Array:
        # Sums of one line first: a float32 sum over all cells would lose digits.
        return jnp.sum(jnp.sum(fields[sides[0]] * fields[sides[1]] * fields[sides[2]], axis=2))

    return jax.lax.map(product, jnp.asarray(bins, jnp.int32).reshape(-1, 3))
