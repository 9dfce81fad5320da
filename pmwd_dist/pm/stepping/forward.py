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
from pmwd_dist.ops.momenta import count, in_range, momentum, pack, rounded
from pmwd_dist.pm.gravity import acceleration
from pmwd_dist.pm.particles import ExactParticles, Particles, exact, momentum_unit
from pmwd_dist.pm.solvers import (
    Coefficients,
    SplitSolver,
    Step,
    drifted,
    ended,
    first_drift,
    first_drifts,
    kick_and_drifts,
    on_grid,
)
from pmwd_dist.pm.status import Code, Status, successful
from pmwd_dist.pm.stepping import potential_cache


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


class Epoch(NamedTuple):
    """A simulation at the start or at the end of a step.

    Args:
      a: scale factor.
      particles: then.
    """

    a: Array
    particles: Particles


Accumulate = Callable[[Epoch, Epoch, Any], Any]


class Inputs(NamedTuple):
    """Everything on which an evolution depends.

    Args:
      particles: at the first of the times.
      coefficients: of each step forward, log_scale on its grid.
      times: scale factors at which steps begin and end.
      args: for the functions of what is saved and accumulated; arrays of any type.
    """

    particles: ExactParticles
    coefficients: Coefficients
    times: Array
    args: Any


class Outcome(NamedTuple):
    """The result of an evolution.

    Args:
      particles: at the end, or at the last good step; `unit_after` has the unit of their momenta.
      saved: by `Save`, a pytree with a leading axis of its steps; infinite, or the largest integer, after a failure.
      accumulated: the sum over all good steps of what each contributes, a pytree.
      status: the first failure, if any.
      potentials: of the last steps, for their derivatives, see `potential_cache`.
    """

    particles: ExactParticles
    saved: tuple[Any, ...]
    accumulated: Any
    status: Status
    potentials: tuple[Array, ...] = ()


def prepare(
    solver: SplitSolver, particles: Particles, table: GrowthTable, times: Array, args: Any, config: Config
) -> Inputs:
    """The inputs of an evolution, in the precision of the particles.

    Args:
      solver: gives the coefficients.
      particles: at the first of the times.
      table: of the growth.
      times: scale factors at which steps begin and end, ascending.
      args: for the functions of what is saved and accumulated.
      config: the simulation.
    """
    return Inputs(exact(particles, config), coefficients_of(solver, table, times), times, args)


def coefficients_of(solver: SplitSolver, table: GrowthTable, times: Array) -> Coefficients:
    """Coefficients of each step between these times, log_scale on its grid, in the precision of the times."""
    coefficients = jax.vmap(solver.coefficients, in_axes=(None, 0, 0))(table, times[:-1], times[1:])
    coefficients = Coefficients(*(x.astype(times.dtype) for x in coefficients))
    return coefficients._replace(log_scale=on_grid(coefficients.log_scale))


def evolve(
    inputs: Inputs, saves: tuple[Save, ...], config: Config, *, accumulate: Accumulate | None = None, stored: int = 0
) -> Outcome:
    """Take all steps, in one loop of the compiled program.

    Args:
      inputs: all that is differentiable.
      saves: what to keep along the way.
      config: the simulation.
      accumulate: what a step contributes to the sum, of (epoch before, epoch after, args); default: nothing.
      stored: the number of steps, the last ones, whose potentials are kept.
    """

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], None]:
        moved, first, max_displacement, unit, status, saved, accumulated, potentials = carry
        step, following, a0, a, places, place = xs
        # After a failure the momenta stay on their grid, and nothing moves.
        failed = status.code != Code.SUCCESSFUL
        step = Step(*(jnp.where(failed, 0, x) for x in step[:3]), *(jnp.where(failed, unit, x) for x in step[3:]))
        particles, max_displacement, status, bits = kick_and_drifts(
            step, following, moved, max_displacement, status, config
        )
        potentials = potential_cache.store(potentials, bits, place, config)
        good = status.code == Code.SUCCESSFUL
        unit = jnp.where(good, step.after, step.before)
        following = jnp.where(good, following, 0)

        def keep(save: Save, saved: Any, wanted: Array, place: Array) -> Any:
            def put(saved: Any, a: Array, particles: ExactParticles, *now: Any) -> Any:
                unit, first, args, good = now
                values = save.function(a, drifted(particles.with_unit(unit), -first, config), args)
                return jax.tree.map(lambda old, x: old.at[place].set(jnp.where(good, x, old[place])), saved, values)

            at_end = (a, particles, unit, following, inputs.args, good)
            return jax.lax.cond(wanted, put, lambda saved, *_: saved, saved, *at_end)

        saved = (
            tuple(keep(*each) for each in zip(saves, saved, *zip(*places, strict=True), strict=True)) if saves else ()
        )
        if accumulate is not None:
            before = drifted(moved.with_unit(step.before), -first, config)
            after = drifted(particles.with_unit(unit), -following, config)
            values = accumulate(Epoch(a0, before), Epoch(a, after), inputs.args)
            accumulated = jax.tree.map(lambda old, x: old + jnp.where(good, x, 0), accumulated, values)
        return (particles, following, max_displacement, unit, status, saved, accumulated, potentials), None

    start, xs = _begin(inputs, saves, accumulate, config, stored)
    (particles, _, max_displacement, _, status, saved, accumulated, potentials), _ = jax.lax.scan(body, start, xs)
    status = ended(status, max_displacement, jnp.all(in_range(particles.momenta)), config)
    return Outcome(particles, saved, accumulated, status, potentials)


