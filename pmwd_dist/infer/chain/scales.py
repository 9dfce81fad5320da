"""Two numbers of each draw and band of wavenumbers, which show how the field of a chain mixes.

- The projection of the modes onto a fixed random direction is linear in the field and standard normal a priori. Its
  autocorrelation is the average over the modes of the band, including their phases. Its mean differs between chains
  whose fields differ.
- The mean power of the modes is 1 a priori. It shows small errors of their widths, and chains that still approach the
  posterior from a maximum, where the power is low, or from outside.

Both are sums over the parts of a divided spectrum, so that no field is gathered.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.infer.forward import wavevectors
from pmwd_dist.infer.preconditioner_adaptation import Bands, band_centres, bands, mode_counts
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.parallel.fft import prfft3d
from pmwd_dist.pm.noise import white_noise

KINDS = ("projection", "power")


class Scales(NamedTuple):
    """Bands and directions of the modes of a lattice.

    Args:
      bands: bands of the modes.
      weight: number of modes per value of a spectrum, 0 for the mean.
      direction: spectrum of norm 1 in each band.
      modes: number of modes of each band.
    """

    bands: Bands
    weight: Array
    direction: Array
    modes: Float[Array, " bands"]


def scales_of(config: Config) -> Scales:
    """The bands of a lattice, and the same directions on any number of devices."""
    each, k2 = bands(config), sum(component**2 for component in wavevectors(config))
    noise = white_noise(jax.random.key(0), config)
    weight = jnp.where(k2 > 0, mode_counts(config, noise.dtype), 0)
    direction = prfft3d(noise, config.decomposition, norm="ortho")
    square, modes = each.sums(weight * (direction.real**2 + direction.imag**2)), each.sums(weight)
    norm = jnp.sqrt(jnp.where(modes > 0, square, 1))
    return Scales(each, weight, direction * each.at(1 / norm), modes)


def band_statistics(
    noise: Float[Array, "nx ny nz"], scales: Scales, config: Config
) -> dict[str, Float[Array, " bands"]]:
    """Projection and power of each band of white noise."""
    modes = prfft3d(noise, config.decomposition, norm="ortho")
    along = scales.weight * (modes.real * scales.direction.real + modes.imag * scales.direction.imag)
    power = scales.bands.sums(scales.weight * (modes.real**2 + modes.imag**2))
    return {"projection": scales.bands.sums(along), "power": power / jnp.maximum(scales.modes, 1)}


def by_wavenumber(arrays: Arrays, modes: np.ndarray, config: Config) -> Arrays:
    """Arrays (bands, chains, draws) by kind as arrays (chains, draws) by kind and wavenumber, without empty bands."""
    named = {}
    for band, k in enumerate(band_centres(config)):
        if modes[band] > 0:
            named |= {f"{kind}/{k:.4g}": arrays[kind][band] for kind in KINDS}
    return named
