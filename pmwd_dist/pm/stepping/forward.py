"""The forward pass: all steps in one compiled loop, with saves and sums on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.ops import unify_varying
from pmwd_dist._jax.order import barrier
from pmwd_dist.config import Config
from pmwd_dist.ops.momenta import in_range
from pmwd_dist.pm.paint import largest_on_devices
from pmwd_dist.pm.particles import ExactParticles, Particles
from pmwd_dist.pm.solvers import Coefficients
from pmwd_dist.pm.status import Code, Status, successful
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry
from pmwd_dist.pm.stepping.step import Moved, all_steps, at_step_end, ended, first_drift, first_drifts, step


@dataclass(frozen=True)
class Save:
    """A function of the particles to save on the way.

    Args:
      steps: numbers of steps before each save, ascending and unique.
      function: function of (scale factor, particles, args), which returns a pytree of arrays.
    """

    steps: tuple[int, ...]
    function: Callable[[Any, Any, Any], Any]

    def after_steps(self, number: int) -> tuple[Array, Array]:
        """For each step, whether to save after it, and the index among the saves."""
        wanted, index = np.zeros(number + 1, bool), np.zeros(number + 1, np.int32)
        wanted[list(self.steps)] = True
        index[list(self.steps)] = np.arange(len(self.steps))
        return jnp.asarray(wanted[1:]), jnp.asarray(index[1:])


class Epoch(NamedTuple):
    """Scale factor and particles of a simulation, at the start or at the end of a step."""

    a: Array
    particles: Particles


Accumulate = Callable[[Epoch, Epoch, Any], Any]


class Inputs(NamedTuple):
    """Differentiable inputs of an evolution.

    Args:
      particles: particles at the first of the times.
      coefficients: coefficients of each step, log_scale on its grid.
      times: scale factors at which steps begin and end.
      args: arrays for the functions that are saved and accumulated.
    """

    particles: ExactParticles
    coefficients: Coefficients
    times: Array
    args: Any


class Outcome(NamedTuple):
    """Result of an evolution.

    Args:
      particles: particles at the end, or at the last good step; `unit_after` has the unit of their momenta.
      saved: for each `Save` a pytree with a leading axis of its steps; after a failure infinite, or the largest
        integer.
      accumulated: sum over all good steps, a pytree.
      potentials: potentials of the last steps, for the backward pass, see `potential_cache`.
    """

    particles: ExactParticles
    saved: tuple[Any, ...]
    accumulated: Any
    status: Status
    potentials: tuple[Array, ...] = ()


def evolve(
    inputs: Inputs,
    saves: tuple[Save, ...],
    config: Config,
    *,
    accumulate: Accumulate | None = None,
    stored: int = 0,
    meter: Any = None,
) -> Outcome:
    """Take all steps, in one loop of the compiled program.

    `accumulate` is the contribution of a step to the sum, a function of (epoch before, epoch after, args). Potentials
    of the last steps are stored, as many as `stored`.
    """

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], None]:
        before, saved, accumulated, potentials, shown = carry
        now, following, a0, a, saving, slot, progress = xs
        after, potentials = step(now, following, before, config, Entry(potentials, slot))
        good = after.status.code == Code.SUCCESSFUL

        def updated(save: Save, saved: Any, wanted: Array, index: Array) -> Any:
            def put(saved: Any, a: Array, after: Moved, args: Any, good: Array) -> Any:
                values = save.function(a, at_step_end(after, config), args)
                return jax.tree.map(lambda old, x: old.at[index].set(jnp.where(good, x, old[index])), saved, values)

            return jax.lax.cond(wanted, put, lambda saved, *_: saved, saved, a, after, inputs.args, good)

        saved = tuple(updated(save, x, *when) for save, x, when in zip(saves, saved, saving, strict=True))
        if accumulate is not None:
            ends = Epoch(a0, at_step_end(before, config)), Epoch(a, at_step_end(after, config))
            values = accumulate(*ends, inputs.args)
            accumulated = jax.tree.map(lambda old, x: old + jnp.where(good, x, 0), accumulated, values)
        carried = jax.tree.map(lambda new, old: unify_varying(new, old)[0], (after, saved, accumulated), carry[:3])
        if meter is not None:
            shown = meter.step(shown, barrier((progress, after.max_displacement))[0])  # not before the step is done
        return (*carried, potentials, shown), None

    start, xs = _begin(inputs, saves, accumulate, config, stored)
    number = len(inputs.times) - 1
    shown, progress = (None, None) if meter is None else (meter.init(), jnp.arange(1.0, number + 1) / number)
    (last, saved, accumulated, potentials, shown), _ = jax.lax.scan(body, (*start, shown), (*xs, progress))
    if meter is not None:
        meter.close(shown)
    # A backward pass overwrites the momenta in place: without a barrier XLA copies them for a later check.
    momenta, valid = barrier((last.particles.momenta, jnp.all(in_range(last.particles.momenta))))
    particles = ExactParticles(last.particles.disp, momenta)
    status = ended(last.status, last.max_displacement, valid, config)
    if config.decomposition.manual:
        status = jax.tree.map(lambda x: largest_on_devices(x, config), status)
    return Outcome(particles, saved, accumulated, status, potentials)


def _begin(
    inputs: Inputs, saves: tuple[Save, ...], accumulate: Accumulate | None, config: Config, stored: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Initial carry of the loop of `evolve`, and the arrays of its scan."""
    particles, times, number = inputs.particles, inputs.times, len(inputs.times) - 1
    steps = all_steps(inputs.coefficients, config)
    drifts = first_drifts(steps)
    at_start = particles.with_unit(steps.unit0[0])
    saved = tuple(_buffers(save, inputs, at_start) for save in saves)
    moved = first_drift(particles, drifts[0], steps.unit0[0], successful(particles.disp.dtype), config)
    carry = moved, saved, _zero(accumulate, inputs, at_start)
    carry = jax.tree.map(lambda x: unify_varying(x, particles.disp)[0], carry)
    cache = potential_cache.empty(stored, moved.particles.disp, config)
    saving = tuple(save.after_steps(number) for save in saves)
    # Earlier steps write to the first slot: in place, without a condition.
    slots = jnp.maximum(jnp.arange(number) - (number - stored), 0)
    xs = steps, jnp.pad(drifts[1:], (0, 1)), times[:-1], times[1:], saving, slots
    return (*carry, cache), xs


def _buffers(save: Save, inputs: Inputs, particles: Particles) -> Any:
    """Buffers for the saves of a function, with a save before the first step."""
    at_start = (inputs.times[0], particles, inputs.args)

    def buffer(value: Any) -> Array:
        last = jnp.inf if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.iinfo(value.dtype).max
        return jnp.full((len(save.steps), *value.shape), last, value.dtype)

    saved = jax.tree.map(buffer, jax.eval_shape(save.function, *at_start))
    if 0 not in save.steps:
        return saved
    return jax.tree.map(lambda old, x: old.at[0].set(x), saved, save.function(*at_start))


def _zero(accumulate: Accumulate | None, inputs: Inputs, particles: Particles) -> Any:
    """Initial value of the sum."""
    if accumulate is None:
        return ()
    epoch = Epoch(inputs.times[0], particles)
    shapes = jax.eval_shape(accumulate, epoch, epoch, inputs.args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
