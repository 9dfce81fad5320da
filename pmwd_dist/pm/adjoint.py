"""Derivatives of a simulation at the memory of one step, by running it backwards to the bit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from pmwd_dist._jax.closure import hoist
from pmwd_dist._jax.linear_map import linear_map
from pmwd_dist.config import Config
from pmwd_dist.ops.pull_back import UndoDrift, UndoKick
from pmwd_dist.pm.evolution import (
    Accumulate,
    Epoch,
    Inputs,
    Outcome,
    Save,
    at_end,
    call_hoisted,
    evolve,
    exact_steps,
    log_scales,
    places_after,
    prepare,
    undone,
    unit_after,
)
from pmwd_dist.pm.gravity import pull_back as pull_back_force
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution
from pmwd_dist.pm.solvers import Coefficients, SolverState, SplitSolver, Step, drifted
from pmwd_dist.pm.status import Code


class ReversibleAdjoint(diffrax.AbstractAdjoint):
    """Differentiates a drift-kick-drift solver by undoing its steps to the bit: exact, at the memory of one step.

    The default of `nbody` for BullFrog, FastPM and LeapFrog, in all modes of differentiation. Earlier states are
    re-created from the last one, not stored (compare Levesque & Verlet 1993). With `diffrax.diffeqsolve` it takes steps
    forwards in time by `diffrax.StepTo`, and saves at the start and at the end.
    """

    def loop(
        self,
        *,
        args: Any,
        terms: Any,
        solver: Any,
        stepsize_controller: Any,
        event: Any,
        saveat: diffrax.SaveAt,
        init_state: Any,
        passed_solver_state: bool,
        **_: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """The loop of `diffrax.diffeqsolve`.

        Raises:
          TypeError: another solver or controller of the steps.
          ValueError: an event, a saveat with times, steps or dense output, or a state of the solver.
        """
        if not isinstance(solver, SplitSolver) or not isinstance(stepsize_controller, diffrax.StepTo):
            raise TypeError("ReversibleAdjoint needs BullFrog, FastPM or LeapFrog, and diffrax.StepTo for the steps")
        subs, treedef = jax.tree.flatten(saveat.subs, is_leaf=lambda x: isinstance(x, diffrax.SubSaveAt))
        if event is not None or saveat.dense or any(sub.steps or sub.ts is not None for sub in subs):
            raise ValueError(
                "ReversibleAdjoint in diffeqsolve saves at t0 and t1 only; use nbody, without a controller"
            )
        if passed_solver_state:
            raise ValueError("ReversibleAdjoint starts from the first step; leave out solver_state")
        term, direction = terms.term, terms.direction
        # Integration backwards in time is not supported: times that are not finite report a failure.
        times = jnp.where(direction == 1, stepsize_controller.ts, jnp.nan)
        count = len(times) - 1
        plans = [(0,) * sub.t0 + (count,) * sub.t1 for sub in subs]
        particles = init_state.y
        hoisted = [hoist(sub.fn, times[0], particles, args) for sub in subs]
        functions = [partial(call_hoisted, pure, i) for i, (pure, _) in enumerate(hoisted)]
        saves = tuple(Save(plan, function) for plan, function in zip(plans, functions, strict=True))
        inputs = prepare(solver, particles, args, times, (args, [values for _, values in hoisted]), term.config)
        out = evolve_reversibly(inputs, saves, term.config)
        unit = unit_after(out.status.step, exact_steps(inputs.coefficients, term.config))
        solver_state = SolverState(log_scales(inputs.coefficients)[out.status.step], out.status)
        ends = solver_state, out.particles.with_unit(unit), out.saved
        return _final_state(init_state, *ends, times, treedef, plans), {}


def _final_state(
    state: Any,
    solver_state: SolverState,
    particles: Particles,
    saved_values: tuple[Any, ...],
    times: Array,
    treedef: Any,
    plans: Sequence[Sequence[int]],
) -> Any:
    """The state of diffrax's loop after an evolution."""
    status = solver_state.status
    failed = status.code != Code.SUCCESSFUL
    results: Any = diffrax.RESULTS

    def saved(save_state: Any, values: Any, plan: Sequence[int]) -> Any:
        reached = np.asarray(plan) <= status.step
        at = jnp.where(reached, times[np.asarray(plan)], jnp.inf).astype(save_state.ts.dtype)
        return dataclasses.replace(save_state, ts=at, ys=values, save_index=len(plan))

    before = treedef.flatten_up_to(state.save_state)
    all_saved = [saved(*each) for each in zip(before, saved_values, plans, strict=True)]
    return dataclasses.replace(
        state,
        y=particles,
        tprev=times[status.step],
        tnext=times[-1],
        solver_state=solver_state,
        result=results.where(failed, results.nonlinear_divergence, results.successful),
        num_steps=status.step + failed,
        num_accepted_steps=status.step,
        save_state=treedef.unflatten(all_saved),
    )


