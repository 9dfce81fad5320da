"""Microcanonical Langevin Monte Carlo (Robnik & Seljak 2023, arXiv 2303.18221), and the states of all samplers.

The momentum is a direction u of constant norm in d dimensions. The position samples the density p if
du/dt = (1 - u u) grad log p / (d - 1) (Ver Steeg & Galstyan 2021; Robnik et al. 2022, arXiv 2212.08549).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.parallel.explicit_axes import on_auto_axes

LogDensity = Callable[[Any], Array]
Agree = Callable[[Any], Any]  # makes the copies of numbers equal that several processes hold (`equal_copies`)


def unchanged(numbers: Any) -> Any:
    """The numbers as they are, in a program of one process."""
    return numbers


class IntegratorState(NamedTuple):
    """A point of a trajectory: position, momentum, log density and its gradient, as in blackjax.

    HMC draws a new momentum for each trajectory.
    After a step of MCLMC the gradient belongs to the kick point beside the position (`step`).
    """

    position: Any
    momentum: Any
    logdensity: Array
    logdensity_grad: Any


class Transition(NamedTuple):
    """Statistics of a transition.

    Args:
      energy_change: energy error, whose variance controls the step size.
      nonans: false for a failed simulation or a position that is not finite, where the state stays as before.
      acceptance_rate: acceptance probability, 1 for MCLMC.
      gradients: number of gradients.
    """

    energy_change: Array
    nonans: Array
    acceptance_rate: Array
    gradients: Array


def start(position: Any, momentum: Any, logdensity: LogDensity) -> IntegratorState:
    """The state at a position."""
    return IntegratorState(position, momentum, *jax.value_and_grad(logdensity)(position))


@on_auto_axes
def init(key: Array, position: Any, logdensity: LogDensity) -> IntegratorState:
    """The state at a position, with a random direction."""
    return start(position, trees.unit_vector(key, position), logdensity)


@on_auto_axes
def step(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    L: ArrayLike,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
    agree: Agree = unchanged,
) -> tuple[IntegratorState, Transition]:
    """A step of velocity Verlet with noise of the momentum: one gradient.

    For time steps h = step_size / sqrt(d) and a potential V, Verlet's trajectories follow the Hamiltonian
    H + h^2 (p V'' p / 12 - |V'|^2 / 24) (Hairer, Lubich & Wanner 2006, IX). In the coordinates x - h^2 V' / 12,
    p + h^2 V'' p / 12 it is H + h^2 |V'|^2 / 24. At temperature 1 the variance of its momenta is 1 - h^2 V'' / 6 in the
    middle of a kick and 1 + h^2 V'' / 12 between kicks. One third of the noise is therefore added in the middle of
    kicks and two thirds between them, which gives all modes this temperature to second order in h. The same holds for a
    momentum of constant norm: `turn` differs from Newton's kicks by one factor for all modes.

    At the kick points the variance of a mode of frequency w is too large by h^2 w^2 / 12. States are displaced from
    there by h^2 / 24 times the gradient g, which makes variances right to second order. A state keeps the gradient of
    the kick point, and the log density of the kick point plus its first-order change. This is too high by
    (h^2 / 24)^2 g H g / 2 for the curvature H, a sum over all dimensions. Another sampler must begin with its own
    `init`. The bias of parameters is `density_shift`.

    A step that is not finite is rejected, and a new direction is drawn.

    Args:
      key: random key.
      state: state from `init` or from the previous step, whose position is a draw.
      logdensity: log density, a function of the position, which is a pytree of arrays.
      L: decoherence length of the momentum.
      step_size: length of a step, in units of the root of the inverse mass matrix.
      inverse_mass_matrix: diagonal, a number or a pytree that broadcasts against the position.
      agree: function that makes copies of numbers equal on all processes.
    """
    dtype = state.logdensity.dtype
    L, step_size = jnp.asarray(L, dtype), jnp.asarray(step_size, dtype)
    key, other = jax.random.split(key)
    kick_key, drift_key = jax.random.split(key)
    root, displacement = jax.tree.map(jnp.sqrt, inverse_mass_matrix), _displacement(step_size, state.position)
    position = trees.add(state.position, -displacement, trees.multiply(state.logdensity_grad, inverse_mass_matrix))
    momentum = refresh(kick_key, state.momentum, step_size / 3, L)
    momentum, before = turn(momentum, trees.multiply(state.logdensity_grad, root), 0.5 * step_size)
    position = trees.add(position, 0.5 * step_size, trees.multiply(momentum, root))
    momentum = refresh(drift_key, momentum, step_size * (2 / 3), L)
    position = trees.add(position, 0.5 * step_size, trees.multiply(momentum, root))
    value, slope = jax.value_and_grad(logdensity)(position)
    momentum, after = turn(momentum, trees.multiply(slope, root), 0.5 * step_size)
    uphill = trees.multiply(slope, inverse_mass_matrix)
    value += displacement * trees.dot(slope, uphill)
    new = IntegratorState(trees.add(position, displacement, uphill), momentum, value, slope)
    energy = before + after - new.logdensity + state.logdensity
    fine = agree(trees.all_finite((new, energy)))
    rejected = state._replace(momentum=trees.unit_vector(other, state.position))
    new = trees.where(fine, new, rejected)
    return new, Transition(jnp.where(fine, energy, 0), fine, jnp.ones_like(energy), jnp.asarray(1))


def turn(momentum: Any, slope: Any, distance: Array) -> tuple[Any, Array]:
    """Turn a direction towards a constant gradient over a distance; also the change of the kinetic energy.

    Let g be the norm of the gradient, e its direction, x = distance g / (d - 1), and c = u e. The direction becomes
    (u + e (sinh x + c (cosh x - 1))) / (cosh x + c sinh x). The energy changes by (d - 1) times the logarithm of the
    denominator. Both use exp(-x), which cannot overflow.
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
    """The momentum with noise over a distance, for a decoherence length L; unchanged if L is infinite."""
    noise = trees.normal_like(key, momentum)
    size = jnp.sqrt(jnp.expm1(2 * distance / L) / trees.size(momentum))
    moved = trees.add(momentum, size, noise)
    return trees.where(jnp.isinf(L), momentum, trees.scale(1 / trees.norm(moved), moved))


def density_shift(state: IntegratorState, step_size: Array, inverse_mass_matrix: Any = 1.0) -> Array:
    """Second-order shift of the sampled log density by finite steps, averaged over a field.

    Trajectories of `step` with time steps h conserve the Hamiltonian plus h^2 g M^-1 g / 24 in its shifted
    coordinates, for gradients g and masses M. The density of a parameter gains the factor exp(-h^2 E[g M^-1 g] / 24),
    where the mean is the sum of w^2 over the frequencies w of the modes if these depend on the parameter. The sum over
    many modes is a bias of the parameter even if the error of each mode is negligible.

    For fields x the code uses g (M^-1 g + x). Its mean differs by a constant, the number of dimensions (Stein 1981),
    and it has no noise for modes without data, where g = -M x.

    Leaves of the position without axes are parameters, all others are fields.
    """
    slope = state.logdensity_grad
    fields = jax.tree.map(lambda x: x if x.ndim else jnp.zeros_like(x), state.position)
    square = trees.dot(slope, trees.add(fields, 1, trees.multiply(slope, inverse_mass_matrix)))
    return -_displacement(step_size, state.position) * square


def _displacement(step_size: Array, position: Any) -> Array:
    """Displacement of a state of `step` per gradient, h^2 / 24."""
    return step_size**2 / (24 * trees.size(position))
