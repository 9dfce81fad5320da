"""One step a call, with the bits of `nbody`: for jobs that write output, checkpoints and logs on the way."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.ops.momenta import in_range
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import add_local, colour
from pmwd_dist.pm.noise import GAUSSIAN, NoiseKind, noise_of
from pmwd_dist.pm.particles import ExactParticles, Particles, exact
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.solvers import Coefficients, Formula
from pmwd_dist.pm.status import Status
from pmwd_dist.pm.stepping.step import (
    Moved,
    Step,
    all_steps,
    at_end,
    at_start,
    at_step_end,
    coefficients_of,
    ended,
    first_drifts,
    step,
    unit_after,
)
from pmwd_dist.pm.stepping.step import first_drift as _first_drift


@partial(jax.jit, static_argnames=("config", "kind"))
def initial_particles(
    noise: Array,
    table: GrowthTable,
    power: Array,
    config: Config,
    kind: NoiseKind = GAUSSIAN,
    primordial: tuple[Array, Array] | None = None,
) -> ExactParticles:
    """Particles at `config.a_start`, from white noise, on the grids of the steps.

    One program: noise and modes are dropped as soon as they are used, and no field lies beside the particles twice.

    `noise` is white noise or its key, `power` ln P(k) at a = 1 from `modes.log_power`, and `primordial` f_nl with
    `modes.log_transfer`, or None.
    """
    modes = colour(noise_of(noise, config, kind), power, config)
    if primordial is not None:
        modes = add_local(modes, *primordial, config)
    particles = exact(lpt(modes, table, config), config)
    return jax.tree.map(config.decomposition.constrain, particles)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def exact_particles(particles: Particles, config: Config) -> ExactParticles:
    """Particles of another source at `config.a_start`, on the grids of the steps; donates the particles."""
    return jax.tree.map(config.decomposition.constrain, exact(particles, config))


class StepSchedule(NamedTuple):
    """All steps of a simulation.

    Args:
      times: scale factors at which steps begin and end.
      steps: the steps; each field has an axis of steps.
      drifts: drifts at the start of each step, and a final 0.
    """

    times: Array
    steps: Step
    drifts: Array
    table: GrowthTable


def make_schedule(
    table: GrowthTable, times: Array, config: Config, formula: Formula, factor: PotentialFactor | None = None
) -> StepSchedule:
    """Steps between given scale factors, in the precision of these."""
    table = jax.tree.map(lambda x: x.astype(times.dtype), table)
    return _schedule(table, times, coefficients_of(formula, table, times, config, factor), config)


@partial(jax.jit, static_argnames="config")
def _schedule(table: GrowthTable, times: Array, coefficients: Coefficients, config: Config) -> StepSchedule:
    steps = all_steps(coefficients, config)
    return StepSchedule(times, steps, jnp.pad(first_drifts(steps), (0, 1)), table)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def first_drift(
    particles: ExactParticles, status: Status, schedule: StepSchedule, done: ArrayLike, config: Config
) -> Moved:
    """Take the drift at the start of the next step; donates the particles."""
    return _first_drift(particles, schedule.drifts[done], unit_after(jnp.asarray(done), schedule.steps), status, config)


def advance(moved: Moved, schedule: StepSchedule, done: ArrayLike, config: Config) -> Moved:
    """Kick and last drift of a step, and the first drift of the next one; donates the particles.

    A failed step leaves the particles as at its start, with a drift of 0. On several CPU devices the host must wait for
    each step, for example by `jax.block_until_ready`: many queued programs that communicate can block each other.
    """
    return _advance(moved.particles, moved._replace(particles=()), schedule, done, config)  # type: ignore[arg-type]


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def _advance(particles: ExactParticles, moved: Moved, schedule: StepSchedule, done: ArrayLike, config: Config) -> Moved:
    now, following = jax.tree.map(lambda x: x[done], schedule.steps), schedule.drifts[jnp.asarray(done) + 1]
    return step(now, following, moved._replace(particles=particles), config)[0]


def halt(moved: Moved, config: Config) -> ExactParticles:
    """Reverse the drift since the last step, exactly; donates the particles."""
    return _halt(moved.particles, moved._replace(particles=()), config)  # type: ignore[arg-type]


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def _halt(particles: ExactParticles, moved: Moved, config: Config) -> ExactParticles:
    return ExactParticles(at_step_end(moved._replace(particles=particles), config).disp, particles.momenta)


@partial(jax.jit, static_argnames="config")
def status_at_end(moved: Moved, config: Config) -> Status:
    """Status at the end of a simulation."""
    return ended(moved.status, moved.max_displacement, jnp.all(in_range(moved.particles.momenta)), config)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def reverse_step(particles: ExactParticles, schedule: StepSchedule, done: ArrayLike, config: Config) -> ExactParticles:
    """Particles before the last of `done` steps, from the particles after it, exactly; donates the particles."""
    now = jax.tree.map(lambda x: x[jnp.asarray(done) - 1], schedule.steps)
    kicked = at_end(particles, now._replace(last=-now.last), config).disp
    return at_start(ExactParticles(kicked, particles.momenta), now, jnp.asarray(True), config)


@jax.jit
def observed(particles: ExactParticles, schedule: StepSchedule, done: ArrayLike) -> Particles:
    """Particles with momenta in Mpc/h, after a number of steps."""
    return particles.with_unit(unit_after(jnp.asarray(done), schedule.steps))
