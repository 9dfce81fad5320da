"""Density of galaxies on the light cone, on a comoving mesh around the observer through fiducial distances."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._jax.select import batch_any
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import comoving_distance
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.observe import passage
from pmwd_dist.observe.crossing import Path, fit_series, path, series, series_slope
from pmwd_dist.observe.deposit import parts_of, split
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.pm.stepping.forward import Epoch

_TERMS = 24  # of the series of distances
_NEAREST = 1e-4  # smallest redshift: nearer galaxies have no direction

Series = Float[Array, " terms"]


class DensityCone(eqx.Module):
    """Density of galaxies around an observer in units of its mean, for `nbody(..., accumulate=...)`.

    A particle is painted by cloud-in-cell on the mesh of the config at the moment when light passes it: in its
    direction from the observer, at the fiducial distance of its observed redshift (Alcock & Paczynski 1979). The
    Jacobian of this map keeps the mean density at 1 in any cosmology. The box is repeated by shifts of its sides beyond
    its border, where the mesh ends.

    Args:
      config: configuration of the simulation, which ends at a = 1.
      observer: position of the observer in the box [Mpc/h].
      weights: weights of the particles at each of the nodes, which are interpolated by a parabola, `in_block_order`.
      nodes: growth factors.
      logs: first and last ln(1 + z) of the series.
      distance, fiducial: series of the comoving distance in ln(1 + z) between these, in the cosmology of the simulation
        and in the fiducial one [Mpc/h].
    """

    config: Config = eqx.field(static=True)
    observer: tuple[float, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    nodes: Array
    logs: Array
    distance: Series
    fiducial: Series

    def __call__(self, before: Epoch, after: Epoch, table: GrowthTable) -> Float[Array, "nx ny nz"]:
        """Density of the galaxies that light passes in a step."""
        step, spec = passage.step_series(before.a, after.a, table), self.config.decomposition.spec
        small = eqx.tree_at(lambda cone: cone.weights, self, ())

        def block(path: Path, weights: tuple[Array, ...], shared: Any) -> Array:
            step, values = shared
            return _density(path, weights, step, eqx.combine(values, small))

        values, small = eqx.partition(small, eqx.is_array)
        run = self.config.decomposition.shard_map(block, (spec, spec, P()), spec, check_vma=False)
        return run(path(before, after, step.light), self.weights, (step, values))


@on_blocks(["field"], "field")
def in_block_order(field: Array, config: Config) -> Array:
    """A field of the lattice by blocks of `split`, once for all steps."""
    del config
    return split(field, parts_of(field.shape)).reshape(field.shape)


def reach(config: Config, observer: tuple[float, ...]) -> float:
    """Distance from an observer to the farthest corner of the box [Mpc/h]."""
    return math.hypot(*(max(o, length - o) for o, length in zip(observer, config.box_size, strict=True)))


def redshift_series(table: GrowthTable, logs: Any) -> Series:
    """Series of the comoving distance in ln(1 + z) between two of its values [Mpc/h]."""
    return fit_series(lambda s: comoving_distance(jnp.exp(-(logs[0] + (logs[1] - logs[0]) * s)), table), _TERMS)


def _density(path: Path, weights: tuple[Array, ...], step: Any, cone: DensityCone) -> Array:
    """The local part of the density."""
    path, config, dtype = passage.in_blocks(path), cone.config, path.start.dtype
    images = jnp.asarray(
        np.array(list(itertools.product((-1, 0, 1), repeat=3))) * config.box_size - np.asarray(cone.observer), dtype
    )
    farthest = reach(config, cone.observer)
    moved = jnp.max(jnp.abs(series(cone.fiducial, _points(dtype)) - series(cone.distance, _points(dtype))))
    moved = jax.lax.stop_gradient(moved).astype(dtype) + passage.FASTEST * 3000
    blocks = passage.blocks_of(path, step.light, images, config, (0.0, farthest + moved))
    # Most of the repetitions are beyond the mesh.
    place = jnp.asarray(cone.observer, dtype)
    low, high = ((x[:, None] + images[None]) + place[None, None] for x in (blocks.low, blocks.high))
    beyond = (high <= -moved) | (low >= (jnp.asarray(config.box_size, dtype) + moved)[None, None])
    wanted = blocks.wanted & batch_any(~jnp.any(beyond, axis=-1))  # true for NaN
    numbers = jax.tree.map(
        lambda x: x.astype(dtype), (step, cone.nodes, cone.logs, cone.distance, cone.fiducial, blocks.sites)
    )
    weights = tuple(x.astype(dtype).reshape(len(blocks.first), -1) for x in weights)
    lattice, local = (path, weights), config.decomposition.block(config.mesh_shape)
    piece, size = partial(_piece, config=config, observer=cone.observer), (1, math.prod(local))
    field = passage.summed(piece, lattice, blocks._replace(wanted=wanted), images, numbers, config, size)
    # A sum, whose cotangents need no memory.
    return field.reshape(local) + jnp.where(blocks.lost, jnp.nan, 0)


def _points(dtype: Any) -> Array:
    return jnp.linspace(0, 1, 2 * _TERMS, dtype=dtype)


def _piece(
    block: Any, corner: Array, shared: Any, place: Any, *, config: Config, observer: tuple[float, ...]
) -> tuple[Array, Array]:
    """Indices on the mesh and densities, for one pass, of the particles of a block that light passes."""
    (path, weights), (step, nodes, logs, distance, fiducial, sites) = block, shared
    dtype = path.start.dtype
    here = passage.seen(path, *passage.passed_sites(path, corner, step.light, sites), step)
    s = (jnp.log1p(here.z) - logs[0]) / (logs[1] - logs[0])
    good = here.passed & (here.z > _NEAREST) & (s < 1)
    s = jnp.where(good, s, 0.5)
    true, assumed = series(distance, s), series(fiducial, s)
    weight = (assumed / true) ** 2 * series_slope(fiducial, s) / series_slope(distance, s) / config.particles_per_cell
    if weights:
        weight = weight * sum(x * y for x, y in zip(passage.parabola(here.D, nodes), weights, strict=True))
    place_in_box = here.x * (assumed / here.distance)[None] + jnp.asarray(observer, dtype).reshape(3, 1)
    cells = place_in_box / jnp.asarray(config.cell_size, dtype).reshape(3, 1)
    lowest = jax.lax.stop_gradient(jnp.floor(cells))
    above = cells - lowest
    mesh, local = config.mesh_shape, config.decomposition.block(config.mesh_shape)
    indices, values = [], []
    for offsets in itertools.product((0, 1), repeat=3):
        i, j, k = lowest.astype(jnp.int32) + jnp.asarray(offsets).reshape(3, 1)
        inside = good & (i >= 0) & (i < mesh[0]) & (j >= 0) & (j < mesh[1]) & (k >= 0) & (k < mesh[2])
        device = (i // local[0]) * (mesh[1] // local[1]) + j // local[1]
        at = device * math.prod(local) + ((i % local[0]) * local[1] + j % local[1]) * mesh[2] + k
        indices.append(place(0, jnp.where(inside, at, -1)))
        share = math.prod(above[a] if offset else 1 - above[a] for a, offset in enumerate(offsets))
        values.append(jnp.where(inside, weight * share, 0))
    return jnp.stack(indices, -1), jnp.stack(values, -1)
