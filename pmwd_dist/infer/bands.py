"""Bands of the wavenumber of modes, and two numbers of each draw and band, which show how the field of a chain mixes.

- The projection of the modes onto a fixed random direction is linear in the field and standard normal a priori. Its
  autocorrelation is the average over the modes of the band, including their phases. Its mean differs between chains
  whose fields differ.
- The mean power of the modes is 1 a priori. It shows small errors of their widths, and chains that still approach the
  posterior from a maximum, where the power is low, or from outside.

All are sums over the parts of a divided spectrum, so that no field is gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.infer.constants import BANDS, CLASSES
from pmwd_dist.infer.forward import wavevectors
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.parallel.fft import prfft3d
from pmwd_dist.pm.fourier import counted_modes
from pmwd_dist.pm.noise import white_noise

KINDS = ("projection", "power")


class Bands(NamedTuple):
    """Bands of the modes, in the layout of `prfft3d`.

    Args:
      radial: band of the wavenumber of each mode.
      classes: (CLASSES, n), true for the class of each component along an axis; None without classes.
      along: axis of the classes.
    """

    radial: Array
    classes: Array | None = None
    along: int = 0

    def at(self, values: Float[Array, " bands"]) -> Array:
        """The value of each mode's band, by selects: their transpose is a sum, the transpose of a look-up a scatter."""
        place, shape = jnp.arange(BANDS).reshape(-1, 1, 1, 1), [1, 1, 1]
        if self.classes is not None:
            values = jnp.sum(jnp.where(self.classes[:, None], values.reshape(CLASSES, BANDS, 1), 0), axis=0)
            shape[self.along] = -1
        return jnp.sum(jnp.where(self.radial[None] == place, values.reshape(BANDS, *shape), 0), axis=0)

    def sums(self, x: Array) -> Float[Array, " bands"]:
        """Sums over the modes of each band, part by part of a divided spectrum, so that none is gathered."""
        others = tuple(i for i in range(3) if self.classes is None or i != self.along)
        each = jax.lax.map(lambda b: jnp.sum(jnp.where(self.radial == b, x, 0), axis=others), jnp.arange(BANDS))
        if self.classes is None:
            return each
        return jnp.sum(jnp.where(self.classes[:, None], each[None], 0), axis=-1).reshape(-1)


def bands(config: Config, along: int | None = None) -> Bands:
    """Bands of the wavenumber and, with an axis, classes of the component along it."""
    components, (smallest, width) = wavevectors(config), _span(config)
    k2 = sum(component**2 for component in components)
    place = 0.5 * jnp.log(jnp.maximum(k2, smallest**2) / smallest**2) / width
    radial = jnp.clip(jnp.floor(place + 1e-3), 0, BANDS - 1).astype(int)
    if along is None:
        return Bands(radial)
    number = jnp.abs(components[along]).ravel() * (config.box_size[along] / (2 * np.pi))
    classes = jnp.clip(jnp.ceil(jnp.log2(number + 1) - 1e-3), 0, CLASSES - 1).astype(int)
    return Bands(radial, classes[None] == jnp.arange(CLASSES)[:, None], along)


def _span(config: Config) -> tuple[float, float]:
    """The smallest wavenumber, and the width of a band in the logarithm."""
    smallest = 2 * np.pi / max(config.box_size)
    largest = np.pi * np.sqrt(sum(side**-2 for side in config.cell_size))
    return smallest, np.log(largest / smallest) / BANDS


def mode_counts(config: Config, dtype: Any) -> Array:
    """Number of modes of the lattice per value of a spectrum."""
    return counted_modes(config.particle_shape, config, dtype)[1]


def statistics_of_bands(config: Config) -> tuple[Callable[[Array], dict[str, Array]], Float[Array, " bands"]]:
    """Function that gives projection and power of white noise in each band; and the number of modes of each.

    Directions are the same on any number of devices.
    """
    each, k2 = bands(config), sum(component**2 for component in wavevectors(config))
    noise = white_noise(jax.random.key(0), config)
    weight = jnp.where(k2 > 0, mode_counts(config, noise.dtype), 0)  # 0 for the mean
    direction = prfft3d(noise, config.decomposition, norm="ortho")
    square, modes = each.sums(weight * (direction.real**2 + direction.imag**2)), each.sums(weight)
    direction *= each.at(1 / jnp.sqrt(jnp.where(modes > 0, square, 1)))

    def statistics(noise: Array) -> dict[str, Array]:
        x = prfft3d(noise, config.decomposition, norm="ortho")
        along = weight * (x.real * direction.real + x.imag * direction.imag)
        power = each.sums(weight * (x.real**2 + x.imag**2))
        return {"projection": each.sums(along), "power": power / jnp.maximum(modes, 1)}

    return statistics, modes


def by_wavenumber(arrays: Arrays, modes: np.ndarray, config: Config) -> Arrays:
    """Arrays (bands, chains, draws) by kind as arrays (chains, draws) by kind and wavenumber, without empty bands."""
    smallest, width = _span(config)
    centres = smallest * np.exp(width * (np.arange(BANDS) + 0.5))  # in the logarithm
    used = [(band, k) for band, k in enumerate(centres) if modes[band] > 0]
    return {f"{kind}/{k:.4g}": arrays[kind][band] for band, k in used for kind in KINDS}
