"""Crossings of particles and the past light cone of an observer within a time step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from pmwd_dist.cosmology.distance import comoving_distance
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.cosmology.transfer import chebyshev
from pmwd_dist.pm.stepping.forward import Epoch

_NODES = 10  # Chebyshev nodes of the light cone in a step
_INVERSE_NODES = 6  # of its inverse, for guesses


class LightCone(NamedTuple):
    """The past light cone during a step, by the fraction s of the step in growth time.

    Args:
      ends: comoving distances of the cone at the start and at the end of the step [Mpc/h].
      distance: Chebyshev coefficients of the distance in 2 s - 1, lowest first [Mpc/h].
      slopes: change of the displacement over the step, per unit of momentum, at the start and at the end.
      fraction: Chebyshev coefficients of s in 2 t - 1, where the cone has passed the fraction t of the distance between
        its ends; for guesses, without derivatives.
    """

    ends: Array
    distance: Array
    slopes: Array
    fraction: Array

    def at(self, s: Array) -> Array:
        """Distance at a fraction of the step [Mpc/h]."""
        return series(self.distance, s)

    def slope(self, s: Array) -> Array:
        """Derivative of the distance."""
        return series_slope(self.distance, s)


@jax.custom_jvp
def series(coefficients: Array, s: Array) -> Array:
    """Sum of Chebyshev polynomials in 2 s - 1, lowest first, by Clenshaw's recurrence."""
    t, last, before = 2 * s - 1, jnp.zeros_like(s), jnp.zeros_like(s)
    for c in coefficients[:0:-1]:
        last, before = c + 2 * t * last - before, last
    return coefficients[0] + t * last - before


@partial(series.defjvp, symbolic_zeros=True)
def _series_jvp(primals: tuple[Array, Array], tangents: Any) -> tuple[Array, Array]:
    (coefficients, s), (change, ds) = primals, tangents
    total = jnp.zeros_like(s)
    if not isinstance(change, SymbolicZero):
        # A sum of products: its transpose is one reduction, the recurrence's would be one for each coefficient. XLA may
        # order the terms of a dot differently in another process.
        polynomials = chebyshev(2 * s - 1, len(coefficients))[: len(coefficients)]
        total = jnp.sum(change.reshape(-1, *(1,) * s.ndim) * polynomials, axis=0)
    if not isinstance(ds, SymbolicZero):
        total = total + series_slope(coefficients, s) * ds
    return series(coefficients, s), total


def series_slope(coefficients: Array, s: Array) -> Array:
    """Derivative of `series`."""
    derived = 2 * np.polynomial.chebyshev.chebder(np.eye(len(coefficients)))
    return series(jnp.sum(jnp.asarray(derived, coefficients.dtype) * coefficients[None], axis=1), s)


class Path(NamedTuple):
    """Displacements during a step, (1 - s)^2 start + 2 s (1 - s) control + s^2 end, in the convex hull of the three."""

    start: Array
    control: Array
    end: Array

    def at(self, s: Array) -> Array:
        """Displacement at a fraction of the step [Mpc/h]."""
        return _parabola(self, s)


@jax.custom_jvp
def _parabola(path: Path, s: Array) -> Array:
    return path.start + s * (2 * (path.control - path.start) + s * (path.start - 2 * path.control + path.end))


@_parabola.defjvp
def _parabola_jvp(primals: tuple[Path, Array], tangents: tuple[Path, Array]) -> tuple[Array, Array]:
    (path, s), (along, ds) = primals, tangents
    velocity = 2 * (1 - s) * (path.control - path.start) + 2 * s * (path.end - path.control)
    # One product with ds, whose transpose is one sum over components.
    return _parabola(path, s), _parabola(along, s) + velocity * ds


def light_cone_in_step(before: Array, after: Array, table: GrowthTable) -> LightCone:
    """The past light cone of an observer at a = 1, between two scale factors."""
    # Both ends by the same instructions: the end of a step has the bits of the next one's start.
    a = jnp.stack([before, after])
    ends = jax.lax.optimization_barrier(comoving_distance(a, table))
    D = table.D1(a)
    distance = series_in_step(partial(comoving_distance, cosmo=table), D, table)
    return LightCone(ends, distance, (D[1] - D[0]) / table.momentum(a), inverse_series(distance))


