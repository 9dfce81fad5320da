"""White noise: Gaussian, of fixed amplitude, paired, and the same long waves at any resolution."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float

from pmwd_dist._checks import check_flag
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.program import jit
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import local_factors, pirfft3d, prfft3d, wavenumbers
from pmwd_dist.pm import inputs


class NoiseKind(NamedTuple):
    """Options of `white_noise`."""

    nested: bool = False
    fixed: bool = False
    paired: bool = False


GAUSSIAN = NoiseKind()


@on_auto_axes
def white_noise(
    key: Array, config: Config, dtype: Any = None, *, nested: bool = False, fixed: bool = False, paired: bool = False
) -> Float[Array, "nx ny nz"]:
    """Real Gaussian noise of unit variance on the particle lattice, bitwise the same on any number of devices.

    The numbers are drawn in single precision: noise in double precision is the same to rounding. Options that take a
    transform, nested and fixed, are the same to rounding on any number of devices.

    Args:
      key: key of jax.random.
      config: the simulation.
      dtype: real type of the noise; default: the precision of the program.
      nested: whether a mode depends on its integer wavevector alone. Modes below the Nyquist frequency of a lattice
        are then the modes of any finer lattice in the same box.
      fixed: whether each mode has its rms amplitude, with a random phase (Angulo & Pontzen 2016).
      paired: whether to reverse the sign of the noise: the second simulation of a pair.

    Raises:
      ValueError: not a key of jax.random, not a real floating-point type, an option that is not True or False, or a
        lattice beyond the memory.

    Examples:
      >>> noise = pmd.white_noise(jax.random.key(0), config)
    """
    inputs.check_config(config)
    for name, value in {"nested": nested, "fixed": fixed, "paired": paired}.items():
        check_flag(value, name)
    check_key(key)
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise ArgumentError("dtype", dtype, "must be a type of real floating-point numbers")
    dtype = jnp.dtype(dtype or jnp.result_type(float))
    runs = not any(isinstance(x, Tracer) for x in (key, as_array(0.0, dtype)))
    if runs and config.decomposition.platform == "cpu":  # XLA may end the process
        need, (_, total) = dtype.itemsize * math.prod(config.particle_shape) / jax.process_count(), available_memory()
        if need > total:
            constraint = f"needs {size(need)} of memory, and this machine has {size(total)}"
            raise ArgumentError("particle_shape", config.particle_shape, constraint, "use a smaller one")
    return _white_noise(key, config, dtype, NoiseKind(nested, fixed, paired))


def check_key(key: Any) -> None:
    """Raise ArgumentError unless a value is one key of jax.random."""
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not (typed and key.ndim == 0) and not (hasattr(key, "dtype") and key.dtype == jnp.uint32 and key.ndim == 1):
        raise ArgumentError("key", key, "must be a key", "for example jax.random.key(0)")


def key_words(key: Array) -> Array:
    """The words of a key, old or new."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


def noise_of(source: Array, config: Config, kind: NoiseKind) -> Array:
    """Noise of a key, or the given noise."""
    if not jnp.issubdtype(source.dtype, jnp.floating):
        return white_noise(source, config, **kind._asdict())
    return -source if kind.paired else source


@partial(jit, static_argnames=("config", "dtype", "kind"))
def _white_noise(key: Array, config: Config, dtype: Any, kind: NoiseKind) -> Array:
    decomposition, shape = config.decomposition, config.particle_shape
    noise = decomposition.constrain(jax.random.normal(key, shape, jnp.float32).astype(dtype))
    if kind.nested or kind.fixed:
        modes = _nested_modes(key, config, dtype) if kind.nested else prfft3d(noise, decomposition)
        if kind.fixed:
            size = jnp.abs(modes)
            modes = scaled(modes, math.sqrt(math.prod(shape)) / jnp.where(size > 0, size, 1))
        noise = pirfft3d(modes, shape, decomposition)
    return -noise if kind.paired else noise


def _nested_modes(key: Array, config: Config, dtype: Any) -> Array:
    """Modes of white noise, each from a hash of its wavevector."""
    modes = _hashed(jax.random.bits(key, (2,), jnp.uint32), config)
    return (math.sqrt(math.prod(config.particle_shape)) * modes).astype(jnp.result_type(dtype, jnp.complex64))


@on_blocks(["whole"], "spectrum")
def _hashed(pair: Array, config: Config) -> Array:
    """The modes, of unit variance.

    A mode and its complex conjugate are both stored where kz is 0 or at the Nyquist frequency. The smaller wavevector
    of the two is hashed there. A mode that is its own conjugate is real.
    """
    shape = config.particle_shape
    wavevector = wavenumbers(shape, config.decomposition)
    opposite = [np.where(2 * np.abs(n) == size, n, -n) for n, size in zip(wavevector, shape, strict=True)]
    x, y, z = local_factors(wavevector, config.decomposition, jnp.int32)
    u, v, w = local_factors(opposite, config.decomposition, jnp.int32)
    both = z == w
    single, reverse = both & (y == v) & (x == u), both & ((y > v) | ((y == v) & (x > u)))
    x, y, z = (jnp.where(reverse, n, m) for n, m in zip((u, v, w), (x, y, z), strict=True))
    words = (x & 0x1FFFFF) | (y << 21), ((y >> 11) & 0x3FF) | (z << 10)  # 21 bits each
    bits = threefry_2x32(pair, jnp.stack([word.astype(jnp.uint32) for word in words]))
    fraction = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    radius, angle = jnp.sqrt(-jnp.log(fraction[0])), 2 * math.pi * fraction[1]
    real, imaginary = radius * jnp.cos(angle), radius * jnp.sin(angle)
    imaginary = jnp.where(single, 0, jnp.where(reverse, -imaginary, imaginary))
    modes = jax.lax.complex(jnp.where(single, math.sqrt(2) * real, real), imaginary)
    return jnp.where(z >= 0, modes, 0)
