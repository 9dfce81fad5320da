"""HEALPix pixels of directions, in RING order (Gorski et al. 2005, arXiv:astro-ph/0409513)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pmwd_dist._jax.order import stored
from pmwd_dist._jax.program import jit


def pixel_count(nside: int) -> int:
    """Number of pixels of a map."""
    return 12 * nside**2


def nside_of(pixels: int) -> int:
    """nside of a map with a number of pixels; 0 if no map has it."""
    nside = math.isqrt(pixels // 12)
    return nside if pixel_count(nside) == pixels else 0


@partial(jit, static_argnames="nside")
def nearest_pixel(nside: int, vector: Float[Array, "*n 3"]) -> Int[Array, "*n"]:
    """Index of the pixel of a direction, a vector of any length but 0."""
    z, phi, scaled = _angles(nside, jnp.moveaxis(vector, -1, 0))
    quarters = phi * (2 / math.pi)
    # Edges of pixels rise and fall with phi: straight lines in the belt, hyperbolas in each quarter of a cap.
    rise, fall = (jnp.floor(nside * (0.5 + quarters + sign * 0.75 * z)) for sign in (-1, 1))
    part = quarters - jnp.floor(quarters)
    from_pole = jnp.floor(part * scaled) + jnp.floor((1 - part) * scaled) + 1
    cap = jnp.where(z > 0, from_pole, 4 * nside - from_pole)
    ring = jnp.where(jnp.abs(z) <= 2 / 3, rise - fall + 2 * nside, cap).astype(jnp.int32)
    first, count, shift, _ = _ring(nside, jnp.clip(ring, 1, 4 * nside - 1), z.dtype)
    column = jnp.floor(phi / (2 * math.pi) * count + 0.5 * (1 - shift)).astype(jnp.int32)
    return first + column % count


@partial(jit, static_argnames="nside")
def interpolation(nside: int, vector: Float[Array, "*n 3"]) -> tuple[Int[Array, "*n 4"], Float[Array, "*n 4"]]:
    """Four pixels around a direction and their weights, with a sum of 1: linear along two rings, and between them.

    Within the ring next to a pole, the four pixels around the pole share the remaining weight, as in
    `get_interp_weights` of healpy. Differentiable in the direction within each such patch.

    Args:
      nside: pixels along the side of a base pixel.
      vector: directions, of any length but 0.
    """
    pixels, weights = neighbours(nside, jnp.moveaxis(vector, -1, 0))
    return jnp.stack(pixels, -1), jnp.stack(weights, -1)


def neighbours(nside: int, vector: Array) -> tuple[list[Array], list[Array]]:
    """The pixels and weights of `interpolation`, in arrays of their own, of directions of shape (3, ...)."""
    # Stored, or XLA computes angles on CPUs again for each pixel and weight.
    z, phi, scaled, theta = stored((*_angles(nside, vector), _polar_angle(vector)))
    belt = jnp.floor(nside * (2 - 1.5 * z) + _slack(nside, z))
    cap = jnp.floor(scaled + _slack(nside, z))
    above = jnp.where(z > 2 / 3, cap, jnp.where(z < -2 / 3, 4 * nside - 1 - cap, belt)).astype(jnp.int32)
    above = stored((above, phi))[0]
    rings = [jnp.clip(above + i, 1, 4 * nside - 1) for i in (0, 1)]
    found = stored([_along(nside, ring, phi) for ring in rings])
    (north_pixels, north, t0), (south_pixels, south, t1) = found
    at_north, at_south = above == 0, above >= 4 * nside - 1
    # Beyond the last ring, the pole replaces the other ring.
    down = (theta - jnp.where(at_north, 0, t0)) / jnp.where(at_south, math.pi - t0, jnp.where(at_north, t1, t1 - t0))
    shared = jnp.where(at_north, 1 - down, jnp.where(at_south, down, 0)) / 4
    both = list(zip(north_pixels, south_pixels, strict=True))
    upper_pixels = [jnp.where(at_north, _opposite(south, nside), north) for north, south in both]
    lower_pixels = [jnp.where(at_south, _opposite(north, nside), south) for north, south in both]
    upper = [jnp.where(at_north, 0, (1 - down) * share) + shared for share in north]
    lower = [jnp.where(at_south, 0, down * share) + shared for share in south]
    return upper_pixels + lower_pixels, upper + lower


def _angles(nside: int, vector: Array) -> tuple[Array, Array, Array]:
    """cos(theta), phi from 0 to 2 pi, and nside sqrt(3 (1 - |cos(theta)|)), which is precise near the poles."""
    across = vector[0] ** 2 + vector[1] ** 2
    squared = across + vector[2] ** 2
    z = vector[2] / jnp.sqrt(squared)
    phi = _arctan2(vector[1], jnp.where(across > 0, vector[0], 1))  # any at a pole, and no derivative
    phi = jnp.where(phi < 0, phi + 2 * math.pi, phi)
    scaled = jnp.where(across > 0, 3 * across / squared / (1 + jnp.abs(z)), 1)
    return z, phi, jnp.where(across > 0, nside * jnp.sqrt(scaled), 0)


def _polar_angle(vector: Array) -> Array:
    across = vector[0] ** 2 + vector[1] ** 2
    rho = jnp.where(across > 0, jnp.sqrt(jnp.where(across > 0, across, 1)), 0)
    return _arctan2(rho, vector[2])


@jax.custom_jvp
def _arctan2(y: Array, x: Array) -> Array:
    """arctan2 by a Taylor series: XLA calls a function of libm for each element on CPUs."""
    low, high = jnp.minimum(abs(x), abs(y)), jnp.maximum(abs(x), abs(y))
    turned = low > math.tan(math.pi / 8) * high  # by pi / 4: the Taylor series needs few terms
    t = jnp.where(turned, low - high, low) / jnp.where(turned, low + high, high)
    angle, square = jnp.zeros_like(t), t * t
    for k in reversed(range(9 if t.dtype == jnp.float32 else 20)):
        angle = angle * square + (-1) ** k / (2 * k + 1)
    angle = angle * t + jnp.where(turned, math.pi / 4, 0)
    angle = jnp.where(abs(y) > abs(x), math.pi / 2 - angle, angle)
    angle = jnp.where(x < 0, math.pi - angle, angle)
    return jnp.where(y < 0, -angle, angle)


@_arctan2.defjvp
def _arctan2_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (y, x), (dy, dx) = primals, tangents
    return _arctan2(y, x), (x * dy - y * dx) / (x * x + y * y)


def _ring(nside: int, ring: Any, dtype: Any, xp: Any = jnp) -> tuple[Any, Any, Any, Any]:
    """First pixel of rings, number of pixels, whether they begin half a pixel from phi = 0, and theta."""
    north, south = ring < nside, ring > 3 * nside
    from_pole = xp.where(south, 4 * nside - ring, ring)
    count = xp.where(north | south, 4 * from_pole, 4 * nside)
    last = pixel_count(nside) - 2 * from_pole * (from_pole + 1)
    between = 2 * nside * (nside - 1) + (ring - nside) * 4 * nside
    first = xp.where(north, 2 * ring * (ring - 1), xp.where(south, last, between))
    shift = xp.where(north | south, 1, (ring - nside + 1) % 2)
    cap = 2 * xp.arcsin(xp.minimum(from_pole, nside).astype(dtype) / (math.sqrt(6) * nside))
    belt = xp.arccos(xp.clip((4 - 2 * ring.astype(dtype) / nside) / 3, -2 / 3, 2 / 3))
    return first, count, shift, xp.where(north, cap, xp.where(south, math.pi - cap, belt))


def _slack(nside: int, x: Array) -> float:
    """More than rounding errors of places on rings, so that XLA finds one ring where it computes it several times."""
    return 8 * nside * float(jnp.finfo(x.dtype).eps)


def _along(nside: int, ring: Array, phi: Array) -> tuple[list[Array], list[Array], Array]:
    """The two pixels of a ring around phi, their weights, and theta of the ring."""
    first, count, shift, _ = _ring(nside, ring, phi.dtype)
    theta = jnp.asarray(rings_of(nside)[3], phi.dtype)[ring - 1]  # cheaper than arcsines
    u = phi / (2 * math.pi) * count - 0.5 * shift
    low = jnp.floor(u + _slack(nside, u))
    column = low.astype(jnp.int32)  # from -1 to count
    around = [jnp.where(i < 0, i + count, jnp.where(i < count, i, i - count)) for i in (column, column + 1)]
    return [first + i for i in around], [1 - (u - low), u - low], theta


def _opposite(pixels: Array, nside: int) -> Array:
    """The pixels across the pole, in the ring of four around it."""
    first = jnp.where(pixels < 4, 0, pixel_count(nside) - 4)
    return first + (pixels - first + 2) % 4


def rings_of(nside: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First pixel of each ring, number of pixels, whether they begin half a pixel from phi = 0, and theta."""
    return _ring(nside, np.arange(1, 4 * nside), float, np)


def pixel_centres(nside: int, pixels: np.ndarray | None = None) -> np.ndarray:
    """Unit vectors to the centres of some pixels or all, shape (..., 3)."""
    pixels = np.arange(pixel_count(nside)) if pixels is None else pixels
    first, count, shift, theta = rings_of(nside)
    ring = np.searchsorted(first, pixels, side="right") - 1
    return unit_vectors(theta[ring], (pixels - first[ring] + 0.5 * shift[ring]) * 2 * math.pi / count[ring])


def unit_vectors(theta: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Directions of polar angles and azimuths, shape (..., 3)."""
    return np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], -1)
