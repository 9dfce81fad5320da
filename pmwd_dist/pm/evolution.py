"""All steps of a drift-kick-drift solver as one loop, over one copy of the particles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.varying import unify_varying
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.particles import Particles, momentum_resolution
from pmwd_dist.pm.solvers import (
    Coefficients,
    SplitSolver,
    Step,
    drift,
    first_drift,
    kick_and_drifts,
    on_grid,
)
from pmwd_dist.pm.status import Code, Status, successful


@dataclass(frozen=True)
class Save:
    """What to keep of the particles along the way.

    Args:
      steps: after how many steps, ascending, each once.
      function: of (scale factor, particles, args), an array or a pytree of arrays.
    """

    steps: tuple[int, ...]
    function: Callable[[Any, Any, Any], Any]

    def places(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """By the number of steps taken, up to this count: whether to save, and the place among what is saved."""
        wanted, place = np.zeros(count + 1, bool), np.zeros(count + 1, np.int32)
        wanted[list(self.steps)] = True
        place[list(self.steps)] = np.arange(len(self.steps))
        return wanted, place


class Inputs(NamedTuple):
    """Everything on which an evolution depends.

    Args:
      particles: at the first of the times, on their grid.
      coefficients: of each step forward, log_scale on its grid.
      times: scale factors at which steps begin and end.
      args: for the functions of what is saved.
    """

    particles: Particles
    coefficients: Coefficients
    times: Array
    args: Any


class Outcome(NamedTuple):
    """The result of an evolution.

    Args:
      particles: at the end, or at the last good step.
      saved: by `Save`, a pytree with a leading axis of its steps; infinite, or the largest integer, after a failure.
      status: the first failure, if any.
    """

    particles: Particles
    saved: tuple[Any, ...]
    status: Status


def prepare(solver: SplitSolver, particles: Particles, table: GrowthTable, times: Array, args: Any) -> Inputs:
    """The inputs of an evolution, in the precision of the particles.

    Args:
      solver: gives the coefficients.
      particles: at the first of the times, on their grid.
      table: of the growth.
      times: scale factors at which steps begin and end, ascending.
      args: for the functions of what is saved.
    """
    dtype = particles.disp.dtype
    coefficients = jax.vmap(solver.coefficients, in_axes=(None, 0, 0))(table, times[:-1], times[1:])
    coefficients = Coefficients(*(x.astype(dtype) for x in coefficients))
    return Inputs(particles, coefficients._replace(log_scale=on_grid(coefficients.log_scale)), times, args)


def evolve(inputs: Inputs, saves: tuple[Save, ...], config: Config) -> Outcome:
    """Take all steps, in one loop of the compiled program."""
    particles, times, count = inputs.particles, inputs.times, len(inputs.times) - 1
    status = jax.tree.map(lambda x: unify_varying(x, particles.disp)[0], successful(particles.disp.dtype))
    saved = tuple(_start(save, inputs) for save in saves)

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], None]:
        particles, max_displacement, unit, status, saved = carry
        step, following, a, places = xs
        # After a failure the momenta stay on their grid, and nothing moves.
        failed = status.code != Code.SUCCESSFUL
        step = Step(*(jnp.where(failed, 0, x) for x in step[:3]), *(jnp.where(failed, unit, x) for x in step[3:]))
        particles, max_displacement, status = kick_and_drifts(
            step, following, particles, max_displacement, status, config
        )
        good = status.code == Code.SUCCESSFUL
        unit = jnp.where(good, step.after, step.before)

        def keep(save: Save, saved: Any, wanted: Array, place: Array) -> Any:
            def put(saved: Any, a: Array, particles: Particles, args: Any, good: Array, following: Array) -> Any:
                # The drift of the following step is undone to the bit.
                disp = drift(particles.disp, particles.vel, jnp.where(good, -following, 0), config)
                values = save.function(a, Particles(disp, particles.vel), args)
                return jax.tree.map(lambda old, x: old.at[place].set(jnp.where(good, x, old[place])), saved, values)

            at_end = (a, particles, inputs.args, good, following)
            return jax.lax.cond(wanted, put, lambda saved, *_: saved, saved, *at_end)

        saved = (
            tuple(keep(*each) for each in zip(saves, saved, *zip(*places, strict=True), strict=True)) if saves else ()
        )
        return (particles, max_displacement, unit, status, saved), None

    all_steps = steps(inputs.coefficients, config)
    drifted, max_displacement = first_drift(Step(*(x[0] for x in all_steps)), particles, config)
    unit = unify_varying(all_steps.before[0], particles.disp)[0]
    start = drifted, max_displacement, unit, status, saved
    finite = jnp.isfinite(jnp.stack(all_steps)).all(axis=0)
    following = jnp.concatenate([jnp.where(finite, all_steps.first, 0)[1:], jnp.zeros(1, times.dtype)])
    xs = all_steps, following, times[1:], tuple(places_after(save, count) for save in saves)
    (particles, _, _, status, saved), _ = jax.lax.scan(body, start, xs)
    return Outcome(particles, saved, status)


def steps(coefficients: Coefficients, config: Config) -> Step:
    """The steps forward, on the grids of the particles; each field has an axis of steps."""
    c = coefficients
    log_scale = jnp.concatenate([jnp.zeros(1, c.log_scale.dtype), jnp.cumsum(c.log_scale)])
    unit = momentum_resolution(config, log_scale.dtype) * jnp.exp2(log_scale)
    return Step(c.drift_before, c.kick / unit[1:], c.drift_after, unit[:-1], unit[1:])


def places_after(save: Save, count: int) -> tuple[Array, Array]:
    """For each step, whether to save after it and the place among what is saved."""
    wanted, place = save.places(count)
    return jnp.asarray(wanted[1:]), jnp.asarray(place[1:])


def _start(save: Save, inputs: Inputs) -> Any:
    """Room for what is saved, with what there is before the first step."""
    at_start = (inputs.times[0], inputs.particles, inputs.args)

    def room(value: Any) -> Array:
        last = jnp.inf if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.iinfo(value.dtype).max
        return jnp.full((len(save.steps), *value.shape), last, value.dtype)

    saved = jax.tree.map(room, jax.eval_shape(save.function, *at_start))
    if 0 not in save.steps:
        return saved
    return jax.tree.map(lambda old, x: old.at[0].set(x), saved, save.function(*at_start))
