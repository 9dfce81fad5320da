"""All steps in one loop of the compiled program, with what is saved and summed on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.ops import unify_varying
from pmwd_dist.config import Config
from pmwd_dist.ops.momenta import in_range
from pmwd_dist.pm.particles import ExactParticles, Particles
from pmwd_dist.pm.solvers import Coefficients
from pmwd_dist.pm.status import Code, Status, successful
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry
from pmwd_dist.pm.stepping.step import Moved, all_steps, at_rest, begin, ended, first_drifts, step


@dataclass(frozen=True)
class Save:
    """A function of the particles to save on the way.

    Args:
      steps: numbers of steps after which it is saved, ascending, each once.
      function: function of (scale factor, particles, args), an array or a pytree of arrays.
    """

    steps: tuple[int, ...]
    function: Callable[[Any, Any, Any], Any]

    def places(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """By the number of steps taken, up to this count: whether to save, and the place among what is saved."""
        wanted, place = np.zeros(count + 1, bool), np.zeros(count + 1, np.int32)
        wanted[list(self.steps)] = True
        place[list(self.steps)] = np.arange(len(self.steps))
        return wanted, place


class Epoch(NamedTuple):
    """A simulation at the start or at the end of a step.

    Args:
      a: scale factor.
      particles: particles at the scale factor.
    """

    a: Array
    particles: Particles


Accumulate = Callable[[Epoch, Epoch, Any], Any]


class Inputs(NamedTuple):
    """Everything on which an evolution depends.

    Args:
      particles: particles at the first of the times.
      coefficients: coefficients of each step, log_scale on its grid.
      times: scale factors at which steps begin and end.
      args: arguments of the functions that are saved and accumulated; arrays of any type.
    """

    particles: ExactParticles
    coefficients: Coefficients
    times: Array
    args: Any


class Outcome(NamedTuple):
    """The result of an evolution.

    Args:
      particles: particles at the end, or at the last good step; `unit_after` has the unit of their momenta.
      saved: for each `Save` a pytree with a leading axis of its steps; infinite, or the largest integer, after a
        failure.
      accumulated: the sum over all good steps, a pytree.
      status: the first failure, if any.
      potentials: potentials of the last steps, for the backward pass, see `potential_cache`.
    """

    particles: ExactParticles
    saved: tuple[Any, ...]
    accumulated: Any
    status: Status
    potentials: tuple[Array, ...] = ()


def evolve(
    inputs: Inputs, saves: tuple[Save, ...], config: Config, *, accumulate: Accumulate | None = None, stored: int = 0
) -> Outcome:
    """Take all steps, in one loop of the compiled program.

    Args:
      inputs: all that is differentiable.
      saves: functions to save on the way.
      config: the simulation.
      accumulate: contribution of a step to the sum, a function of (epoch before, epoch after, args).
      stored: the number of steps, the last ones, whose potentials are stored.
    """

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], None]:
        before, saved, accumulated, potentials = carry
        now, following, a0, a, places, slot = xs
        after, potentials = step(now, following, before, config, Entry(potentials, slot))
        good = after.status.code == Code.SUCCESSFUL

        def keep(save: Save, saved: Any, wanted: Array, place: Array) -> Any:
            def put(saved: Any, a: Array, after: Moved, args: Any, good: Array) -> Any:
                values = save.function(a, at_rest(after, config), args)
                return jax.tree.map(lambda old, x: old.at[place].set(jnp.where(good, x, old[place])), saved, values)

            return jax.lax.cond(wanted, put, lambda saved, *_: saved, saved, a, after, inputs.args, good)

        saved = (
            tuple(keep(*each) for each in zip(saves, saved, *zip(*places, strict=True), strict=True)) if saves else ()
        )
        if accumulate is not None:
            ends = Epoch(a0, at_rest(before, config)), Epoch(a, at_rest(after, config))
            values = accumulate(*ends, inputs.args)
            accumulated = jax.tree.map(lambda old, x: old + jnp.where(good, x, 0), accumulated, values)
        return (after, saved, accumulated, potentials), None

    start, xs = _begin(inputs, saves, accumulate, config, stored)
    (last, saved, accumulated, potentials), _ = jax.lax.scan(body, start, xs)
    status = ended(last.status, last.max_displacement, jnp.all(in_range(last.particles.momenta)), config)
    return Outcome(last.particles, saved, accumulated, status, potentials)


def _begin(
    inputs: Inputs, saves: tuple[Save, ...], accumulate: Accumulate | None, config: Config, stored: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first carry of the loop of `evolve`, and the arrays over which it scans."""
    particles, times, number = inputs.particles, inputs.times, len(inputs.times) - 1
    steps = all_steps(inputs.coefficients, config)
    drifts = first_drifts(steps)
    at_start = particles.with_unit(steps.before[0])
    saved = tuple(_start(save, inputs, at_start) for save in saves)
    moved = begin(particles, drifts[0], steps.before[0], successful(particles.disp.dtype), config)
    scalars = jax.tree.map(lambda x: unify_varying(x, particles.disp)[0], (moved.drift, moved.unit, moved.status))
    moved = moved._replace(drift=scalars[0], unit=scalars[1], status=scalars[2])
    zero, cache = _zero(accumulate, inputs, at_start), potential_cache.empty(stored, moved.particles.disp, config)
    places = tuple(places_after(save, number) for save in saves)
    # Steps before those that are stored write to the first slot, too: in place, without a condition.
    slots = jnp.maximum(jnp.arange(number) - (number - stored), 0)
    xs = steps, jnp.pad(drifts[1:], (0, 1)), times[:-1], times[1:], places, slots
    return (moved, saved, zero, cache), xs


def places_after(save: Save, count: int) -> tuple[Array, Array]:
    """For each step, whether to save after it, and the index among all saves."""
    wanted, place = save.places(count)
    return jnp.asarray(wanted[1:]), jnp.asarray(place[1:])


def _start(save: Save, inputs: Inputs, particles: Particles) -> Any:
    """Buffers for all saves, with those before the first step."""
    at_start = (inputs.times[0], particles, inputs.args)

    def room(value: Any) -> Array:
        last = jnp.inf if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.iinfo(value.dtype).max
        return jnp.full((len(save.steps), *value.shape), last, value.dtype)

    saved = jax.tree.map(room, jax.eval_shape(save.function, *at_start))
    if 0 not in save.steps:
        return saved
    return jax.tree.map(lambda old, x: old.at[0].set(x), saved, save.function(*at_start))


def _zero(accumulate: Accumulate | None, inputs: Inputs, particles: Particles) -> Any:
    """The sum over no steps."""
    if accumulate is None:
        return ()
    epoch = Epoch(inputs.times[0], particles)
    shapes = jax.eval_shape(accumulate, epoch, epoch, inputs.args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def call_hoisted(pure: Callable[..., Any], place: int, *args: Any) -> Any:
    """Call a function of `hoist`; the last argument holds the table, and in this place what the function captured."""
    table, captured = args[-1]
    return pure(captured[place], *args[:-1], table)
