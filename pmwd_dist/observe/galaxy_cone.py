"""Galaxies on the light cone of an N-body simulation: each where and when light passes its particle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.ops import vary, varying_names
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe import shells
from pmwd_dist.observe.catalogue import MOST_GALAXIES, Catalogue, about_simulation, check_negative
from pmwd_dist.observe.crossing import Path, path
from pmwd_dist.observe.deposit import split
from pmwd_dist.observe.healpix import nearest_pixel, pixel_centres
from pmwd_dist.observe.passage import StepSeries, blocks_of, images_of, parabola, seen, step_series
from pmwd_dist.observe.survey import UNITS, Survey, check_survey, distances_at, generator, redshift_table, sky
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm import inputs
from pmwd_dist.pm.noise import check_key
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.status import SimulationError, successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.forward import Epoch
from pmwd_dist.pm.stepping.host import StepSchedule
from pmwd_dist.pm.stepping.step import MidStep, undo_half_drift
from pmwd_dist.pm.time_steps import step_times

Weights = Array | np.ndarray | Callable[[float], Array]

_FASTEST = 0.015  # bound of peculiar velocities [c]
_MOST_AT_PARTICLE = 50.0  # mean number, whose probability of none single precision still holds
_COLUMNS = 9  # of the rows of galaxies: image, site along x, y and z, number, displacement, velocity
_COARSE = 8  # nside of a map in which images of the box are looked for


@on_auto_axes
def galaxy_light_cone(
    particles: Particles,
    cosmo: Cosmology | GrowthTable,
    config: Config,
    survey: Survey,
    *,
    key: Array,
    weights: Weights | None = None,
    observer: Sequence[float] | None = None,
    solver: Any = None,
    potential_factor: PotentialFactor | None = None,
) -> Catalogue:
    """Galaxies of a survey on the past light cone of an observer, drawn during an N-body simulation. Collective.

    Each particle has a Poisson number of galaxies where light passes it, with a mean proportional to its weight, to the
    number density at its observed redshift, and to the mask. The box is repeated around the observer by shifts of its
    sides, without rotations, so that structures are continuous and recur. In curved universes positions in the box are
    comoving distances along the line of sight and angles, as on the other light cones, and densities are per true
    comoving volume. The result does not depend on the division over devices; every process has all galaxies.

    Args:
      particles: particles at a_start, from `lpt`.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation, which ends at a = 1 or before.
      survey: number density, mask and errors of the survey.
      key: key of the random numbers.
      weights: weights of the particles as galaxies, of any mean above 0, or a function of the scale factor that returns
        them, such as `bias_weights(..., a=a)`. It is called at three scale factors of the survey, and interpolated by a
        parabola in the growth factor, which is exact for constant Lagrangian bias to second order. Default: 1.
      observer: position of the observer in the box [Mpc/h]; default: the centre.
      solver: solver, as in `nbody`.
      potential_factor: factor of the potential, as in `nbody`.

    Returns:
      Columns `RA`, `DEC` [deg], `Z`, the observed redshift (1 + Z_COSMO) (1 + v/c) - 1 with the peculiar velocity v
      along the line of sight, `Z_COSMO`, `WEIGHT` and `NZ`, the number density at Z
      without its error [(h/Mpc)^3], in double precision.

    Raises:
      ValueError: the survey reaches beyond the simulation or expects no galaxies, negative weights hold more than 2 %
        of the galaxies, or another argument is out of its range.
      SimulationError: the simulation failed.

    Warns:
      UserWarning: negative weights hold more than 0.5 % of the galaxies, so that P(k) comes out low.

    Examples:
      >>> survey = observe.Survey(n_z=([0.1, 0.3], [1e-3, 1e-4]))
      >>> galaxies = observe.galaxy_light_cone(particles, cosmo, config, survey, key=jax.random.key(1))
      >>> galaxies.save("galaxies.hdf5")
    """
    from pmwd_dist.pm.nbody import as_solver  # diffrax is slow to import
    from pmwd_dist.pm.solvers.diffrax_solvers import SplitSolver

    check_on_host("galaxy_light_cone", (particles, cosmo, key))
    inputs.check_config(config)
    particles = inputs.checked_particles(particles, config, config.a_start, "config.a_start")
    if not isinstance(solver := as_solver(solver), SplitSolver):
        raise ArgumentError("solver", solver, "must be a drift-kick-drift solver", "use BullFrog()", show_value=False)
    table = growth_table_to(config.lpt_order, cosmo)
    times = step_times(table, config).astype(particles.disp.dtype)
    passage = Passage(survey, table, times, config, key=key, weights=weights, observer=observer)
    schedule = host.make_schedule(table, times, config, solver.coefficients, potential_factor)
    exact = host.exact_particles(jax.tree.map(jnp.copy, Particles(particles.disp, particles.vel)), config)
    mid = host.half_drift(exact, successful(particles.disp.dtype), schedule, 0, config)
    for i in range(len(times) - 1):
        before = mid if not passage.sees(i) else jax.tree.map(jnp.copy, mid)
        mid = host.advance(mid, schedule, i, config)
        mid.status.raise_if_failed()
        passage.add(before, mid, schedule, i, config)
    host.final_status(mid, config).raise_if_failed()
    return passage.catalogue()


@dataclass(frozen=True)
class _Cone:
    """Part of a light cone in which a survey sees galaxies, with the names of `images_of`."""

    config: Config
    edges: tuple[float, float]
    observer: tuple[float, ...]


class _Means(NamedTuple):
    """Arrays that determine the mean numbers of galaxies at particles.

    Args:
      n_z: redshifts and number densities [(h/Mpc)^3].
      mask: share of each pixel of the sky, or one number.
      volume: comoving volume of a particle, times completeness [(Mpc/h)^3].
      nodes: growth factors of the weights; one for constant weights.
      norms: means of the weights over the lattice, without negative ones.
      bits: words of the key.
      images: corners of the images of the box relative to the observer [Mpc/h].
      numbers: numbers of the images.
      edges: distances between which there are galaxies [Mpc/h].
    """

    n_z: Array
    mask: Array
    volume: Array
    nodes: Array
    norms: Array
    bits: Array
    images: Array
    numbers: Array
    edges: Array


class Passage:
    """The galaxies of a survey that light has passed, gathered from step to step on the host.

    Args:
      survey, key, weights, observer: as in `galaxy_light_cone`.
      times: scale factors at which steps begin and end.
    """

    def __init__(
        self,
        survey: Survey,
        table: GrowthTable,
        times: Any,
        config: Config,
        *,
        key: Array,
        weights: Weights | None = None,
        observer: Sequence[float] | None = None,
    ):
        check_survey(survey)
        check_key(key)
        self.survey, self.table, self.config, self.key = survey, table, config, key
        self.rows = np.zeros((0, _COLUMNS))
        low, high = check_range(survey, table, config)
        times = np.asarray(times, float)
        self.distances = distances_at(1 / times - 1, table)
        margin = _FASTEST * (1 + np.asarray(survey.z_range))
        ends = np.maximum(np.asarray(survey.z_range) + margin * [-1, 1], 0)
        near, far = np.clip(distances_at(ends, table), 0, self.distances[0])
        centre = [length / 2 for length in config.box_size] if observer is None else observer
        self.cone = _Cone(config, (float(near), float(far)), shells.checked_observer(centre, config.box_size))
        self.images = images_of(self.cone)
        shells.check_images(len(self.images), config)
        number = survey.numbers_between(np.sort(1 / times - 1), table)
        self.room = 1 << math.ceil(math.log2(2000 + 3 * number.max()))
        if weights is None:
            self.weights, nodes, norms = (), np.ones(1), [1.0]
        else:
            self.weights, nodes, norms = _at_nodes(weights, (low, high), table, config)
        volume = survey.completeness * math.prod(config.box_size) / math.prod(config.particle_shape)
        largest = (float(jnp.max(field)) / norm for field, norm in zip(self.weights, norms, strict=False))
        if (most := survey.n_z[1].max() * volume * max(largest, default=1)) > _MOST_AT_PARTICLE:
            constraint = f"has up to {most:.3g} galaxies at a particle, more than {_MOST_AT_PARTICLE:g}"
            remedy = "use more particles, or more equal weights"
            raise ArgumentError("survey.n_z", None, constraint, remedy, show_value=False)
        shown = np.flatnonzero(_in_footprint(self.images, self.cone, survey))
        words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        dtype = jnp.result_type(float)
        self.means = _Means(
            jnp.asarray(np.stack(survey.n_z), dtype),
            jnp.asarray(1.0 if survey.mask is None else survey.mask, dtype),
            jnp.asarray(volume, dtype),
            jnp.asarray(nodes, dtype),
            jnp.asarray(np.asarray(norms), dtype),
            jnp.ravel(jnp.asarray(words))[-2:],
            jnp.asarray(self.images[shown], dtype),
            jnp.asarray(shown, jnp.int32),
            jnp.asarray(self.cone.edges, dtype),
        )

    def sees(self, done: int) -> bool:
        """Whether light may pass galaxies in the step after a number of steps."""
        near, far = self.cone.edges
        return bool(self.distances[done] >= near and self.distances[done + 1] <= far)

    def add(self, before: MidStep, after: MidStep, schedule: StepSchedule, done: int, config: Config) -> None:
        """Add the galaxies of the step after a number of steps, from the states before and after it. Collective.

        Raises:
          SimulationError: displacements are too large for the repetitions of the box.
        """
        if not self.sees(done):
            return
        while True:
            times = schedule.times[done], schedule.times[done + 1]
            rows, lost = _galaxies((before, after), times, schedule.table, self.weights, self.means, config, self.room)
            most, lost = (int(x) for x in np.asarray(lost))
            if lost:
                raise SimulationError("a displacement exceeds 100 Mpc/h, or is not finite; use a smaller sigma8")
            if most <= self.room:
                break
            self.room = 2 << math.ceil(math.log2(most))
        own = [np.asarray(shard.data) for shard in rows.addressable_shards if not shard.replica_id]
        found = distributed.all_rows(np.concatenate([x[x[:, 4] > 0] for x in own]).astype(float))
        self.rows = np.concatenate([self.rows, found])

    def catalogue(self) -> Catalogue:
        """The catalogue of the galaxies so far, ordered by repetitions of the box and by lattice sites."""
        config, survey, shape = self.config, self.survey, self.config.particle_shape
        rows = self.rows[np.lexsort(self.rows[:, 3::-1].T)]
        image, number = rows[:, [0, 4]].astype(np.int64).T
        position = rows[:, 1:4] * (np.asarray(config.box_size) / shape) + self.images[image] + rows[:, 5:8]
        z = np.interp(np.linalg.norm(position, axis=1), *redshift_table(self.table, 1 / config.a_start - 1))
        columns = {**sky(position), "Z": (1 + z) * (1 + rows[:, 8]) - 1, "Z_COSMO": z}
        columns = {name: np.repeat(values, number) for name, values in columns.items()}
        columns = survey.observed(columns, generator(self.key, 1), survey.losses)
        about = {"observer [Mpc/h]": self.cone.observer, "box repetitions": len(self.means.images)}
        about |= {"completeness": survey.completeness, "redshift_error": survey.redshift_error}
        about |= {"n_z [(h/Mpc)^3]": np.stack(survey.n_z), "repeated by": "shifts of its sides"}
        return Catalogue(columns, {name: UNITS[name] for name in columns}, about | about_simulation(self.table, config))


def check_range(survey: Survey, table: GrowthTable, config: Config) -> tuple[float, float]:
    """Redshifts of a survey; ArgumentError if a simulation does not span them, or there are no galaxies."""
    low, high = survey.z_range
    last, first = 1 / config.a_stop - 1, 1 / config.a_start - 1
    if low < last - 1e-6 or high > first + 1e-6:
        constraint = f"reaches from z = {low:.4g} to {high:.4g}, beyond the simulation, z = {max(last, 0):.4g} to "
        remedy = "use an earlier a_start or a later a_stop, or other redshifts"
        raise ArgumentError("survey.n_z", None, f"{constraint}{first:.4g}", remedy, show_value=False)
    number = survey.number(table)
    if not 1 <= number <= MOST_GALAXIES:
        constraint = f"expects {number:.3g} galaxies, and must expect 1 to {MOST_GALAXIES:g}"
        raise ArgumentError("survey.n_z", None, constraint, "the densities are per (Mpc/h)^3", show_value=False)
    return low, high


def _at_nodes(weights: Weights, z_range: tuple[float, float], table: GrowthTable, config: Config) -> Any:
    """Weights at growth factors of a survey, these factors, and means of the weights without negative ones."""
    D = np.asarray(table.D1(1 / (1 + np.asarray(z_range[::-1]))), float)
    nodes = np.array([D[0], D.mean(), D[1]]) if callable(weights) else np.ones(1)
    fields = list[Array]()
    for a in np.asarray(table.scale_factor(nodes), float):
        field = weights(float(a)) if callable(weights) else weights
        check_on_host("galaxy_light_cone", field)
        fields.append(inputs.lattice_field(field, config, "weights"))
        check_negative(fields[-1])
    sharding = config.decomposition.sharding
    norms = [float(jnp.mean(jnp.maximum(field, 0))) for field in fields]
    return tuple(jax.device_put(field, sharding) for field in fields), nodes, norms


def _in_footprint(images: np.ndarray, cone: _Cone, survey: Survey) -> np.ndarray:
    """Whether the mask may show a part of each image of the box."""
    if survey.mask is None:
        return np.ones(len(images), bool)
    nside = math.isqrt(len(survey.mask) // 12)
    fine, coarse = pixel_centres(nside), pixel_centres(_COARSE)
    seen = coarse[np.unique(np.asarray(nearest_pixel(_COARSE, fine[survey.mask > 0])))]
    centre = images + np.divide(cone.config.box_size, 2)
    distance = np.linalg.norm(centre, axis=1)
    radius = np.linalg.norm(cone.config.box_size) / 2 + shells.MARGIN
    # Pixels are smaller than a radian over nside.
    widest = np.arcsin(radius / np.maximum(distance, radius)) + 1 / nside + 1 / _COARSE
    nearest = np.arccos(np.clip(np.max(centre @ seen.T, axis=1) / np.maximum(distance, 1e-9), -1, 1))
    return (distance <= radius) | (nearest <= widest)


@partial(jit, static_argnames=("config", "room"))
def _galaxies(
    ends: tuple[MidStep, MidStep],
    times: tuple[Array, Array],
    table: GrowthTable,
    weights: tuple[Array, ...],
    means: _Means,
    config: Config,
    room: int,
) -> tuple[Array, Array]:
    """Rows of the galaxies of a step, with numbers of 0 after the last one, and what may be lost.

    The latter are the largest number of rows of a device, which may exceed the room, and whether a particle is too far
    from its site.
    """
    before, after = (Epoch(a, undo_half_drift(m, config)) for a, m in zip(times, ends, strict=True))
    step, names = step_series(before.a, after.a, table), config.decomposition.names

    def block(path: Path, weights: tuple[Array, ...], step: StepSeries, means: _Means, table: GrowthTable) -> Any:
        rows, count, lost = _rows(path, weights, step, means, table, config, room)
        loss = jnp.stack([count, lost.astype(jnp.int32)])
        return rows, jax.lax.pmax(vary(loss, names), names) if names else loss

    spec = config.decomposition.spec
    run = config.decomposition.shard_map(block, (spec, spec, P(), P(), P()), (P(names or None), P()))
    return run(path(before, after, step.light), weights, step, means, table)


def _rows(
    path: Path,
    weights: tuple[Array, ...],
    step: StepSeries,
    means: _Means,
    table: GrowthTable,
    config: Config,
    room: int,
) -> tuple[Array, Array, Array]:
    """Rows of the local galaxies, their number, and whether particles may be lost."""
    dtype, names = path.start.dtype, varying_names(path.start)
    blocks, first, spacing, wanted, lost = blocks_of(path, step.light, means.images, config, means.edges)
    shape = blocks.start.shape[1:4]
    parts: Any = tuple(n // m for n, m in zip(path.start.shape[:3], shape, strict=True))

    def put(carry: Any, block: Any, image: Array, number: Array) -> Any:
        rows, count = carry
        path, first, weights = block
        here = seen(path, first.astype(dtype) * spacing + image, step, spacing)
        mean = means.volume * jnp.interp(here.z, *means.n_z, left=0, right=0)
        mean = mean * (transverse_distance(here.distance, table) / here.distance) ** 2
        if means.mask.ndim:
            mean = mean * means.mask[nearest_pixel(math.isqrt(means.mask.size // 12), here.x)]
        if weights:
            shares = parabola(here.D, means.nodes)
            norm = sum(share * norm for share, norm in zip(shares, means.norms, strict=True))
            weight = sum(share * field for share, field in zip(shares, weights, strict=True))
            mean = mean * jnp.maximum(weight, 0) / norm
        place = jnp.stack(jnp.meshgrid(*map(jnp.arange, shape), indexing="ij"), -1) + first[None, None, None]
        # No direction is known at the observer.
        found = _poisson(jnp.where(here.passed & (here.distance > 0), mean, 0), _random(means.bits, place, number))
        values = [number + 0 * found, *jnp.moveaxis(place, -1, 0), found]
        new = jnp.stack([*(v.astype(dtype) for v in values), *jnp.moveaxis(here.disp, -1, 0), here.velocity], -1)
        some = found.ravel() > 0
        order = count + jnp.cumsum(some, dtype=jnp.int32)
        at = jnp.where(some, order - 1, room)
        return rows.at[at].set(new.reshape(-1, _COLUMNS), mode="drop", unique_indices=False), order[-1]

    def of_image(carry: Any, xs: Any) -> Any:
        image, number, wanted = xs

        def of_block(carry: Any, xs: Any) -> Any:
            block, wanted = xs
            return jax.lax.cond(wanted, put, lambda carry, *_: carry, carry, block, image, number), None

        def of_all(carry: Any) -> Any:
            return jax.lax.scan(of_block, carry, ((blocks, first, split_weights), wanted))[0]

        return jax.lax.cond(jnp.any(wanted), of_all, lambda carry: carry, carry), None

    split_weights = tuple(split(x, parts) for x in weights)
    start = jnp.zeros((room, _COLUMNS), dtype), jnp.zeros((), jnp.int32)
    start = jax.tree.map(lambda x: vary(x, names), start)
    xs = means.images, means.numbers, wanted.T
    (rows, count), _ = jax.lax.scan(of_image, start, xs)
    return rows, count, lost


def _random(bits: Array, place: Array, number: Array) -> Array:
    """Random numbers from 0 to 1 of lattice sites, in an image of the box."""
    x, y, z = jnp.moveaxis(place.astype(jnp.uint32), -1, 0)
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