def evolve_reversibly(
    inputs: Inputs, saves: tuple[Save, ...], config: Config, *, accumulate: Accumulate | None = None
) -> Outcome:
    """`evolve`, whose reverse derivative re-creates every earlier state from the last one.

    All modes of differentiation work. Reverse over reverse holds all states of the backward pass.
    """
    leaves, treedef = jax.tree.flatten(inputs)
    forward = partial(evolve, saves=saves, config=config, accumulate=accumulate)
    backward = partial(pull_back, saves=saves, config=config, accumulate=accumulate)

    @jax.custom_jvp
    def run(*leaves: Array) -> Outcome:
        return forward(jax.tree.unflatten(treedef, leaves))

    @partial(run.defjvp, symbolic_zeros=True)
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Outcome, Outcome]:
        out = run(*primals)
        return out, _tangent(treedef.unflatten(primals), out, tangents, forward, backward)

    return run(*leaves)


def _tangent(
    inputs: Inputs,
    outcome: Outcome,
    tangents: Sequence[Any],
    forward: Callable[[Inputs], Outcome],
    backward: Callable[[Inputs, Outcome, Outcome], tuple[ExactParticles, Inputs]],
) -> Outcome:
    """The tangent of the outcome: a linear map, whose transpose is `pull_back`."""
    primals, treedef = jax.tree.flatten(inputs)
    results, results_treedef = jax.tree.flatten(outcome)
    first, end = len(primals), len(primals) + len(results)  # among the arguments of the map and of its transpose
    input_ids = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero) and _is_inexact(primals[i])]
    # The status has no derivatives, nor do integers.
    count = len(results) - len(jax.tree.leaves(outcome.status))
    result_ids = [i for i in range(count) if _is_inexact(results[i])]

    def apply(*args: Any) -> Sequence[Any]:
        def function(*changed: Any) -> Sequence[Any]:
            values = dict(enumerate(args[:first])) | dict(zip(input_ids, changed, strict=True))
            out = jax.tree.leaves(forward(treedef.unflatten(values.values())))
            return [out[i] for i in result_ids]

        return jax.jvp(function, tuple(args[i] for i in input_ids), tuple(args[end:]))[1]

    def transpose(*args: Any) -> Sequence[Any]:
        cotangents = dict(zip(result_ids, args[end:], strict=True))
        by_result = results_treedef.unflatten([cotangents.get(i) for i in range(len(results))])
        inputs, outcome = treedef.unflatten(args[:first]), results_treedef.unflatten(args[first:end])
        _, by_input = backward(inputs, outcome, by_result)
        return [jax.tree.leaves(by_input)[i] for i in input_ids]

    out = linear_map(
        apply,
        transpose,
        [*primals, *results],
        [tangents[i] for i in input_ids],
        operands_like=input_ids,
        results_like=[first + i for i in result_ids],
    )
    by_id = dict(zip(result_ids, out, strict=True))
    return results_treedef.unflatten([by_id.get(i, _no_tangent(x)) for i, x in enumerate(results)])


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _no_tangent(x: Array) -> Any:
    return jnp.zeros_like(x) if _is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0)


