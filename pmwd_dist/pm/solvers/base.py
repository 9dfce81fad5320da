"""Drift-kick-drift steps that can be undone to the bit."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax.batching import barrier
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.ops.kick_drift import KickDrift
from pmwd_dist.ops.rounding import max_abs, round_straight_through
from pmwd_dist.pm.gravity import kick_and_drift
from pmwd_dist.pm.paint import halo_limit
from pmwd_dist.pm.particles import (
    ExactParticles,
    Particles,
    largest,
    momentum_resolution,
    resolution,
    significant_bits,
)
from pmwd_dist.pm.solvers._term import ParticleMesh
from pmwd_dist.pm.status import Code, Status, successful

# The logarithm of the scale of the momenta lives on a grid of its own, so that it too returns exactly: sums of less
# than 4, the product of rescalings by less than 16.
_LARGEST_LOG = 4.0


P_ = TypeVar("P_", Particles, ExactParticles)


class Coefficients(NamedTuple):
    """A step from a lower to a higher scale factor.

    disp += drift_before * vel;  vel = 2^log_scale * vel + kick * acceleration;  disp += drift_after * vel
    """

    drift_before: Array
    kick: Array
    log_scale: Array
    drift_after: Array


class SolverState(eqx.Module):
    """What a drift-kick-drift solver carries from step to step.

    Args:
      log_scale: log2 of the factor between the momenta and their grid, the product of all rescalings so far.
      status: the first failure, if any.
    """

    log_scale: Array
    status: Status


class EndpointInterpolation(diffrax.LocalLinearInterpolation):
    """Linear in between, and the very state at both ends: a snapshot at a step is that step's state."""

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True) -> Any:
        """The state at t0, or the change from t0 to t1."""
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        between = (t0 - self.t0) / (self.t1 - self.t0)

        def one(y0: Array, y1: Array) -> Array:
            inside = y0 + between.astype(y0.dtype) * (y1 - y0)
            return jnp.where(t0 == self.t1, y1, jnp.where(t0 == self.t0, y0, inside))

        return jax.tree.map(one, self.y0, self.y1)


class SplitSolver(diffrax.AbstractSolver[Any]):
    """Base of the drift-kick-drift solvers: `coefficients` is all that tells them apart.

    Displacements are multiples of a power of two, momenta multiples of another one times 2^log_scale. Adding a
    rounded drift or kick to such a number is exact, so a step backwards restores every bit (compare Levesque &
    Verlet 1993), given particles that are on this grid, as those after a step are. A step that fails leaves them as
    they were and says so in its status. `nbody` takes the same steps with momenta as whole numbers of a finer unit.
    """

    term_structure: ClassVar = ParticleMesh
    interpolation_cls: ClassVar[Callable[..., EndpointInterpolation]] = EndpointInterpolation

    @abc.abstractmethod
    def coefficients(self, table: GrowthTable, lower: Array, upper: Array) -> Coefficients:
        """Coefficients of the step between two scale factors."""

    def order(self, terms: Any) -> int:
        """Order of convergence."""
        return 2

    def init(self, terms: Any, t0: Any, t1: Any, y0: Particles, args: GrowthTable) -> SolverState:
        """The state before the first step."""
        dtype = y0.disp.dtype
        return SolverState(jnp.zeros((), dtype), successful(dtype))

    def func(self, terms: Any, t0: Any, y0: Particles, args: GrowthTable) -> Any:
        """The right-hand side."""
        return terms.vf(t0, y0, args)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Particles, args: GrowthTable, solver_state: SolverState, made_jump: Any
    ) -> tuple[Particles, None, dict[str, Any], SolverState, Any]:
        """One step; backwards, the exact inverse of the step forwards between the same scale factors."""
        del made_jump
        # diffeqsolve wraps terms to turn time around; solvers called on their own get the bare term.
        direction = getattr(terms, "direction", 1)
        term = getattr(terms, "term", terms)
        a0, a1 = t0 * direction, t1 * direction
        y1, state = advance(self, y0, solver_state, args, a0, a1, term.config)
        failed = state.status.code != Code.SUCCESSFUL
        results: Any = diffrax.RESULTS
        result = results.where(failed, results.nonlinear_divergence, results.successful)
        return y1, None, {"y0": y0, "y1": y1}, state, result


class Step(NamedTuple):
    """A drift, a kick and a drift, in either direction, on the grids of the particles.

    disp += first * vel;  vel = (vel / before + kick * acceleration) * after;  disp += last * vel

    Args:
      first, last: drifts [1 / momentum].
      kick: in units of the grid of momenta at the later end.
      before, after: spacing of the grid of momenta at the start and at the end of the step [Mpc/h].
    """

    first: Array
    kick: Array
    last: Array
    before: Array
    after: Array


def advance(
    solver: SplitSolver,
    particles: Particles,
    state: SolverState,
    table: GrowthTable,
    a0: Any,
    a1: Any,
    config: Config,
) -> tuple[Particles, SolverState]:
    """One step of a solver from scale factor a0 to a1, in either direction."""
    step, log_scale = _directed(
        solver, table, a0, a1, state.log_scale, momentum_resolution(config, particles.vel.dtype)
    )
    particles, status = take_step(step, particles, state.status, config)
    failed = status.code != Code.SUCCESSFUL
    return particles, SolverState(jnp.where(failed, state.log_scale, log_scale), status)


def take_step(step: Step, particles: Particles, status: Status, config: Config) -> tuple[Particles, Status]:
    """The particles after a step; as they were, if it or one before has failed."""
    first = jnp.where(status.code == Code.SUCCESSFUL, first_drifts(step), 0)
    particles, max_displacement = first_drift(first, particles, config)
    nothing = jnp.zeros_like(step.first)
    particles, _, status, _ = kick_and_drifts(step, nothing, particles, max_displacement, status, config)
    return particles, status


