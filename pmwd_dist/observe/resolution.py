"""Share of the power of matter in the maps of a light cone: windows of pixels, and waves that particles hold."""

from __future__ import annotations

import math
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import interpolation, nearest_pixel, rings_of
from pmwd_dist.observe.sphere import SphericalLightCone

LightCone = FlatSkyLightCone | SphericalLightCone
_DIRECTIONS = 4096  # on the sphere, for means over pixels
_ANGLES = 12  # nodes of mu and of phi in an octant


@lru_cache(maxsize=8)
def pixel_window(nside: int, lmax: int, *, nearest: bool = False) -> np.ndarray:
    """Factor of the harmonics of a HEALPix map of point masses, for l from 0 to lmax.

    The mean over directions n of sum_p w_p(n) P_l(n . n_p), with the weights w_p and centres n_p of the pixels.
    """
    z = 1 - (2 * np.arange(_DIRECTIONS) + 1) / _DIRECTIONS
    phi = math.pi * (3 - math.sqrt(5)) * np.arange(_DIRECTIONS)
    vector = _vectors(np.arccos(z), phi)
    if nearest:
        pixels, weights = np.asarray(nearest_pixel(nside, jnp.asarray(vector)))[:, None], np.ones((_DIRECTIONS, 1))
    else:
        pixels, weights = (np.asarray(x, float) for x in interpolation(nside, jnp.asarray(vector)))
    first, count, shift, theta = rings_of(nside)
    ring = np.searchsorted(first, pixels, side="right") - 1
    centre = _vectors(theta[ring], (pixels - first[ring] + 0.5 * shift[ring]) * 2 * math.pi / count[ring])
    cosine = np.sum(vector[:, None] * centre, axis=-1)
    window, last, now = np.ones(lmax + 1), np.zeros_like(cosine), np.ones_like(cosine)
    for ell in range(1, lmax + 1):
        last, now = now, ((2 * ell - 1) * cosine * now - (ell - 1) * last) / ell
        window[ell] = np.mean(np.sum(weights * now, axis=-1))
    return window


def _vectors(theta: np.ndarray, phi: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)


def resolved_share(ell: np.ndarray, k: np.ndarray, cone: LightCone) -> np.ndarray:
    """Power in maps of a light cone over the power of the matter: windows of its pixels, and waves of its particles.

    No wave exceeds the lattice, or is longer than the box: the mean has the volume of a sphere of 0.62 of its modes'
    spacing. Planes of a flat sky are painted and read by cloud-in-cell.

    Args:
      ell: multipoles, shape (n,).
      k: wavenumbers across the line of sight [h/Mpc], shape (n, slabs).
      cone: light cone.
    """
    config = cone.config
    mu, weight = np.polynomial.legendre.leggauss(_ANGLES)
    phi = (np.arange(_ANGLES) + 0.5) * math.pi / 2 / _ANGLES
    directions = _vectors(np.arccos(np.repeat((mu + 1) / 2, _ANGLES)), np.tile(phi, _ANGLES))
    nyquist = math.pi * np.asarray(config.particle_shape) / np.asarray(config.box_size)
    inside = k[..., None] <= (nyquist / directions).min(axis=1)
    mean = (3 / (4 * math.pi)) ** (1 / 3) * 2 * math.pi / math.prod(config.box_size) ** (1 / 3)
    share = (inside @ np.repeat(weight, _ANGLES)) / (2 * _ANGLES) * (k >= mean)
    if isinstance(cone, SphericalLightCone):
        lmax = math.ceil(float(ell.max()))
        window = pixel_window(cone.nside, lmax, nearest=cone.assignment == "nearest")
        return share * np.interp(ell, np.arange(lmax + 1), window**2)[:, None]
    waves = [k[..., None] * f(phi) * L / n for f, L, n in zip((np.cos, np.sin), cone.sides, cone.pixels, strict=True)]
    return share * np.prod([np.sinc(x / (2 * math.pi)) ** 8 for x in waves], axis=0).mean(axis=-1)
