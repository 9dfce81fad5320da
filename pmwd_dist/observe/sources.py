"""Sources of lensing: their redshifts, and the weights of shells for their convergence and intrinsic alignment."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import eval_context
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import check_ascending, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology.collocation import matmul
from pmwd_dist.cosmology.distance import HUBBLE_DISTANCE, comoving_distance, scale_factor_at, transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.shells import POINTS, WEIGHTS, Shells, is_traced
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.parallel.inputs import real

LightCone = FlatSkyLightCone | SphericalLightCone
Source = float | Array | tuple[Any, Any]
Sources = Source | list[Any]  # a list holds the source of each bin
Alignment = tuple[ArrayLike, ArrayLike]
_C1 = 0.0134  # amplitude of alignments per critical density (Joachimi et al. 2011, 1008.3491)
_PIVOT = 0.62  # redshift at which the amplitude is A
_FARTHEST = 1000.0  # redshift, the end of `comoving_distance`
_STEEPEST = 20.0  # largest power of alignments
_INTERVALS = 64  # least number of n(z), which is linear between its redshifts
_UNCOVERED = 0.01  # part of the lensing weight without a warning


def lensing_weights(
    shells: LightCone | Sequence[float],
    cosmo: Cosmology | GrowthTable,
    source: Sources,
    *,
    alignment: Alignment | None = None,
) -> Float[Array, "*bins shells"]:
    """Convergence per unit of the overdensity of each shell.

    The integral over the shell of 3/2 Omega_cb (H0/c)^2 f(x) / a int n(y) f(y - x) / f(y) dy, with the transverse
    distance f (Bartelmann & Schneider 2001, eq. 6.18). n(z) is linear between its redshifts.
    Matter beyond the last shell, and the clustering of massive neutrinos, are not included.

    With an alignment (A, eta), the intrinsic ellipticities follow the tidal field where the sources are, in the
    nonlinear alignment model (Bridle & King 2007). They add the integral of
    -A C1 rho_c Omega_cb / D1 ((1 + z) / 1.62)^eta n(z) dz/dx, where C1 rho_c = 0.0134.

    Args:
      shells: light cone, or edges of its shells in comoving distance [Mpc/h].
      cosmo: cosmology, or its `growth_table`.
      source: redshift of the sources, or (ascending redshifts, their number per redshift, in any unit); a list of these
        for several bins of sources.
      alignment: amplitude A and power eta of the intrinsic alignment of sources (z, n); default: none.

    Raises:
      ValueError: edges that don't ascend, sources that are not redshifts, do not ascend or are all nearer than the
        nearest shell, numbers that are negative or all 0, or an alignment of sources at one redshift. Traced values
        are not checked.
    """
    table = growth_table_to(2, cosmo)
    bounds = shells.shells if isinstance(shells, LightCone) else Shells(check_ascending(shells, "edges"), 1, "nearest")
    _check_horizon(bounds.edges[-1], table)

    def of_bin(source: Source) -> Array:
        weights = weights_of_sources(*source_distances(source, table, bounds.edges[0]), table, bounds.pieces)
        return weights if alignment is None else weights + _aligned(source, alignment, table, bounds)

    bins = list(map(of_bin, bins_of(source)))
    return jnp.stack(bins) if isinstance(source, list) else bins[0]


def _check_horizon(last: float, table: GrowthTable) -> None:
    """Raise ArgumentError for shells beyond the largest redshift."""
    if not is_traced(table):
        with eval_context():
            most = float(comoving_distance(1 / (1 + _FARTHEST), table))
        if last > most:
            constraint = f"reach to {last:g} Mpc/h, and a redshift of {_FARTHEST:g} is at {most:.5g} Mpc/h"
            raise ArgumentError("edges", last, constraint, "use nearer shells", show_value=False)


def bins_of(source: Sources) -> list[Source]:
    """The source of each bin.

    Raises:
      ValueError: a list without any.
    """
    if isinstance(source, list) and not source:
        raise ArgumentError("source", source, "must hold the sources of each bin", "for example [0.5, (z, n)]")
    return source if isinstance(source, list) else [source]


def _aligned(source: Source, alignment: Alignment, table: GrowthTable, shells: Shells) -> Array:
    """Weights of the intrinsic alignment of one bin."""
    if not isinstance(source, tuple):
        remedy = "pass (z, n)"
        raise ArgumentError("alignment", alignment, "needs sources with a distribution", remedy, show_value=False)
    if not isinstance(alignment, tuple | list) or len(alignment) != 2:
        raise ArgumentError("alignment", alignment, "must be an amplitude and a power", "for example (1.0, 0.0)")
    check_number(alignment[0], "alignment[0]")
    check_number(alignment[1], "alignment[1]", -_STEEPEST, _STEEPEST)
    columns = tuple(jnp.asarray(real(x, "source"), float) for x in source)
    return _alignment(columns, tuple(jnp.asarray(x, float) for x in alignment), table, shells.pieces)


@jit
def _alignment(
    source: tuple[Array, Array], alignment: tuple[Array, Array], table: GrowthTable, pieces: tuple[Array, ...]
) -> Array:
    (z, number), (amplitude, power) = source, alignment
    low, length, first, slope = (x.astype(z.dtype) for x in pieces)
    t, share = (jnp.asarray(x, z.dtype)[None] / 2 for x in (1 + POINTS, WEIGHTS))
    # Between redshifts of n(z) and ends of pieces, where the integrand is smooth: as a function of the redshifts, too.
    ends = jnp.append(low, low[-1] + length[-1])
    knots = jnp.sort(jnp.concatenate([ends, jnp.clip(_distances(z, table), ends[0], ends[-1])]))
    width = jnp.diff(knots)
    x = knots[:-1, None] + width[:, None] * t
    i = jnp.clip(jnp.searchsorted(low, (knots[1:] + knots[:-1]) / 2, side="right") - 1, 0, len(low) - 1)
    a = scale_factor_at(x, table)
    density = jnp.interp(1 / a - 1, z, number, left=0, right=0) / jnp.trapezoid(number, z) * table.E(a)
    strength = -_C1 * table.cosmo.Omega_cb * amplitude * (a * (1 + _PIVOT)) ** -power / table.D1(a)
    values = strength * density / HUBBLE_DISTANCE * width[:, None] * share
    along = x - low[i][:, None]
    return matmul(first[:, i], jnp.sum(values, 1)) + matmul(slope[:, i], jnp.sum(values * along, 1))


@jit
def weights_of_sources(distance: Array, share: Array, table: GrowthTable, pieces: tuple[Array, ...]) -> Array:
    """Weights of shells with these pieces, for sources at distances [Mpc/h], of which each is a share."""
    distance = jnp.maximum(distance, 1e-3)
    low, length, first, slope = (x.astype(distance.dtype) for x in pieces)
    t, weight = (jnp.asarray(x, distance.dtype)[None] / 2 for x in (1 + POINTS, WEIGHTS))

    def integrals(low: Array, length: Array, efficiency: Callable[[Array], Array]) -> tuple[Array, Array]:
        """Integrals over each piece of the kernel, and of the kernel times the distance from the start of the piece."""
        along = length[:, None] * t
        x = low[:, None] + along
        values = transverse_distance(x, table) / scale_factor_at(x, table) * efficiency(x) * length[:, None] * weight
        return jnp.sum(values, 1), jnp.sum(values * along, 1)

    def efficiency(x: Array, source: Array) -> Array:
        behind = jnp.maximum(source - x, 0)
        return transverse_distance(behind, table) / transverse_distance(source, table)

    def of_all(x: Array) -> Array:
        """Efficiency for the sources behind the whole piece."""
        seen = jnp.where(distance[None] >= (low + length)[:, None], share[None], 0)
        return jnp.sum(seen[:, None] * efficiency(x[..., None], distance[None, None]), axis=-1)

    # The kernel has a kink at a source: the piece around it is integrated up to the source.
    i = jnp.clip(jnp.searchsorted(low, distance, side="right") - 1, 0, len(low) - 1)
    inside = jnp.where(distance < low[i] + length[i], jnp.maximum(distance - low[i], 0), 0)
    pieces = integrals(low, length, of_all)
    parts = integrals(low[i], inside, lambda x: share[:, None] * efficiency(x, distance[:, None]))
    total = matmul(first, pieces[0]) + matmul(slope, pieces[1])
    total += matmul(first[:, i], parts[0]) + matmul(slope[:, i], parts[1])
    return 1.5 * table.cosmo.Omega_cb / HUBBLE_DISTANCE**2 * total


def source_distances(source: Source, table: GrowthTable, nearest: float) -> tuple[Array, Array]:
    """Distances of the sources and their shares."""
    if isinstance(source, tuple) and len(source) == 2:
        z, number = (real(x, "source") for x in source)
        if z.ndim != 1 or z.shape != number.shape or len(z) < 2:
            raise ArgumentError("source", z.shape, "must be redshifts and as many numbers", "pass (z, n)")
        if not is_traced(z):
            check_ascending(z, "source")
        shares = np.ones(1) if is_traced(number) else np.asarray(number)  # JAX would trace operations on constants
        if not (np.isfinite(shares).all() and shares.min() >= 0 and shares.max() > 0):
            constraint = "has numbers per redshift that are not finite, negative, or all 0"
            raise ArgumentError("source", number, constraint, "pass (z, n) with n of 0 or more", show_value=False)
        _check_redshifts(z, table, nearest)
        z, share = _shares(z, number)
        return _distances(z, table), share
    z = real(source, "source")
    if z.size != 1:
        raise ArgumentError("source", z.shape, "must be one redshift", "pass (z, n) for a distribution")
    _check_redshifts(z, table, nearest)
    return _distances(z, table), as_array(np.ones(1), z.dtype)


@jit
def _shares(z: Array, number: Array) -> tuple[Array, Array]:
    """Redshifts, with others between them where there are few, and their shares by the trapezoidal rule."""
    last = len(z) - 1
    places = np.linspace(0, last, last * -(-_INTERVALS // last) + 1)
    z, number = (jnp.interp(places, np.arange(last + 1), x).astype(x.dtype) for x in (z, number))
    width = jnp.concatenate([z[1:2] - z[:1], z[2:] - z[:-2], z[-1:] - z[-2:-1]]) / 2
    return z, number * width / jnp.sum(number * width)


@jit
def _distances(z: Array, table: GrowthTable) -> Array:
    return comoving_distance(1 / (1 + jnp.ravel(z)), table)


def _check_redshifts(z: Array, table: GrowthTable, nearest: float) -> None:
    """Raise ValueError unless all values are redshifts up to 1000, some beyond the nearest shell."""
    if is_traced(z):
        return
    if not ((np.asarray(z) >= 0) & (np.asarray(z) <= _FARTHEST)).all():
        raise ArgumentError("source", np.ravel(z).tolist(), f"must be redshifts from 0 to {_FARTHEST:g}")
    if is_traced(table):
        return
    with eval_context():
        farthest = float(np.max(np.asarray(_distances(z, table))))
    if farthest <= nearest:
        constraint = f"at {farthest:.4g} Mpc/h is nearer than the nearest shell, from {nearest:g} Mpc/h on"
        raise ArgumentError("source", float(np.max(np.asarray(z))), constraint, "use farther sources or nearer shells")


def coverage_warning(cone: LightCone, table: GrowthTable, source: Source) -> str | None:
    """Warning if shells leave out a part of the lensing weight, else None; traced values are not checked."""
    if is_traced((table, source)):
        return None
    with eval_context():
        distance, share = source_distances(source, table, cone.edges[0])
        farthest = float(np.max(np.asarray(distance)))
        both = cone.shells, Shells((0.0, farthest), 1, "nearest")
        inside, whole = (np.sum(np.asarray(weights_of_sources(distance, share, table, x.pieces))) for x in both)
    if (outside := 1 - inside / whole) < _UNCOVERED:
        return None
    shells = f"{cone.edges[0]:g} to {cone.edges[-1]:g} Mpc/h"
    z = np.asarray(source[0] if isinstance(source, tuple) else source)
    return (
        f"shells of {shells} leave out {outside:.0%} of the lensing weight of sources up to z = {z.max():g}; use "
        f"shells of 0 to {farthest:.4g} Mpc/h"
    )


def mean_and_width(z: np.ndarray, n: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of redshifts with numbers n per redshift, linear between them."""
    middle, ends = (z[1:] + z[:-1]) / 2, np.array((z[:-1], z[1:]))
    weight = np.diff(z) * (n[1:] + n[:-1]) / 3, np.diff(z) * np.array((n[:-1], n[1:])) / 6  # Simpson's rule

    def integral(power: Callable[[np.ndarray], np.ndarray]) -> float:
        return float(np.sum(weight[0] * power(middle)) + np.sum(weight[1] * power(ends)))

    total = integral(np.ones_like)
    mean = integral(lambda x: x) / total
    return mean, math.sqrt(integral(lambda x: (x - mean) ** 2) / total)
