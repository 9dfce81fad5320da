"""Galaxies on the light cone of an N-body simulation: each where and when light passes its particle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe import galaxy_draws, shells
from pmwd_dist.observe.catalogue import MOST_GALAXIES, Catalogue, about_simulation
from pmwd_dist.observe.galaxy_draws import COLUMNS, Weights
from pmwd_dist.observe.healpix import nearest_pixel, nside_of, pixel_centres
from pmwd_dist.observe.passage import FASTEST, images_of
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
from pmwd_dist.pm.stepping.host import StepSchedule
from pmwd_dist.pm.stepping.step import MidStep
from pmwd_dist.pm.time_steps import step_times

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
      config: configuration of the simulation; steps after a = 1 add nothing. With a survey up to the first or last
        redshift of the simulation the galaxies are missing there that velocities bring in from beyond.
      survey: number density, mask and errors of the survey.
      key: key of the random numbers.
      weights: weights of the particles as galaxies, of any mean above 0, or a function of the scale factor that returns
        them, such as `bias_weights(..., a=a)`. It is called at three scale factors of the survey, and interpolated by a
        parabola in the growth factor, which is exact for constant Lagrangian bias to second order. Default: 1.
      observer: position of the observer in the box [Mpc/h]; default: the centre.
      solver: solver, as in `nbody`.
      potential_factor: factor of the potential, as in `nbody`.

    Returns:
      Columns `RA`, `DEC` [deg], `Z`, `Z_COSMO`, `WEIGHT` and `NZ`, in double precision. `Z` is the observed redshift
      (1 + Z_COSMO) (1 + v/c) - 1 with the peculiar velocity v along the line of sight, and `NZ` the number density at
      Z without its error [(h/Mpc)^3].

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
    particles = inputs.checked_particles(particles, config, config.a_start, "config.a_start", real_space=True)
    if not isinstance(solver := as_solver(solver), SplitSolver):
        raise ArgumentError("solver", solver, "must be a drift-kick-drift solver", "use BullFrog()", show_value=False)
    table = growth_table_to(config.lpt_order, cosmo)
    times = step_times(table, config).astype(particles.disp.dtype)
    cone_galaxies = ConeGalaxies(survey, table, times, config, key=key, weights=weights, observer=observer)
    schedule = host.make_schedule(table, times, config, solver.coefficients, potential_factor)
    exact = host.exact_particles(jax.tree.map(jnp.copy, Particles(particles.disp, particles.vel)), config)
    mid = host.half_drift(exact, successful(particles.disp.dtype), schedule, 0, config)
    for i in range(len(times) - 1):
        before = host.copied(mid) if cone_galaxies.sees(i) else mid
        mid = host.advance(mid, schedule, i, config)
        mid.status.raise_if_failed()
        cone_galaxies.add(before, mid, schedule, i, config)
    host.final_status(mid, config).raise_if_failed()
    return cone_galaxies.catalogue()


class ConeGalaxies:
    """The galaxies of a survey that light has passed, gathered from step to step on the host.

    Args:
      survey, key, weights, observer: arguments of `galaxy_light_cone`.
      times: scale factors at which steps begin and end.
      bins: edges of bins of redshift, linear bias by wavenumber and slope of counts, for spectra; default: none.
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
        bins: tuple[Sequence[float], Any, float] | None = None,
    ):
        check_survey(survey)
        check_key(key)
        self.survey, self.table, self.config, self.key, self.bins = survey, table, config, key, bins
        self.rows = np.zeros((0, COLUMNS))
        times = np.asarray(times, float)
        self.distances = distances_at(1 / times - 1, table)
        self.edges, self.observer, self.images = survey_extent(survey, table, config, observer)
        self.room = room_of(survey, times, table)
        shown = np.flatnonzero(_in_footprint(self.images, survey, config))
        given: Any = {"weights": weights, "key": key, "images": (self.images[shown], shown), "edges": self.edges}
        self.means, self.weights = galaxy_draws.means_of(survey, table, config, **given)
        self.share = 2.0 ** min(math.ceil(math.log2(float(self.means.largest_probability))), 0)  # few programs

    def sees(self, done: int) -> bool:
        """Whether light may pass galaxies in the step after a number of steps."""
        near, far = self.edges
        return bool(self.distances[done] >= near and self.distances[done + 1] <= far)

    def add(self, before: MidStep, after: MidStep, schedule: StepSchedule, done: int, config: Config) -> None:
        """Add the galaxies of the step after a number of steps, from the states before and after it. Collective.

        Raises:
          SimulationError: displacements are too large for the repetitions of the box.
        """
        if not self.sees(done):
            return
        while True:
            given = (before, after), schedule, done, self.weights, self.means, config
            rows, lost = galaxy_draws.draw(*given, room=self.room, share=self.share)
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
        order = (self.rows[:, :4].astype(np.int64) << [48, 32, 16, 0]).sum(1)
        rows = np.take(self.rows, np.argsort(order), axis=0)
        image, number = rows[:, [0, 4]].astype(np.int64).T
        position = rows[:, 1:4] * (np.asarray(config.box_size) / shape) + self.images[image] + rows[:, 5:8]
        z = np.interp(np.linalg.norm(position, axis=1), *redshift_table(self.table, 1 / config.a_start - 1))
        columns = {**sky(position), "Z": (1 + z) * (1 + rows[:, 8]) - 1, "Z_COSMO": z}
        columns = {name: np.repeat(values, number) for name, values in columns.items()}
        columns = survey.observed(columns, generator(self.key, 1), survey.losses)
        about = {"observer [Mpc/h]": self.observer, "box repetitions": len(self.means.images)}
        about |= {"completeness": survey.completeness, "redshift_error": survey.redshift_error}
        about |= {"n_z [(h/Mpc)^3]": np.stack(survey.n_z), "repeated by": "shifts of its sides"}
        return Catalogue(columns, {name: UNITS[name] for name in columns}, about | about_simulation(self.table, config))


