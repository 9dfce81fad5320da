"""The backward pass: from the last step to the first, exact reversal of each step and its VJP."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax.order import barrier
from pmwd_dist.config import Config
from pmwd_dist.ops.step_vjp import UndoDrift, UndoKick
from pmwd_dist.pm import gravity_vjp
from pmwd_dist.pm.gravity_vjp import Pending, State, UndoFactor, split, with_cotangents
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution
from pmwd_dist.pm.solvers import Coefficients
from pmwd_dist.pm.stepping.forward import Accumulate, Epoch, Inputs, Outcome, Save
from pmwd_dist.pm.stepping.potential_cache import Entry
from pmwd_dist.pm.stepping.step import Step, all_steps, at_end, at_start, drifted, unit_after


def evolve_vjp(
    inputs: Inputs,
    outcome: Outcome,
    cotangents: Outcome,
    saves: tuple[Save, ...],
    config: Config,
    *,
    accumulate: Accumulate | None = None,
    by_factor: bool = False,
) -> tuple[ExactParticles, Inputs]:
    """Reverse all steps, and apply the VJP of the evolution.

    Cotangents of the factor of the potential, on request by `by_factor`, take two more transforms a step.

    Returns:
      The particles at the start, computed exactly from the outcome, and the cotangents of the inputs; in place of the
      cotangents of arguments that are not floating-point numbers, the arguments.
    """
    times, number = inputs.times, len(inputs.times) - 1
    good, steps = _steps_taken(inputs, outcome, config)
    floating, others = eqx.partition(inputs.args, eqx.is_inexact_array)

    def pull(function: Callable[..., Any], good: Array | bool, at: Any, cotangents: Any, sums: Any) -> Any:
        return _add_vjp(lambda *at: function(*at[:-1], eqx.combine(at[-1], others)), good, at, cotangents, sums)

    def body(
        carry: tuple[Any, ...], xs: tuple[Any, ...], potentials: tuple[Array, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        kicked, ct, ct_args = carry  # the particles between the drifts of the step, after its kick
        step, last_before, good, factor, a0, a, saving, slot = xs
        ct_a0, ct_a = jnp.zeros_like(a0), jnp.zeros_like(a)
        for save, saved, (wanted, index) in zip(saves, cotangents.saved, saving, strict=True):

            def add(kicked: ExactParticles, step: Step, cotangent: Any, sums: Any, save: Save = save) -> Any:
                return pull(save.function, good, (a, at_end(kicked, step, config), floating), cotangent, sums)

            cotangent = jax.tree.map(lambda x, index=index: x[index], saved)
            now = kicked, step, cotangent, (ct_a, ct, ct_args)
            ct_a, ct, ct_args = jax.lax.cond(wanted, add, lambda *args: args[-1], *now)
        direct = None  # cotangents of the particles before the step, through the sum only
        if accumulate is not None:
            start = at_start(kicked, step, good, config).with_unit(step.unit0)
            at = Epoch(a0, start), Epoch(a, at_end(kicked, step, config)), floating
            sums = Epoch(ct_a0, jax.tree.map(jnp.zeros_like, ct)), Epoch(ct_a, ct), ct_args
            (ct_a0, direct), (ct_a, ct), ct_args = pull(accumulate, good, at, cotangents.accumulated, sums)
        state, entry = with_cotangents(kicked, ct), Entry(potentials, slot)
        kicked, ct, by_coefficient = _step_vjp(step, last_before, good, state, factor, entry, config)
        ct = ct if direct is None else jax.tree.map(jnp.add, ct, direct)
        return (kicked, ct, ct_args), (by_coefficient, ct_a0, ct_a)

    last_before = jnp.pad(steps.last[:-1], (1, 0))
    saving = tuple(save.after_steps(number) for save in saves)
    slot = jnp.arange(number) - (number - _num_stored(outcome.potentials))
    xs = steps, last_before, good, _undo_factor(steps, by_factor), times[:-1], times[1:], saving, slot
    fused = not saves and accumulate is None  # no particles are needed between steps
    kicked, ct, left = _from_the_end(outcome, cotangents.particles, xs, fused, config)
    start = kicked, ct, jax.tree.map(jnp.zeros_like, floating)
    (particles, *sums), (by_coefficient, by_start, by_end) = _loops(body, start, *left)
    by_time = jnp.pad(by_start, (0, 1)) + jnp.pad(by_end, (1, 0))
    at = (times[0], particles.with_unit(steps.unit0[0]), floating)
    by_time0, ct, ct_args = _with_saved_at_start(pull, at, saves, cotangents.saved, sums)
    ct = ExactParticles(*jax.tree.leaves(ct))
    return particles, Inputs(ct, by_coefficient, by_time.at[0].add(by_time0), eqx.combine(ct_args, others))


def _from_the_end(
    outcome: Outcome, by_last: Any, xs: tuple[Any, ...], fused: bool, config: Config
) -> tuple[ExactParticles, Particles, tuple[Any, ...]]:
    """Reverse the last drift, and if fused the steps with stored potentials.

    `by_last` are the cotangents of the particles at the end, `xs` the arrays of the scan over the steps. If fused, a
    drift is reversed in one pass with the kick before it.

    Returns:
      The particles after the kick of the last remaining step, their cotangents, and the arguments of `_loops`:
      remaining steps, their potentials, and results of the reversed steps.
    """
    at_last = outcome.particles
    if math.prod(config.mesh_shape) <= math.prod(config.particle_shape):
        # The cotangents first: otherwise two sets of particles exist with them at the peak of memory. With finer meshes
        # the peak is in the force, and XLA plans better without this order.
        at_last, by_last = barrier((at_last, by_last))
    ct = Particles(*jax.tree.leaves(by_last))
    steps, last_before, good, factor, starts, ends, _, slot = xs
    if outcome.potentials and fused:
        first = len(good) - _num_stored(outcome.potentials)
        cached_xs = jax.tree.map(lambda x: x[first:], (steps, last_before, good, factor, slot))
        kicked, ct, part = _cached_steps_vjp(at_last, ct, cached_xs, outcome.potentials, config)
        parts = [(part, *(jnp.zeros_like(x[first:]) for x in (starts, ends)))]
        return kicked, ct, (jax.tree.map(lambda x: x[:first], xs), (), parts)
    final = drifted(at_last.with_unit(steps.unit1[-1]), -steps.last[-1], config)
    return ExactParticles(final.disp, at_last.momenta), ct, (xs, outcome.potentials, [])


def _with_saved_at_start(
    pull: Callable[..., Any], at: tuple[Any, ...], saves: tuple[Save, ...], saved: tuple[Any, ...], sums: Sequence[Any]
) -> tuple[Any, ...]:
    """Cotangents of the time, particles and arguments at the start, with the contributions of saves there."""
    totals = (jnp.zeros_like(at[0]), *sums)
    for save, cotangents in zip(saves, saved, strict=True):
        if 0 in save.steps:
            totals = pull(save.function, True, at, jax.tree.map(lambda x: x[0], cotangents), totals)
    return totals


def _num_stored(potentials: tuple[Array, ...]) -> int:
    return len(potentials[0]) if potentials else 0


def _loops(
    body: Callable[..., tuple[Any, Any]],
    carry: Any,
    xs: tuple[Any, ...],
    potentials: tuple[Array, ...],
    parts: list[Any],
) -> tuple[Any, Any]:
    """Scan backwards over the steps with potentials, then over the others; `parts` are results of later steps.

    The second loop can use the memory of the potentials.
    """
    first, parts = len(xs[2]) - _num_stored(potentials), list(parts)
    for cached, steps in ((potentials, slice(first, None)), ((), slice(first))):
        some = jax.tree.map(lambda x, steps=steps: x[steps], xs)
        if len(some[2]):
            carry, part = jax.lax.scan(partial(body, potentials=cached), carry, some, reverse=True)
            parts.insert(0, part)
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *parts)


def _cached_steps_vjp(
    at_end: ExactParticles,
    ct: Particles,
    xs: tuple[Step, Array, Array, UndoFactor | None, Array],
    potentials: tuple[Array, ...],
    config: Config,
) -> tuple[ExactParticles, Particles, Coefficients]:
    """`_step_vjp` of steps with stored potentials, in one pass over the particles each.

    The drifts of each step are reversed with the kick of the step before it.
    """
    steps, _, good, *_ = xs
    q = resolution(config, at_end.disp.dtype)
    nothing, one = jnp.zeros_like(steps.kick[-1]), jnp.ones_like(steps.kick[-1])
    drift_at_end = UndoDrift(nothing, one, steps.unit1[-1], nothing, -steps.last[-1] / q, nothing)

    def body(pending: Pending, xs: tuple[Any, ...]) -> tuple[Pending, Any]:
        step, last_before, good, factor, slot = xs
        undo, drifts = _reversal(step, last_before, good, q)
        state, mesh, *sums = gravity_vjp.cached_step_vjp(pending, undo, factor, Entry(potentials, slot), config)
        return Pending(state, mesh, drifts), sums

    pending = gravity_vjp.pending(with_cotangents(at_end, ct), drift_at_end, config)
    pending, (sums, by_factor) = jax.lax.scan(body, pending, xs, reverse=True)
    state, first = gravity_vjp.undo_drifts(pending, config)
    by_drift = jnp.concatenate([first, sums[:-1, 0]])  # the sum comes with the kick of the step before
    return *split(state), _by_coefficient(steps, good, (sums[:, 1], sums[:, 2], sums[:, 3], by_drift), by_factor)


def _steps_taken(inputs: Inputs, outcome: Outcome, config: Config) -> tuple[Array, Step]:
    """Whether each step was good, and all steps; steps after a failure change nothing, in both directions."""
    taken, forward = outcome.status.step, all_steps(inputs.coefficients, config)
    good = jnp.arange(len(inputs.times) - 1, dtype=taken.dtype) < taken
    unit = unit_after(taken, forward)
    factor = None if forward.factor is None else jnp.where(good[:, None], forward.factor, 1)
    drifts, units = forward[:3], forward[3:5]
    return good, Step(
        *(jnp.where(good, x, 0) for x in drifts), *(jnp.where(good, x, unit) for x in units), factor=factor
    )


def _undo_factor(steps: Step, by_factor: bool) -> UndoFactor | None:
    """Factors of the potential of all steps, with a place for their cotangents if these are wanted."""
    if steps.factor is None:
        return None
    return UndoFactor(steps.factor, jnp.zeros_like(steps.factor) if by_factor else None)


def _add_vjp(
    function: Callable[..., Any], good: Array | bool, at: tuple[Any, ...], cotangents: Any, sums: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Add the cotangents of the arguments of a function of the particles to sums, for a good step."""

    def floating(*at: Any) -> list[Array]:
        return [x for x in jax.tree.leaves(function(*at)) if jnp.issubdtype(x.dtype, jnp.inexact)]

    _, pull = jax.vjp(floating, *at)
    return jax.tree.map(lambda old, x: jnp.where(good, old + x, old), sums, pull(jax.tree.leaves(cotangents)))


