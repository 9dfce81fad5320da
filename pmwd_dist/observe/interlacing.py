"""Density with fewer aliases, from two meshes of which one is shifted by half a cell."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.parallel.fft import irfft_block, rfft_block
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.paint import max_displacement_block, paint_block
from pmwd_dist.pm.particles import Particles


def interlaced_density(particles: Particles, config: Config) -> Float[Array, "nx ny nz"]:
    """Density of the particles in units of the mean, 1 + delta, without half of its aliases (Sefusatti et al. 2016).

    The mean of the density and of one on a mesh shifted by half a cell along each axis, moved back in Fourier space:
    aliases along one axis and along all three cancel. The cloud-in-cell window stays, as in `density`;
    `power_spectrum` divides by it. Modes of the Nyquist frequency along an axis are left out. Takes two paints and
    three transforms. A halo that is a fixed number must hold half a cell more than the displacements.

    Returns:
      All NaN if a particle is beyond the halo.

    Raises:
      ValueError: something else than Particles of this config.
    """
    inputs.check_config(config)
    return _interlaced_density(inputs.checked_particles(particles, config).disp, config)


@partial(jax.jit, static_argnames="config")
def _interlaced_density(disp: Array, config: Config) -> Array:
    decomposition, dtype, shape = config.decomposition, disp.dtype, config.mesh_shape

    def painted(disp: Array, cells: float) -> Array:
        moved = disp - jnp.asarray([cells * side for side in config.cell_size], dtype).reshape(1, 1, 1, 3)
        weight = jnp.full((1, 1, 1, 1, 1), 1 / config.particles_per_cell, dtype)
        density = paint_block(moved, weight, max_displacement_block(moved, config), config)
        back = fourier.translation(shape, config, dtype, jnp.asarray(-cells, dtype))
        return rfft_block(density, decomposition) * back

    def block(disp: Array) -> Array:
        return irfft_block((painted(disp, 0.0) + painted(disp, 0.5)) / 2, shape[2], decomposition)

    return decomposition.shard_map(block, decomposition.spec, decomposition.spec)(disp)
