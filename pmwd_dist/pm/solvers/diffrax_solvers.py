"""The equations of motion as a diffrax term, and the drift-kick-drift solvers for diffrax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.gravity import acceleration
from pmwd_dist.pm.inputs import check_table
from pmwd_dist.pm.paint import halo_limit
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.potential_factor import PotentialFactor, kick_scale_factor, tabulate, with_neutrinos
from pmwd_dist.pm.solvers.bullfrog import bullfrog
from pmwd_dist.pm.solvers.coefficients import Coefficients, Formula, rates
from pmwd_dist.pm.solvers.fastpm import fastpm
from pmwd_dist.pm.solvers.leapfrog import leapfrog
from pmwd_dist.pm.status import Code, Status, failure, successful


class ParticleMesh(diffrax.AbstractTerm[Any, Any]):
    """Motion of particles under the gravity of the particle mesh, in the scale factor a as time.

      d disp / da = vel / (a^3 E),   d vel / da = -3/2 Omega_cb / (a^2 E) grad phi,   laplacian phi = delta

    A term for any diffrax solver; the state is `Particles`, `args` is the `growth_table` of the cosmology.

    Args:
      config: the simulation.
      potential_factor: factor of the potential, as in `nbody`.
    """

    config: Config = eqx.field(static=True)
    potential_factor: PotentialFactor | None = eqx.field(default=None, kw_only=True)

    def vf(self, t: Any, y: Particles, args: GrowthTable) -> Particles:
        """Derivatives of the particles with respect to the scale factor."""
        check_table(args)
        force, _ = self.acceleration(y.disp, t, args)
        drift, kick = rates(args, t)
        return Particles((drift * y.vel).astype(y.disp.dtype), (kick * force).astype(y.vel.dtype))

    def acceleration(self, disp: Array, a: Any, table: GrowthTable) -> tuple[Array, Array]:
        """Acceleration [Mpc/h] at a scale factor, and the largest displacement [mesh cells]."""
        factor = with_neutrinos(self.potential_factor, table)
        if factor is None:
            return acceleration(disp, self.config)
        return acceleration(disp, self.config, tabulate(factor, jnp.asarray(a, disp.dtype), self.config))

    def contr(self, t0: Any, t1: Any, **kwargs: Any) -> Any:
        """Interval of the scale factor."""
        return t1 - t0

    def prod(self, vf: Particles, control: Any) -> Particles:
        """Derivatives times an interval."""
        return jax.tree.map(lambda v: (v * control).astype(v.dtype), vf)


class EndpointInterpolation(diffrax.LocalLinearInterpolation):
    """Linear interpolation, exact at both ends: a snapshot at the end of a step is its state."""

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True) -> Any:
        """State at t0, or the change from t0 to t1."""
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        between = (t0 - self.t0) / (self.t1 - self.t0)

        def one(y0: Array, y1: Array) -> Array:
            inside = y0 + between.astype(y0.dtype) * (y1 - y0)
            return jnp.where(t0 == self.t1, y1, jnp.where(t0 == self.t0, y0, inside))

        return jax.tree.map(one, self.y0, self.y1)


class SplitSolver(diffrax.AbstractSolver[Any]):
    """Base of the drift-kick-drift solvers, which differ in `coefficients` and accuracy only.

    `nbody` takes their steps with integer momenta (`stepping.step`), which are exactly reversible (Levesque & Verlet
    1993). In `diffrax.diffeqsolve` with an adjoint of diffrax, steps are in floating-point numbers. A failed step
    leaves the particles unchanged; the status is the state of the solver.
    """

    coefficients: ClassVar[Any]  # function of (table, lower, upper): coefficients between two scale factors
    term_structure: ClassVar = ParticleMesh
    interpolation_cls: ClassVar[Callable[..., EndpointInterpolation]] = EndpointInterpolation

    def order(self, terms: Any) -> int:
        """Order of convergence."""
        return 2

    def init(self, terms: Any, t0: Any, t1: Any, y0: Particles, args: GrowthTable) -> Status:
        """Status before the first step."""
        check_table(args)
        return successful(y0.disp.dtype)

    def func(self, terms: Any, t0: Any, y0: Particles, args: GrowthTable) -> Any:
        """Right-hand side of the equations of motion."""
        return terms.vf(t0, y0, args)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Particles, args: GrowthTable, solver_state: Status, made_jump: Any
    ) -> tuple[Particles, None, dict[str, Any], Status, Any]:
        """One floating-point step for diffrax, and its inverse backwards in time; `nbody` uses `stepping.step.step`."""
        del made_jump
        # diffeqsolve wraps the term, with the direction of time; without it, solvers get the bare term.
        direction = getattr(terms, "direction", 1)
        term: ParticleMesh = getattr(terms, "term", terms)
        a0, a1 = t0 * direction, t1 * direction
        c = self.coefficients(args, jnp.minimum(a0, a1), jnp.maximum(a0, a1))
        c = Coefficients(*(x.astype(y0.disp.dtype) for x in c[:4]))
        scale = jnp.exp2(c.log_scale)
        backward = Coefficients(-c.drift_after, -c.kick / scale, 1 / scale, -c.drift_before)
        first, kick, scale, last = (
            jnp.where(a1 >= a0, x, y) for x, y in zip(c._replace(log_scale=scale)[:4], backward[:4], strict=True)
        )
        disp = y0.disp + first * y0.vel
        force, max_displacement = term.acceleration(disp, kick_scale_factor(args, a0, a1), args)
        vel = scale * y0.vel + kick * force
        y1 = Particles(disp + last * vel, vel)
        limit = halo_limit(term.config)
        code = failure(max_displacement, limit, jnp.inf, jnp.isfinite(jnp.stack([first, kick, scale, last])).all())
        good = code == Code.SUCCESSFUL
        y1 = jax.tree.map(lambda old, new: jnp.where(good, new, old), y0, y1)
        seen = jnp.maximum(solver_state.max_displacement, max_displacement)
        status = Status(code, solver_state.step + jnp.where(good, 1, 0), seen, jnp.full_like(seen, limit))
        results: Any = diffrax.RESULTS
        result = results.where(good, results.successful, results.nonlinear_divergence)
        return y1, None, {"y0": y0, "y1": y1}, status, result


class BullFrog(SplitSolver):
    """Steps in growth time with 2LPT-consistent kicks (Rampf, List & Hahn 2024, arXiv:2409.19049)."""

    coefficients: ClassVar[Formula] = staticmethod(bullfrog)


class FastPM(SplitSolver):
    """Steps in growth time with Zel'dovich-consistent kicks (Feng et al. 2016, as in Rampf, List & Hahn 2024)."""

    coefficients: ClassVar[Formula] = staticmethod(fastpm)


class LeapFrog(SplitSolver):
    """Steps with the exact integrals of drift and kick (Quinn et al. 1997), halved in growth time."""

    coefficients: ClassVar[Formula] = staticmethod(leapfrog)


SOLVERS: dict[str, type[SplitSolver]] = {solver.__name__.lower(): solver for solver in SplitSolver.__subclasses__()}
