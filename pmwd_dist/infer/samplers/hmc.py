"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011) by velocity Verlet, on pytrees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import LogDensity, value_and_grad
from pmwd_dist.infer.samplers.mclmc import AdjustedInfo, ChainState, adjusted_init, metropolis

init = adjusted_init


def step(
    key: Array,
    state: ChainState,
    logdensity: LogDensity,
    *,
    num_integration_steps: ArrayLike,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
) -> tuple[ChainState, AdjustedInfo]:
    """A trajectory with a new momentum, accepted or rejected: one gradient an integration step.

    Args:
      key: of jax.random.
      state: from `init`, or of the transition before.
      logdensity: function of the position, a pytree of arrays.
      num_integration_steps: of the trajectory.
      step_size: of each.
      inverse_mass_matrix: diagonal, a number or a pytree whose leaves broadcast against the position's.
    """
    draw, choice = jax.random.split(key)
    root = jax.tree.map(jnp.sqrt, inverse_mass_matrix)
    size = jnp.asarray(step_size, state.logdensity.dtype)
    start = trees.normal_like(draw, state.position)  # in units of the root of the mass matrix

    def once(_: Any, carry: tuple[ChainState, Any]) -> tuple[ChainState, Any]:
        (position, _, slope), momentum = carry
        momentum = trees.add(momentum, 0.5 * size, trees.multiply(slope, root))
        position = trees.add(position, size, trees.multiply(momentum, root))
        value, slope = value_and_grad(logdensity, position)
        return ChainState(position, value, slope), trees.add(momentum, 0.5 * size, trees.multiply(slope, root))

    end, momentum = jax.lax.fori_loop(0, num_integration_steps, once, (state, start))
    kinetic = 0.5 * (trees.dot(momentum, momentum) - trees.dot(start, start))
    return metropolis(choice, state, end, kinetic - end.logdensity + state.logdensity)
