"""Weak lensing by the shells of a light cone, along undeflected rays (the Born approximation)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_number, check_seen
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import rows
from pmwd_dist._jax.ops import vary, varying_names
from pmwd_dist._jax.order import row_major
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology.collocation import matmul
from pmwd_dist.cosmology.distance import transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe import harmonics
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import nside_of, pixel_count
from pmwd_dist.observe.sources import Alignment, LightCone, Sources, bins_of, coverage_warning, lensing_weights
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.ops.local_fft import irfft, rfft
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import real, whole_number

_ACCUMULATED = "pass the masses that this light cone has accumulated"


def _check_masses(mass: Array) -> None:
    """Raise ArgumentError for values around zero, as of an overdensity."""
    if isinstance(mass, Tracer):
        return
    with eval_context():
        low, mean, scatter = (float(x) for x in (mass.min(), mass.mean(), mass.std()))
    if low < 0 and mean < 0.1 * scatter:
        constraint = f"holds values from {low:.3g} on, and masses are not negative"
        raise ArgumentError("mass", mass, constraint, _ACCUMULATED, show_value=False)


def _weights_of(cone: LightCone, table: GrowthTable, source: Sources, alignment: Any, dtype: Any) -> Array:
    """Weights of the shells of each map, (bins, shells), with warnings about matter that they leave out."""
    bins = bins_of(source)
    weights = lensing_weights(cone, table, bins, alignment=alignment).astype(dtype)
    for text in (coverage_warning(cone, table, source) for source in bins):
        if text is not None:
            warnings.warn(text, stacklevel=2)
    return weights


@on_auto_axes
def convergence(
    mass: Array,
    cosmo: Cosmology | GrowthTable,
    cone: LightCone,
    *,
    source: Sources,
    alignment: Alignment | None = None,
    field: float | None = None,
    pixels: int | None = None,
    offsets: Any = None,
) -> Array:
    """Convergence on the sphere, by pixel of the maps, or along a square grid of rays that meet at the observer.

    The result has the shape (pixels,) on the sphere or (px, py), with an axis of bins in front for a list of sources.
    Matter outside the shells is left out, with a warning if its part of the lensing weight is 1% or more.

    Args:
      mass: masses that the light cone has accumulated: (shells, nx, ny), or (shells, pixels) on the sphere.
      cosmo: cosmology, or its `growth_table`.
      cone: light cone of the masses.
      source: redshift of the sources, or (ascending redshifts, their number per redshift); a list of these for several
        bins of sources.
      alignment: (A, eta) of the intrinsic alignment of sources (z, n), as in `lensing_weights`; default: none.
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
        maps = _rays(mass, cosmo, cone, (source, alignment), (field, pixels, offsets), lambda plane: plane[None])[:, 0]
        return maps if isinstance(source, list) else maps[0]
    if not (field is None and pixels is None and offsets is None):
        raise ArgumentError("field", field, "is for flat skies", "leave field, pixels and offsets out")
    mass, expected = real(mass, "mass"), (len(cone.edges) - 1, pixel_count(cone.nside))
    if mass.shape != expected:
        raise ArgumentError("mass.shape", mass.shape, f"must be {expected}", _ACCUMULATED)
    check_seen(mass, "mass", "set them to the mean of their shell", finite=False)
    _check_masses(mass)
    weights = _weights_of(cone, growth_table_to(2, cosmo), source, alignment, mass.dtype)
    maps = matmul(weights, cone.overdensity(mass))
    return maps if isinstance(source, list) else maps[0]


@on_auto_axes
def shear(
    mass: Array,
    cosmo: Cosmology | GrowthTable,
    cone: LightCone,
    *,
    source: Sources,
    alignment: Alignment | None = None,
    field: float | None = None,
    pixels: int | None = None,
    offsets: Any = None,
) -> Array:
    """Shear (gamma1, gamma2), with the arguments of `convergence`: (2, pixels) on the sphere, or (2, px, py).

    A list of sources gives an axis of bins in front.

    On a flat sky the shear of each plane follows from its Fourier transform (Kaiser & Squires 1993), exactly since the
    planes are periodic. On the sphere the harmonics of the convergence up to l = 2 nside - 1 give those of the shear
    (Hu 2000), along theta (south) and phi (east) as in healpy.

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> gamma1, gamma2 = observe.shear(mass, cosmo, cone, source=1.0, field=5.0, pixels=128)
    """
    if isinstance(cone, SphericalLightCone):
        view: Any = {"field": field, "pixels": pixels, "offsets": offsets}
        kappa = convergence(mass, cosmo, cone, source=bins_of(source), alignment=alignment, **view)
        maps = jax.lax.map(partial(_spherical_shear, cone=cone), kappa)
    else:
        planes = partial(_plane_shear, sides=cone.sides)
        maps = _rays(mass, cosmo, cone, (source, alignment), (field, pixels, offsets), planes)
    return maps if isinstance(source, list) else maps[0]


@partial(jit, static_argnames="cone")
def _spherical_shear(kappa: Array, cone: SphericalLightCone) -> Array:
    decomposition = cone.config.decomposition
    modes = harmonics.analyse(kappa, cone.nside, 2 * cone.nside - 1, decomposition=decomposition)
    return harmonics.synthesise_spin2(harmonics.shear_modes(modes), cone.nside, decomposition)


