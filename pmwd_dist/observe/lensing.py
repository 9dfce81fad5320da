"""Weak lensing by the shells of a light cone, along undeflected rays (the Born approximation)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._checks import check_ascending, check_number, check_seen
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import rows
from pmwd_dist._jax.ops import vary, varying_names
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology.collocation import matmul
from pmwd_dist.cosmology.distance import (
    HUBBLE_DISTANCE,
    comoving_distance,
    scale_factor_at,
    transverse_distance,
)
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe import harmonics
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.observe.shells import POINTS, WEIGHTS, Shells, is_traced
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.ops.local_fft import irfft, rfft
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import real, whole_number

LightCone = FlatSkyLightCone | SphericalLightCone
Source = float | Array | tuple[Any, Any]
_FARTHEST = 1000.0  # redshift, the end of `comoving_distance`
_UNCOVERED = 0.01  # part of the lensing weight without a warning


def lensing_weights(
    shells: LightCone | Sequence[float], cosmo: Cosmology | GrowthTable, source: Source
) -> Float[Array, " shells"]:
    """Convergence per unit of the overdensity of each shell.

    The integral over the shell of 3/2 Omega_cb (H0/c)^2 f(x) / a int n(y) f(y - x) / f(y) dy, with the transverse
    distance f (Bartelmann & Schneider 2001, eq. 6.18). Matter beyond the last shell, and the
    clustering of massive neutrinos, are not included.

    Args:
      shells: light cone, or edges of its shells in comoving distance [Mpc/h].
      cosmo: cosmology, or its `growth_table`.
      source: redshift of the sources, or (ascending redshifts, their number per redshift, in any unit).

    Raises:
      ValueError: edges that don't ascend, sources that are not redshifts, do not ascend or are all nearer than the
        nearest shell, or numbers that are negative or all 0; traced values are not checked.
    """
    table = growth_table_to(2, cosmo)
    own = shells.shells if isinstance(shells, LightCone) else Shells(check_ascending(shells, "edges"), 1, "nearest")
    distance, share = source_distances(source, table, own.edges[0])
    return _weights(distance, share, table, shells=own)


@partial(jit, static_argnames="shells")
def _weights(distance: Array, share: Array, table: GrowthTable, *, shells: Shells) -> Array:
    distance = jnp.maximum(distance, 1e-3)
    low, length, first, slope = (jnp.asarray(x, distance.dtype) for x in shells.pieces)
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
        z, number = (jnp.asarray(real(x, "source")) for x in source)
        if z.ndim != 1 or z.shape != number.shape or len(z) < 2:
            raise ArgumentError("source", z.shape, "must be redshifts and as many numbers", "pass (z, n)")
        if not is_traced(z):
            check_ascending(z, "source")
        shares = np.ones(1) if is_traced(number) else np.asarray(number)  # JAX would trace operations on constants
        if not (np.isfinite(shares).all() and shares.min() >= 0 and shares.max() > 0):
            constraint = "has numbers per redshift that are not finite, negative, or all 0"
            raise ArgumentError("source", number, constraint, "pass (z, n) with n of 0 or more", show_value=False)
        share = _shares(z, number)
    else:
        z = jnp.asarray(real(source, "source")).reshape(-1)
        if z.shape != (1,):
            raise ArgumentError("source", z.shape, "must be one redshift", "pass (z, n) for a distribution")
        share = jnp.ones_like(z)
    _check_redshifts(z, table, nearest)
    return _distances(z, table), share


@jit
def _shares(z: Array, number: Array) -> Array:
    width = jnp.concatenate([z[1:2] - z[:1], z[2:] - z[:-2], z[-1:] - z[-2:-1]]) / 2
    return number * width / jnp.sum(number * width)


@jit
def _distances(z: Array, table: GrowthTable) -> Array:
    return comoving_distance(1 / (1 + z), table)


def _check_redshifts(z: Array, table: GrowthTable, nearest: float) -> None:
    """Raise ValueError unless all values are redshifts up to 1000, some beyond the nearest shell."""
    if is_traced(z):
        return
    if not ((np.asarray(z) >= 0) & (np.asarray(z) <= _FARTHEST)).all():
        raise ArgumentError("source", np.asarray(z).tolist(), f"must be redshifts from 0 to {_FARTHEST:g}")
    if is_traced(table):
        return
    with jax.ensure_compile_time_eval():
        farthest = float(np.max(np.asarray(_distances(z, table))))
    if farthest <= nearest:
        constraint = f"at {farthest:.4g} Mpc/h is nearer than the nearest shell, from {nearest:g} Mpc/h on"
        raise ArgumentError("source", float(np.max(np.asarray(z))), constraint, "use farther sources or nearer shells")


def coverage_warning(cone: LightCone, table: GrowthTable, source: Source) -> str | None:
    """Warning about a part of the lensing weight outside the shells of a light cone; traced values are not checked."""
    if is_traced((table, source)):
        return None
    with jax.ensure_compile_time_eval():
        distance, share = source_distances(source, table, cone.edges[0])
        farthest = float(jnp.max(distance))
        inside, whole = (
            float(jnp.sum(_weights(distance, share, table, shells=shells)))
            for shells in (cone.shells, Shells((0.0, farthest), 1, "nearest"))
        )
    if (outside := 1 - inside / whole) < _UNCOVERED:
        return None
    shells = f"{cone.edges[0]:g} to {cone.edges[-1]:g} Mpc/h"
    z = np.asarray(source[0] if isinstance(source, tuple) else source)
    return (
        f"shells of {shells} leave out {outside:.0%} of the lensing weight of sources up to z = {z.max():g}; use "
        f"shells of 0 to {farthest:.4g} Mpc/h"
    )


def _weights_of(cone: LightCone, table: GrowthTable, source: Source, dtype: Any) -> Array:
    """Weights of the shells of a map, with a warning about matter that they leave out."""
    weights = lensing_weights(cone, table, source).astype(dtype)
    if (text := coverage_warning(cone, table, source)) is not None:
        warnings.warn(text, stacklevel=2)
    return weights


@on_auto_axes
def convergence(
    mass: Array,
    cosmo: Cosmology | GrowthTable,
    cone: LightCone,
    *,
    source: Source,
    field: float | None = None,
    pixels: int | None = None,
    offsets: Any = None,
) -> Array:
    """Convergence on the sphere, by pixel of the maps, or along a square grid of rays that meet at the observer.

    Matter outside the shells is left out, with a warning if its part of the lensing weight is 1% or more.

    Args:
      mass: masses that the light cone has accumulated: (shells, nx, ny), or (shells, pixels) on the sphere.
      cosmo: cosmology, or its `growth_table`.
      cone: light cone of the masses.
      source: redshift of the sources, or (ascending redshifts, their number per redshift).
      field: side of the field of view of a flat sky [degrees].
      pixels: number of rays along each side of the field of view.
      offsets: shifts of the planes of a flat sky across the line of sight, shape (shells, 2) [Mpc/h], so that
        repetitions of the box don't show the same structures behind each other; default: none.

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> kappa = observe.convergence(mass, cosmo, cone, source=1.0, field=5.0, pixels=128)
    """
    if isinstance(cone, FlatSkyLightCone):
        return _rays(mass, cosmo, cone, source, (field, pixels, offsets), lambda plane: plane[None])[0]
    if not (field is None and pixels is None and offsets is None):
        raise ArgumentError("field", field, "is for flat skies", "leave field, pixels and offsets out")
    expected = (len(cone.edges) - 1, pixel_count(cone.nside))
    if mass.shape != expected:
        raise ArgumentError(
            "mass.shape", mass.shape, f"must be {expected}", "pass the masses that this light cone has accumulated"
        )
    check_seen(mass, "mass", "set them to the mean of their shell", finite=False)
    weights = _weights_of(cone, growth_table_to(2, cosmo), source, mass.dtype)
    return jnp.sum(weights[:, None] * cone.overdensity(mass), axis=0)


@on_auto_axes
def shear(
    mass: Array,
    cosmo: Cosmology | GrowthTable,
    cone: LightCone,
    *,
    source: Source,
    field: float | None = None,
    pixels: int | None = None,
    offsets: Any = None,
) -> Array:
    """Shear (gamma1, gamma2), with the arguments of `convergence`: (2, pixels) on the sphere, or (2, px, py).

    On a flat sky the shear of each plane follows from its Fourier transform (Kaiser & Squires 1993), exactly since the
    planes are periodic. On the sphere the harmonics of the convergence up to l = 2 nside - 1 give those of the shear
    (Hu 2000), along theta (south) and phi (east) as in healpy.

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> gamma1, gamma2 = observe.shear(mass, cosmo, cone, source=1.0, field=5.0, pixels=128)
    """
    if isinstance(cone, SphericalLightCone):
        kappa = convergence(mass, cosmo, cone, source=source, field=field, pixels=pixels, offsets=offsets)
        return _spherical_shear(kappa, cone)
    return _rays(mass, cosmo, cone, source, (field, pixels, offsets), partial(_plane_shear, sides=cone.sides))


@partial(jit, static_argnames="cone")
def _spherical_shear(kappa: Array, cone: SphericalLightCone) -> Array:
    decomposition = cone.config.decomposition
    modes = harmonics.analyse(kappa, cone.nside, 2 * cone.nside - 1, decomposition=decomposition)
    return harmonics.synthesise_spin2(harmonics.shear_modes(modes), cone.nside, decomposition)


def _plane_shear(plane: Array, sides: tuple[float, float]) -> Array:
    """Shear of a periodic plane of convergence."""
    (nx, ny), (lx, ly) = plane.shape, sides
    kx = 2 * math.pi * np.fft.fftfreq(nx, lx / nx)[:, None]
    ky = 2 * math.pi * np.fft.rfftfreq(ny, ly / ny)[None, :]
    k2 = np.where(kx**2 + ky**2 > 0, kx**2 + ky**2, 1)
    odd = (np.abs(kx) < math.pi * nx / lx * (1 - 1e-9)) & (np.abs(ky) < math.pi * ny / ly * (1 - 1e-9))
    factors = np.stack([(kx**2 - ky**2) / k2, 2 * kx * ky * odd / k2])  # the Nyquist frequency has no sign
    return irfft(rfft(plane[None], 2) * jnp.asarray(factors, plane.dtype), ny, 2)


def _rays(
    mass: Array,
    cosmo: Cosmology | GrowthTable,
    cone: FlatSkyLightCone,
    source: Source,
    grid: tuple[float | None, int | None, Any],
    planes: Callable[[Array], Array],
) -> Array:
    """Sum over the shells of `planes` of each, at the rays."""
    field, pixels, offsets = grid
    if field is None or pixels is None:
        raise ArgumentError("field", field, "and pixels are needed for a flat sky", "for example field=5.0, pixels=256")
    count, decomposition = len(cone.edges) - 1, cone.config.decomposition
    pixels = whole_number(pixels, "pixels", least=1)
    for axis, parts in enumerate(decomposition.pdims):
        decomposition.check_axis((pixels, pixels, 1), axis, parts, "pixels")
    check_number(field, "field", 1e-3, 90, unit="degrees", remedy="the sky is flat here")
    offsets = jnp.zeros((count, 2)) if offsets is None else real(offsets, "offsets")
    if mass.shape != (count, *cone.pixels) or offsets.shape != (count, 2):
        constraint = f"must be {(count, *cone.pixels)}, and of offsets {(count, 2)}"
        remedy = "pass the masses that this light cone has accumulated"
        raise ArgumentError("mass.shape", mass.shape, constraint, remedy)
    table = growth_table_to(cone.config.lpt_order, cosmo)
    weights = _weights_of(cone, table, source, mass.dtype)
    across = transverse_distance(cone.distances, table).astype(mass.dtype)
    run = decomposition.shard_map(
        partial(_rays_block, cone=cone, angle=math.radians(field), pixels=pixels, planes=planes),
        (decomposition.spectrum_spec, P()),
        decomposition.spectrum_spec,
        check_vma=False,
    )
    return run(cone.overdensity(mass), (weights, across, offsets.astype(mass.dtype)))


def _rays_block(
    overdensity: Array,
    shells: tuple[Array, Array, Array],
    *,
    cone: FlatSkyLightCone,
    angle: float,
    pixels: int,
    planes: Callable[[Array], Array],
) -> Array:
    """Rays of the local block; one plane at a time is gathered."""
    groups = cone.config.decomposition.axis_groups
    angles = []
    for names, parts in groups:
        first = jax.lax.axis_index(names) * (pixels // parts) if parts > 1 else 0
        index = first + jnp.arange(pixels // parts)
        angles.append(((index + 0.5) / pixels - 0.5).astype(overdensity.dtype) * angle)
    cell = [length / n for length, n in zip(cone.sides, cone.pixels, strict=True)]

    @jax.checkpoint
    def at_rays(plane: Array, weight: Array, across: Array, offset: Array) -> Array:
        for axis, (names, parts) in enumerate(groups):
            plane = jax.lax.all_gather(plane, names, axis=axis, tiled=True) if parts > 1 else plane
        x, y = ((across * angles[i] + offset[i]) / cell[i] for i in (0, 1))
        return weight * _interpolate(planes(plane), x, y)

    def add(total: Array, shell: tuple[Array, ...]) -> tuple[Array, None]:
        return total + at_rays(*shell), None

    xs = (overdensity, *shells)
    shape = jax.eval_shape(at_rays, *(x[0] for x in xs))
    zero = vary(jnp.zeros(shape.shape, shape.dtype), varying_names(overdensity))
    return jax.lax.scan(add, zero, xs)[0]


def _interpolate(planes: Array, x: Array, y: Array) -> Array:
    """Bilinear interpolation of periodic planes, (n, nx, ny), at all pairs of x and y [cells], with a cell around 0."""
    for axis, u in ((1, x), (2, y)):
        below = jnp.floor(u)
        t = (u - below).reshape([-1 if a == axis else 1 for a in range(3)])
        i = below.astype(jnp.int32)
        first = jnp.moveaxis(planes, axis, 0)
        low, high = (jnp.moveaxis(rows(first, j % len(first)), 0, axis) for j in (i, i + 1))
        planes = (1 - t) * low + t * high
    return planes
