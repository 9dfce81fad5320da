"""When particles cross the past light cone of an observer, within a time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.cosmology.distance import comoving_distance
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.evolution import Epoch

_NODES = 10  # of the light cone in a step: right to 1e-3 Mpc/h for a step from a = 0.1 to 0.3, 1e-6 for usual ones


class LightCone(NamedTuple):
    """The past light cone during a step, by the fraction s of the step's growth that has passed.

    Args:
      ends: its comoving distance at the start and at the end of the step [Mpc/h].
      distance: coefficients of Chebyshev polynomials in 2 s - 1, lowest first, of the distance in between [Mpc/h].
      slopes: change of the displacement over the step, per unit of momentum, at the start and at the end.
    """

    ends: Array
    distance: Array
    slopes: Array

    def at(self, s: Array) -> Array:
        """Distance at a fraction of the step [Mpc/h], by Clenshaw's recurrence."""
        t, last, before = 2 * s - 1, jnp.zeros_like(s), jnp.zeros_like(s)
        for c in self.distance[:0:-1]:
            last, before = c + 2 * t * last - before, last
        return self.distance[0] + t * last - before


class Path(NamedTuple):
    """Displacements during a step, (1 - s)^2 start + 2 s (1 - s) control + s^2 end: on no other side of a halo."""

    start: Array
    control: Array
    end: Array

    def at(self, s: Array) -> Array:
        """Displacement at a fraction of the step [Mpc/h]."""
        return self.start + s * (2 * (self.control - self.start) + s * (self.start - 2 * self.control + self.end))


def light_cone_in_step(before: Array, after: Array, table: GrowthTable) -> LightCone:
    """The past light cone of an observer at a = 1, between two scale factors."""
    # Both ends by the same instructions: what one step takes for its end, the next one takes for its start.
    a = jnp.stack([before, after])
    ends = jax.lax.optimization_barrier(comoving_distance(a, table))
    D = table.D1(a)
    t = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    inside = table.scale_factor(D[0] + (D[1] - D[0]) * jnp.asarray((t + 1) / 2, D.dtype))
    fit = jnp.asarray(np.linalg.inv(np.polynomial.chebyshev.chebvander(t, _NODES - 1)), D.dtype)
    distance = jnp.matmul(fit, comoving_distance(inside, table), precision="highest")
    return LightCone(ends, distance, (D[1] - D[0]) / table.momentum(a))


def path(before: Epoch, after: Epoch, light: LightCone) -> Path:
    """Motion in a step: through both ends with the mean of the control points by which each end's momentum leads.

    A drift-kick-drift step in growth time is such a parabola, whose control point is where the force was taken.
    """
    x0, x1 = before.particles.disp, after.particles.disp
    bend = light.slopes[0] * before.particles.vel - light.slopes[1] * after.particles.vel
    return Path(x0, (x0 + x1) / 2 + bend / 4, x1)


def crosses(start: Array, end: Array, light: LightCone) -> tuple[Array, Array]:
    """Whether the cone passes particles during a step, and the fraction of the step at which it does, to 1e-1 or so.

    Nothing is as fast as light: a particle inside the cone at the start and not inside it at the end is passed exactly
    once. As a step ends where the next one starts, with the same bits, no particle is passed twice or never.

    Args:
      start: distances of the particles from the observer at the start of the step [Mpc/h].
      end: likewise, at its end.
      light: the cone.
    """
    before, after = start - light.ends[0], end - light.ends[1]
    return (before < 0) & (after >= 0), jnp.clip(before / (before - after), 0, 1)


def crossing(distance: Callable[[Array], Array], passed: Array, guess: Array, light: LightCone) -> Array:
    """Fraction of the step at which particles and the cone are at one distance from the observer.

    Newton's method, whose last two steps are differentiated: derivatives are exact to third order at the solution.

    Args:
      distance: of the particles at a fraction of the step [Mpc/h].
      passed: which particles the cone passes; for others the result is the guess.
      guess: the fraction, roughly.
      light: the cone.
    """

    def newton(s: Array, distance: Any, light: LightCone) -> Array:
        excess, slope = jax.jvp(lambda s: distance(s) - light.at(s), (s,), (jnp.ones_like(s),))
        return s - jnp.where(passed, excess / slope, 0)

    s = jax.lax.stop_gradient(guess)
    s = jax.lax.stop_gradient(newton(s, distance, light))
    return newton(newton(s, distance, light), distance, light)