def kaiser_squires(gamma: Real[Array, "2 ..."]) -> Float[Array, "2 ..."]:
    """E and B modes of a shear map, as convergence without its mean: B vanishes for lensing (Kaiser & Squires 1993).

    A flat map is treated as periodic: at its edges, and where it is masked, E modes leak into B.

    Args:
      gamma: shear (gamma1, gamma2) of a square field, (2, n, n), or of HEALPix pixels in RING order, as of `shear`; 0
        where there are no data.

    Raises:
      ValueError: the map has another shape, or values that are not finite or marks of missing pixels.

    Examples:
      >>> kappa, b_modes = observe.kaiser_squires(gamma)
    """
    gamma = real(gamma, "gamma")
    flat = gamma.ndim == 3 and gamma.shape[1] == gamma.shape[2]
    if gamma.shape[:1] != (2,) or not (flat or (gamma.ndim == 2 and nside_of(gamma.shape[1]))):
        raise ArgumentError("gamma.shape", gamma.shape, "must be (2, n, n), or (2, 12 nside^2)")
    check_seen(gamma, "gamma", "set them to 0")
    return _e_and_b_modes(gamma)


@jit
def _e_and_b_modes(gamma: Array) -> Array:
    if gamma.ndim == 2:
        nside = nside_of(gamma.shape[1])
        modes = harmonics.analyse_spin2(gamma, nside, 2 * nside - 1)
        return jax.lax.map(lambda a: harmonics.synthesise(harmonics.shear_modes(a, inverse=True), nside), modes)
    n = gamma.shape[-1]
    cos, sin = jnp.asarray(_phases((n, n), (1.0, 1.0)), gamma.dtype)
    one, two = rfft(row_major(gamma), 2)
    return irfft(row_major(jnp.stack([cos * one + sin * two, cos * two - sin * one])), n, 2)


def _plane_shear(plane: Array, sides: tuple[float, float]) -> Array:
    """Shear of a periodic plane of convergence."""
    phases = jnp.asarray(_phases(plane.shape, sides), plane.dtype)
    return irfft(rfft(plane[None], 2) * phases, plane.shape[1], 2)


def _phases(pixels: tuple[int, ...], sides: tuple[float, float]) -> np.ndarray:
    """Cosine and sine of twice the angle of each wave of real transforms, shape (2, nx, ny // 2 + 1)."""
    (nx, ny), (lx, ly) = pixels, sides
    kx = 2 * math.pi * np.fft.fftfreq(nx, lx / nx)[:, None]
    ky = 2 * math.pi * np.fft.rfftfreq(ny, ly / ny)[None, :]
    k2 = np.where(kx**2 + ky**2 > 0, kx**2 + ky**2, 1)
    below_nyquist = (np.abs(kx) < math.pi * nx / lx * (1 - 1e-9)) & (np.abs(ky) < math.pi * ny / ly * (1 - 1e-9))
    return np.stack([(kx**2 - ky**2) / k2, 2 * kx * ky * below_nyquist / k2])  # that one has no sign


def _rays(
    mass: Array,
    cosmo: Cosmology | GrowthTable,
    cone: FlatSkyLightCone,
    sources: tuple[Sources, Alignment | None],
    grid: tuple[float | None, int | None, Any],
    planes: Callable[[Array], Array],
) -> Array:
    """Sums over the shells of `planes` of each, at the rays, for each bin of sources: (bins, planes, px, py)."""
    field, pixels, offsets = grid
    if field is None or pixels is None:
        raise ArgumentError("field", field, "and pixels are needed for a flat sky", "for example field=5.0, pixels=256")
    count, decomposition = len(cone.edges) - 1, cone.config.decomposition
    pixels = whole_number(pixels, "pixels", least=1)
    for axis, parts in enumerate(decomposition.pdims):
        decomposition.check_axis((pixels, pixels, 1), axis, parts, "pixels")
    check_number(field, "field", 1e-3, 90, unit="degrees", remedy="the sky is flat here")
    mass, offsets = real(mass, "mass"), real(np.zeros((count, 2)) if offsets is None else offsets, "offsets")
    check_seen(offsets, "offsets", "pass shifts [Mpc/h]")
    if mass.shape != (count, *cone.pixels) or offsets.shape != (count, 2):
        constraint = f"must be {(count, *cone.pixels)}, and of offsets {(count, 2)}"
        raise ArgumentError("mass.shape", mass.shape, constraint, _ACCUMULATED)
    _check_masses(mass)
    table = growth_table_to(cone.config.lpt_order, cosmo)
    weights = _weights_of(cone, table, *sources, mass.dtype)
    across = transverse_distance(cone.distances, table).astype(mass.dtype)
    run = decomposition.shard_map(
        partial(_rays_block, cone=cone, angle=math.radians(field), pixels=pixels, planes=planes),
        (decomposition.spectrum_spec, P()),
        decomposition.spectrum_spec,
        check_vma=False,
    )
    maps = run(cone.overdensity(mass), (weights.T, across, offsets.astype(mass.dtype)))
    return maps.reshape(len(weights), -1, pixels, pixels)


def _rays_block(
    overdensity: Array,
    shells: tuple[Array, Array, Array],
    *,
    cone: FlatSkyLightCone,
    angle: float,
    pixels: int,
    planes: Callable[[Array], Array],
) -> Array:
    """Rays of the local block, all planes of a bin after each other; one plane at a time is gathered."""
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
        rays = _interpolate(planes(plane), x, y)
        return (weight[:, None, None, None] * rays[None]).reshape(-1, *rays.shape[1:])

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
