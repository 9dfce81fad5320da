"""One step a call, with the bits of `nbody`: for jobs that write output, checkpoints and logs on the way."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.ops.momenta import in_range
from pmwd_dist.pm import lpt
from pmwd_dist.pm.modes import add_local, colour
from pmwd_dist.pm.noise import GAUSSIAN, NoiseKind, noise_of
from pmwd_dist.pm.particles import ExactParticles, Particles, exact
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.solvers import Coefficients, Formula
from pmwd_dist.pm.status import Status
from pmwd_dist.pm.stepping import step as one_step
from pmwd_dist.pm.stepping.step import MidStep, Step, all_steps, coefficients_of, take_step, unit_after


@partial(jit, static_argnames=("config", "kind"))
def initial_potentials(
    noise: Array,
    table: GrowthTable,
    power: Array,
    config: Config,
    kind: NoiseKind = GAUSSIAN,
    primordial: tuple[Array, Array] | None = None,
) -> tuple[Array, ...]:
    """Modes of the potentials of LPT at `config.a_start`, from white noise, for `initial_particles`.

    One program: noise and modes are dropped as soon as they are used.

    `noise` is white noise or its key, `power` ln P(k) at a = 1 from `modes.log_power`, and `primordial` f_nl with
    `modes.log_transfer`, or None.
    """
    modes = colour(noise_of(noise, config, kind), power, config)
    if primordial is not None:
        modes = add_local(modes, *primordial, config)
    return lpt.potentials(modes, table, as_array(config.a_start, table.factors.dtype), config)


@partial(jit, static_argnames="config")
def initial_particles(potentials: tuple[Array, ...], table: GrowthTable, config: Config) -> ExactParticles:
    """Particles at `config.a_start`, on the grids of the steps, from `initial_potentials`."""
    a = as_array(config.a_start, table.factors.dtype)
    particles = exact(lpt.displaced(potentials, table, a, config), config)
    return jax.tree.map(config.decomposition.constrain, particles)


@partial(jit, static_argnames="config", donate_argnames="particles")
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


@partial(jit, static_argnames="config")
def _schedule(table: GrowthTable, times: Array, coefficients: Coefficients, config: Config) -> StepSchedule:
    steps = all_steps(coefficients, config)
    return StepSchedule(times, steps, jnp.pad(steps.invertible_first(), (0, 1)), table)


copied = jit(partial(jax.tree.map, jnp.copy))  # a step donates its particles


@partial(jit, static_argnames="config", donate_argnames="particles")
def half_drift(
    particles: ExactParticles, status: Status, schedule: StepSchedule, done: ArrayLike, config: Config
) -> MidStep:
    """Take the first drift of the next step; donates the particles."""
    unit = unit_after(jnp.asarray(done), schedule.steps)
    return one_step.half_drift(particles, schedule.drifts[done], unit, status, config)


def advance(mid: MidStep, schedule: StepSchedule, done: ArrayLike, config: Config) -> MidStep:
    """Kick and last drift of a step, and the first drift of the next one; donates the particles.

    A failed step leaves the particles as at its start, with a drift of 0. On several CPU devices the host must wait for
    each step, for example by `jax.block_until_ready`: many queued programs that communicate can block each other.
    """
    return _advance(mid.particles, mid._replace(particles=()), schedule, done, config)  # type: ignore[arg-type]


@partial(jit, static_argnames="config", donate_argnames="particles")
def _advance(
    particles: ExactParticles, mid: MidStep, schedule: StepSchedule, done: ArrayLike, config: Config
) -> MidStep:
    step, following = jax.tree.map(lambda x: x[done], schedule.steps), schedule.drifts[jnp.asarray(done) + 1]
    return take_step(mid._replace(particles=particles), step, following, config)[0]


def undo_half_drift(mid: MidStep, config: Config) -> ExactParticles:
    """Reverse the drift since the last step, exactly; donates the particles."""
    return _undo_half_drift(mid.particles, mid._replace(particles=()), config)  # type: ignore[arg-type]


@partial(jit, static_argnames="config", donate_argnames="particles")
def _undo_half_drift(particles: ExactParticles, mid: MidStep, config: Config) -> ExactParticles:
    rest = one_step.undo_half_drift(mid._replace(particles=particles), config)
    return ExactParticles(rest.disp, particles.momenta)


@partial(jit, static_argnames="config")
def final_status(mid: MidStep, config: Config) -> Status:
    """Status at the end of a simulation."""
    valid = jnp.all(in_range(mid.particles.momenta))
    return one_step.final_status(mid.status, mid.max_displacement, valid, config)


@jit
def with_units(particles: ExactParticles, schedule: StepSchedule, done: ArrayLike) -> Particles:
    """Particles with momenta in Mpc/h, after a number of steps."""
    return particles.with_unit(unit_after(jnp.asarray(done), schedule.steps))
