"""The backward pass: from the last step to the first, exact reversal of each step and its VJP.

With a step s_n+1 = f(s_n, theta_n): s_n = f^-1(s_n+1), lambda_n = (df/ds)^T lambda_n+1 and dLoss / d(theta_n) =
(df/dtheta)^T lambda_n+1 (docs/explanation/adjoint.md; one step in `gravity_vjp`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax.order import barrier
from pmwd_dist.config import Config
from pmwd_dist.ops.step import UndoDrift, UndoKick
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution
from pmwd_dist.pm.solvers import Coefficients
from pmwd_dist.pm.stepping import gravity_vjp, potential_cache
from pmwd_dist.pm.stepping.forward import Accumulate, Epoch, Inputs, Outcome, Save, SaveSlot
from pmwd_dist.pm.stepping.gravity_vjp import AdjointState, CoefficientGrads, PendingDrifts, StepFactor
from pmwd_dist.pm.stepping.potential_cache import Entry
from pmwd_dist.pm.stepping.step import Step, all_steps, drifted, finish_step, undo_step, unit_after


class _Carry(NamedTuple):
    """Carry of the backward loop: s_n and lambda_n of docs/explanation/adjoint.md."""

    kicked: ExactParticles  # between the drifts of a step, after its kick; at the end of the last step, to begin with
    ct: Particles  # dLoss / d(x1, v1) at the end of the step
    args: Any  # cotangents of the floating-point arguments of saves and sums, so far


class _StepInput(NamedTuple):
    """Input of the backward loop in each step, from a0 to a1."""

    step: Step
    last_before: Array  # last drift of the step before, 0 for the first step
    good: Array  # whether the step was taken
    factor: StepFactor | None
    a0: Array
    a1: Array
    saving: tuple[SaveSlot, ...]  # of the saves after this step
    slot: Array  # of the potential in the cache


class _StepGrads(NamedTuple):
    """dLoss / d(coefficients of a step) and, through saves and sums alone, dLoss / d(a0) and dLoss / d(a1)."""

    coefficients: Coefficients
    a0: Array
    a1: Array


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
    floating, others = eqx.partition(inputs.args, eqx.is_inexact_array)

    def pull(function: Callable[..., Any], good: Array | bool, at: Any, cotangents: Any, sums: Any) -> Any:
        return _add_vjp(lambda *at: function(*at[:-1], eqx.combine(at[-1], others)), good, at, cotangents, sums)

    def through_saves(kicked: ExactParticles, now: _StepInput, sums: Any) -> Any:
        """Add cotangents of values saved after a step to cotangents of its a1, its particles and the arguments."""
        for save, saved, slot in zip(saves, cotangents.saved, now.saving, strict=True):

            def add(kicked: ExactParticles, step: Step, cotangent: Any, sums: Any, save: Save = save) -> Any:
                at = now.a1, finish_step(kicked, step, config), floating
                return pull(save.function, now.good, at, cotangent, sums)

            cotangent = jax.tree.map(lambda x, slot=slot: x[slot.place], saved)
            sums = jax.lax.cond(slot.wanted, add, lambda *args: args[-1], kicked, now.step, cotangent, sums)
        return sums

    def body(carry: _Carry, now: _StepInput, potentials: tuple[Array, ...]) -> tuple[_Carry, _StepGrads]:
        kicked, step, ct_a0 = carry.kicked, now.step, jnp.zeros_like(now.a0)
        ct_a1, ct, ct_args = through_saves(kicked, now, (jnp.zeros_like(now.a1), carry.ct, carry.args))
        entry, direct = Entry(potentials, now.slot), None  # cotangents of the particles before, through the sum only
        if accumulate is not None:
            start, entry = undo_step(kicked, step, now.good, config, entry)
            at = Epoch(now.a0, start.with_unit(step.unit0)), Epoch(now.a1, finish_step(kicked, step, config)), floating
            nothing = jax.tree.map(lambda x: jnp.zeros((), x.dtype), ct)  # arrays of zeros would be stored
            sums = Epoch(ct_a0, nothing), Epoch(ct_a1, ct), ct_args
            (ct_a0, direct), (ct_a1, ct), ct_args = pull(accumulate, now.good, at, cotangents.accumulated, sums)
            # Otherwise XLA keeps the force, and takes a further pass over the particles.
            kicked, entry, ct, direct = barrier((kicked, entry, ct, direct))
        undo, drifts = _reversal(now, resolution(config, kicked.disp.dtype))
        state = AdjointState.join(kicked, ct)
        state, grads = gravity_vjp.step_vjp(state, undo, drifts, now.factor, entry, config)
        kicked, ct = state.split()  # after the kick of the step before; cotangents at the start of this step
        ct = ct if direct is None else jax.tree.map(jnp.add, ct, direct)
        return _Carry(kicked, ct, ct_args), _StepGrads(_by_coefficient(now, grads), ct_a0, ct_a1)

    xs = _step_inputs(inputs, outcome, saves, by_factor, config)
    fused = not saves and accumulate is None  # no particles are needed between steps
    ct = Particles(*jax.tree.leaves(cotangents.particles))
    at_end = _Carry(outcome.particles, ct, jax.tree.map(jnp.zeros_like, floating))
    (particles, *sums), grads = _reverse_all(body, at_end, xs, outcome.potentials, fused, config)
    # Saves before the first step.
    at, sums = (xs.a0[0], particles.with_unit(xs.step.unit0[0]), floating), (jnp.zeros_like(xs.a0[0]), *sums)
    for save, saved in zip(saves, cotangents.saved, strict=True):
        if 0 in save.steps:
            sums = pull(save.function, True, at, jax.tree.map(lambda x: x[0], saved), sums)
    by_start, ct, ct_args = sums
    by_time = jnp.pad(grads.a0, (0, 1)) + jnp.pad(grads.a1, (1, 0))
    ct, ct_args = ExactParticles(ct.disp, ct.vel), eqx.combine(ct_args, others)
    return particles, Inputs(ct, grads.coefficients, by_time.at[0].add(by_start), ct_args)


def _step_inputs(
    inputs: Inputs, outcome: Outcome, saves: tuple[Save, ...], by_factor: bool, config: Config
) -> _StepInput:
    """Inputs of the backward loop in all steps; those after a failure change nothing, in both directions."""
    times, number = inputs.times, len(inputs.times) - 1
    taken, forward = outcome.status.step, all_steps(inputs.coefficients, config)
    good = jnp.arange(number, dtype=taken.dtype) < taken
    steps = forward.where(good, unit_after(taken, forward))
    last_before = jnp.pad(steps.last[:-1], (1, 0))
    factor = None if steps.factor is None else StepFactor(steps.factor, by_factor)
    saving = tuple(save.after_steps(number) for save in saves)
    slot = jnp.arange(number) - (number - potential_cache.size(outcome.potentials))
    return _StepInput(steps, last_before, good, factor, times[:-1], times[1:], saving, slot)


def _reverse_all(
    body: Callable[..., tuple[_Carry, _StepGrads]],
    at_end: _Carry,
    xs: _StepInput,
    potentials: tuple[Array, ...],
    fused: bool,
    config: Config,
) -> tuple[_Carry, _StepGrads]:
    """Reverse the last drift, then scan backwards over the steps with stored potentials, then over the others.

    The last loop can use the memory of the potentials. If fused, steps with stored potentials take one pass over the
    particles each (`_cached_steps_vjp`).
    """
    carry, last, parts = at_end, jax.tree.map(lambda x: x[-1], xs.step), list[_StepGrads]()
    if math.prod(config.mesh_shape) <= math.prod(config.particle_shape):
        # The cotangents first: otherwise two sets of particles exist with them at the peak of memory. With finer meshes
        # the peak is in the force, and XLA plans better without this order.
        kicked, ct = barrier((carry.kicked, carry.ct))
        carry = carry._replace(kicked=kicked, ct=ct)
    first = len(xs.good) - potential_cache.size(potentials)
    early, late = (jax.tree.map(lambda x, part=part: x[part], xs) for part in (slice(first), slice(first, None)))
    loops = [(late, potentials), (early, ())]
    if potentials and fused:
        kicked, ct, by_coefficient = _cached_steps_vjp(carry.kicked, carry.ct, late, potentials, config)
        parts, loops = [_StepGrads(by_coefficient, jnp.zeros_like(late.a0), jnp.zeros_like(late.a1))], loops[1:]
    else:
        final = drifted(carry.kicked.with_unit(last.unit1), -last.last, config)
        kicked, ct = ExactParticles(final.disp, carry.kicked.momenta), carry.ct
    carry = carry._replace(kicked=kicked, ct=ct)
    for steps, cached in loops:
        if len(steps.good):
            carry, part = jax.lax.scan(partial(body, potentials=cached), carry, steps, reverse=True)
            parts.insert(0, part)
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *parts)


def _cached_steps_vjp(
    at_end: ExactParticles, ct: Particles, xs: _StepInput, potentials: tuple[Array, ...], config: Config
) -> tuple[ExactParticles, Particles, Coefficients]:
    """Reversal and VJP of steps with stored potentials, in one pass over the particles each.

    The drifts of each step are reversed with the kick of the step before it.
    """
    steps, q = xs.step, resolution(config, at_end.disp.dtype)
    nothing, one = jnp.zeros_like(steps.kick[-1]), jnp.ones_like(steps.kick[-1])
    drift_at_end = UndoDrift(nothing, one, steps.unit1[-1], nothing, -steps.last[-1] / q, nothing)

    def body(pending: PendingDrifts, now: _StepInput) -> tuple[PendingDrifts, CoefficientGrads]:
        undo, drifts = _reversal(now, q)
        entry = Entry(potentials, now.slot)
        state, mesh, grads = gravity_vjp.cached_step_vjp(pending, undo, now.factor, entry, config)
        return PendingDrifts(state, mesh, drifts), grads

    pending = gravity_vjp.no_kick(AdjointState.join(at_end, ct), drift_at_end, config)
    pending, grads = jax.lax.scan(body, pending, xs, reverse=True)
    state, first = gravity_vjp.undo_drifts(pending, config)
    grads = grads._replace(first=jnp.concatenate([first, grads.first[:-1]]))  # with the kick of the step before
    return *state.split(), _by_coefficient(xs, grads)


def _add_vjp(
    function: Callable[..., Any], good: Array | bool, at: tuple[Any, ...], cotangents: Any, sums: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Add the cotangents of the arguments of a function of the particles to sums, for a good step."""

    def floating(*at: Any) -> list[Array]:
        return [x for x in jax.tree.leaves(function(*at)) if jnp.issubdtype(x.dtype, jnp.inexact)]

    _, pull = jax.vjp(floating, *at)
    return jax.tree.map(lambda old, x: jnp.where(good, old + x, old), sums, pull(jax.tree.leaves(cotangents)))


def _reversal(now: _StepInput, q: float) -> tuple[UndoKick, UndoDrift]:
    """Coefficients to reverse the kick of a step, its first drift, and the last drift of the step before."""
    step, good = now.step, now.good.astype(now.step.kick.dtype)
    weight, scale = step.kick * step.unit1, step.unit1 / step.unit0
    undo = UndoKick(step.kick, step.unit1, step.unit0, step.last, weight, good)
    return undo, UndoDrift(weight, scale, step.unit0, -step.first / q, -now.last_before / q, good)


def _by_coefficient(now: _StepInput, grads: CoefficientGrads) -> Coefficients:
    """Cotangents of the coefficients of one or several steps, where 2^log_scale = unit1 / unit0."""
    step, good, by_factor = now.step, now.good, grads.factor
    log_scale = math.log(2) * step.unit1 / step.unit0 * grads.unit
    numbers = (jnp.where(good, x, 0) for x in (grads.first, grads.kick, log_scale, grads.last))
    if by_factor is not None:
        by_factor = jnp.where(good[..., None], (step.kick * step.unit1)[..., None] * by_factor, 0)
    elif step.factor is not None:
        by_factor = jnp.zeros_like(step.factor)
    return Coefficients(*numbers, factor=by_factor)
