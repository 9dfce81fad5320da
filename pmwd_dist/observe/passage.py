"""Particles that light passes in a step, in blocks of the lattice and repetitions of the box around an observer."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.order import barrier
from pmwd_dist._jax.program import jit
from pmwd_dist._jax.select import batch_any
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import HUBBLE_DISTANCE
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.observe import shells
from pmwd_dist.observe.crossing import LightCone, Path, crosses, crossing, light_cone_in_step, series, series_in_step
from pmwd_dist.observe.deposit import block_sites, deposit, first_sites, parts_of, split
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.pm.paint import largest_on_devices

FASTEST = 0.015  # bound of peculiar velocities [c]
_SLACK = 1e-5  # relative rounding errors of distances in single precision


class Blocks(NamedTuple):
    """The blocks of the local lattice, for a step.

    Args:
      first: first site of each block in the whole lattice, shape (blocks, 3).
      low, high: ends of a cuboid around the particles of each block, shape (blocks, 3) [Mpc/h].
      corner: position of the first site of each block, shape (blocks, 3) [Mpc/h].
      sites: positions of the sites of a block relative to its corner, shape (3, sites) [Mpc/h].
      wanted: whether light may pass a block in an image of the box, shape (blocks, images).
      lost: whether displacements are so large that the images may miss some particles.
    """

    first: Array
    low: Array
    high: Array
    corner: Array
    sites: Array
    wanted: Array
    lost: Array


def images_of(edges: Sequence[float], observer: Sequence[float], config: Config, argument: str = "edges") -> np.ndarray:
    """Corners, relative to the observer, of all boxes with particles that may be between the first and last distance.

    Raises:
      ValueError: they are too many.
    """
    reach, pairs = edges[-1] + shells.MARGIN, list(zip(observer, config.box_size, strict=True))
    ranges = [range(math.floor((o - reach) / L), math.floor((o + reach) / L) + 1) for o, L in pairs]
    shells.check_images(math.prod(map(len, ranges)), config, argument)
    box, margin = np.asarray(config.box_size), math.sqrt(3) * shells.MARGIN
    low = np.array(list(itertools.product(*ranges))) * box - np.asarray(observer)
    nearest, farthest = _distances_of_boxes(low, low + box, np)
    return low[(nearest <= edges[-1] + margin) & (farthest >= edges[0] - margin)]


def _distances_of_boxes(low: Any, high: Any, xp: Any) -> tuple[Any, Any]:
    """Distances of the nearest and of the farthest points of boxes."""
    nearest = xp.maximum(xp.maximum(low, -high), 0)
    return xp.sqrt((nearest**2).sum(-1)), xp.sqrt((xp.maximum(abs(low), abs(high)) ** 2).sum(-1))


def in_blocks(path: Path) -> Path:
    """Displacements in blocks of `split`, with components before sites, stored once."""
    parts = parts_of(path.start.shape[:3])
    return barrier(Path(*(split(jnp.moveaxis(x, -1, 0), parts) for x in path)))


def blocks_of(path: Path, light: LightCone, images: Array, config: Config, edges: Any) -> Blocks:
    """The blocks of the local lattice that light passes in a step between two distances, in images of the box.

    The first and the last of the edges are the distances: numbers, or arrays of shape (1, images).
    """
    dtype, shape = path.start.dtype, config.decomposition.block(config.particle_shape)
    spacing = jnp.asarray([L / n for L, n in zip(config.box_size, config.particle_shape, strict=True)], dtype)
    groups = config.decomposition.axis_groups
    first = [jax.lax.axis_index(g) * n if p > 1 else 0 for (g, p), n in zip(groups, shape[:2], strict=True)]
    first = jnp.asarray(first_sites(shape, parts_of(shape))) + jnp.stack([jnp.asarray(i) for i in (*first, 0)])[None]

    # A particle that is not finite makes its cuboid NaN: minima lose NaNs on CPUs.
    path = jax.lax.stop_gradient(path)
    reach = jax.vmap(max_abs)(functools.reduce(jnp.maximum, map(jnp.abs, path)))
    corner, sites = first.astype(dtype) * spacing[None], jnp.asarray(block_sites(shape), dtype) * spacing[:, None]
    start = corner + 0 * reach[:, None]
    low = start + jnp.min(functools.reduce(jnp.minimum, path) + sites[None], axis=2)
    high = start + jnp.max(functools.reduce(jnp.maximum, path) + sites[None], axis=2)
    nearest, farthest = _distances_of_boxes(low[:, None] + images[None], high[:, None] + images[None], jnp)
    inner, outer = jnp.maximum(light.ends[1], edges[0]), jnp.minimum(light.ends[0], edges[-1])
    slack = _SLACK * light.ends[0]
    # The comparison is true for NaN: particles that are not finite must show in the maps.
    wanted = batch_any(~((nearest > outer + slack) | (farthest < inner - slack) | (inner > outer)))
    lost = largest_on_devices(max_abs(reach), config) > shells.MARGIN
    return Blocks(first, low, high, corner, sites, wanted, lost)


def passed_sites(path: Path, corner: Array, light: LightCone, sites: Array) -> tuple[Array, Array, Array]:
    """Sites of a block with a corner relative to the observer, whether light passes their particles, and a guess when.

    The last are fractions of the step, see `crosses`.
    """
    sites = jax.lax.stop_gradient(sites + corner[:, None])
    # Both ends by the same instructions: the end of a step has the bits of the next one's start.
    ends = sites[:, None] + jax.lax.stop_gradient(jnp.stack([path.start, path.end], 1))
    ends = barrier(jnp.sqrt(product(ends, ends)))
    return sites, *crosses(ends[0], ends[1], light)


def passing(path: Path, corner: Array, light: LightCone, sites: Array) -> tuple[Array, Array, Array]:
    """Sites of a block and whether light passes their particles, see `passed_sites`, and when, see `crossing`."""
    sites, passed, guess = passed_sites(path, corner, light, sites)
    where = sites, path, passed.astype(sites.dtype)
    return sites, passed, crossing(distance_at, where, passed, guess, light)


def distance_at(where: tuple[Array, Path, Array], s: Array) -> Array:
    """Distance of particles at a fraction of a step [Mpc/h]; 1 for particles that are not passed, for derivatives."""
    sites, path, passed = where
    x = sites + path.at(s[None])
    return jnp.sqrt(jnp.where(passed > 0, product(x, x), 1))


def product(x: Array, y: Array) -> Array:
    """Scalar product of vectors with components along the first axis, without a loop over them."""
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]


def summed(
    piece: Callable[..., Any],
    lattice: Any,
    blocks: Blocks,
    images: Array,
    shared: Any,
    config: Config,
    size: tuple[int, int],
) -> Array:
    """The local part of maps that are divided over devices, (maps, places), a sum over blocks, images and devices.

    One pass over the maps takes no more memory than the particles or the local maps. `piece` has a further argument: a
    function of a map and an index in the map, negative for none, that returns the index in one pass. The size holds the
    numbers of maps, and of the places of a map on each device. `deposit` has the other arguments.
    """
    count, share = size
    names, devices = config.decomposition.names, config.decomposition.size
    total = count * share * devices
    most = min(max(count * share, jax.tree.leaves(lattice)[0].size), 2**31 - 1)
    passes = next(n for n in range(1, share + 1) if share % n == 0 and total <= most * n)
    width = share // passes

    def one(number: Array) -> Array:
        def place(index: Array | int, pixel: Array, number: Array) -> Array:
            if passes == 1:  # the same, without divisions
                return jnp.where(pixel >= 0, index * (devices * share) + pixel, total)
            device, within = pixel // share, pixel % share
            in_pass = (pixel >= 0) & (within // width == number.astype(jnp.int32))
            return jnp.where(in_pass, (index * devices + device) * width + within % width, total // passes)

        def of_pass(block: Any, image: Array, given: Any) -> Any:
            shared, number = given
            return piece(block, image, shared, partial(place, number=number))

        given = shared, jnp.asarray(number, images.dtype)
        corners = jnp.pad(blocks.corner, [(0, 0), (0, images.shape[1] - 3)])
        maps = deposit(of_pass, lattice, corners, images, given, blocks.wanted, total // passes)
        maps = maps.reshape(count, devices, width)
        return jax.lax.psum_scatter(maps, names, scatter_dimension=1) if names else maps[:, 0]

    maps = one(jnp.asarray(0)) if passes == 1 else jnp.moveaxis(jax.lax.map(one, jnp.arange(passes)), 0, 1)
    return maps.reshape(count, share)


class StepSeries(NamedTuple):
    """The light cone in a step, growth factors at its ends, and series in the fraction of the step (`crossing.series`).

    Args:
      scale: scale factor.
      velocity: peculiar velocity in c over the derivative of the displacement with the fraction [h/Mpc].
    """

    light: LightCone
    scale: Array
    velocity: Array
    D: Array


def step_series(before: Array, after: Array, table: GrowthTable) -> StepSeries:
    """The light cone and its series between two scale factors."""
    D = table.D1(jnp.stack([before, after]))
    length = (D[1] - D[0]) * HUBBLE_DISTANCE

    def velocity(a: Array) -> Array:
        return table.momentum(a) / (a * length)

    light = light_cone_in_step(before, after, table)
    return StepSeries(light, series_in_step(lambda a: a, D, table), series_in_step(velocity, D, table), D)


class Seen(NamedTuple):
    """Particles when light passes them; any values for the others.

    Args:
      passed: whether light passes a particle in this step.
      disp: displacement, shape (3, ...) [Mpc/h].
      x: position relative to the observer, shape (3, ...) [Mpc/h].
      distance: distance from the observer [Mpc/h].
      velocity: peculiar velocity along the line of sight [c].
      z: observed redshift.
      D: growth factor.
    """

    passed: Array
    disp: Array
    x: Array
    distance: Array
    velocity: Array
    z: Array
    D: Array


def seen(path: Path, sites: Array, passed: Array, guess: Array, step: StepSeries) -> Seen:
    """Particles of sites relative to the observer at the moment when light passes them; see `passed_sites`."""
    s = crossing(distance_at, (sites, path, passed.astype(sites.dtype)), passed, guess, step.light)
    disp = path.at(s[None])
    x = jnp.where(passed[None], sites + disp, 1)
    distance = jnp.sqrt(product(x, x))
    change = 2 * ((1 - s[None]) * (path.control - path.start) + s[None] * (path.end - path.control))
    velocity = series(step.velocity, s) * product(change, x) / distance
    z = (1 + velocity) / series(step.scale, s) - 1
    return Seen(passed, disp, x, distance, velocity, z, step.D[0] + (step.D[1] - step.D[0]) * s)


@jit
def weight_nodes(first: Any, last: Any, table: GrowthTable) -> tuple[Array, Array]:
    """Scale factors and growth factors at which weights are given for `parabola`, from one scale factor to another."""
    D = table.D1(jnp.stack([jnp.asarray(first, float), jnp.asarray(last, float)]))
    nodes = jnp.stack([D[0], (D[0] + D[1]) / 2, D[1]])
    return table.scale_factor(nodes), nodes


def parabola(D: Array, nodes: Array) -> list[Array]:
    """Lagrange polynomials of nodes, at growth factors."""
    every = range(len(nodes))
    factors = ([(D - nodes[j]) / (nodes[i] - nodes[j]) for j in every if j != i] for i in every)
    return [math.prod(terms, start=jnp.ones_like(D)) for terms in factors]
