"""Poisson numbers of galaxies at the particles that light passes in a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.ops import vary, varying_names
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import scale_factor_at, transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.observe import passage
from pmwd_dist.observe.catalogue import check_negative
from pmwd_dist.observe.crossing import Path, path
from pmwd_dist.observe.deposit import Chunk, block_sites, each_chunk, parts_of, split
from pmwd_dist.observe.healpix import nearest_pixel, nside_of
from pmwd_dist.observe.survey import Survey
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm import inputs
from pmwd_dist.pm.noise import key_words
from pmwd_dist.pm.stepping.forward import Epoch
from pmwd_dist.pm.stepping.host import StepSchedule
from pmwd_dist.pm.stepping.step import MidStep, undo_half_drift

Weights = Array | np.ndarray | Callable[[float], Array]

COLUMNS = 9  # of the rows of galaxies: image, site along x, y and z, number, displacement, velocity
_MOST_AT_PARTICLE = 50.0  # mean number, whose probability of none single precision still holds
_POINTS = 256  # in growth factor, at which the largest mean is looked for
_SIGMAS = 10  # by which the number of particles with a small random number may exceed its mean


class Means(NamedTuple):
    """Arrays that determine the mean numbers of galaxies at particles.

    Args:
      n_z: redshifts and number densities [(h/Mpc)^3].
      mask: share of each pixel of the sky, or one number.
      volume: comoving volume of a particle, times completeness [(Mpc/h)^3].
      largest_probability: bound of the probability of a galaxy at a particle.
      nodes: growth factors of the weights; one for constant weights.
      norms: means of the weights over the lattice, without negative ones.
      key_words: words of the key.
      images: corners of the images of the box relative to the observer [Mpc/h].
      image_numbers: numbers of the images.
      edges: distances between which there are galaxies [Mpc/h].
    """

    n_z: Array
    mask: Array
    volume: Array
    largest_probability: Array
    nodes: Array
    norms: Array
    key_words: Array
    images: Array
    image_numbers: Array
    edges: Array


def particle_volume(survey: Survey, config: Config) -> float:
    """Comoving volume of a particle, times completeness [(Mpc/h)^3].

    Raises:
      ValueError: more galaxies at a particle are expected than can be drawn, even of equal weights.
    """
    volume = survey.completeness * math.prod(config.box_size) / math.prod(config.particle_shape)
    _check_most(survey.n_z[1].max() * volume)
    return volume


def _check_most(most: float) -> None:
    if most > _MOST_AT_PARTICLE:
        constraint = f"has up to {most:.3g} galaxies at a particle, more than {_MOST_AT_PARTICLE:g}"
        remedy = "use more particles, or more equal weights"
        raise ArgumentError("survey.n_z", None, constraint, remedy, show_value=False)


def means_of(
    survey: Survey,
    table: GrowthTable,
    config: Config,
    *,
    weights: Weights | None,
    key: Array,
    images: tuple[np.ndarray, np.ndarray],
    edges: tuple[float, float],
) -> tuple[Means, tuple[Array, ...]]:
    """Means of the galaxies of a survey between two distances, and the weights at their nodes.

    Args:
      survey: survey.
      table: growth table.
      config: configuration of the simulation.
      weights: weights, as in `galaxy_light_cone`.
      key: key of the random numbers.
      images: corners of the images of the box, and their numbers.
      edges: distances between which there are galaxies [Mpc/h].

    Raises:
      ValueError: there are too many galaxies at a particle, or an argument is out of its range.
    """
    volume = particle_volume(survey, config)
    (fields, nodes), norms = _at_nodes(weights, survey, table, config), np.ones(1)
    most = survey.n_z[1].max() * volume * max(1.0, float(transverse_distance(edges[1], table)) / edges[1]) ** 2
    if fields:
        low, high, norms = (np.asarray(x, float) for x in _bounds(fields))
        _check_most(survey.n_z[1].max() * volume * float(np.max(high / norms)))
        shares = np.asarray(_shares(edges, nodes, table), float)
        largest = np.sum(np.maximum(shares * low[:, None], shares * high[:, None]), axis=0)
        most *= float(np.max(largest / np.maximum(norms @ shares, 1e-30)))
    mask, largest = 1.0 if survey.mask is None else survey.mask, -math.expm1(-most) * (1 + 1e-4)
    means = Means(
        *map(as_array, (np.stack(survey.n_z), mask, volume, largest, nodes, norms)),
        key_words=as_array(np.ravel(key_words(key))[-2:], np.uint32),
        images=as_array(images[0]),
        image_numbers=as_array(images[1], np.int32),
        edges=as_array(np.asarray(edges)),
    )
    return means, fields


def _at_nodes(weights: Weights | None, survey: Survey, table: GrowthTable, config: Config) -> Any:
    """Weights at growth factors of a survey, and these factors."""
    if weights is None:
        return (), np.ones(1)
    last, first = survey.z_range
    times = nodes = np.ones(1)
    if callable(weights):
        times, nodes = passage.weight_nodes(1 / (1 + first), 1 / (1 + last), table)
    fields = list[Array]()
    for a in np.asarray(times, float):
        field = weights(float(a)) if callable(weights) else weights
        check_on_host("galaxy_light_cone", field)
        fields.append(inputs.lattice_field(field, config, "weights"))
    check_negative(*fields, stacklevel=7)
    fields = tuple(jax.device_put(field, config.decomposition.sharding) for field in fields)
    return fields, np.asarray(nodes)


@jit
def _bounds(fields: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """Least and largest values of fields, and their means without negative values."""
    of_each = [(jnp.min(field), jnp.max(field), jnp.mean(jnp.maximum(field, 0))) for field in fields]
    low, high, mean = (jnp.stack(x) for x in zip(*of_each, strict=True))
    return low, high, mean


@jit
def _shares(edges: tuple[float, float], nodes: Array | np.ndarray, table: GrowthTable) -> Array:
    """Shares of the nodes in the weights at growth factors between two distances, shape (nodes, growth factors)."""
    D = table.D1(scale_factor_at(jnp.asarray(edges, float), table))
    return jnp.stack(passage.parabola(jnp.linspace(D[0], D[1], _POINTS), jnp.asarray(nodes)))


@partial(jit, static_argnames=("config", "room", "share"))
def draw(
    ends: tuple[MidStep, MidStep],
    schedule: StepSchedule,
    done: ArrayLike,
    weights: tuple[Array, ...],
    means: Means,
    config: Config,
    *,
    room: int,
    share: float,
) -> tuple[Array, Array]:
    """Rows of the galaxies of a step, with numbers of 0 after the last one, and what may be lost.

    The latter are the largest number of rows of a device, which may exceed the room, and whether a particle is too far
    from its site. No more than a share of the particles has a galaxy.
    """
    before, after = (Epoch(schedule.times[done + i], undo_half_drift(m, config)) for i, m in enumerate(ends))
    step, names = passage.step_series(before.a, after.a, schedule.table), config.decomposition.names

    def block(path: Path, weights: tuple[Array, ...], *shared: Any) -> Any:
        rows, count, lost = _rows(path, weights, shared, config, room=room, share=share)
        loss = jnp.stack([count, lost.astype(jnp.int32)])
        return rows, jax.lax.pmax(vary(loss, names), names) if names else loss

    spec = config.decomposition.spec
    run = config.decomposition.shard_map(block, (spec, spec, P(), P(), P()), (P(names or None), P()))
    return run(path(before, after, step.light), weights, step, means, schedule.table)


def _rows(
    path: Path, weights: tuple[Array, ...], shared: Any, config: Config, *, room: int, share: float
) -> tuple[Array, Array, Array]:
    """Rows of the local galaxies, their number, and whether particles may be lost."""
    path, dtype, (step, means, _) = passage.in_blocks(path), path.start.dtype, shared
    names = varying_names(path.start)
    blocks = passage.blocks_of(path, step.light, means.images, config, means.edges)
    lattice = path, tuple(split(x, parts_of(x.shape)) for x in weights)
    places, relative = jnp.asarray(block_sites(config.decomposition.block(config.particle_shape))), blocks.sites

    def put(carry: Any, chunk: Chunk, images: Any, shared: Any) -> Any:
        (rows, count, lost), (path, weights), (image, number) = carry, chunk.lattice, images
        first, corner = chunk.others
        step, means, table = shared
        passed_sites = jax.vmap(passage.passed_sites, (0, 0, None, None))
        sites, passed, guess = passed_sites(path, corner + image, step.light, relative)
        place, number = places[None] + first[..., None], jnp.broadcast_to(number[:, None], passed.shape)
        u = _random(means.key_words, place, number).astype(dtype)
        chosen = (passed & chunk.wanted[:, None] & (u < means.largest_probability)).ravel()
        kept = min(u.size, math.ceil(u.size * share + _SIGMAS * math.sqrt(u.size * share) + 50))
        at, every = jnp.zeros(kept, jnp.int32), jnp.arange(u.size, dtype=jnp.int32)
        at = at.at[_places(chosen, 0, kept)].set(every, mode="drop")
        arrays = (path, sites, guess, u, place, number, weights)
        path, sites, guess, u, place, number, weights = jax.tree.map(partial(_chosen, at=at), arrays)
        total = jnp.sum(chosen, dtype=jnp.int32)

        here = passage.seen(path, sites, jnp.arange(kept) < total, guess, step)
        mean = _mean_numbers(here, weights, means, table)
        # No direction is known at the observer.
        found = _poisson(jnp.where(here.passed & (here.distance > 0), mean, 0), u)
        values = [number, *place, found]
        new = jnp.stack([*(v.astype(dtype) for v in values), *here.disp, here.velocity], -1)
        rows = rows.at[_places(found > 0, count, room)].set(new, mode="drop")
        return rows, count + jnp.sum(found > 0, dtype=jnp.int32), lost | (total > kept)

    start = jnp.zeros((room, COLUMNS), dtype), jnp.zeros((), jnp.int32), blocks.lost
    start = jax.tree.map(lambda x: vary(x, names), start)
    images = means.images, means.image_numbers
    return each_chunk(put, start, lattice, (blocks.first, blocks.corner), images, shared, blocks.wanted)


def _mean_numbers(here: passage.Seen, weights: tuple[Array, ...], means: Means, table: GrowthTable) -> Array:
    """Mean numbers of galaxies at particles that light passes."""
    mean = means.volume * jnp.interp(here.z, *means.n_z, left=0, right=0)
    mean = mean * (transverse_distance(here.distance, table) / here.distance) ** 2
    if means.mask.ndim:
        mean = mean * means.mask[nearest_pixel(nside_of(means.mask.size), here.x.T)]
    if weights:
        shares = passage.parabola(here.D, means.nodes)
        norm = sum(share * norm for share, norm in zip(shares, means.norms, strict=True))
        weight = sum(share * field for share, field in zip(shares, weights, strict=True))
        mean = mean * jnp.maximum(weight, 0) / norm
    return mean


def _places(chosen: Array, first: Array | int, end: int) -> Array:
    """Places of the chosen elements one after the other from a first one on, and an end for the others."""
    return jnp.where(chosen, first + jnp.cumsum(chosen, dtype=jnp.int32) - 1, end)


def _chosen(x: Array, at: Array) -> Array:
    """Numbers or vectors of particles in blocks, shape (blocks, ..., sites), at indices among all particles."""
    return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)[..., at]


def _random(bits: Array, place: Array, number: Array) -> Array:
    """Random numbers from 0 to 1 of lattice sites, shape (blocks, 3, ...), in images of the box."""
    x, y, z = jnp.moveaxis(place.astype(jnp.uint32), 1, 0)
    words = threefry_2x32(bits, jnp.stack([x | (number.astype(jnp.uint32) << 16), y | (z << 16)]))
    return words[0].astype(jnp.float32) * 2.0**-32


def _poisson(mean: Array, u: Array) -> Array:
    """Poisson numbers: how often the probability of more than k = 0, 1, ... exceeds random numbers from 0 to 1."""
    u = u.astype(mean.dtype)

    def going(state: Any) -> Array:
        k, term, above, _ = state
        return jnp.any((u < above) & ((k < mean) | (term > 1e-12)))

    def step(state: Any) -> Any:
        k, term, above, count = state
        more = (u < above) & ((k < mean) | (term > 1e-12))
        return k + 1, term * mean / (k + 1), above - term * mean / (k + 1), count + more

    zero = mean.astype(jnp.int32) * 0
    start = jnp.zeros((), mean.dtype) + 0 * jnp.max(mean), jnp.exp(-mean), -jnp.expm1(-mean), zero
    return jax.lax.while_loop(going, step, start)[3]
