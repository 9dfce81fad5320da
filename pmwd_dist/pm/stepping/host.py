"""A simulation step by step, driven from the host, drifts between two kicks in one pass.

The steps are those of `nbody`, with momenta on the grid of `advance`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.particles import Particles, momentum_resolution
from pmwd_dist.pm.solvers import (
    SolverState,
    SplitSolver,
    Step,
    drifted,
    first_drift,
    first_drifts,
    kick_and_drifts,
)
from pmwd_dist.pm.status import Code
from pmwd_dist.pm.stepping.forward import coefficients_of, log_scales, steps


class Schedule(NamedTuple):
    """All steps of a simulation.

    Args:
      times: scale factors at which steps begin and end.
      steps: each field has an axis of steps.
      drifts: at the start of each step, and 0 for the one after the last.
      log_scale: of the momenta, at each of the times.
      table: of the growth.
    """

    times: Array
    steps: Step
    drifts: Array
    log_scale: Array
    table: GrowthTable


class Moved(NamedTuple):
    """Particles that have taken the drift at the start of the next step.

    Args:
      particles: after the drift.
      drift: this drift; 0 after a step that failed, which leaves the particles as they were before it.
      max_displacement: of the particles [mesh cells].
    """

    particles: Particles
    drift: Array
    max_displacement: Array


@partial(jax.jit, static_argnames=("config", "solver"))
def make_schedule(
    table: GrowthTable, times: Array, state: SolverState, done: ArrayLike, config: Config, solver: SplitSolver
) -> Schedule:
    """The steps of a simulation, in the precision of the state of its solver.

    Args:
      table: of the growth.
      times: scale factors at which steps begin and end, ascending.
      state: after some steps; it sets the grids of the momenta.
      done: the number of these steps.
      config: the simulation.
      solver: gives the coefficients.
    """
    dtype = state.log_scale.dtype
    table, times = jax.tree.map(lambda x: x.astype(dtype), (table, times))
    coefficients = coefficients_of(solver, table, times)
    log_scale = log_scales(coefficients)
    log_scale = log_scale + (state.log_scale - log_scale[done])  # exact: all are on one grid
    all_steps = steps(coefficients, log_scale, momentum_resolution(config, dtype))
    return Schedule(times, all_steps, jnp.pad(first_drifts(all_steps), (0, 1)), log_scale, table)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def begin(particles: Particles, schedule: Schedule, done: ArrayLike, config: Config) -> Moved:
    """Take the drift at the start of the next step; the particles given are consumed.

    Args:
      particles: at the end of a step, or at the start.
      schedule: of the simulation.
      done: number of the steps that are done.
      config: the simulation.
    """
    drift = schedule.drifts[done]
    moved, max_displacement = first_drift(drift, particles, config)
    return Moved(moved, drift, max_displacement)


def advance(
    moved: Moved, state: SolverState, schedule: Schedule, done: ArrayLike, config: Config
) -> tuple[Moved, SolverState]:
    """The rest of a step, and the drift at the start of the one after it; the particles given are consumed.

    Args:
      moved: the particles.
      state: of the solver, whose status is good.
      schedule: of the simulation.
      done: number of the steps that are done.
      config: the simulation.
    """
    return _advance(moved.particles, moved.max_displacement, state, schedule, done, config)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def _advance(
    particles: Particles,
    max_displacement: Array,
    state: SolverState,
    schedule: Schedule,
    done: ArrayLike,
    config: Config,
) -> tuple[Moved, SolverState]:
    step, later = Step(*(x[done] for x in schedule.steps)), jnp.asarray(done) + 1
    following = schedule.drifts[later]
    particles, max_displacement, status, _ = kick_and_drifts(
        step, following, particles, max_displacement, state.status, config
    )
    good = status.code == Code.SUCCESSFUL
    log_scale = jnp.where(good, schedule.log_scale[later], state.log_scale)
    return Moved(particles, jnp.where(good, following, 0), max_displacement), SolverState(log_scale, status)


def at_rest(moved: Moved, config: Config) -> Particles:
    """The particles at the end of the last step, to the bit."""
    return drifted(moved.particles, -moved.drift, config)


def halt(moved: Moved, config: Config) -> Particles:
    """`at_rest`, of particles that are consumed."""
    return _halt(moved.particles, moved.drift, config)


@partial(jax.jit, static_argnames="config", donate_argnames="particles")
def _halt(particles: Particles, drift: Array, config: Config) -> Particles:
    return drifted(particles, -drift, config)