def inverse_series(coefficients: Array) -> Array:
    """Chebyshev coefficients of s in 2 t - 1, where a monotone series has t of its change from s = 0 to 1, to 1e-4."""
    coefficients = jax.lax.stop_gradient(coefficients)

    def inverse(part: Array) -> Array:
        s = part = part.astype(coefficients.dtype)
        first, last = series(coefficients, jnp.arange(2.0, dtype=s.dtype))
        for _ in range(3):
            excess = series(coefficients, s) - (first + (last - first) * part)
            s = s - excess / series_slope(coefficients, s)
        return s

    return fit_series(inverse, _INVERSE_NODES)


def series_in_step(function: Callable[[Array], Array], D: Array, table: GrowthTable) -> Array:
    """Chebyshev coefficients in 2 s - 1 of a function of the scale factor, between two growth factors; lowest first."""
    return fit_series(lambda s: function(table.scale_factor(D[0] + (D[1] - D[0]) * s.astype(D.dtype))), _NODES)


def fit_series(function: Callable[[Array], Array], count: int) -> Array:
    """Chebyshev coefficients in 2 s - 1 of a function of s from 0 to 1, lowest first."""
    t = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    values = function(jnp.asarray((t + 1) / 2))
    fit = jnp.asarray(np.linalg.inv(np.polynomial.chebyshev.chebvander(t, count - 1)), values.dtype)
    return jnp.matmul(fit, values, precision="highest")


def path(before: Epoch, after: Epoch, light: LightCone) -> Path:
    """Parabola through both ends of a step; its control point is the mean of those from the momentum at each end.

    The control point of a drift-kick-drift step in growth time is the position of the force evaluation.
    """
    x0, x1 = before.particles.disp, after.particles.disp
    bend = light.slopes[0] * before.particles.vel - light.slopes[1] * after.particles.vel
    return Path(x0, (x0 + x1) / 2 + bend / 4, x1)


def crosses(start: Array, end: Array, light: LightCone) -> tuple[Array, Array]:
    """Whether the cone passes particles during a step, and a guess of the fraction of the step at which it does.

    Particles are slower than light: one inside the cone at the start and not at the end is passed exactly once. A step
    ends where the next one starts, with the same bits, so no particle is passed twice or never. `start` and `end` are
    distances of the particles from the observer [Mpc/h].
    """
    before, after = start - light.ends[0], end - light.ends[1]
    # Particles are slow: a fraction to 0.1 gives their distances, and these a fraction to 1e-3.
    distance = start + (end - start) * jnp.clip(before / (before - after), 0, 1)
    guess = series(light.fraction, jnp.clip((light.ends[0] - distance) / (light.ends[0] - light.ends[1]), 0, 1))
    return (before < 0) & (after >= 0), guess


def crossing(
    distance: Callable[[Any, Array], Array], where: Any, passed: Array, guess: Array, light: LightCone
) -> Array:
    """Fraction of the step at which particles and the cone are at the same distance from the observer.

    Newton's method finds it from a guess to 1e-3; derivatives of any order are those of the implicit function. The
    distance of particles [Mpc/h] is a function of (where, fraction of the step) and no other arrays. For particles that
    the cone does not pass the result is the guess, without derivatives.
    """
    return _solved(distance, where, light, passed, jax.lax.stop_gradient(guess))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solved(distance: Any, where: Any, light: LightCone, passed: Array, s: Array) -> Array:
    for _ in range(1 if s.dtype == jnp.float32 else 2):  # each squares the error
        excess = distance(where, s) - light.at(s)
        s = s - jnp.where(passed, excess / _closing(distance, where, light, s), 0)
    return s


@_solved.defjvp
def _solved_jvp(distance: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
    where, light, passed, _ = primals
    s = _solved(distance, *primals)
    moved = jax.jvp(lambda where: distance(where, s), (where,), tangents[:1])[1]
    shifted = jax.jvp(lambda distance: series(distance, s), (light.distance,), (tangents[1].distance,))[1]
    return s, jnp.where(passed, (shifted - moved) / _closing(distance, where, light, s), 0)


def _closing(distance: Any, where: Any, light: LightCone, s: Array) -> Array:
    """Derivative of the distance of particles minus distance of the cone with the fraction of the step [Mpc/h]."""
    return jax.jvp(lambda s: distance(where, s), (s,), (jnp.ones_like(s),))[1] - light.slope(s)
