"""Microcanonical Langevin Monte Carlo (Robnik & Seljak 2023, arXiv 2303.18221), without and with a Metropolis step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import (
    IntegratorState,
    LogDensity,
    langevin_step,
    mclachlan_step,
    start,
    value_and_grad,
)


class MCLMCInfo(NamedTuple):
    """What happened in a step.

    Args:
      logdensity: of the state after it.
      energy_change: error of the energy; its variance over d is what the step size is controlled by.
      kinetic_change: change of the kinetic energy.
      nonans: false where the step ended in a failed simulation, or nowhere, and was undone.
    """

    logdensity: Array
    energy_change: Array
    kinetic_change: Array
    nonans: Array


def init(key: Array, position: Any, logdensity: LogDensity) -> IntegratorState:
    """The state at a position, with a direction at random."""
    return start(position, trees.unit_vector(key, position), logdensity)


def step(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    L: ArrayLike,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
) -> tuple[IntegratorState, MCLMCInfo]:
    """One step of MCLMC: one gradient.

    The position of the state is a draw. Its log density and slope are beside what they are there
    (`isokinetic.langevin_step`): another sampler begins with its own `init` at the position. A step whose end is not
    finite is undone, and a new direction drawn.

    Args:
      key: of jax.random.
      state: from `init`, or of the step before.
      logdensity: function of the position, a pytree of arrays.
      L: length over which the momentum forgets its direction.
      step_size: length of a step.
      inverse_mass_matrix: diagonal, a number or a pytree whose leaves broadcast against the position's.
    """
    dtype = state.logdensity.dtype
    L, step_size = jnp.asarray(L, dtype), jnp.asarray(step_size, dtype)
    key, other = jax.random.split(key)
    new, kinetic = langevin_step(key, state, step_size, L, logdensity, inverse_mass_matrix)
    energy = kinetic - new.logdensity + state.logdensity
    fine = trees.all_finite((new, energy))
    undone = state._replace(momentum=trees.unit_vector(other, state.position))
    new = trees.where(fine, new, undone)
    zero = jnp.zeros_like(energy)
    info = MCLMCInfo(new.logdensity, jnp.where(fine, energy, zero), jnp.where(fine, kinetic, zero), fine)
    return new, info


class AdjustedInfo(NamedTuple):
    """What happened in a transition of a Metropolis-adjusted sampler.

    Args:
      logdensity: after it.
      acceptance_rate: probability with which it was accepted.
      is_accepted: whether it was.
      energy_change: error of the energy along the trajectory.
      nonans: false where the trajectory ended in a failed simulation, or nowhere.
    """

    logdensity: Array
    acceptance_rate: Array
    is_accepted: Array
    energy_change: Array
    nonans: Array


class ChainState(NamedTuple):
    """A position, its log density and gradient: the state of samplers that draw a new momentum each time."""

    position: Any
    logdensity: Array
    logdensity_grad: Any


def adjusted_init(key: Array, position: Any, logdensity: LogDensity) -> ChainState:
    """The state at a position."""
    del key
    value, slope = value_and_grad(logdensity, position)
    return ChainState(position, value, slope)


def adjusted_step(
    key: Array,
    state: ChainState,
    logdensity: LogDensity,
    *,
    num_integration_steps: ArrayLike,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
) -> tuple[ChainState, AdjustedInfo]:
    """A trajectory with a new direction and no noise, accepted or rejected: two gradients an integration step.

    Args:
      key: of jax.random.
      state: from `adjusted_init`, or of the transition before.
      logdensity: function of the position, a pytree of arrays.
      num_integration_steps: of the trajectory.
      step_size: length of each.
      inverse_mass_matrix: diagonal, a number or a pytree whose leaves broadcast against the position's.
    """
    direction, choice = jax.random.split(key)
    momentum = trees.unit_vector(direction, state.position)
    begin = IntegratorState(state.position, momentum, state.logdensity, state.logdensity_grad)
    size = jnp.asarray(step_size, state.logdensity.dtype)

    def once(_: Array, carry: tuple[IntegratorState, Array]) -> tuple[IntegratorState, Array]:
        end, kinetic = mclachlan_step(carry[0], size, logdensity, inverse_mass_matrix)
        return end, carry[1] + kinetic

    end, kinetic = jax.lax.fori_loop(0, num_integration_steps, once, (begin, jnp.zeros_like(state.logdensity)))
    energy = kinetic - end.logdensity + state.logdensity
    return metropolis(choice, state, ChainState(end.position, end.logdensity, end.logdensity_grad), energy)


def metropolis(key: Array, old: ChainState, new: ChainState, energy: Array) -> tuple[ChainState, AdjustedInfo]:
    """The new state with the probability that its energy error allows, else the old one."""
    fine = trees.all_finite((new, energy))
    energy = jnp.where(fine, energy, jnp.inf)
    rate = jnp.minimum(1, jnp.exp(-energy))
    accepted = jax.random.uniform(key, dtype=rate.dtype) < rate
    state = trees.where(accepted, new, old)
    return state, AdjustedInfo(state.logdensity, rate, accepted, jnp.where(fine, energy, 0), fine)