def _step_vjp(
    step: Step,
    last_before: Array,
    good: Array,
    state: State,
    factor: UndoFactor | None,
    entry: Entry,
    config: Config,
) -> tuple[ExactParticles, Particles, Coefficients]:
    """VJP of a step, and reversal from its kick to the kick of the step before.

    The state is the one after the kick, with cotangents at the end of the step; `last_before` is the last drift of the
    step before.

    Returns:
      The particles after the kick of the step before; the cotangents of the particles at the start of the step, and of
      its coefficients.
    """
    undo, drifts = _reversal(step, last_before, good, resolution(config, state.disp.dtype))
    state, sums, by_factor = gravity_vjp.step_vjp(state, undo, drifts, factor, entry, config)
    return *split(state), _by_coefficient(step, good, tuple(sums), by_factor)


def _reversal(step: Step, last_before: Array, good: Array, q: float) -> tuple[UndoKick, UndoDrift]:
    """Coefficients to reverse the kick of a step, its first drift, and the last drift of the step before."""
    weight, took = step.kick * step.unit1, good.astype(step.kick.dtype)
    undo = UndoKick(step.kick, step.unit1, step.unit0, step.last, weight, took)
    scale = step.unit1 / step.unit0
    return undo, UndoDrift(weight, scale, step.unit0, -step.first / q, -last_before / q, took)


def _by_coefficient(
    step: Step, good: Array, sums: tuple[Array, Array, Array, Array], by_factor: Array | None
) -> Coefficients:
    """Cotangents of the coefficients of a step, from the sums of `gravity_vjp.step_vjp`."""
    kick, scale, after, before = sums
    log_scale = math.log(2) * step.unit1 / step.unit0 * scale
    numbers = (jnp.where(good, x, 0) for x in (before, kick, log_scale, after))
    if by_factor is not None:
        by_factor = jnp.where(good[..., None], (step.kick * step.unit1)[..., None] * by_factor, 0)
    elif step.factor is not None:
        by_factor = jnp.zeros_like(step.factor)
    return Coefficients(*numbers, factor=by_factor)
