"""Density of the dark matter sheet, which is smooth in voids, where the lattice of the particles is stretched.

Displacements are interpolated between the sites of the lattice (Shandarin, Habib & Heitmann 2012; Abel, Hahn & Kaehler
2012), here linearly along each axis, and tracers at interpolated positions share the mass of each cell of the lattice.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.pm import inputs
from pmwd_dist.pm.paint import max_displacement_block, nan_if_lost, paint_block
from pmwd_dist.pm.particles import Particles

_TRACERS = 2  # tracers per mesh cell along each axis, at most twice as many: no gaps up to a twofold stretch
_RANGES = 8  # largest number of programs for different numbers of lattice planes


@on_auto_axes
def slab_density(particles: Particles, config: Config, planes: int) -> Float[Array, "nx ny"]:
    """Mean density of the sheet over the first planes of the mesh along z, in units of the mean: 1 + delta.

    Only the part of the lattice with tracers that may be in the slab is painted. Over all planes, mass is conserved to
    rounding. Displacements must be continuous over the sides of the box.

    Returns:
      The density, shape (nx, ny); all NaN if a tracer, up to a lattice spacing farther from its site than particles, is
      beyond the halo.

    Raises:
      ValueError: the particles are not Particles of this config.
    """
    disp = inputs.checked_particles(particles, config).disp
    low, count = _lattice_planes(float(_farthest(disp)), planes, config)
    return _slab_density(disp, np.int32(low), config, planes, count)


@jit
def _farthest(disp: Array) -> Array:
    return max_abs(disp[..., 2])


def _lattice_planes(max_displacement: float, planes: int, config: Config) -> tuple[int, int]:
    """First lattice plane with tracers that may be in the slab, and the number of such planes."""
    n, spacing, cell = config.particle_shape[2], config.box_size[2] / config.particle_shape[2], config.cell_size[2]
    if not math.isfinite(max_displacement):
        return 0, n
    before = math.ceil((max_displacement + cell) / spacing) + 1  # the cloud of a tracer is a cell wide to each side
    count = before + math.ceil((planes * cell + max_displacement + cell) / spacing)
    quantum = -(-n // _RANGES)
    count = -(-count // quantum) * quantum
    return (0, n) if count >= n else (-before, count)


@partial(jit, static_argnames=("config", "planes", "count"))
def _slab_density(disp: Array, low: Array, config: Config, planes: int, count: int) -> Array:
    decomposition = config.decomposition
    spacing = np.asarray([b / n for b, n in zip(config.box_size, config.particle_shape, strict=True)])
    offsets = _offsets(config)
    mass = 1 / (config.particles_per_cell * len(offsets))
    sites = jnp.mod(low + np.arange(count + 1, dtype=np.int32), config.particle_shape[2])
    shift = low.astype(disp.dtype) * np.asarray([0, 0, spacing[2]], disp.dtype)  # position of the first plane

    def block(disp: Array) -> Array:
        corners = _with_next_planes(jnp.take(disp, sites, axis=2), config)

        def paint(offset: Array) -> Array:
            moved = _interpolate(corners, offset)
            moved = moved + jnp.broadcast_to((offset * spacing + shift).astype(disp.dtype), moved.shape)
            weight = jnp.full((1, 1, 1, 1, 1), mass, disp.dtype)
            painted = paint_block(moved, weight, max_displacement_block(moved, config), config)
            return jnp.mean(painted[:, :, :planes], axis=2)

        return nan_if_lost(jnp.sum(jax.lax.map(paint, jnp.asarray(offsets, disp.dtype)), axis=0), config)

    image = decomposition.shard_map(block, (decomposition.spec,), decomposition.spec)(disp)
    return jax.lax.with_sharding_constraint(image, decomposition.replicated)


def _offsets(config: Config) -> np.ndarray:
    """Positions of the tracers between the sites, in lattice spacings."""
    fractions = []
    for cells, sites in zip(config.mesh_shape, config.particle_shape, strict=True):
        tracers = min(_TRACERS * max(1, math.ceil(cells / sites)), 2 * _TRACERS)
        fractions.append((np.arange(tracers) + 0.5) / tracers)
    return np.asarray(list(itertools.product(*fractions)))


def _with_next_planes(x: Array, config: Config) -> Array:
    """A block with the first plane of the next block along x and along y, in shard_map."""
    for axis, (names, parts) in enumerate(config.decomposition.axis_groups):
        first = jax.lax.slice_in_dim(x, 0, 1, axis=axis)
        if parts > 1:
            first = jax.lax.ppermute(first, names, [((i + 1) % parts, i) for i in range(parts)])
        x = jnp.concatenate([x, first], axis=axis)
    return x


def _interpolate(corners: Array, offset: Array) -> Array:
    """Displacements at an offset from the sites, in lattice spacings from 0 to 1."""
    x = corners
    for axis in range(3):
        n = x.shape[axis]
        low, high = (jax.lax.slice_in_dim(x, start, start + n - 1, axis=axis) for start in (0, 1))
        x = low + offset[axis] * (high - low)
    return x
