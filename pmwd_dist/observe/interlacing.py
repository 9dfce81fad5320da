"""Density with fewer aliases, from two meshes shifted by half a cell."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Real

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import irfft_block, rfft_block
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.paint import max_displacement_block, paint_block
from pmwd_dist.pm.particles import Particles


@on_auto_axes
def interlaced_density(
    particles: Particles, config: Config, *, weights: Real[Array, "px py pz"] | None = None
) -> Float[Array, "nx ny nz"]:
    """Density of the particles in units of the mean, 1 + delta, without half of its aliases (Sefusatti et al. 2016).

    The mean of two densities, one of them on a mesh shifted by half a cell along each axis and moved back in Fourier
    space: aliases along one axis and along all three cancel. The cloud-in-cell window stays, as in `density`;
    `power_spectrum` divides by it. Modes at the Nyquist frequency of an axis are dropped. It takes two paints and three
    transforms. A fixed halo must hold half a cell more than the displacements.

    Args:
      particles: particles of this config.
      config: configuration of the simulation.
      weights: weights of tracers, see `tracer_density`; default: 1.

    Returns:
      The density, shape (nx, ny, nz); all NaN if a particle is beyond the halo.

    Raises:
      ValueError: the particles are not Particles of this config, or the weights have another shape.

    Examples:
      >>> density = observe.interlaced_density(solution.particles, config)
    """
    disp = inputs.checked_particles(particles, config).disp
    if weights is None:
        return _interlaced_density(disp, jnp.ones((1, 1, 1), disp.dtype), config)
    return _interlaced_density(disp, inputs.lattice_field(weights, config, "weights").astype(disp.dtype), config)


@partial(jit, static_argnames="config")
def _interlaced_density(disp: Array, weights: Array, config: Config) -> Array:
    decomposition, dtype, shape = config.decomposition, disp.dtype, config.mesh_shape

    def painted(disp: Array, weight: Array, cells: float) -> Array:
        moved = disp - jnp.asarray([cells * side for side in config.cell_size], dtype).reshape(1, 1, 1, 3)
        weight = weight[..., None, None] / config.particles_per_cell
        density = paint_block(moved, weight, max_displacement_block(moved, config), config)
        back = fourier.translation(shape, config, dtype, jnp.asarray(-cells, dtype))
        return rfft_block(density, decomposition) * back

    def block(disp: Array, weight: Array) -> Array:
        both = painted(disp, weight, 0.0) + painted(disp, weight, 0.5)
        return irfft_block(both / 2, shape[2], decomposition)

    spec = decomposition.spec
    of_weights = spec if weights.size > 1 else P()
    return decomposition.shard_map(block, (spec, of_weights), spec)(disp, weights)
