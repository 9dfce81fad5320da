"""Derivatives of a simulation at the memory of one step, by running it backwards to the bit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from pmwd_dist._jax.batching import barrier
from pmwd_dist._jax.linear_map import linear_map
from pmwd_dist.config import Config
from pmwd_dist.ops.rounding import round_straight_through
from pmwd_dist.pm.evolution import Inputs, Outcome, Save, evolve, places_after, prepare, steps
from pmwd_dist.pm.gravity import acceleration
from pmwd_dist.pm.particles import Particles, quantize
from pmwd_dist.pm.solvers import Coefficients, SolverState, SplitSolver, Step, drift
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
        saves = tuple(Save(plan, sub.fn) for plan, sub in zip(plans, subs, strict=True))
        particles = quantize(init_state.y, term.config)
        inputs = prepare(solver, particles, args, times, args)
        out = evolve_reversibly(inputs, saves, term.config)
        scales = jnp.concatenate([jnp.zeros(1, out.particles.vel.dtype), jnp.cumsum(inputs.coefficients.log_scale)])
        solver_state = SolverState(scales[out.status.step], out.status)
        return _final_state(init_state, solver_state, out, times, treedef, plans), {}


def _final_state(
    state: Any, solver_state: SolverState, out: Outcome, times: Array, treedef: Any, plans: Sequence[Sequence[int]]
) -> Any:
    """The state of diffrax's loop after an evolution."""
    failed = out.status.code != Code.SUCCESSFUL
    results: Any = diffrax.RESULTS

    def saved(save_state: Any, values: Any, plan: Sequence[int]) -> Any:
        reached = np.asarray(plan) <= out.status.step
        at = jnp.where(reached, times[np.asarray(plan)], jnp.inf).astype(save_state.ts.dtype)
        return dataclasses.replace(save_state, ts=at, ys=values, save_index=len(plan))

    before = treedef.flatten_up_to(state.save_state)
    all_saved = [saved(*each) for each in zip(before, out.saved, plans, strict=True)]
    return dataclasses.replace(
        state,
        y=out.particles,
        tprev=times[out.status.step],
        tnext=times[-1],
        solver_state=solver_state,
        result=results.where(failed, results.nonlinear_divergence, results.successful),
        num_steps=out.status.step + failed,
        num_accepted_steps=out.status.step,
        save_state=treedef.unflatten(all_saved),
    )


def evolve_reversibly(inputs: Inputs, saves: tuple[Save, ...], config: Config) -> Outcome:
    """`evolve`, whose reverse derivative re-creates every earlier state from the last one.

    All modes of differentiation work. Reverse over reverse holds all states of the backward pass.
    """
    leaves, treedef = jax.tree.flatten(inputs)

    @jax.custom_jvp
    def run(*leaves: Array) -> Outcome:
        return evolve(jax.tree.unflatten(treedef, leaves), saves, config)

    @partial(run.defjvp, symbolic_zeros=True)
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Outcome, Outcome]:
        out = run(*primals)
        return out, _tangent(treedef.unflatten(primals), out, tangents, saves, config)

    return run(*leaves)


def _tangent(
    inputs: Inputs, outcome: Outcome, tangents: Sequence[Any], saves: tuple[Save, ...], config: Config
) -> Outcome:
    """The tangent of the outcome: a linear map, whose transpose is `pull_back`."""
    primals, treedef = jax.tree.flatten(inputs)
    results, results_treedef = jax.tree.flatten(outcome)
    first, end = len(primals), len(primals) + len(results)  # among the arguments of the map and of its transpose
    input_ids = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
    # The status has no derivatives, nor do integers.
    count = len(jax.tree.leaves((outcome.particles, outcome.saved)))
    result_ids = [i for i in range(count) if jnp.issubdtype(results[i].dtype, jnp.inexact)]

    def apply(*args: Any) -> Sequence[Any]:
        def function(*changed: Any) -> Sequence[Any]:
            values = dict(enumerate(args[:first])) | dict(zip(input_ids, changed, strict=True))
            out = jax.tree.leaves(evolve(treedef.unflatten(values.values()), saves, config))
            return [out[i] for i in result_ids]

        return jax.jvp(function, tuple(args[i] for i in input_ids), tuple(args[end:]))[1]

    def transpose(*args: Any) -> Sequence[Any]:
        cotangents = dict(zip(result_ids, args[end:], strict=True))
        by_result = results_treedef.unflatten([cotangents.get(i) for i in range(len(results))])
        inputs, outcome = treedef.unflatten(args[:first]), results_treedef.unflatten(args[first:end])
        _, by_input = pull_back(inputs, outcome, by_result, saves, config)
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


