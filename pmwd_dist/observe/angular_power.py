"""Angular power spectra of maps of lensing and galaxies: measured ones, and linear theory by Limber's integral."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import LARGEST_TRACER_BIAS, check_ascending, check_number, check_seen
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.order import row_major
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.collocation import matmul
from pmwd_dist.cosmology.distance import distances_at, scale_factor_at, transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe import harmonics
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import interpolation, nearest_pixel, nside_of, pixel_centres, unit_vectors
from pmwd_dist.observe.power import linear_power_at, mean
from pmwd_dist.observe.shells import Shells
from pmwd_dist.observe.sources import (
    Alignment,
    LightCone,
    Sources,
    bins_of,
    lensing_weights,
    source_distances,
    weights_of_sources,
)
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.parallel.inputs import check_on_host, real, whole_number

_SLABS = 200  # intervals of Limber's integral
_PARTS = 64  # further intervals, which hold as many galaxies each
_NODES = 2048  # of n(z)
_SOURCES = 256  # galaxies of a bin, for their own magnification
UNMAGNIFIED = 0.4  # slope of counts that magnification does not change
_DIRECTIONS = 4096  # on the sphere, for means over pixels
_ANGLES = 12  # nodes of mu and of phi in an octant


class AngularPower(eqx.Module):
    """An angular power spectrum in bins; ell and power are NaN where there are no modes.

    Args:
      ell: mean multipole of the modes of each bin.
      power: mean power C_l [steradian].
      modes: number of modes, conjugates included.
    """

    ell: Float[Array, " bins"]
    power: Float[Array, " bins"]
    modes: Float[Array, " bins"]


def angular_power(
    field: Real[Array, ...], other: Real[Array, ...] | None = None, *, side: float | None = None, bins: int = 16
) -> AngularPower:
    """Power spectrum of a map of a square field, such as `convergence` along rays, or of a HEALPix map.

    For a HEALPix map of the whole sky, C_l is the mean over m of |a_lm|^2, for each l from 0 to 2 nside - 1.

    On a flat sky the mean of the map is subtracted. Bins are equidistant in the logarithm, from the fundamental mode to
    the Nyquist frequency. The map is treated as periodic, so that power leaks from steep spectra to small scales, by
    some per cent.

    Args:
      field: values of the rays, shape (n, n), or of the pixels of the sphere in RING order, shape (12 nside^2,).
      other: another map of this shape, for the cross spectrum; default: the same.
      side: side of the field of view on a flat sky [degrees].
      bins: number of bins on a flat sky; bins without modes have ell and power NaN.

    Raises:
      ValueError: the map is not square, holds values that are missing or not finite, or an argument is out of its
        range; traced values are not checked.

    Examples:
      >>> spectrum = observe.angular_power(kappa, side=5.0)
      >>> spectrum.ell, spectrum.power
    """
    values = real(field, "field")
    second = None if other is None else real(other, "other")
    for name, x in {"field": values, "other": second}.items():
        if x is not None:
            check_seen(x, name, "set them to 0, and divide C_l by the share of the sky that is seen")
            if x.shape != values.shape:
                raise ArgumentError("other.shape", x.shape, f"must be that of the field, {values.shape}")
    if values.ndim == 1:
        if side is not None:
            raise ArgumentError("side", side, "is for flat skies", "leave it out for a sphere")
        return _of_sphere(values, second, _nside(values))
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 4:
        raise ArgumentError("field.shape", values.shape, "must be a square of 4 x 4 rays or more")
    check_number(side, "side", 1e-3, 90, unit="degrees")
    assert side is not None
    return _angular_power(values, second, side=math.radians(side), bins=whole_number(bins, "bins", least=1))


def _nside(values: Array) -> int:
    if not (nside := nside_of(len(values))):
        raise ArgumentError("field.shape", values.shape, "must be a square, or 12 nside^2 pixels")
    return nside


def all_powers(maps: Array | np.ndarray, side: float | None = None) -> dict[tuple[int, int], AngularPower]:
    """Spectra of all pairs of maps, by their indices, with one analysis of each map of the sphere.

    Raises:
      ValueError: errors of `angular_power`; the side is in degrees.
    """
    pairs = itertools.combinations_with_replacement(range(len(maps)), 2)
    if side is not None:
        return {(i, j): angular_power(maps[i], maps[j], side=side) for i, j in pairs}
    nside = _nside(maps[0])
    modes = [_analyse(x, nside, 2 * nside - 1) for x in maps]
    return {(i, j): _of_modes(modes[i], modes[j]) for i, j in pairs}


_analyse = jit(harmonics.analyse, static_argnames=("nside", "lmax"))


@partial(jit, static_argnames="nside")
def _of_sphere(values: Array, other: Array | None, nside: int) -> AngularPower:
    modes = [_analyse(x, nside, 2 * nside - 1) for x in (values, other) if x is not None]
    return _of_modes(modes[0], modes[-1])


@jit
def _of_modes(modes: Array, other: Array) -> AngularPower:
    ell = jnp.arange(modes.shape[1]).astype(modes.dtype)
    return AngularPower(ell, harmonics.power_of_modes(modes, other), 2 * ell + 1)


@partial(jit, static_argnames=("side", "bins"))
def _angular_power(values: Array, other: Array | None, *, side: float, bins: int) -> AngularPower:
    n, dtype = len(values), values.dtype
    frequency = np.fft.fftfreq(n, 1 / n)
    modulus = np.hypot(*np.meshgrid(frequency, frequency, indexing="ij"))
    edges = np.geomspace(0.5, n / 2, bins + 1)
    index = np.searchsorted(edges, modulus.ravel(), side="right") - 1
    index = jnp.asarray(np.where((index >= 0) & (index < bins), index, bins))
    maps = (values,) if other is None else (values, other)
    modes = [jnp.fft.fft2(row_major(x - jnp.mean(x))) for x in maps]
    power = (modes[0].real * modes[-1].real + modes[0].imag * modes[-1].imag) * (side / n**2) ** 2
    ell = 2 * math.pi / side * modulus.ravel()
    columns = jnp.stack([jnp.asarray(ell, dtype), power.ravel(), jnp.ones(n * n, dtype)], -1)
    sums = jnp.zeros((bins + 1, 3), dtype).at[index].add(columns)[:bins].T
    return AngularPower(mean(sums[0], sums[2]), mean(sums[1], sums[2]), sums[2])


def limber_power(
    ell: ArrayLike,
    power: Callable[[Array], ArrayLike],
    cosmo: Cosmology | GrowthTable,
    edges: Sequence[float],
    source: Sources,
    *,
    alignment: Alignment | None = None,
    galaxies: Sequence[tuple[Any, ...]] = (),
    cone: LightCone | None = None,
    pixel: float | None = None,
) -> Float[Array, "*bins n"]:
    """C_l of convergence and galaxies by linear theory, for the matter between the first edge and the last [steradian].

    The integral of (weight / distance)^2 P((l + 1/2) / distance) in Limber's approximation (LoVerde & Afshordi 2008).

    Args:
      ell: multipoles.
      power: linear P(k) at a = 1 [(Mpc/h)^3], a function of k [h/Mpc].
      cosmo: cosmology, or its `growth_table`.
      edges: comoving distances of shells [Mpc/h]; with a cone, its own.
      source: redshift of the sources, or (ascending redshifts, their number per redshift); a list of these gives the
        spectra of all pairs of bins, shape (bins, bins, n).
      alignment: (A, eta) of the intrinsic alignment of sources (z, n), as in `lensing_weights`; default: none.
      galaxies: (ascending redshifts, number of galaxies per redshift, bias) of bins of galaxies, which follow those of
        sources in spectra of all pairs. n(z) is linear between its redshifts; the Eulerian bias is a number or a
        function of k. A fourth member is the slope s of their counts by magnitude, d log10 N / dm: magnification adds
        (5 s - 2) kappa to their overdensity (Bartelmann & Schneider 2001). They have no shot noise or velocities.
      cone: light cone whose maps the theory is for. Matter of a shell has the same weight, and on a flat sky the same
        distance. The power gets the window of the pixels, and lacks waves that exceed the lattice of the particles or
        are longer than the box. Default: all waves, without a window.
      pixel: with a cone, side of the pixels of galaxies on a flat sky [degrees]; default: points.

    Raises:
      ValueError: a multipole or a value of P(k) is negative or not finite, or edges, sources, galaxies or pixel
        are out of range, as in `lensing_weights`.

    Examples:
      >>> pairs = observe.limber_power([100.0, 300.0], power, cosmo, [0.0, 900.0], [0.3], galaxies=[(z, n, 1.5)])
    """
    check_on_host("limber_power", (ell, cosmo, source))
    check_number(ell, "ell", 0, several=True)
    if pixel is not None:
        check_number(pixel, "pixel", 1e-6, 90, unit="degrees")
    table, (near, *_, last) = growth_table_to(2, cosmo), check_ascending(edges, "edges")
    if cone is not None and (len(edges) != len(cone.edges) or not np.allclose(edges, cone.edges)):
        raise ArgumentError("edges", list(edges), f"must be those of the cone, {list(cone.edges)}")
    bins, samples = bins_of(source), _samples(galaxies)
    every = [*bins, *((z, n) for z, n, *_ in samples)]
    far = min(last, max(float(np.max(np.asarray(source_distances(one, table, near)[0]))) for one in every))
    counted = [_counted(z, n, table) for z, n, *_ in samples]
    if any(np.interp(last, at, share) == 0 for share, at in counted):
        constraint = f"have a bin beyond the last edge, {last:g} Mpc/h"
        raise ArgumentError("galaxies", None, constraint, "use farther edges, or leave it out", show_value=False)
    aligned = [_counted(*one, table) for one in bins if alignment and cone is None and isinstance(one, tuple)]
    slabs = _slabs(np.linspace(near, far, _SLABS + 1) if cone is None else _slabs_of(cone), counted + aligned)
    distance = middle = (slabs[1:] + slabs[:-1]) / 2
    ell, shares = np.ravel(np.asarray(ell, float)), None
    shells = Shells(tuple(slabs.tolist()), 1, "nearest") if cone is None else cone.shells
    weights = lensing_weights(slabs.tolist() if cone is None else cone, table, bins, alignment=alignment)
    for (share, at), (*_, slope) in zip(counted, samples, strict=True):
        magnified = (5 * slope - 2) * _convergence_weights(share, at, table, shells)
        weights = jnp.concatenate([weights, magnified[None].astype(weights.dtype)])
    if cone is not None:
        mass = shells.shares(middle) * np.diff(slabs) * middle ** (cone.dimensions - 1)
        shares = mass / shells.volumes[:, None]
        if isinstance(cone, FlatSkyLightCone):
            distance = cone.distances @ shells.shares(middle, fading=False)
    k, factor = map(np.asarray, _waves(*map(as_array, (ell, distance, middle, np.diff(slabs))), table))
    linear = as_array(linear_power_at(as_array(k.ravel()), power))
    resolved = [1.0] * 3  # of two maps of which none, one or both are of galaxies
    if cone is not None:
        resolved = [resolved_share(ell, k, cone, pixel=pixel, galaxies=i) for i in range(3 if galaxies else 1)]
    parts = [np.diff(np.interp(slabs, at, share)) for share, at in counted]
    tracers = [(_bias(bias, k), part) for (*_, bias, _), part in zip(samples, parts, strict=True)]
    spectra = _spectra(weights, shares, linear, factor, resolved, tracers)
    return spectra if isinstance(source, list) or galaxies else spectra[0, 0]


def _samples(galaxies: Any) -> list[tuple[Any, ...]]:
    """Bins of galaxies as (z, n, bias, s); ArgumentError for other ones."""
    if not (isinstance(galaxies, Sequence) and all(isinstance(x, tuple | list) and 3 <= len(x) <= 4 for x in galaxies)):
        constraint, remedy = "must be a list of (z, n, bias) or (z, n, bias, s)", "for example [(z, n, 1.5)]"
        raise ArgumentError("galaxies", None, constraint, remedy, show_value=False)
    samples = [(*x, UNMAGNIFIED)[:4] for x in galaxies]
    for *_, bias, slope in samples:
        check_number(0 if callable(bias) else bias, "bias", -LARGEST_TRACER_BIAS, LARGEST_TRACER_BIAS)
        check_number(slope, "s")
    return samples


def _slabs(ends: np.ndarray, counted: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Ends of slabs, with further ones that divide each bin of galaxies into parts of equal number."""
    for share, at in counted:
        parts = np.append(np.interp(np.arange(_PARTS) / _PARTS, share, at), at[np.searchsorted(share, 1)])
        ends = np.union1d(ends, np.clip(parts, ends[0], ends[-1]))
    return ends


