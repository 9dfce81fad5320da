"""Cloud-in-cell paint and read on the distributed mesh: density from particles, and fields at particles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Real

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist._jax.select import batch_max, switch
from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.rounding import max_abs, max_over_devices
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.halo import pad_block
from pmwd_dist.parallel.inputs import real
from pmwd_dist.pm import inputs
from pmwd_dist.pm.deterministic_paint import Paint, paint_and_reduce
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.status import UNLIMITED

# Largest displacements of the widths of halo="auto" [Mpc/h]: early times, z = 1, z = 0, and beyond LCDM, where 4 rms
# of the displacement along an axis are 24.
_AUTO_DISPLACEMENTS = (6.0, 16.0, 40.0, 100.0)


@on_auto_axes
def cic_paint(disp: Real[Array, "px py pz 3"], config: Config, weight: Any = 1.0) -> Float[Array, "nx ny nz"]:
    """Paint particles onto the mesh with cloud-in-cell weights, in the precision of the displacements.

    Args:
      disp: displacements from the lattice [Mpc/h].
      config: the simulation.
      weight: weights of the particles, shape (px, py, pz), or one for all.

    Returns:
      Sum of weights per cell. All NaN if a displacement is not finite or exceeds the halo: mass is never lost.

    Raises:
      ValueError: displacements or weights of another shape, or not real.

    Examples:
      >>> counts = pmd.cic_paint(particles.disp, config)  # particles per cell
    """
    inputs.check_config(config)
    weight = real(weight, "weight")
    if weight.ndim and (weight.ndim != 3 or config.decomposition.whole(weight.shape) != config.particle_shape):
        raise ArgumentError("weight.shape", weight.shape, f"must be {config.particle_shape} or ()")
    return _paint(inputs.vectors(disp, config, "disp"), weight, config)


@partial(jit, static_argnames="config")
def _paint(disp: Array, weight: Array, config: Config) -> Array:
    decomposition, shared = config.decomposition, weight.ndim == 0
    weight = weight.astype(disp.dtype).reshape((1, 1, 1) if shared else weight.shape)

    def block(disp: Array, weight: Array) -> Array:
        max_displacement = max_displacement_block(disp, config)
        return nan_if_lost(paint_block(disp, weight[..., None, None], max_displacement, config), config)

    run = decomposition.shard_map(
        block, (decomposition.spec, P() if shared else decomposition.spec), decomposition.spec
    )
    return run(disp, weight)


@on_auto_axes
def cic_read(
    field: Real[Array, "nx ny nz"], disp: Real[Array, "px py pz 3"], config: Config
) -> Float[Array, "px py pz"]:
    """Read a mesh field at the particles with cloud-in-cell weights, in the precision of the displacements.

    Args:
      field: field on the mesh.
      disp: displacements from the lattice [Mpc/h].
      config: the simulation.

    Returns:
      The field at each particle; NaN where the displacement is not finite or exceeds the halo.

    Raises:
      ValueError: displacements or a field of another shape, or not real.

    Examples:
      >>> overdensity = pmd.cic_read(density, particles.disp, config)  # at each particle
    """
    disp = inputs.vectors(disp, config, "disp")
    field = inputs.mesh_field(field, config, remedy="pass its real and its imaginary part one by one")
    return _read(field, disp, config)


@on_blocks(["field", "field"], "field")
def _read(field: Array, disp: Array, config: Config) -> Array:
    def run(halo: int, field: Array, disp: Array) -> Array:
        padded = pad_block(field, halo + 1, config.decomposition)
        return cic.read(disp, padded[..., None], block_geometry(config, halo))[..., 0, 0]

    return with_halo(max_displacement_block(disp, config), config, run, field.astype(disp.dtype), disp)


@on_auto_axes
def density(particles: Particles, config: Config) -> Float[Array, "nx ny nz"]:
    """Density of the particles in units of the mean: 1 + delta.

    Raises:
      ValueError: not Particles, or particles of another shape or box.

    Examples:
      >>> density = pmd.density(solution.particles, config)
    """
    return cic_paint(inputs.checked_particles(particles, config).disp, config, 1 / config.particles_per_cell)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def halo_widths(config: Config) -> tuple[int, ...]:
    """Widths of the halo among which a run chooses [cells]: one if it is fixed, at most the mesh."""
    divided = [axis for axis, parts in enumerate(config.decomposition.pdims) if parts > 1]
    if not divided:
        return (0,)
    if config.halo != "auto":
        return (config.halo,)
    widest = max(config.mesh_shape[axis] for axis in divided)
    cell = min(config.cell_size[axis] for axis in divided)
    return tuple(sorted({min(math.ceil(max_displacement / cell), widest) for max_displacement in _AUTO_DISPLACEMENTS}))


def halo_limit(config: Config) -> float:
    """Largest displacement within the widest halo [cells]; UNLIMITED if no axis is divided."""
    return UNLIMITED if config.decomposition.size == 1 else float(halo_widths(config)[-1])


def nan_if_lost(painted: Array, config: Config) -> Array:
    """A painted block; NaN on all devices if a particle of any device lies beyond the halo.

    Such a particle makes its own block and its neighbours NaN; farther blocks would be finite and lack its mass.
    """
    if not config.decomposition.names:
        return painted
    lost = jnp.isnan(jax.lax.stop_gradient(painted[(0,) * painted.ndim])).astype(painted.dtype)
    return jnp.where(jax.lax.psum(lost, config.decomposition.names) > 0, jnp.nan, painted)


def max_displacement_block(disp: Array, config: Config) -> Array:
    """Largest displacement of all particles along any axis [smallest side of a cell]; NaN if one is not finite."""
    return largest_on_devices(max_abs(disp), config) / min(config.cell_size)


def largest_on_devices(largest: Array, config: Config) -> Array:
    """Maximum over devices of numbers of 0 or more, NaN if one is NaN; not differentiable."""
    return max_over_devices(largest, config.decomposition.names)


def with_halo(max_displacement: Array, config: Config, run: Callable[..., Any], *operands: Any) -> Any:
    """run(halo, *operands) with the narrowest halo that is wide enough, or the widest."""
    widths = halo_widths(config)
    if len(widths) == 1:
        return run(widths[0], *operands)
    limits = jnp.asarray(widths[:-1], max_displacement.dtype)
    index = jnp.sum(batch_max(max_displacement) > limits, dtype=jnp.int32)  # the same for a whole batch
    return switch(index, [partial(run, width) for width in widths], *operands)


def block_geometry(config: Config, halo: int) -> cic.Geometry:
    """Geometry of the local blocks, padded by halo + 1 cells: a cloud reaches one cell beyond its particle."""
    parts = (*config.decomposition.pdims, 1)
    pads = tuple(halo + 1 if p > 1 else 0 for p in parts)
    mesh = tuple(n // p + 2 * pad for n, p, pad in zip(config.mesh_shape, parts, pads, strict=True))
    periodic, scale = tuple(p == 1 for p in parts), tuple(1 / side for side in config.cell_size)
    return cic.Geometry(mesh, config.spacing, pads, periodic, scale)


def paint_block(disp: Array, weight: Array, max_displacement: Array, config: Config) -> Array:
    """Paint the local particles, with weights of shape (..., 1, 1), and add the halos, see `deterministic_paint`."""

    def run(halo: int, disp: Array, weight: Array) -> Array:
        geometry = block_geometry(config, halo)
        if config.decomposition.size == 1:
            return cic.paint(disp, weight, geometry)[..., 0]
        paint = Paint(geometry, config.decomposition, pad=halo + 1, particles=math.prod(config.particle_shape))
        return paint_and_reduce(disp, weight, paint)

    return with_halo(max_displacement, config, run, disp, weight)
