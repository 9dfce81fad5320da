"""The forward pass: all steps in one compiled loop, with saves and sums on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from pmwd_dist.pm.stepping.step import MidStep, Step, all_steps, final_status, half_drift, take_step, undo_half_drift


class SaveSlot(NamedTuple):
    """Whether to save after a step, and the place among the saves."""

    wanted: Array
    place: Array


@dataclass(frozen=True)
class Save:
    """A function of the particles to save on the way.

    Args:
      steps: numbers of steps before each save, ascending and unique.
      function: function of (scale factor, particles, args), which returns a pytree of arrays.
    """

    steps: tuple[int, ...]
    function: Callable[[Any, Any, Any], Any]

    def after_steps(self, number: int) -> SaveSlot:
        """Slots after each of a number of steps."""
        wanted, index = np.zeros(number + 1, bool), np.zeros(number + 1, np.int32)
        wanted[list(self.steps)] = True
        index[list(self.steps)] = np.arange(len(self.steps))
        return SaveSlot(jnp.asarray(wanted[1:]), jnp.asarray(index[1:]))


class Epoch(NamedTuple):
    """Scale factor and particles of a simulation, at the start or at the end of a step."""

    a: Array
    particles: Particles


Accumulate = Callable[[Epoch, Epoch, Any], Any]


class Accumulator(ABC):
    """An `Accumulate` that can be checked before a run. Abstract."""

    @abstractmethod
    def __call__(self, before: Epoch, after: Epoch, table: Any) -> Any:
        """Contribution of a step, a pytree of arrays."""

    @abstractmethod
    def check(self, cosmo: Any, config: Config) -> None:
        """Raise ValueError unless it is of this simulation, and the growth table, where it is known, allows it."""


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


class _Carry(NamedTuple):
    """Carry of the loop of `evolve`, in the terms of `Outcome`; `meter` is the state of the progress meter."""

    mid: MidStep
    saved: tuple[Any, ...]
    accumulated: Any
    potentials: tuple[Array, ...]
    meter: Any


class _StepInput(NamedTuple):
    """Input of the loop of `evolve` in each step, from a0 to a1."""

    step: Step
    following: Array  # first drift of the next step, 0 after the last one
    a0: Array
    a1: Array
    saving: tuple[SaveSlot, ...]  # of the saves after this step
    slot: Array  # of the potential in the cache
    progress: Array | None  # share of the steps that are then done; None without a meter


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

    def body(carry: _Carry, now: _StepInput) -> tuple[_Carry, None]:
        before, saved, accumulated, shown = carry.mid, carry.saved, carry.accumulated, carry.meter
        after, potentials = take_step(before, now.step, now.following, config, Entry(carry.potentials, now.slot))
        good = after.status.code == Code.SUCCESSFUL

        def updated(save: Save, saved: Any, slot: SaveSlot) -> Any:
            def put(saved: Any, a: Array, after: MidStep, args: Any, good: Array) -> Any:
                values = save.function(a, undo_half_drift(after, config), args)
                i = slot.place
                return jax.tree.map(lambda old, x: old.at[i].set(jnp.where(good, x, old[i])), saved, values)

            return jax.lax.cond(slot.wanted, put, lambda saved, *_: saved, saved, now.a1, after, inputs.args, good)

        saved = tuple(map(updated, saves, saved, now.saving))
        if accumulate is not None:
            ends = Epoch(now.a0, undo_half_drift(before, config)), Epoch(now.a1, undo_half_drift(after, config))
            values = accumulate(*ends, inputs.args)
            accumulated = jax.tree.map(lambda old, x: old + jnp.where(good, x, 0), accumulated, values)
        new = _Carry(after, saved, accumulated, potentials, None)
        new = jax.tree.map(lambda new, old: unify_varying(new, old)[0], new, carry._replace(meter=None))
        if meter is not None:
            shown = meter.step(shown, barrier((now.progress, after.max_displacement))[0])  # not before the step is done
        return new._replace(meter=shown), None

    start, xs = _begin(inputs, saves, accumulate, config, stored)
    if meter is not None:
        number = len(inputs.times) - 1
        start, xs = start._replace(meter=meter.init()), xs._replace(progress=jnp.arange(1.0, number + 1) / number)
    last, _ = jax.lax.scan(body, start, xs)
    if meter is not None:
        meter.close(last.meter)
    particles = last.mid.particles
    # A backward pass overwrites the momenta in place: without a barrier XLA copies them for a later check.
    momenta, valid = barrier((particles.momenta, jnp.all(in_range(particles.momenta))))
    status = final_status(last.mid.status, last.mid.max_displacement, valid, config)
    if config.decomposition.manual:
        status = jax.tree.map(lambda x: largest_on_devices(x, config), status)
    return Outcome(ExactParticles(particles.disp, momenta), last.saved, last.accumulated, status, last.potentials)


def _begin(
    inputs: Inputs, saves: tuple[Save, ...], accumulate: Accumulate | None, config: Config, stored: int
) -> tuple[_Carry, _StepInput]:
    """Initial carry of the loop of `evolve`, and the arrays of its scan, without a meter."""
    particles, times, number = inputs.particles, inputs.times, len(inputs.times) - 1
    steps = all_steps(inputs.coefficients, config)
    drifts = steps.invertible_first()
    at_start = particles.with_unit(steps.unit0[0])
    saved = tuple(_buffers(save, inputs, at_start) for save in saves)
    mid = half_drift(particles, drifts[0], steps.unit0[0], successful(particles.disp.dtype), config)
    carry = _Carry(mid, saved, _zero(accumulate, inputs, at_start), (), None)
    carry = jax.tree.map(lambda x: unify_varying(x, particles.disp)[0], carry)
    cache = potential_cache.empty(stored, carry.mid.particles.disp, config)
    saving = tuple(save.after_steps(number) for save in saves)
    # Earlier steps write to the first slot: in place, without a condition.
    slots = jnp.maximum(jnp.arange(number) - (number - stored), 0)
    xs = _StepInput(steps, jnp.pad(drifts[1:], (0, 1)), times[:-1], times[1:], saving, slots, None)
    return carry._replace(potentials=cache), xs


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