def _counted(z: Any, n: Any, table: GrowthTable) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the galaxies that are nearer than distances, and these; n(z) is linear between its redshifts."""
    z, n, parts = np.asarray(z, float), np.asarray(n, float), math.ceil(_NODES / len(z))
    fine = np.interp(np.arange((len(z) - 1) * parts + 1) / parts, np.arange(len(z)), z)
    n = np.interp(fine, z, n)
    total = np.append(0.0, np.cumsum((n[1:] + n[:-1]) / 2 * np.diff(fine)))
    return total / total[-1], distances_at(fine, table)


def _convergence_weights(share: np.ndarray, at: np.ndarray, table: GrowthTable, shells: Shells) -> Array:
    """Weights of shells for the convergence of galaxies, by the shares that are nearer than distances."""
    distance = np.interp((np.arange(_SOURCES) + 0.5) / _SOURCES, share, at)
    return weights_of_sources(as_array(distance), as_array(np.full(_SOURCES, 1 / _SOURCES)), table, shells.pieces)


def _bias(bias: Any, k: np.ndarray) -> np.ndarray:
    """The bias of galaxies at wavenumbers, of which some may be NaN."""
    values = np.asarray(bias(k) if callable(bias) else bias)
    if not (np.isfinite(values) | np.isnan(k)).all():
        raise ArgumentError("galaxies", None, "have a bias that is not finite", show_value=False)
    return values


@jit
def _waves(ell: Array, distance: Array, middle: Array, length: Array, table: GrowthTable) -> tuple[Array, Array]:
    """Wavenumbers of multipoles in slabs [h/Mpc], and the squared growth over distance across, over the length."""
    across, a = transverse_distance(distance, table), scale_factor_at(middle, table)
    k = (ell[:, None] + 0.5) / across[None]
    growth = jax.vmap(lambda k, a: jnp.broadcast_to(table.linear(k, a)[0], k.shape), (1, 0), 1)(k, a)
    return k, (growth / across[None]) ** 2 / length[None]


@jit
def _spectra(weights: Array, shares: Any, linear: Array, factor: Array, resolved: list[Array], galaxies: Any) -> Array:
    """Sums over slabs for all pairs of maps; weights are of shells where these have shares in the slabs.

    The last ones are of the magnification of galaxies.
    """
    weights = weights if shares is None else matmul(weights, shares.astype(weights.dtype))
    powers = [linear.reshape(factor.shape) * factor * share for share in resolved]
    fields = [[(weight[None], 0)] for weight in weights]
    for field, (bias, share) in zip(fields[len(fields) - len(galaxies) :], galaxies, strict=True):
        field.append((jnp.asarray(bias) * share.astype(factor.dtype)[None], 1))

    def pair(one: Any, other: Any) -> Array:
        terms = [jnp.sum(x * y * powers[i + j], -1) for (x, i), (y, j) in itertools.product(one, other)]
        return sum(terms[1:], terms[0])

    return jnp.stack([jnp.stack([pair(one, other) for other in fields]) for one in fields])


def _slabs_of(cone: LightCone) -> np.ndarray:
    """Distances that divide each shell into equal slabs."""
    number = math.ceil(_SLABS / (len(cone.edges) - 1))
    parts = [np.linspace(low, high, number, endpoint=False) for low, high in itertools.pairwise(cone.edges)]
    return np.append(np.concatenate(parts), cone.edges[-1])


@lru_cache(maxsize=8)
def pixel_window(nside: int, lmax: int, *, nearest: bool = False) -> np.ndarray:
    """Factor of the harmonics of a HEALPix map of point masses, for l from 0 to lmax.

    The mean over directions n of sum_p w_p(n) P_l(n . n_p), with the weights w_p and centres n_p of the pixels.
    """
    z = 1 - (2 * np.arange(_DIRECTIONS) + 1) / _DIRECTIONS
    phi = math.pi * (3 - math.sqrt(5)) * np.arange(_DIRECTIONS)
    vector = unit_vectors(np.arccos(z), phi)
    if nearest:
        pixels, weights = np.asarray(nearest_pixel(nside, jnp.asarray(vector)))[:, None], np.ones((_DIRECTIONS, 1))
    else:
        pixels, weights = (np.asarray(x) for x in interpolation(nside, jnp.asarray(vector)))
    cosine = np.sum(vector[:, None] * pixel_centres(nside, pixels), axis=-1)
    window, last, now = np.ones(lmax + 1), np.zeros_like(cosine), np.ones_like(cosine)
    for ell in range(1, lmax + 1):
        last, now = now, ((2 * ell - 1) * cosine * now - (ell - 1) * last) / ell
        window[ell] = np.mean(np.sum(weights * now, axis=-1))
    return window


def share_beyond_box(
    ell: ArrayLike, power: Callable[[Array], ArrayLike], cosmo: Cosmology | GrowthTable, cone: LightCone
) -> Float[Array, " n"]:
    """Share of C_l, from 0 to 1, in waves longer than the box, which a light cone lacks, by linear theory.

    Args:
      ell: multipoles.
      power: linear P(k) at a = 1, as in `limber_power`.
      cosmo: cosmology, or its `growth_table`.
      cone: light cone; sources are at its last edge.
    """
    table, longest = growth_table_to(2, cosmo), _longest(cone.config)
    source = 1 / float(scale_factor_at(cone.edges[-1], table)) - 1
    functions = power, lambda k: np.where(np.asarray(k) < longest, power(k), 0)
    whole, lost = (np.asarray(limber_power(ell, one, table, cone.edges, [source])) for one in functions)
    return as_array((lost / whole)[0, 0])


def _longest(config: Config) -> float:
    """Wavenumber of the longest waves [h/Mpc]: the mean has the volume of a sphere of 0.62 of the modes' spacing."""
    return (3 / (4 * math.pi)) ** (1 / 3) * 2 * math.pi / math.prod(config.box_size) ** (1 / 3)


