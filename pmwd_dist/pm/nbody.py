"""N-body simulation as one differentiable function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import filter_jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.diffrax_adjoint import ReversibleAdjoint
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.gravity import check_force_mesh
from pmwd_dist.pm.inputs import check_config, checked_particles
from pmwd_dist.pm.paint import halo_limit
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.saves import as_saveat, is_sub, planned_steps, save_times, with_origins
from pmwd_dist.pm.solvers.diffrax_solvers import SOLVERS, BullFrog, ParticleMesh, SplitSolver
from pmwd_dist.pm.status import Code, Status, failure
from pmwd_dist.pm.stepping.forward import Accumulator, Epoch
from pmwd_dist.pm.stepping.reversible import evolve_and_save
from pmwd_dist.pm.stepping.step import coefficients_of
from pmwd_dist.pm.time_steps import step_times

_CHECKPOINTS = 10


class Solution(eqx.Module):
    """The outcome of `nbody`.

    Args:
      particles: particles at the end; after a failure, at the last good step. Momenta are rounded to floating-point
        numbers: two runs in sequence do not have the bits of one run.
      snapshots: results of `saveat`, with a leading axis of saves; None without it.
      times: scale factors of the snapshots, an array for each of `saveat.subs`; infinite after a failure.
      accumulated: sum of `accumulate` over the steps, up to a failure; None without it.
      status: the first failure, if any.
    """

    particles: Particles
    snapshots: Any
    times: Any
    accumulated: Any
    status: Status

    def __repr__(self) -> str:
        if not self.status.readable:
            return super().__repr__()
        saved = [f"{a:.4g}" for times in jax.device_get(jax.tree.leaves(self.times)) for a in np.ravel(times)]
        snapshots = f"; snapshots at a = {', '.join(saved)}" if saved else ""
        return f"Solution of {self.particles.disp.size // 3} particles: {self.status}{snapshots}"

    def raise_if_failed(self) -> Solution:
        """This solution, or SimulationError. On the host, outside jit."""
        self.status.raise_if_failed()
        return self


@on_auto_axes
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
    progress_meter: diffrax.AbstractProgressMeter[Any] | None = None,
    potential_factor: PotentialFactor | None = None,
) -> Solution:
    """Evolve particles from `config.a_start` to `config.a_stop`.

    Args:
      particles: particles at a_start, from `lpt`.
      cosmo: cosmology, or its `growth_table`.
      config: the simulation.
      solver: BullFrog() (default), FastPM(), LeapFrog(), their names, or any diffrax solver, such as diffrax.Tsit5().
      adjoint: method of differentiation. Default for drift-kick-drift solvers with default or given steps:
        ReversibleAdjoint(), exact at the memory of one step, in all modes. Otherwise:
        diffrax.RecursiveCheckpointAdjoint() for gradients, diffrax.ForwardMode() for jvp of any order,
        diffrax.DirectAdjoint() for all modes.
      saveat: scale factors of the snapshots, at which steps end, or diffrax.SaveAt(ts=…); its fn is applied to the
        particles.
      accumulate: contribution of a step to `Solution.accumulated`, a pytree of arrays: a function of (before, after,
        growth table), with the `Epoch` (scale factor and particles) at both ends of the step. For the solvers and steps
        of the reversible adjoint, and differentiated by it.
      stepsize_controller: default: `config.steps` fixed steps, uniform in the growth factor, and more where a step
        would be a quarter longer because of the save times. diffrax.StepTo has given steps; adaptive controllers need a
        solver with an error estimate.
      max_steps: limit of an adaptive controller.
      progress_meter: diffrax.TqdmProgressMeter() or diffrax.TextProgressMeter(), which show the progress of the forward
        pass, inside jit too; default: none.
      potential_factor: positive factor of the potential: a function, or a callable pytree, of (wavenumbers [h/Mpc],
        scale factor of a kick). It is differentiated by the arrays that it holds. Default: 1.

    Returns:
      Solution; failures are in its status, nothing is raised inside jit.

    Raises:
      ValueError: an argument of the wrong type. Particles of another shape, box or scale factor or in redshift space,
        or a light cone of another simulation. Save times that don't rise or lie outside the time span, or a mesh with
        wrong forces (`check_force_mesh`).

    Warns:
      UserWarning: the simulation failed, outside of transformations of JAX.

    Examples:
      >>> solution = pmd.nbody(particles, cosmo, config).raise_if_failed()
      >>> density = pmd.density(solution.particles, config)  # at a_stop
    """
    check_config(config)
    check_force_mesh(config)
    particles = checked_particles(particles, config, config.a_start, "config.a_start", real_space=True)
    _check_factor(potential_factor, config)
    solver, saveat = as_solver(solver), as_saveat(saveat)
    for name, value, base, example in (
        ("adjoint", adjoint, diffrax.AbstractAdjoint, "ReversibleAdjoint()"),
        ("stepsize_controller", stepsize_controller, diffrax.AbstractStepSizeController, "diffrax.StepTo(ts)"),
    ):
        if not isinstance(value, base | None):
            raise ArgumentError(name, value, f"must be a diffrax.{base.__name__}", f"use {example}, or leave it out")
    max_steps = whole_number(max_steps, "max_steps", least=1)
    meter = _checked_meter(progress_meter, config)
    table = growth_table_to(config.lpt_order, cosmo)
    subs, treedef = jax.tree.flatten(None if saveat is None else saveat.subs, is_leaf=is_sub)
    times = save_times(subs, config)
    plan = planned_steps(subs, times, stepsize_controller, config)
    if isinstance(solver, SplitSolver) and isinstance(adjoint, ReversibleAdjoint | None) and plan is not None:
        if isinstance(accumulate, Accumulator):
            accumulate.check(table, config)
        table = jax.tree.map(lambda x: x.astype(particles.disp.dtype), table)
        step_ends = getattr(stepsize_controller, "ts", None)
        step_ends = step_times(table, config, save=times) if step_ends is None else step_ends
        step_ends = step_ends.astype(particles.disp.dtype)
        schedule = table, step_ends, coefficients_of(solver.coefficients, table, step_ends, config, potential_factor)
        stored = "auto" if adjoint is None else adjoint.stored_potentials
        options = config, stored, [sub.fn for sub in subs], plan, accumulate
        final, total, status, saved, saved_at = _evolve(particles, schedule, *options, meter=meter)
        both = with_origins(saved, subs, config), saved_at
        snapshots, saved_times = (None, None) if saveat is None else map(treedef.unflatten, both)
        final = final.made_for(config, config.a_stop)
        return _warned(Solution(final, snapshots, saved_times, None if accumulate is None else total, status), config)
    if accumulate is not None:
        raise ArgumentError("accumulate", accumulate, *_NO_SUMS, show_value=False)
    if stepsize_controller is None:
        stepsize_controller = diffrax.StepTo(step_times(table, config, save=times).astype(particles.disp.dtype))
    options = _options(stepsize_controller, adjoint, max_steps)
    options["progress_meter"] = diffrax.NoProgressMeter() if meter is None else meter
    term = ParticleMesh(config, potential_factor=potential_factor)
    return _warned(_solve(particles, table, term, solver, saveat, options), config)


def _warned(solution: Solution, config: Config) -> Solution:
    """The solution, after a warning of its failure outside transformations of JAX."""
    if solution.status.readable and (problem := solution.status.message()):
        text = f"the simulation failed before a = {config.a_stop:g}"
        warnings.warn(f"{text}: {problem}; call raise_if_failed()", stacklevel=4)
    return solution


_evolve = filter_jit(evolve_and_save)
_NO_SUMS = (
    "needs a drift-kick-drift solver, its fixed steps and the reversible adjoint",
    "leave out solver, adjoint, stepsize_controller and SaveAt(steps=True)",
)


def _check_factor(potential_factor: Any, config: Config) -> None:
    """Raise ArgumentError unless the factor of the potential is a function, or None."""
    if not callable(potential_factor) and potential_factor is not None:
        raise ArgumentError("potential_factor", potential_factor, "must be a function of (k, a)")
    if isinstance(potential_factor, ForceCorrection):
        potential_factor.check(config)


def _checked_meter(meter: Any, config: Config) -> diffrax.AbstractProgressMeter[Any] | None:
    if meter is None or isinstance(meter, diffrax.NoProgressMeter):
        return None
    if not isinstance(meter, diffrax.AbstractProgressMeter):
        raise ArgumentError("progress_meter", meter, "must be a progress meter", "use diffrax.TqdmProgressMeter()")
    if config.decomposition.manual:
        raise ArgumentError("progress_meter", meter, "would show each device inside shard_map", "leave it out there")
    return meter


def _options(controller: Any, adjoint: diffrax.AbstractAdjoint | None, max_steps: int) -> dict[str, Any]:
    checkpoints = None  # diffrax's own number
    if isinstance(controller, diffrax.StepTo):
        max_steps = len(controller.ts) - 1
        checkpoints = min(max_steps, _CHECKPOINTS)
    adjoint = diffrax.RecursiveCheckpointAdjoint(checkpoints) if adjoint is None else adjoint
    return {"stepsize_controller": controller, "max_steps": max_steps, "adjoint": adjoint}


def _solve(
    particles: Particles,
    table: GrowthTable,
    term: ParticleMesh,
    solver: diffrax.AbstractSolver[Any],
    saveat: diffrax.SaveAt | None,
    options: dict[str, Any],
) -> Solution:
    """Evolve by `diffrax.diffeqsolve`, with options for it."""
    dtype, config = particles.disp.dtype, term.config
    subs = {"final": diffrax.SubSaveAt(t1=True)}
    if saveat is not None:
        subs["saved"] = saveat.subs
    solution = diffrax.diffeqsolve(
        term,
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
    status, final = _final_status(solution, final, config), final.made_for(config, config.a_stop)
    if saveat is None:
        return Solution(final, None, None, None, status)
    saved_at: Any = solution.ts
    each, treedef = jax.tree.flatten(saveat.subs, is_leaf=is_sub)
    snapshots = treedef.unflatten(with_origins(treedef.flatten_up_to(states["saved"]), each, config))
    return Solution(final, snapshots, saved_at["saved"], None, status)


def as_solver(solver: Any) -> diffrax.AbstractSolver[Any]:
    """A solver, from itself, its name or None."""
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