def survey_extent(
    survey: Survey, table: GrowthTable, config: Config, observer: Sequence[float] | None
) -> tuple[tuple[float, float], tuple[float, ...], np.ndarray]:
    """Distances between which there are galaxies, observer, and corners of the images of the box [Mpc/h].

    Raises:
      ValueError: the simulation does not span the survey, there are no galaxies, or too many of them or of the images.
    """
    (low, high), last, first = survey.z_range, 1 / config.a_stop - 1, 1 / config.a_start - 1
    if low < last - 1e-6 or high > first + 1e-6:
        constraint = f"reaches from z = {low:.4g} to {high:.4g}, beyond the simulation, z = {max(last, 0):.4g} to "
        remedy = "use an earlier a_start or a later a_stop, or other redshifts"
        raise ArgumentError("survey.n_z", None, f"{constraint}{first:.4g}", remedy, show_value=False)
    number = survey.number(table)
    if not 1 <= number <= MOST_GALAXIES:
        constraint = f"expects {number:.3g} galaxies, and must expect 1 to {MOST_GALAXIES:g}"
        raise ArgumentError("survey.n_z", None, constraint, "the densities are per (Mpc/h)^3", show_value=False)
    galaxy_draws.particle_volume(survey, config)
    ends = np.array([low, high]) + FASTEST * (1 + np.array([low, high])) * [-1, 1]
    near, far = np.minimum(distances_at(np.maximum(ends, 0), table), distances_at(first, table)).tolist()
    observer = shells.checked_observer(observer, config.box_size)
    return (near, far), observer, images_of((near, far), observer, config, "survey.n_z")


def room_of(survey: Survey, times: Any, table: GrowthTable) -> int:
    """Number of rows of galaxies that a step between two of some scale factors has room for, on each device."""
    number = survey.numbers_between(np.sort(1 / np.asarray(times, float) - 1), table)
    return 1 << math.ceil(math.log2(2000 + 3 * number.max()))


def _in_footprint(images: np.ndarray, survey: Survey, config: Config) -> np.ndarray:
    """Whether the mask may show a part of each image of the box."""
    if survey.mask is None:
        return np.ones(len(images), bool)
    nside = nside_of(len(survey.mask))
    fine, coarse = pixel_centres(nside), pixel_centres(_COARSE)
    seen = coarse[np.unique(np.asarray(nearest_pixel(_COARSE, fine[survey.mask > 0])))]
    centre = images + np.divide(config.box_size, 2)
    distance = np.linalg.norm(centre, axis=1)
    radius = np.linalg.norm(config.box_size) / 2 + shells.MARGIN
    # Pixels are smaller than a radian over nside.
    widest = np.arcsin(radius / np.maximum(distance, radius)) + 1 / nside + 1 / _COARSE
    nearest = np.arccos(np.clip(np.max(centre @ seen.T, axis=1) / np.maximum(distance, 1e-9), -1, 1))
    return (distance <= radius) | (nearest <= widest)
