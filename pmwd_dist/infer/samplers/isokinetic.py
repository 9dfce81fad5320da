"""Dynamics of samplers whose momentum is a direction, of constant norm: microcanonical ones.

The Hamiltonian of energy-sampling dynamics makes the position follow the density when the direction u obeys
du/dt = (1 - u u) grad log p / (d - 1) (Ver Steeg & Galstyan 2021; Robnik et al. 2022, arXiv 2212.08549).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.infer import trees

# Palindromic, of minimal norm (McLachlan 1995): two gradients a step.
_MCLACHLAN = 0.1931833275037836

LogDensity = Callable[[Any], Array]


class IntegratorState(NamedTuple):
    """A point of a trajectory: position, momentum, log density and its gradient, as in blackjax.

    After a step of MCLMC the last two are those of a place beside the position (`langevin_step`).
    """

    position: Any
    momentum: Any
    logdensity: Array
    logdensity_grad: Any


def value_and_grad(logdensity: LogDensity, position: Any) -> tuple[Array, Any]:
    """The log density, a callable that need not be hashable, and its gradient."""

    def call(position: Any) -> Array:
        return logdensity(position)

    return jax.value_and_grad(call)(position)


def start(position: Any, momentum: Any, logdensity: LogDensity) -> IntegratorState:
    """The state at a position."""
    value, slope = value_and_grad(logdensity, position)
    return IntegratorState(position, momentum, value, slope)


def mclachlan_step(
    state: IntegratorState, step_size: Array, logdensity: LogDensity, inverse_mass_matrix: Any = 1.0
) -> tuple[IntegratorState, Array]:
    """One step of McLachlan's integrator, and the change of the kinetic energy.

    Args:
      state: where it begins.
      step_size: distance along the trajectory, in units of the root of the inverse mass matrix.
      logdensity: function of the position.
      inverse_mass_matrix: diagonal, a number or a pytree whose leaves broadcast against the position's.
    """
    root = jax.tree.map(jnp.sqrt, inverse_mass_matrix)

    def kick(state: IntegratorState, weight: Any) -> tuple[IntegratorState, Array]:
        momentum, change = turn(state.momentum, trees.multiply(state.logdensity_grad, root), weight * step_size)
        return state._replace(momentum=momentum), change

    def kick_and_drift(state: IntegratorState, weight: Array) -> tuple[IntegratorState, Array]:
        state, change = kick(state, weight)
        position = trees.add(state.position, 0.5 * step_size, trees.multiply(state.momentum, root))
        return start(position, state.momentum, logdensity), change

    # A loop, so that the gradient is compiled once.
    weights = jnp.asarray([_MCLACHLAN, 1 - 2 * _MCLACHLAN], state.logdensity.dtype)
    state, changes = jax.lax.scan(kick_and_drift, state, weights)
    state, change = kick(state, _MCLACHLAN)
    return state, jnp.sum(changes) + change


def density_shift(state: IntegratorState, step_size: Array, inverse_mass_matrix: Any = 1.0) -> Array:
    """What steps of a finite length add to the log density that they sample, on average over a field, to second order.

    Along the trajectories of `langevin_step`, with time steps h, what is conserved is the Hamiltonian plus
    h^2 g M^-1 g / 24, in the coordinates that are given there, with the slope g and the masses M. So a parameter on
    which the frequencies w of modes depend has a density times exp(-h^2 sum of w^2 / 24), the sum being the mean of
    g M^-1 g. It is over d modes: that is a bias of the parameter even where the error of each mode is negligible.

    For fields x it is that of g (M^-1 g + x) but for a constant, the mean of g x being minus their dimensions whatever
    the parameters are (Stein 1981): of modes of which data say nothing, g = -M x, that has no noise.

    Args:
      state: where steps lead. Parameters are leaves without axes: all others are fields.
      step_size: as in `langevin_step`.
      inverse_mass_matrix: as there.
    """
    slope = state.logdensity_grad
    fields = jax.tree.map(lambda x: x if x.ndim else jnp.zeros_like(x), state.position)
    square = trees.dot(slope, trees.add(fields, 1, trees.multiply(slope, inverse_mass_matrix)))
    return -_displacement(step_size, state.position) * square


def _displacement(step_size: Array, position: Any) -> Array:
    """That of a state of `langevin_step` per slope: a 24th of the square of the time of a step."""
    return step_size**2 / (24 * trees.size(position))


def turn(momentum: Any, slope: Any, distance: Array) -> tuple[Any, Array]:
    """Turn a direction towards a constant gradient over a distance; also the change of the kinetic energy.

    With g the norm of the gradient, e its direction, x = distance g / (d - 1) and c = u e:
    u -> (u + e (sinh x + c (cosh x - 1))) / (cosh x + c sinh x), and the energy changes by (d - 1) times the logarithm
    of the denominator. Both are written with exp(-x), which can't overflow.
    """
    dimensions = trees.size(momentum)
    length = trees.norm(slope)
    towards = trees.scale(1 / jnp.where(length > 0, length, 1), slope)
    x = distance * length / (dimensions - 1)
    cosine = trees.dot(momentum, towards)
    z = jnp.exp(-x)
    moved = trees.add(trees.scale(2 * z, momentum), (1 - z) * (1 + z + cosine * (1 - z)), towards)
    logarithm = x + jnp.log1p(0.5 * jnp.expm1(-2 * x) * (1 - cosine))
    return trees.scale(1 / trees.norm(moved), moved), (dimensions - 1) * logarithm


def refresh(key: Array, momentum: Any, distance: Array, L: Array) -> Any:
    """The momentum with the noise of a distance, such that it forgets its direction over L; none if L is infinite."""
    noise = trees.normal_like(key, momentum)
    size = jnp.sqrt(jnp.expm1(2 * distance / L) / trees.size(momentum))
    moved = trees.add(momentum, size, noise)
    return trees.where(jnp.isinf(L), momentum, trees.scale(1 / trees.norm(moved), moved))


def langevin_step(
    key: Array,
    state: IntegratorState,
    step_size: Array,
    L: Array,
    logdensity: LogDensity,
    inverse_mass_matrix: Any = 1.0,
) -> tuple[IntegratorState, Array]:
    """A step of velocity Verlet with noise of the momentum, and the change of the kinetic energy: one gradient.

    In time steps h = step_size / sqrt(d) and a potential V, Verlet's trajectories are those of the Hamiltonian
    H + h^2 (p V'' p / 12 - |V'|^2 / 24) (Hairer, Lubich & Wanner 2006, IX), which is H + h^2 |V'|^2 / 24 in the
    coordinates x - h^2 V' / 12, p + h^2 V'' p / 12. Its momenta at temperature 1 have the variance 1 - h^2 V'' / 6 in
    the middle of a kick and 1 + h^2 V'' / 12 between kicks. So a third of the noise comes in the middle of kicks and
    two thirds between them: to second order in h all modes then have that temperature. That is so for a momentum of
    constant norm, too: `turn` differs from Newton's kicks by one factor for all modes.

    Where kicks are, positions have variances that are too large by h^2 w^2 / 12 in modes of frequency w. States are
    displaced from there by h^2 / 24 times the slope, so that their variances are right to second order; at a phase h w
    of 1.6 they are a quarter too large. Their slope is that where the kick is, and their log density that plus its
    change by the displacement in first order, which is too high by (h^2 / 24)^2 g H g / 2, with the slope g and the
    curvature H: a sum over all dimensions. So a position is to be evaluated anew before another sampler goes on from
    it. What steps do to parameters is `density_shift`.

    Args:
      key: of jax.random.
      state: where it begins.
      step_size: distance along the trajectory, in units of the root of the inverse mass matrix.
      L: length over which the momentum forgets its direction.
      logdensity: function of the position.
      inverse_mass_matrix: diagonal, a number or a pytree whose leaves broadcast against the position's.
    """
    root, displacement = jax.tree.map(jnp.sqrt, inverse_mass_matrix), _displacement(step_size, state.position)
    kick_key, drift_key = jax.random.split(key)
    position = trees.add(state.position, -displacement, trees.multiply(state.logdensity_grad, inverse_mass_matrix))
    momentum = refresh(kick_key, state.momentum, step_size / 3, L)
    momentum, before = turn(momentum, trees.multiply(state.logdensity_grad, root), 0.5 * step_size)
    position = trees.add(position, 0.5 * step_size, trees.multiply(momentum, root))
    momentum = refresh(drift_key, momentum, step_size * (2 / 3), L)
    position = trees.add(position, 0.5 * step_size, trees.multiply(momentum, root))
    value, slope = value_and_grad(logdensity, position)
    momentum, after = turn(momentum, trees.multiply(slope, root), 0.5 * step_size)
    uphill = trees.multiply(slope, inverse_mass_matrix)
    value += displacement * trees.dot(slope, uphill)
    return IntegratorState(trees.add(position, displacement, uphill), momentum, value, slope), before + after
