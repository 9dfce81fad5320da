"""Filters of fields on the mesh."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_number
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import irfft_block, rfft_block
from pmwd_dist.pm import fourier, inputs


@on_auto_axes
def smoothed(field: Real[Array, "nx ny nz"], config: Config, radius: ArrayLike) -> Float[Array, "nx ny nz"]:
    """A field on the mesh, times exp(-k^2 R^2 / 2) in Fourier space.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      config: configuration of the simulation.
      radius: radius R of the Gaussian [Mpc/h]; 0 leaves the field as it is, but for rounding.

    Raises:
      ValueError: the field is not on the mesh, or the radius is negative or not finite.

    Examples:
      >>> smooth = observe.smoothed(density, config, 8.0)
    """
    field = inputs.mesh_field(field, config)
    check_number(radius, "radius", 0, 1e6, unit="Mpc/h")
    return _smoothed(field, jnp.asarray(radius, field.dtype), config)


@partial(jit, static_argnames="config")
def _smoothed(field: Array, radius: Array, config: Config) -> Array:
    decomposition, shape = config.decomposition, config.mesh_shape

    def block(field: Array, radius: Array) -> Array:
        k2 = fourier.k_squared(shape, config, field.dtype)
        modes = rfft_block(field, decomposition) * jnp.exp(-k2 * radius**2 / 2)
        return irfft_block(modes, shape[2], decomposition)

    spec = decomposition.spec
    return decomposition.shard_map(block, (spec, P()), spec)(field, radius)
