"""Evolve particles: the whole simulation as one differentiable function, or step by step from the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.pm import solvers
from pmwd_dist.pm.paint import halo_limit
from pmwd_dist.pm.particles import Particles, largest, max_abs, quantize
from pmwd_dist.pm.solvers import BullFrog, ParticleMesh, SolverState, SplitSolver
from pmwd_dist.pm.status import Code, Status

_CHECKPOINTS = 10


class Solution(eqx.Module):
    """The outcome of `nbody`.

    Args:
      particles: at the end; after a failure, at the last good step.
      snapshots: what `saveat` asked for, with a leading axis of saves; None without it.
      times: scale factors of the snapshots.
      status: the first failure, if any.
    """

    particles: Particles
    snapshots: Any
    times: Array | None
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
    solver: diffrax.AbstractSolver[Any] | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    saveat: diffrax.SaveAt | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController[Any, Any] | None = None,
    max_steps: int = 4096,
) -> Solution:
    """Evolve particles from `config.a_start` to `config.a_stop`.

    Args:
      particles: at a_start, from `lpt`.
      cosmo: cosmology, or its `growth_table`.
      config: the simulation.
      solver: BullFrog (default), FastPM, LeapFrog or any diffrax solver, such as diffrax.Tsit5().
      adjoint: how it is differentiated; default: diffrax.RecursiveCheckpointAdjoint with a checkpoint a step, at
        most 10 (24 bytes a particle each), of which a gradient can be differentiated forwards again (jvp of grad);
        diffrax.ForwardMode() for jvp of any order; diffrax.DirectAdjoint() for all modes, for second derivatives of
        Runge-Kutta solvers as well, and for grad of grad.
      saveat: diffrax.SaveAt(ts=…) with scale factors: particles there, exactly (steps end at them), or its fn of them.
      stepsize_controller: default: `config.steps` fixed steps, uniform in the growth factor. An adaptive one chooses
        its own, for solvers with an error estimate.
      max_steps: limit of an adaptive controller.

    Returns:
      Solution; failures are in its status, nothing is raised inside jit.

    Raises:
      ValueError: save times outside the time span, or particles of another shape.
    """
    _check(particles, config)
    solver = BullFrog() if solver is None else solver
    saves = _save_times(saveat, config)
    table = growth_table(cosmo)
    dtype = particles.disp.dtype
    checkpoints = None  # diffrax's own number
    if stepsize_controller is None:
        times = step_times(table, config, save=saves).astype(dtype)
        stepsize_controller, max_steps = diffrax.StepTo(times), len(times) - 1
        checkpoints = min(max_steps, _CHECKPOINTS)
    subs = {"final": diffrax.SubSaveAt(t1=True)}
    if saveat is not None:
        subs["saved"] = saveat.subs
    solution = diffrax.diffeqsolve(
        ParticleMesh(config),
        solver,
        t0=np.asarray(config.a_start, dtype),
        t1=np.asarray(config.a_stop, dtype),
        dt0=None,
        y0=quantize(particles, config),
        args=jax.tree.map(lambda x: x.astype(dtype), table),
        saveat=diffrax.SaveAt(subs=subs, solver_state=isinstance(solver, SplitSolver)),
        stepsize_controller=stepsize_controller,
        adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints) if adjoint is None else adjoint,
        max_steps=max_steps,
        throw=False,  # a raise on a sharded program replicates its state, and hangs when it fires
    )
    return _outcome(solution, config, saved=saveat is not None)


def _outcome(solution: diffrax.Solution, config: Config, *, saved: bool) -> Solution:
    states: Any = solution.ys
    final = jax.tree.map(lambda x: x[0], states["final"])
    status = _final_status(solution, final, config)
    if not saved:
        return Solution(final, None, None, status)
    times: Any = solution.ts
    return Solution(final, states["saved"], times["saved"], status)


def _check(particles: Particles, config: Config) -> None:
    for name in ("disp", "vel"):
        shape = jnp.shape(getattr(particles, name))
        if shape != (*config.particle_shape, 3):
            raise ValueError(f"particles.{name}.shape={shape} must be {(*config.particle_shape, 3)}")


def _save_times(saveat: diffrax.SaveAt | None, config: Config) -> tuple[float, ...]:
    """All save times, checked on the host: inside a sharded program a failed check would hang."""
    if saveat is None:
        return ()

    def is_sub(x: Any) -> bool:
        return isinstance(x, diffrax.SubSaveAt)

    subs = [s for s in jax.tree.leaves(saveat.subs, is_leaf=is_sub) if is_sub(s)]
    times = np.concatenate([np.asarray(s.ts, float) for s in subs if s.ts is not None] or [np.zeros(0)])
    # Times come in single precision from diffrax.SaveAt: allow for its rounding at the ends.
    slack = 1e-6 * config.a_stop
    for a in times:
        if not config.a_start - slack <= a <= config.a_stop + slack:
            raise ValueError(f"saveat time a={a:g} lies outside a_start={config.a_start} .. a_stop={config.a_stop}")
    return tuple(float(a) for a in times)


def _final_status(solution: diffrax.Solution, particles: Particles, config: Config) -> Status:
    if solution.solver_state is not None:
        return solution.solver_state.status
    max_displacement = max_abs(particles.disp) / min(config.cell_size)
    code = jnp.where(solution.result == diffrax.RESULTS.successful, Code.SUCCESSFUL, Code.SOLVER)
    code = jnp.where(solution.result == diffrax.RESULTS.max_steps_reached, Code.STEP_LIMIT, code)
    code = jnp.where(max_displacement > halo_limit(config), Code.BEYOND_HALO, code)
    code = jnp.where(
        max_displacement * min(config.cell_size) > largest(config, max_displacement.dtype), Code.BEYOND_GRID, code
    )
    finite = jnp.isfinite(max_displacement) & jnp.isfinite(max_abs(particles.vel))
    code = jnp.where(finite, code, Code.NOT_FINITE).astype(jnp.int32)
    steps = jnp.asarray(solution.stats["num_accepted_steps"], jnp.int32)
    return Status(code, steps, max_displacement, jnp.full_like(max_displacement, halo_limit(config)))


def step_times(cosmo: Cosmology | GrowthTable, config: Config, *, save: Sequence[float] = ()) -> Float[Array, " times"]:
    """Scale factors at which steps begin and end, from a_start to a_stop.

    Every save time between them is one of them. The steps between two save times are uniform in the growth factor;
    their number, in all `config.steps` where that is enough, is shared out by the logarithm of the scale factor and
    so does not depend on the cosmology.
    """
    inner = sorted({float(a) for a in save if config.a_start * (1 + 1e-6) < a < config.a_stop * (1 - 1e-6)})
    knots = [config.a_start, *inner, config.a_stop]
    table = growth_table(cosmo)
    pieces = []
    for low, high, count in zip(knots[:-1], knots[1:], _shares(knots, config.steps), strict=True):
        D = table.D1(low) + (table.D1(high) - table.D1(low)) * jnp.arange(1, count) / count
        pieces += [jnp.asarray([low], dtype=float), table.scale_factor(D)]
    return jnp.concatenate([*pieces, jnp.asarray([config.a_stop], dtype=float)])


def _shares(knots: Sequence[float], steps: int) -> list[int]:
    """Steps of each segment: at least one each, and the longest steps in a (growth is close to a) split first."""
    lengths = np.diff(knots)
    counts = np.ones(len(lengths), int)
    for _ in range(steps - len(lengths)):
        counts[np.argmax(lengths / counts)] += 1
    return [int(n) for n in counts]


def start(particles: Particles, table: GrowthTable, config: Config, solver: SplitSolver) -> SolverState:
    """The state of a solver before its first step."""
    return solver.init(None, config.a_start, config.a_stop, particles, table)


def advance(
    particles: Particles,
    state: SolverState,
    table: GrowthTable,
    a0: ArrayLike,
    a1: ArrayLike,
    config: Config,
    solver: SplitSolver,
) -> tuple[Particles, SolverState]:
    """One step from a0 to a1, forwards or backwards; the particles given are consumed.

    The same step as `nbody` takes, for those who drive a simulation from the host. On several CPU devices it waits for
    the step before, whose state is given: about a hundred programs that communicate, queued there without waiting, can
    block each other until XLA ends the process after 40 s. Loops over other such programs, of an optimiser for
    example, must wait themselves, with `jax.block_until_ready` in each pass. GPUs and code under jit need not wait.
    """
    if (
        config.decomposition.size > 1
        and config.decomposition.platform == "cpu"
        and not isinstance(state.log_scale, Tracer)
    ):
        jax.block_until_ready(state)
    return _advance(particles, state, table, a0, a1, config, solver)


@partial(jax.jit, static_argnames=("config", "solver"), donate_argnames="particles")
def _advance(
    particles: Particles,
    state: SolverState,
    table: GrowthTable,
    a0: ArrayLike,
    a1: ArrayLike,
    config: Config,
    solver: SplitSolver,
) -> tuple[Particles, SolverState]:
    dtype = particles.disp.dtype
    table = jax.tree.map(lambda x: x.astype(dtype), table)
    return solvers.advance(solver, particles, state, table, jnp.asarray(a0, dtype), jnp.asarray(a1, dtype), config)


__all__ = ["Solution", "advance", "nbody", "start", "step_times"]