def first_drifts(step: Step) -> Array:
    """The drift at the start of one or several steps; 0 where a number is not finite, since nothing could undo it."""
    return jnp.where(_finite(step), step.first, 0)


def first_drift(first: Array, particles: Particles, config: Config) -> tuple[Particles, Array]:
    """The particles after the drift at the start of a step, and their largest displacement [mesh cells]."""
    disp = drift(particles.disp, particles.vel, first, config)
    disp = barrier(disp)  # computed once: XLA would repeat it for each of its uses
    return Particles(disp, particles.vel), max_abs(disp) / min(config.cell_size)


def kick_and_drifts(
    step: Step, following: Array, particles: P_, max_displacement: Array, status: Status, config: Config
) -> tuple[P_, Array, Status, tuple[Array, ...]]:
    """The rest of a step after its first drift, and the first drift of the following one, undone by a failure.

    Args:
      step: the step.
      following: `first` of the next step.
      particles: after the first drift; where the step before failed there was none.
      max_displacement: of the particles [mesh cells].
      status: before the step.
      config: the simulation.

    Returns:
      The particles, their largest displacement [mesh cells], the status, and the bits of what the force was read from.
    """
    q = resolution(config, particles.disp.dtype)
    was_good = status.code == Code.SUCCESSFUL
    code = _code(max_displacement, _finite(step), config, particles.disp.dtype)
    code = jnp.where(was_good, code, status.code)
    good = code == Code.SUCCESSFUL
    undo = jnp.where(was_good, -first_drifts(step), 0)
    coefficients = KickDrift(
        kick=jnp.where(good, step.kick, 0),
        inverse=1 / step.before,
        after=jnp.where(good, step.after, step.before),
        last=jnp.where(good, step.last, undo) / q,
        first=jnp.where(good, following, 0) / q,
        good=good.astype(step.kick.dtype),
    )
    particles, next_displacement, bits = kick_and_drift(particles, max_displacement, coefficients, config)
    return (
        particles,
        next_displacement,
        Status(
            code=code,
            step=status.step + jnp.where(good, 1, 0),
            max_displacement=jnp.maximum(status.max_displacement, max_displacement),
            halo=jnp.full_like(max_displacement, halo_limit(config)),
        ),
        bits,
    )


def ended(status: Status, max_displacement: Array, momenta_in_range: Array, config: Config) -> Status:
    """The status after the last drift, which no step looks at: what is off its grid, or no number, is a failure.

    Args:
      status: after the last step.
      max_displacement: of the particles at the end [mesh cells].
      momenta_in_range: whether all of them are in the range of their grid.
      config: the simulation.
    """
    code = _code(max_displacement, jnp.asarray(True), config, max_displacement.dtype)
    code = jnp.where(code == Code.BEYOND_HALO, Code.SUCCESSFUL, code)  # no force is taken there
    code = jnp.where((code == Code.SUCCESSFUL) & ~momenta_in_range, Code.TOO_FAST, code).astype(jnp.int32)
    failed = (status.code == Code.SUCCESSFUL) & (code != Code.SUCCESSFUL)
    seen = jnp.where(failed, max_displacement, status.max_displacement)
    return Status(jnp.where(failed, code, status.code), status.step, seen, status.halo)


def _finite(step: Step) -> Array:
    return jnp.isfinite(jnp.stack(step)).all(axis=0)


def drifted(particles: Particles, coefficient: Array, config: Config) -> Particles:
    """The particles after a drift, see `drift`."""
    return Particles(drift(particles.disp, particles.vel, coefficient, config), particles.vel)


def drift(disp: Array, vel: Array, coefficient: Array, config: Config) -> Array:
    """Displacements after a drift, rounded to their grid: exact, and undone by the opposite coefficient."""
    q = resolution(config, disp.dtype)
    return disp + q * round_straight_through(coefficient / q * vel)


def on_grid(log_scale: Array) -> Array:
    """The logarithm of a rescaling of the momenta, rounded to its grid."""
    spacing = _LARGEST_LOG * 2.0 ** -significant_bits(log_scale.dtype)
    return round_straight_through(log_scale / spacing) * spacing


def _directed(
    solver: SplitSolver, table: GrowthTable, a0: Any, a1: Any, log_scale: Array, q: float
) -> tuple[Step, Array]:
    """The step in its direction, and the new log_scale; q is the spacing of the grid of momenta at the start."""
    c = solver.coefficients(table, jnp.minimum(a0, a1), jnp.maximum(a0, a1))
    c = Coefficients(*(x.astype(log_scale.dtype) for x in c))
    forward = a1 >= a0
    growth = on_grid(c.log_scale)
    new = log_scale + jnp.where(forward, growth, -growth)
    # On the momenta's own grid the kick is the same number both ways: it is in units of the later momentum.
    later = q * jnp.exp2(jnp.where(forward, new, log_scale))
    step = Step(
        first=jnp.where(forward, c.drift_before, -c.drift_after),
        kick=jnp.where(forward, c.kick, -c.kick) / later,
        last=jnp.where(forward, c.drift_after, -c.drift_before),
        before=q * jnp.exp2(log_scale),
        after=q * jnp.exp2(new),
    )
    return step, new


def _code(max_displacement: Array, finite: Array, config: Config, dtype: Any) -> Array:
    code = jnp.where(max_displacement > halo_limit(config), Code.BEYOND_HALO, Code.SUCCESSFUL)
    code = jnp.where(max_displacement * min(config.cell_size) > largest(config, dtype), Code.BEYOND_GRID, code)
    return jnp.where(finite & jnp.isfinite(max_displacement), code, Code.NOT_FINITE).astype(jnp.int32)