def _begin(
    inputs: Inputs, saves: tuple[Save, ...], accumulate: Accumulate | None, config: Config, stored: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What the loop of `evolve` starts from, and what it goes through.

    Particles are carried with the first drift of the next step, which is undone to the bit where they are needed.
    """
    particles, times, number = inputs.particles, inputs.times, len(inputs.times) - 1
    status = jax.tree.map(lambda x: unify_varying(x, particles.disp)[0], successful(particles.disp.dtype))
    all_steps = exact_steps(inputs.coefficients, config)
    at_start = particles.with_unit(all_steps.before[0])
    saved = tuple(_start(save, inputs, at_start) for save in saves)
    drifts = first_drifts(all_steps)
    drifted_first, max_displacement = first_drift(drifts[0], at_start, config)
    moved = ExactParticles(drifted_first.disp, particles.momenta)
    first, unit = unify_varying(drifts[0], all_steps.before[0], particles.disp)[:2]
    zero, room = _zero(accumulate, inputs, at_start), potential_cache.room(stored, moved.disp, config)
    places = tuple(places_after(save, number) for save in saves)
    # Steps before those that are kept write to the first place, too: in place, without a condition.
    place = jnp.maximum(jnp.arange(number) - (number - stored), 0)
    xs = all_steps, jnp.pad(drifts[1:], (0, 1)), times[:-1], times[1:], places, place
    return (moved, first, max_displacement, unit, status, saved, zero, room), xs


def steps(coefficients: Coefficients, log_scale: Array, spacing: float) -> Step:
    """The steps forward, on the grids of the particles; each field has an axis of steps.

    Args:
      coefficients: of each step.
      log_scale: of the momenta, at the start of the first step and at the end of each.
      spacing: of the grid of momenta where log_scale is 0 [Mpc/h].
    """
    c = coefficients
    unit = spacing * jnp.exp2(log_scale)
    return Step(c.drift_before, c.kick / unit[1:], c.drift_after, unit[:-1], unit[1:])


def exact_steps(coefficients: Coefficients, config: Config) -> Step:
    """The steps forward, of exact particles."""
    spacing = momentum_unit(config, coefficients.log_scale.dtype)
    return steps(coefficients, log_scales(coefficients), spacing)


def unit_after(taken: Array, all_steps: Step) -> Array:
    """Unit of the momenta after so many steps [Mpc/h]."""
    return jnp.concatenate([all_steps.before[:1], all_steps.after])[taken]


def log_scales(coefficients: Coefficients) -> Array:
    """Logarithm of the scale of the momenta, at the start of the first step and at the end of each."""
    log_scale = coefficients.log_scale
    return jnp.concatenate([jnp.zeros(1, log_scale.dtype), jnp.cumsum(log_scale)])


def at_end(kicked: ExactParticles, step: Step, config: Config) -> Particles:
    """The particles at the end of a step, from those after its kick."""
    return drifted(kicked.with_unit(step.after), step.last, config)


def undone(step: Step, good: Array, kicked: ExactParticles, config: Config) -> Particles:
    """The particles before a step, from those after its kick.

    A step that is not good has not moved anything; the force where particles are may not even be finite.
    """
    force, _ = acceleration(jnp.where(good, kicked.disp, 0), config)
    kick = step.kick * force
    vel = (momentum(kicked.momenta, step.after) / step.after - kick) * step.before
    momenta = pack(count(kicked.momenta) - rounded(kick)[0], vel)
    return drifted(ExactParticles(kicked.disp, momenta).with_unit(step.before), -step.first, config)


def places_after(save: Save, count: int) -> tuple[Array, Array]:
    """For each step, whether to save after it and the place among what is saved."""
    wanted, place = save.places(count)
    return jnp.asarray(wanted[1:]), jnp.asarray(place[1:])


def _start(save: Save, inputs: Inputs, particles: Particles) -> Any:
    """Room for what is saved, with what there is before the first step."""
    at_start = (inputs.times[0], particles, inputs.args)

    def room(value: Any) -> Array:
        last = jnp.inf if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.iinfo(value.dtype).max
        return jnp.full((len(save.steps), *value.shape), last, value.dtype)

    saved = jax.tree.map(room, jax.eval_shape(save.function, *at_start))
    if 0 not in save.steps:
        return saved
    return jax.tree.map(lambda old, x: old.at[0].set(x), saved, save.function(*at_start))


def _zero(accumulate: Accumulate | None, inputs: Inputs, particles: Particles) -> Any:
    """The sum of what no step contributes."""
    if accumulate is None:
        return ()
    epoch = Epoch(inputs.times[0], particles)
    shapes = jax.eval_shape(accumulate, epoch, epoch, inputs.args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def call_hoisted(pure: Callable[..., Any], place: int, *args: Any) -> Any:
    """Call a function of `hoist`; the last argument holds the table, and in this place what the function captured."""
    table, captured = args[-1]
    return pure(captured[place], *args[:-1], table)
