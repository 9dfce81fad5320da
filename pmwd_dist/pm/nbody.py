"""Evolve particles: the whole simulation as one differentiable function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.derivatives import hoist
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.diffrax_adjoint import ReversibleAdjoint, evolve_reversibly
from pmwd_dist.pm.gravity import check_force_mesh
from pmwd_dist.pm.inputs import check_config, checked_particles
from pmwd_dist.pm.paint import halo_limit
from pmwd_dist.pm.particles import Particles, exact
from pmwd_dist.pm.solvers import SOLVERS, BullFrog, Coefficients, ParticleMesh, SplitSolver
from pmwd_dist.pm.status import Code, Status, failure
from pmwd_dist.pm.stepping.forward import Epoch, Inputs, Save, call_hoisted
from pmwd_dist.pm.stepping.potential_cache import Stored, stored_potentials
from pmwd_dist.pm.stepping.step import all_steps, coefficients_of, unit_after
from pmwd_dist.pm.time_steps import as_saveat, is_sub, planned_steps, save_times, step_times

_CHECKPOINTS = 10


@runtime_checkable
class Checked(Protocol):
    """A function to accumulate that looks at the cosmology before the simulation starts."""

    def check(self, cosmo: GrowthTable) -> None:
        """Raise ValueError if this is no cosmology for it; values that are traced are not looked at."""
        ...


class Saving(NamedTuple):
    """Functions of the particles to save, and the steps after which they are saved.

    Args:
      functions: functions of the particles, one for each `diffrax.SubSaveAt`.
      plan: numbers of steps after which each of them is saved.
      times: all scale factors at which steps must end.
    """

    functions: Sequence[Callable[..., Any]]
    plan: tuple[tuple[int, ...], ...]
    times: tuple[float, ...]


class Solution(eqx.Module):
    """The outcome of `nbody`.

    Args:
      particles: particles at the end; after a failure, at the last good step. Momenta are rounded to the digits of
        their type: a second run from there is not, to the bit, the rest of one run.
      snapshots: results of `saveat`, with a leading axis of saves; None without it.
      times: scale factors of the snapshots, an array for each of `saveat.subs`; infinite where a run failed before.
      accumulated: sum of `accumulate` over the steps, up to a failure; None without it.
      status: the first failure, if any.
    """

    particles: Particles
    snapshots: Any
    times: Any
    accumulated: Any
    status: Status

    def raise_if_failed(self) -> Solution:
        """This solution, or SimulationError. On the host, outside jit."""
        self.status.raise_if_failed()
        return self


def nbody(
    particles: Particles,
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    solver: diffrax.AbstractSolver[Any] | str | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    saveat: diffrax.SaveAt | Sequence[float] | None = None,
    accumulate: Callable[[Epoch, Epoch, GrowthTable], Any] | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController[Any, Any] | None = None,
    max_steps: int = 4096,
) -> Solution:
    """Evolve particles from `config.a_start` to `config.a_stop`.

    Args:
      particles: particles at a_start, from `lpt`.
      cosmo: cosmology, or its `growth_table`.
      config: the simulation.
      solver: BullFrog() (default), FastPM(), LeapFrog(), their names, or any diffrax solver, such as diffrax.Tsit5().
      adjoint: how it is differentiated. Default for BullFrog, FastPM and LeapFrog with default or given steps:
        ReversibleAdjoint(), exact at the memory of one step, in all modes. Otherwise:
        diffrax.RecursiveCheckpointAdjoint() for gradients, diffrax.ForwardMode() for jvp of any order,
        diffrax.DirectAdjoint() for all modes.
      saveat: scale factors, or diffrax.SaveAt(ts=…) with them: particles there, exactly (steps end at them), or its fn
        of them.
      accumulate: what a step contributes to `Solution.accumulated`, arrays in any pytree: a function of (before, after,
        growth table) with before and after the `Epoch`, scale factor and particles, at both ends of the step. For the
        solvers and steps of the reversible adjoint, and differentiated by it.
      stepsize_controller: default: `config.steps` fixed steps, uniform in the growth factor. diffrax.StepTo takes those
        given; an adaptive one chooses its own, for solvers with an error estimate.
      max_steps: limit of an adaptive controller.

    Returns:
      Solution; failures are in its status, nothing is raised inside jit.

    Raises:
      ValueError: save times outside the time span, or that don't rise, particles of another shape, another argument
        of another type, or a mesh with wrong forces (`check_force_mesh`).
    """
    check_config(config)
    check_force_mesh(config)
    particles = checked_particles(particles, config)
    solver, saveat = _as_solver(solver), as_saveat(saveat)
    max_steps = whole_number(max_steps, "max_steps", least=1)
    table = growth_table_to(config.lpt_order, cosmo)
    subs, treedef = jax.tree.flatten(None if saveat is None else saveat.subs, is_leaf=is_sub)
    times = save_times(subs, config)
    plan = planned_steps(subs, times, stepsize_controller, config)
    if isinstance(solver, SplitSolver) and isinstance(adjoint, ReversibleAdjoint | None) and plan is not None:
        _check_cosmology(accumulate, table)
        saving = Saving([sub.fn for sub in subs], plan, times)
        table = jax.tree.map(lambda x: x.astype(particles.disp.dtype), table)
        step_ends = getattr(stepsize_controller, "ts", None)
        step_ends = step_times(table, config, save=times) if step_ends is None else step_ends
        step_ends = step_ends.astype(particles.disp.dtype)
        schedule = table, step_ends, coefficients_of(solver, table, step_ends)
        stored = "auto" if adjoint is None else adjoint.stored_potentials
        final, total, status, saved, saved_at = _evolve(particles, schedule, config, stored, saving, accumulate)
        snapshots, saved_times = (None, None) if saveat is None else map(treedef.unflatten, (saved, saved_at))
        return Solution(final, snapshots, saved_times, None if accumulate is None else total, status)
    _check_nothing_to_accumulate(accumulate)
    if stepsize_controller is None:
        stepsize_controller = diffrax.StepTo(step_times(table, config, save=times).astype(particles.disp.dtype))
    return _solve(particles, table, config, solver, saveat, _options(stepsize_controller, adjoint, max_steps))


def _check_nothing_to_accumulate(accumulate: Any) -> None:
    if accumulate is not None:
        constraint = "needs BullFrog, FastPM or LeapFrog, their fixed steps and the reversible adjoint"
        remedy = "leave out solver, adjoint, stepsize_controller and SaveAt(steps=True)"
        raise ArgumentError("accumulate", accumulate, constraint, remedy, show_value=False)


def _check_cosmology(accumulate: Any, table: GrowthTable) -> None:
    if isinstance(accumulate, Checked):
        accumulate.check(table)


def _options(controller: Any, adjoint: diffrax.AbstractAdjoint | None, max_steps: int) -> dict[str, Any]:
    """Options of `diffrax.diffeqsolve` on which the adjoint depends."""
    checkpoints = None  # diffrax's own number
    if isinstance(controller, diffrax.StepTo):
        max_steps = len(controller.ts) - 1
        checkpoints = min(max_steps, _CHECKPOINTS)
    adjoint = diffrax.RecursiveCheckpointAdjoint(checkpoints) if adjoint is None else adjoint
    return {"stepsize_controller": controller, "max_steps": max_steps, "adjoint": adjoint}


@eqx.filter_jit
def _evolve(
    particles: Particles,
    schedule: tuple[GrowthTable, Array, Coefficients],
    config: Config,
    stored: Stored,
    saving: Saving,
    accumulate: Callable[..., Any] | None,
) -> tuple[Particles, Any, Status, list[Any], list[Array]]:
    """Take all steps; also sums, and what is saved, and when."""
    table, times, coefficients = schedule
    # What a function has captured may be differentiated, too.
    saves, captured = [], []
    for function, plan in zip(saving.functions, saving.plan, strict=True):
        pure, values = hoist(function, times[0], particles, table)
        saves.append(Save(tuple(sorted(set(plan))), partial(call_hoisted, pure, len(captured))))
        captured.append(values)
    if accumulate is not None:
        epoch = Epoch(times[0], particles)
        pure, values = hoist(accumulate, epoch, epoch, table)
        accumulate = partial(call_hoisted, pure, len(captured))
        captured.append(values)
    inputs = Inputs(exact(particles, config), coefficients, times, (table, captured))
    number = stored_potentials(stored, len(times) - 1, config, particles.disp.dtype)
    out = evolve_reversibly(inputs, tuple(saves), config, accumulate=accumulate, stored=number)
    final = out.particles.with_unit(unit_after(out.status.step, all_steps(coefficients, config)))
    saved, saved_at = [], []
    for save, plan, values in zip(saves, saving.plan, out.saved, strict=True):
        order = np.asarray([save.steps.index(step) for step in plan])
        each_once = len(plan) == len(save.steps)
        saved.append(values if each_once else jax.tree.map(lambda x, order=order: x[order], values))
        reached = np.asarray(plan) <= out.status.step
        saved_at.append(jnp.where(reached, times[np.asarray(plan)], jnp.inf))
    return final, out.accumulated, out.status, saved, saved_at


def _solve(
    particles: Particles,
    table: GrowthTable,
    config: Config,
    solver: diffrax.AbstractSolver[Any],
    saveat: diffrax.SaveAt | None,
    options: dict[str, Any],
) -> Solution:
    """Evolve by `diffrax.diffeqsolve`, with options for it."""
    dtype = particles.disp.dtype
    subs = {"final": diffrax.SubSaveAt(t1=True)}
    if saveat is not None:
        subs["saved"] = saveat.subs
    solution = diffrax.diffeqsolve(
        ParticleMesh(config),
        solver,
        t0=np.asarray(config.a_start, dtype),
        t1=np.asarray(config.a_stop, dtype),
        dt0=None,
        y0=particles,
        args=jax.tree.map(lambda x: x.astype(dtype), table),
        saveat=diffrax.SaveAt(subs=subs, solver_state=isinstance(solver, SplitSolver)),
        **options,
        throw=False,  # a raise on a sharded program replicates its state, and hangs when it fires
    )
    states: Any = solution.ys
    final = jax.tree.map(lambda x: x[0], states["final"])
    status = _final_status(solution, final, config)
    if saveat is None:
        return Solution(final, None, None, None, status)
    saved_at: Any = solution.ts
    return Solution(final, states["saved"], saved_at["saved"], None, status)


def _as_solver(solver: Any) -> diffrax.AbstractSolver[Any]:
    """A solver, or the one of this name."""
    if isinstance(solver, str) and solver.lower() in SOLVERS:
        return SOLVERS[solver.lower()]()
    if solver is None:
        return BullFrog()
    if isinstance(solver, diffrax.AbstractSolver):
        term: Any = solver.term_structure
        if not (isinstance(term, type) and issubclass(ParticleMesh, term)):
            constraint = "is for several terms, as of a split or stochastic equation, and gravity is one"
            raise ArgumentError("solver", solver, constraint, "use BullFrog(), or diffrax.Tsit5()")
        if isinstance(solver, diffrax.AbstractImplicitSolver):
            raise ArgumentError("solver", solver, "is implicit, and gravity is not stiff", "use BullFrog()")
        return solver
    raise ArgumentError("solver", solver, "must be a solver", f"use BullFrog(), or one of {', '.join(SOLVERS)}")


def _final_status(solution: diffrax.Solution, particles: Particles, config: Config) -> Status:
    if solution.solver_state is not None:
        return solution.solver_state
    max_displacement = max_abs(particles.disp) / min(config.cell_size)
    code = jnp.where(solution.result == diffrax.RESULTS.successful, Code.SUCCESSFUL, Code.SOLVER)
    code = jnp.where(solution.result == diffrax.RESULTS.max_steps_reached, Code.STEP_LIMIT, code)
    finite = jnp.isfinite(max_abs(particles.vel))
    wrong = failure(max_displacement, halo_limit(config), jnp.inf, finite)
    code = jnp.where(wrong == Code.SUCCESSFUL, code, wrong).astype(jnp.int32)
    steps = jnp.asarray(solution.stats["num_accepted_steps"], jnp.int32)
    return Status(code, steps, max_displacement, jnp.full_like(max_displacement, halo_limit(config)))


__all__ = ["Solution", "nbody", "step_times"]
