"""The steps of `nbody`, to the bit, one a call: for jobs that write output, checkpoints and logs on the way."""

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
from pmwd_dist.pm.particles import ExactParticles, Particles
from pmwd_dist.pm.solvers import Coefficients, SplitSolver
from pmwd_dist.pm.status import Status
from pmwd_dist.pm.stepping.step import (
    Moved,
    Step,
    all_steps,
    coefficients_of,
    drifted,
    ended,
    first_drifts,
    step,
    unit_after,
)
from pmwd_dist.pm.stepping.step import begin as first_drift


class Schedule(NamedTuple):
    """All steps of a simulation.

    Args:
      times: scale factors at which steps begin and end.
      steps: the steps; each field has an axis of steps.
      drifts: drifts at the start of each step, and 0 for the one after the last.
      table: growth table.
    """

    times: Array
    steps: Step
    drifts: Array
    table: GrowthTable


def make_schedule(table: GrowthTable, times: Array, config: Config, solver: SplitSolver) -> Schedule:
    """The steps of a simulation between these scale factors, in their precision."""
    table = jax.tree.map(lambda x: x.astype(times.dtype), table)
    return _schedule(table, times, coefficients_of(solver, table, times), config)


@partial(jax.jit, static_argnames="config")
def _schedule(table: GrowthTable, times: Array, coefficients: Coefficients, config: Config) -> Schedule:
    steps = all_steps(coefficients, config)
    return Schedule(times, steps, jnp.pad(first_drifts(steps), (0, 1)), table)


@partial(jax.jit, static_argnames="config", donate_argnames="rest")
def begin(rest: ExactParticles, status: Status, schedule: Schedule, done: ArrayLike, config: Config) -> Moved:
    """Take the drift at the start of the next step; the particles given are consumed.

    Args:
      rest: particles at the end of a step, or at the start.
      status: status so far.
      schedule: all steps of the simulation.
      done: number of steps that are done.
      config: the simulation.
    """
    return first_drift(rest, schedule.drifts[done], unit_after(jnp.asarray(done), schedule.steps), status, config)


def advance(moved: Moved, schedule: Schedule, done: ArrayLike, config: Config) -> Moved:
    """The rest of a step, and the drift at the start of the one after it; the particles given are consumed.

    A step that fails leaves the particles at rest as they were before it, with a drift of 0. On several CPU devices the
    host must wait for each step, for example by `jax.block_until_ready`: about a hundred programs that communicate,
    queued without waiting, can block each other until XLA ends the process.

    Args:
      moved: particles with the first drift of the step.
      schedule: all steps of the simulation.
      done: number of steps that are done.
      config: the simulation.
    """
    return _advance(moved.particles, moved._replace(particles=()), schedule, done, config)  # type: ignore[arg-type]


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def _advance(particles: ExactParticles, moved: Moved, schedule: Schedule, done: ArrayLike, config: Config) -> Moved:
    now, following = Step(*(x[done] for x in schedule.steps)), schedule.drifts[jnp.asarray(done) + 1]
    return step(now, following, moved._replace(particles=particles), config)[0]


def halt(moved: Moved, config: Config) -> ExactParticles:
    """The particles at the end of the last step, to the bit; the particles given are consumed."""
    return _halt(moved.particles, moved.drift, moved.unit, config)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def _halt(particles: ExactParticles, drift: Array, unit: Array, config: Config) -> ExactParticles:
    rest = drifted(particles.with_unit(unit), -drift, config)
    return ExactParticles(rest.disp, particles.momenta)


@partial(jax.jit, static_argnames="config")
def status_at_end(moved: Moved, config: Config) -> Status:
    """The status after the last step of a simulation."""
    return ended(moved.status, moved.max_displacement, jnp.all(in_range(moved.particles.momenta)), config)


@jax.jit
def observed(rest: ExactParticles, schedule: Schedule, done: ArrayLike) -> Particles:
    """The particles with their momenta in Mpc/h, after a number of steps."""
    return rest.with_unit(unit_after(jnp.asarray(done), schedule.steps))


__all__ = ["Moved", "Schedule", "advance", "begin", "halt", "make_schedule", "observed", "status_at_end"]
