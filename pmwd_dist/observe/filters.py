"""Filters of fields on the mesh: smoothing, and a density with fewer aliases from two meshes."""

from __future__ import annotations

import warnings
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_number
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import filtered_block, irfft_block, rfft_block
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.paint import max_displacement_block, paint_block
from pmwd_dist.pm.particles import Particles


@on_auto_axes
def smoothed(field: Real[Array, "nx ny nz"], config: Config, radius: ArrayLike) -> Float[Array, "nx ny nz"]:
    """A field on the mesh, times exp(-k^2 R^2 / 2) in Fourier space.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      config: configuration of the simulation.
      radius: radius R of the Gaussian [Mpc/h]; 0 leaves the field as it is, but for rounding.

    Raises:
      ValueError: the field is not on the mesh, or the radius is negative or not finite.

    Warns:
      UserWarning: the filter leaves no wave of the box.

    Examples:
      >>> smooth = observe.smoothed(density, config, 8.0)
    """
    field = inputs.mesh_field(field, config)
    check_number(radius, "radius", 0, 1e6, unit="Mpc/h")
    if not isinstance(radius, Tracer) and (text := filter_warning("radius", float(np.asarray(radius)), config)):
        warnings.warn(text, stacklevel=3)
    return _smoothed(field, jnp.asarray(radius, field.dtype), config)


def filter_warning(name: str, radius: float, config: Config) -> str | None:
    """Warning of a Gaussian filter whose radius [Mpc/h] is more than half the box."""
    side = max(config.box_size)
    return f"{name} = {radius:g}: this filter leaves no wave of a box of {side:g} Mpc/h" if radius > side / 2 else None


@on_blocks(["field", "whole"], "field")
def _smoothed(field: Array, radius: Array, config: Config) -> Array:
    def response() -> Array:
        return jnp.exp(-fourier.k_squared(config.mesh_shape, config, field.dtype) * radius**2 / 2)

    return filtered_block(field, response, config.decomposition)


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
    def painted(disp: Array, weight: Array, cells: float) -> Array:
        moved = disp - jnp.asarray([cells * side for side in config.cell_size], disp.dtype).reshape(1, 1, 1, 3)
        weight = weight[..., None, None] / config.particles_per_cell
        return paint_block(moved, weight, max_displacement_block(moved, config), config)

    def block(disp: Array, weight: Array) -> Array:
        return mean_of_meshes(painted(disp, weight, 0.0), painted(disp, weight, 0.5), config)

    spec = config.decomposition.spec
    of_weights = spec if weights.size > 1 else P()
    return config.decomposition.shard_map(block, (spec, of_weights), spec)(disp, weights)


def mean_of_meshes(field: Array, shifted: Array, config: Config) -> Array:
    """Local block of the mean of a field and one on a mesh that is shifted by half a cell along each axis."""

    def modes(field: Array, cells: float) -> Array:
        back = fourier.translation(config.mesh_shape, config, field.dtype, jnp.asarray(-cells, field.dtype))
        return rfft_block(field, config.decomposition) * back

    return irfft_block((modes(field, 0.0) + modes(shifted, 0.5)) / 2, config.mesh_shape[2], config.decomposition)
