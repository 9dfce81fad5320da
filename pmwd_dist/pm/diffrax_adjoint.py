"""The reversible adjoint as a class of diffrax."""

from __future__ import annotations

import dataclasses
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from pmwd_dist.pm.saves import is_sub
from pmwd_dist.pm.solvers.diffrax_solvers import SplitSolver
from pmwd_dist.pm.status import Code
from pmwd_dist.pm.stepping.potential_cache import Stored, checked
from pmwd_dist.pm.stepping.reversible import evolve_and_save
from pmwd_dist.pm.stepping.step import coefficients_of


class ReversibleAdjoint(diffrax.AbstractAdjoint):
    """Differentiates a drift-kick-drift solver by exact reversal of its steps, at the memory of one step.

    The default of `nbody` for these solvers, in all modes of differentiation. Earlier states are computed from the last
    one, bit by bit (compare Levesque & Verlet 1993). With `diffrax.diffeqsolve` it takes steps forwards in time by
    `diffrax.StepTo`, and saves at the start and at the end.

    Args:
      stored_potentials: number of last steps whose potentials a gradient stores, instead of a second paint and Poisson
        solve; they take 4 bytes a cell. The default "auto" stores up to ten, within 24 bytes a particle on one device
        and 12 on several, or within 256 MiB of a device (32 MiB of a CPU device), whichever is more. GPUs have 36 bytes
        with a mesh no finer than the lattice, and on several more than 12, depending on the halos.

    Raises:
      ValueError: not a number of potentials.
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
        """Loop of `diffrax.diffeqsolve`.

        Raises:
          TypeError: another solver or step size controller.
          ValueError: an event, a saveat with times, steps or dense output, or a solver state.
        """
        subs, treedef = jax.tree.flatten(saveat.subs, is_leaf=is_sub)
        _check(solver, stepsize_controller, event, saveat.dense, subs, passed_solver_state)
        # Integration backwards in time is not supported: times that are not finite report a failure.
        times = jnp.where(terms.direction == 1, stepsize_controller.ts, jnp.nan)
        plan = [(0,) * sub.t0 + (len(times) - 1,) * sub.t1 for sub in subs]
        term = terms.term
        schedule = args, times, coefficients_of(solver.coefficients, args, times, term.config, term.potential_factor)
        functions = [sub.fn for sub in subs]
        particles, _, status, *saved = evolve_and_save(
            init_state.y, schedule, term.config, self.stored_potentials, functions, plan
        )
        saves = [
            dataclasses.replace(before, ts=at.astype(before.ts.dtype), ys=values, save_index=len(at))
            for before, values, at in zip(treedef.flatten_up_to(init_state.save_state), *saved, strict=True)
        ]
        failed = status.code != Code.SUCCESSFUL
        results: Any = diffrax.RESULTS
        return dataclasses.replace(
            init_state,
            y=particles,
            tprev=times[status.step],
            tnext=times[-1],
            solver_state=status,
            result=results.where(failed, results.nonlinear_divergence, results.successful),
            num_steps=status.step + failed,
            num_accepted_steps=status.step,
            save_state=treedef.unflatten(saves),
        ), {}


def _check(solver: Any, controller: Any, event: Any, dense: bool, subs: list[Any], passed_solver_state: bool) -> None:
    """Raise the errors of `ReversibleAdjoint.loop`."""
    if not isinstance(solver, SplitSolver) or not isinstance(controller, diffrax.StepTo):
        raise TypeError(
            "ReversibleAdjoint needs a drift-kick-drift solver, as BullFrog(), and diffrax.StepTo for the steps"
        )
    if event is not None or dense or any(sub.steps or sub.ts is not None for sub in subs):
        raise ValueError("ReversibleAdjoint in diffeqsolve saves at t0 and t1 only; use nbody, without a controller")
    if passed_solver_state:
        raise ValueError("ReversibleAdjoint starts from the first step; leave out solver_state")