def _no_tangent(x: Array) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def pull_back(
    inputs: Inputs, outcome: Outcome, cotangents: Outcome, saves: tuple[Save, ...], config: Config
) -> tuple[Particles, Inputs]:
    """Undo all steps, and pull the cotangents of the outcome back.

    Returns:
      The particles at the start, as they were to the bit (those of the inputs are not looked at), and the cotangents of
      the inputs.
    """
    count = len(inputs.times) - 1
    taken = outcome.status.step
    forward = steps(inputs.coefficients, config)
    good = jnp.arange(count) < taken
    # Steps that were not taken change nothing, forwards and backwards.
    unit = jnp.concatenate([forward.before[:1], forward.after])[taken]
    step = Step(*(jnp.where(good, x, 0) for x in forward[:3]), *(jnp.where(good, x, unit) for x in forward[3:]))

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Coefficients, Array]]:
        particles, ct, ct_args = carry
        step, good, a, places = xs
        ct_a = jnp.zeros_like(a)
        for save, saved, (wanted, place) in zip(saves, cotangents.saved, places, strict=True):
            at, sums = (a, particles, inputs.args), (ct_a, ct, ct_args)
            cotangent = jax.tree.map(lambda x, place=place: x[place], saved)
            add = partial(_pull_back_save, save, good)
            ct_a, ct, ct_args = jax.lax.cond(wanted, add, lambda _at, _ct, sums: sums, at, cotangent, sums)
        particles, ct, by_coefficient = _step_back(step, good, particles, ct, config)
        by_coefficient = Coefficients(*(jnp.where(good, x, 0) for x in by_coefficient))
        return (particles, ct, ct_args), (by_coefficient, ct_a)

    start = outcome.particles, cotangents.particles, jax.tree.map(jnp.zeros_like, inputs.args)
    xs = step, good, inputs.times[1:], tuple(places_after(save, count) for save in saves)
    (particles, ct, ct_args), (by_coefficient, by_time) = jax.lax.scan(body, start, xs, reverse=True)
    sums = jnp.zeros_like(inputs.times[0]), ct, ct_args
    for save, saved in zip(saves, cotangents.saved, strict=True):
        if 0 in save.steps:
            at = (inputs.times[0], particles, inputs.args)
            sums = _pull_back_save(save, True, at, jax.tree.map(lambda x: x[0], saved), sums)
    return particles, Inputs(sums[1], by_coefficient, jnp.concatenate([sums[0][None], by_time]), sums[2])


def _pull_back_save(save: Save, good: Array | bool, at: tuple[Any, ...], cotangents: Any, sums: Any) -> Any:
    """Sums of cotangents of what a function of the particles depends on, with those through this function added.

    Nothing was saved of a step that is not good.
    """

    def floating(*at: Any) -> list[Array]:
        return [x for x in jax.tree.leaves(save.function(*at)) if jnp.issubdtype(x.dtype, jnp.inexact)]

    _, pull = jax.vjp(floating, *at)
    return jax.tree.map(lambda old, x: jnp.where(good, old + x, old), sums, pull(jax.tree.leaves(cotangents)))


def _step_back(
    step: Step, good: Array, particles: Particles, ct: Particles, config: Config
) -> tuple[Particles, Particles, Coefficients]:
    """Undo a step, and pull cotangents back through it: to the particles before it and to its coefficients.

    A step that is not good has not moved anything; the force where particles are may not even be finite.
    """
    disp = barrier(drift(particles.disp, particles.vel, -step.last, config))
    force, pull = jax.vjp(lambda disp: acceleration(disp, config)[0], jnp.where(good, disp, 0))
    momentum = round_straight_through(particles.vel * (1 / step.after)) - round_straight_through(step.kick * force)
    vel = momentum * step.before
    before = Particles(drift(disp, vel, -step.first, config), vel)

    scale = step.after / step.before
    ct_vel = ct.vel + step.last * ct.disp
    (through_force,) = pull(step.kick * step.after * ct_vel)
    ct_disp = ct.disp + through_force
    by_coefficient = Coefficients(
        drift_before=_dot(ct_disp, vel),
        kick=_dot(ct_vel, force),
        log_scale=math.log(2) * scale * _dot(ct_vel, vel),
        drift_after=_dot(ct.disp, particles.vel),
    )
    return before, Particles(ct_disp, scale * ct_vel + step.first * ct_disp), by_coefficient


def _dot(x: Array, y: Array) -> Array:
    return jnp.sum(x * y)
