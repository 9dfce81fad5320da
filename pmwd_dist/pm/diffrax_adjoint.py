"""Derivatives of a simulation at the memory of one step, by running it backwards to the bit."""

from __future__ import annotations

import dataclasses
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

from pmwd_dist._jax.derivatives import hoist, linear_map
from pmwd_dist.config import Config
from pmwd_dist.pm.particles import ExactParticles, Particles, exact
from pmwd_dist.pm.solvers import SplitSolver
from pmwd_dist.pm.status import Code, Status
from pmwd_dist.pm.stepping.backward import evolve_vjp
from pmwd_dist.pm.stepping.forward import Accumulate, Inputs, Outcome, Save, call_hoisted, evolve
from pmwd_dist.pm.stepping.potential_cache import Stored, checked, stored_potentials
from pmwd_dist.pm.stepping.step import all_steps, coefficients_of, unit_after


class ReversibleAdjoint(diffrax.AbstractAdjoint):
    """Differentiates a drift-kick-drift solver by undoing its steps to the bit: exact, at the memory of one step.

    The default of `nbody` for BullFrog, FastPM and LeapFrog, in all modes of differentiation. Earlier states are
    re-created from the last one, not stored (compare Levesque & Verlet 1993). With `diffrax.diffeqsolve` it takes steps
    forwards in time by `diffrax.StepTo`, and saves at the start and at the end.

    Args:
      stored_potentials: the number of steps, the last ones, whose gravitational potential a gradient keeps instead of
        painting and transforming again, 4 bytes a cell each. Default: ten if they are small (256 MiB on a device, 32 of
        a CPU's), or as many as take 24 bytes a particle, 12 on several devices. With no finer mesh than the lattice 36
        on one GPU, and on several the room up to 120 bytes a particle, which depends on the halos.

    Raises:
      ValueError: a number of potentials that is none.
    """

    stored_potentials: Stored = eqx.field(static=True, default="auto", converter=checked)

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
        captured = [values for _, values in hoisted]
        coefficients = coefficients_of(solver, args, times)
        inputs = Inputs(exact(particles, term.config), coefficients, times, (args, captured))
        stored = stored_potentials(self.stored_potentials, count, term.config, particles.disp.dtype)
        out = evolve_reversibly(inputs, saves, term.config, stored=stored)
        unit = unit_after(out.status.step, all_steps(coefficients, term.config))
        ends = out.status, out.particles.with_unit(unit), out.saved
        return _final_state(init_state, *ends, times, treedef, plans), {}


def _final_state(
    state: Any,
    status: Status,
    particles: Particles,
    saved_values: tuple[Any, ...],
    times: Array,
    treedef: Any,
    plans: Sequence[Sequence[int]],
) -> Any:
    """The state of diffrax's loop after an evolution."""
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
        solver_state=status,
        result=results.where(failed, results.nonlinear_divergence, results.successful),
        num_steps=status.step + failed,
        num_accepted_steps=status.step,
        save_state=treedef.unflatten(all_saved),
    )


def evolve_reversibly(
    inputs: Inputs, saves: tuple[Save, ...], config: Config, *, accumulate: Accumulate | None = None, stored: int = 0
) -> Outcome:
    """`evolve`, whose reverse derivative re-creates every earlier state from the last one.

    All modes of differentiation work. Reverse over reverse holds all states of the backward pass. Potentials are stored
    only where a derivative is taken.
    """
    leaves, treedef = jax.tree.flatten(inputs)
    forward = partial(evolve, saves=saves, config=config, accumulate=accumulate)
    backward = partial(evolve_vjp, saves=saves, config=config, accumulate=accumulate)

    def storing(number: int) -> Callable[..., Outcome]:
        @jax.custom_jvp
        def run(*leaves: Array) -> Outcome:
            return forward(jax.tree.unflatten(treedef, leaves), stored=number)

        @partial(run.defjvp, symbolic_zeros=True)
        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Outcome, Outcome]:
            out = (run if number == stored else storing(stored))(*primals)
            tangent = _tangent(treedef.unflatten(primals), out, tangents, forward, backward)
            if number == stored:
                return out, tangent
            return out._replace(potentials=()), tangent._replace(potentials=())

        return run

    return storing(0)(*leaves)


def _tangent(
    inputs: Inputs,
    outcome: Outcome,
    tangents: Sequence[Any],
    forward: Callable[[Inputs], Outcome],
    backward: Callable[[Inputs, Outcome, Outcome], tuple[ExactParticles, Inputs]],
) -> Outcome:
    """The tangent of the outcome: a linear map, whose transpose is `evolve_vjp`."""
    primals, treedef = jax.tree.flatten(inputs)
    results, results_treedef = jax.tree.flatten(outcome)
    first, end = len(primals), len(primals) + len(results)  # among the arguments of the map and of its transpose
    input_ids = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero) and _is_inexact(primals[i])]
    # The status has no derivatives, nor do integers, such as potentials.
    count = len(jax.tree.leaves((outcome.particles, outcome.saved, outcome.accumulated)))
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