def resolved_share(
    ell: np.ndarray, k: np.ndarray, cone: LightCone, *, galaxies: int = 0, pixel: float | None = None
) -> np.ndarray:
    """Power in maps of a light cone over the power of the matter: windows of its pixels, and waves of its particles.

    No wave exceeds the lattice, or is longer than the box. Planes of a flat sky are painted and read by cloud-in-cell.
    Galaxies count in the nearest pixel.

    Args:
      ell: multipoles, shape (n,).
      k: wavenumbers across the line of sight [h/Mpc], shape (n, slabs).
      cone: light cone.
      galaxies: how many of the two maps are of galaxies.
      pixel: side of the pixels of galaxies on a flat sky [degrees].
    """
    config = cone.config
    mu, weight = np.polynomial.legendre.leggauss(_ANGLES)
    phi = (np.arange(_ANGLES) + 0.5) * math.pi / 2 / _ANGLES
    directions = unit_vectors(np.arccos(np.repeat((mu + 1) / 2, _ANGLES)), np.tile(phi, _ANGLES))
    nyquist = math.pi * np.asarray(config.particle_shape) / np.asarray(config.box_size)
    inside = k[..., None] <= (nyquist / directions).min(axis=1)
    share = (inside @ np.repeat(weight, _ANGLES)) / (2 * _ANGLES) * (k >= _longest(config))
    if isinstance(cone, SphericalLightCone):
        lmax = math.ceil(float(ell.max(initial=0)))
        nearest = [cone.assignment == "nearest" or i < galaxies for i in range(2)]
        window = math.prod(pixel_window(cone.nside, lmax, nearest=each) for each in nearest)
        return share * np.interp(ell, np.arange(lmax + 1), window)[:, None]
    window, side = 1.0, math.radians(pixel or 0.0)
    for f, length, n in zip((np.cos, np.sin), cone.sides, cone.pixels, strict=True):
        matter, counted = k[..., None] * f(phi) * length / n, ell[:, None, None] * f(phi) * side
        window = window * np.sinc(matter / (2 * math.pi)) ** (8 - 4 * galaxies)
        window = window * np.sinc(counted / (2 * math.pi)) ** galaxies
    return share * np.mean(window, axis=-1)
