"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011) on pytrees, with steps that are exact for a normal part.

A field with little data is nearly standard normal in the sampled coordinates. Motion in this part of the potential is a
rotation of position and momentum, which is exact. The remaining gradient kicks the momentum at both ends of a step
(Shahbaba et al. 2014, arXiv 1106.5941; in function spaces Beskos et al. 2011). Modes without data, which keep their
prior, add nothing to the energy error of a trajectory.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.mclmc import Agree, IntegratorState, LogDensity, Transition, start, unchanged
from pmwd_dist.parallel.explicit_axes import on_auto_axes

init = mclmc.init


@on_auto_axes
def step(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    num_integration_steps: ArrayLike,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
    normal_precision: Any = 0.0,
    agree: Agree = unchanged,
) -> tuple[IntegratorState, Transition]:
    """A trajectory with a new momentum, accepted or rejected: one gradient an integration step.

    Args:
      key: random key.
      state: state from `init` or from the previous transition.
      logdensity: log density, a function of the position, which is a pytree of arrays.
      num_integration_steps: number of integration steps of the trajectory.
      step_size: time of an integration step.
      inverse_mass_matrix: diagonal, a number or a pytree that broadcasts against the position.
      normal_precision: precision of the normal distribution about 0 for which steps are exact, in the same form; 0 for
        velocity Verlet.
      agree: function that makes copies of numbers equal on all processes.
    """
    draw, choice = jax.random.split(key)
    size, root = jnp.asarray(step_size, state.logdensity.dtype), jax.tree.map(jnp.sqrt, inverse_mass_matrix)
    before = trees.normal_like(draw, state.position)  # in units of the root of the mass matrix

    def kicked(state: IntegratorState) -> Any:
        left = trees.add(state.logdensity_grad, 1, trees.multiply(state.position, normal_precision))
        return trees.add(state.momentum, 0.5 * size, trees.multiply(left, root))

    def once(_: Any, state: IntegratorState) -> IntegratorState:
        state = start(*_rotated(state.position, kicked(state), size, root, normal_precision), logdensity)
        return state._replace(momentum=kicked(state))

    end = jax.lax.fori_loop(0, num_integration_steps, once, state._replace(momentum=before))
    # The product rounds less than the squares.
    kinetic = 0.5 * trees.dot(trees.add(end.momentum, -1, before), trees.add(end.momentum, 1, before))
    energy = kinetic - end.logdensity + state.logdensity
    fine, energy = agree((trees.all_finite((end, energy)), energy))
    rate = jnp.minimum(1, jnp.exp(-jnp.where(fine, energy, jnp.inf)))
    accepted = jax.random.uniform(choice, dtype=rate.dtype) < rate
    info = Transition(jnp.where(fine, energy, 0), fine, rate, jnp.asarray(num_integration_steps))
    return trees.where(accepted, end, state), info


def _rotated(position: Any, momentum: Any, time: Array, root: Any, precision: Any) -> tuple[Any, Any]:
    """Position and momentum after a time in the potential of the normal distribution.

    The rotation is made of three shears (Paeth 1986), which conserve volume, and nearly the energy, also with rounded
    coefficients. A rounded sine and cosine would scale all dimensions alike in every step.
    """

    def leaf(x: Array, p: Array, root: Any, precision: Any) -> tuple[Array, Array]:
        root, frequency = jnp.asarray(root, x.dtype), jnp.sqrt(jnp.asarray(precision, x.dtype))
        time_there = time.astype(x.dtype) * root
        angle = time_there * frequency
        half_turns = jnp.round(angle / jnp.pi)  # exact; the remainder is a quarter turn at most
        sign, angle = jnp.where(half_turns % 2 == 0, 1, -1).astype(x.dtype), angle - half_turns * jnp.pi
        free = frequency == 0
        along = jnp.where(free, 0.5 * time_there, jnp.tan(0.5 * angle) / jnp.where(free, 1, frequency))
        against = jnp.sin(angle) * frequency
        x = x + along * p
        p = p - against * x
        return sign * (x + along * p), sign * p

    root, precision = (trees.broadcast_to_leaves(tree, position) for tree in (root, precision))
    moved = jax.tree.map(leaf, position, momentum, root, precision)
    return jax.tree.transpose(jax.tree.structure(position), jax.tree.structure((0, 0)), moved)