def pull_back(
    inputs: Inputs,
    outcome: Outcome,
    cotangents: Outcome,
    saves: tuple[Save, ...],
    config: Config,
    *,
    accumulate: Accumulate | None = None,
) -> tuple[ExactParticles, Inputs]:
    """Undo all steps, and pull the cotangents of the outcome back.

    Returns:
      The particles at the start, as they were to the bit (those of the inputs are not looked at), and the cotangents of
      the inputs; in the place of arguments that are not floating-point numbers, these.
    """
    good, all_steps = _steps_taken(inputs, outcome, config)
    floating, others = eqx.partition(inputs.args, eqx.is_inexact_array)

    def pull(function: Callable[..., Any], good: Array | bool, at: Any, cotangents: Any, sums: Any) -> Any:
        return _pull_back(lambda *at: function(*at[:-1], eqx.combine(at[-1], others)), good, at, cotangents, sums)

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        kicked, ct, ct_args = carry  # the particles between the drifts of the step, after its kick
        step, last_before, good, a0, a, places = xs
        ct_a0, ct_a = jnp.zeros_like(a0), jnp.zeros_like(a)
        for save, saved, (wanted, place) in zip(saves, cotangents.saved, places, strict=True):

            def add(kicked: ExactParticles, step: Step, cotangent: Any, sums: Any, save: Save = save) -> Any:
                return pull(save.function, good, (a, at_end(kicked, step, config), floating), cotangent, sums)

            cotangent = jax.tree.map(lambda x, place=place: x[place], saved)
            now = kicked, step, cotangent, (ct_a, ct, ct_args)
            ct_a, ct, ct_args = jax.lax.cond(wanted, add, lambda *args: args[-1], *now)
        direct = None  # what the sum depends on the particles before the step, other than through the step
        if accumulate is not None:
            at = Epoch(a0, undone(step, good, kicked, config)), Epoch(a, at_end(kicked, step, config)), floating
            sums = Epoch(ct_a0, jax.tree.map(jnp.zeros_like, ct)), Epoch(ct_a, ct), ct_args
            (ct_a0, direct), (ct_a, ct), ct_args = pull(accumulate, good, at, cotangents.accumulated, sums)
        kicked, ct, by_coefficient = _pull_back_step(step, last_before, good, kicked, ct, config)
        ct = ct if direct is None else jax.tree.map(jnp.add, ct, direct)
        by_coefficient = Coefficients(*(jnp.where(good, x, 0) for x in by_coefficient))
        return (kicked, ct, ct_args), (by_coefficient, ct_a0, ct_a)

    times, count = inputs.times, len(inputs.times) - 1
    final = drifted(outcome.particles.with_unit(all_steps.after[-1]), -all_steps.last[-1], config)
    kicked = ExactParticles(final.disp, outcome.particles.momenta)
    ct = Particles(*jax.tree.leaves(cotangents.particles))
    start = kicked, ct, jax.tree.map(jnp.zeros_like, floating)
    last_before = jnp.pad(all_steps.last[:-1], (1, 0))
    xs = all_steps, last_before, good, times[:-1], times[1:], tuple(places_after(save, count) for save in saves)
    (particles, ct, ct_args), (by_coefficient, by_start, by_end) = jax.lax.scan(body, start, xs, reverse=True)
    by_time = jnp.pad(by_start, (0, 1)) + jnp.pad(by_end, (1, 0))
    sums = jnp.zeros_like(times[0]), ct, ct_args
    for save, saved in zip(saves, cotangents.saved, strict=True):
        if 0 in save.steps:
            at = (times[0], particles.with_unit(all_steps.before[0]), floating)
            sums = pull(save.function, True, at, jax.tree.map(lambda x: x[0], saved), sums)
    ct = ExactParticles(*jax.tree.leaves(sums[1]))
    return particles, Inputs(ct, by_coefficient, by_time.at[0].add(sums[0]), eqx.combine(sums[2], others))


def _steps_taken(inputs: Inputs, outcome: Outcome, config: Config) -> tuple[Array, Step]:
    """Which steps were good, and all of them; those that were not taken change nothing, forwards and backwards."""
    taken, forward = outcome.status.step, exact_steps(inputs.coefficients, config)
    good = jnp.arange(len(inputs.times) - 1) < taken
    unit = unit_after(taken, forward)
    return good, Step(*(jnp.where(good, x, 0) for x in forward[:3]), *(jnp.where(good, x, unit) for x in forward[3:]))


def _pull_back(
    function: Callable[..., Any], good: Array | bool, at: tuple[Any, ...], cotangents: Any, sums: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Sums of cotangents of what a function of the particles depends on, with those through this function added.

    A step that is not good has neither saved nor contributed anything.
    """

    def floating(*at: Any) -> list[Array]:
        return [x for x in jax.tree.leaves(function(*at)) if _is_inexact(x)]

    _, pull = jax.vjp(floating, *at)
    return jax.tree.map(lambda old, x: jnp.where(good, old + x, old), sums, pull(jax.tree.leaves(cotangents)))


def _pull_back_step(
    step: Step, last_before: Array, good: Array, kicked: ExactParticles, ct: Particles, config: Config
) -> tuple[ExactParticles, Particles, Coefficients]:
    """Undo a step and the drift at the end of the one before, and pull cotangents back through the step.

    Args:
      step: the step.
      last_before: the drift at the end of the step before.
      good: whether the step was taken.
      kicked: the particles after the kick of the step, before the drift at its end.
      ct: cotangents of the particles at the end of the step.
      config: the simulation.

    Returns:
      The particles after the kick of the step before, and the cotangents of the particles at the start of the step and
      of its coefficients.
    """
    scale, q = step.after / step.before, resolution(config, kicked.disp.dtype)
    weight, took = step.kick * step.after, good.astype(step.kick.dtype)
    undo = UndoKick(step.kick, step.after, step.before, step.last, weight, took)
    drifts = UndoDrift(weight, scale, step.before, -step.first / q, -last_before / q, took)
    particles, ct, sums = pull_back_force(kicked, ct, undo, drifts, config)
    by_coefficient = Coefficients(
        drift_before=sums[3], kick=sums[0], log_scale=math.log(2) * scale * sums[1], drift_after=sums[2]
    )
    return particles, ct, by_coefficient
