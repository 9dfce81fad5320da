"""Microcanonical Langevin Monte Carlo (Robnik & Seljak 2023, arXiv 2303.18221), without and with a Metropolis step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import (
    Agree,
    IntegratorState,
    LogDensity,
    langevin_step,
    mclachlan_step,
    start,
    unchanged,
)
from pmwd_dist.parallel.explicit_axes import on_auto_axes


class MCLMCInfo(NamedTuple):
    """Statistics of a step.

    Args:
      energy_change: energy error, whose variance per dimension controls the step size.
      nonans: false for a rejected step: a failed simulation or a position that is not finite.
    """

    energy_change: Array
    nonans: Array


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
) -> tuple[IntegratorState, MCLMCInfo]:
    """One step of MCLMC: one gradient.

    The position of the state is a draw. Its log density and gradient belong to the kick point beside it
    (`isokinetic.langevin_step`), so that another sampler must begin with its own `init`. A step that is not finite is
    rejected, and a new direction is drawn.

    Args:
      key: random key.
      state: state from `init` or from the previous step.
      logdensity: log density, a function of the position, which is a pytree of arrays.
      L: decoherence length of the momentum.
      step_size: length of a step.
      inverse_mass_matrix: diagonal, a number or a pytree that broadcasts against the position.
      agree: function that makes copies of numbers equal on all processes.
    """
    dtype = state.logdensity.dtype
    L, step_size = jnp.asarray(L, dtype), jnp.asarray(step_size, dtype)
    key, other = jax.random.split(key)
    new, kinetic = langevin_step(key, state, step_size, L, logdensity, inverse_mass_matrix)
    energy = kinetic - new.logdensity + state.logdensity
    fine = agree(trees.all_finite((new, energy)))
    rejected = state._replace(momentum=trees.unit_vector(other, state.position))
    new = trees.where(fine, new, rejected)
    return new, MCLMCInfo(jnp.where(fine, energy, 0), fine)


class AdjustedInfo(NamedTuple):
    """Statistics of a transition of a Metropolis-adjusted sampler.

    Args:
      acceptance_rate: acceptance probability.
      is_accepted: whether the trajectory was accepted.
      energy_change: energy error of the trajectory.
      nonans: false for a failed simulation or a position that is not finite.
    """

    acceptance_rate: Array
    is_accepted: Array
    energy_change: Array
    nonans: Array


@on_auto_axes
def adjusted_step(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    num_integration_steps: ArrayLike,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
    agree: Agree = unchanged,
) -> tuple[IntegratorState, AdjustedInfo]:
    """A trajectory with a new direction and no noise, accepted or rejected: two gradients an integration step.

    Args:
      key: random key.
      state: state from `init` or from the previous transition.
      logdensity: log density, a function of the position, which is a pytree of arrays.
      num_integration_steps: number of integration steps of the trajectory.
      step_size: length of an integration step.
      inverse_mass_matrix: diagonal, a number or a pytree that broadcasts against the position.
      agree: function that makes copies of numbers equal on all processes.
    """
    direction, choice = jax.random.split(key)
    begin = state._replace(momentum=trees.unit_vector(direction, state.position))
    size = jnp.asarray(step_size, state.logdensity.dtype)

    def once(_: Array, carry: tuple[IntegratorState, Array]) -> tuple[IntegratorState, Array]:
        end, kinetic = mclachlan_step(carry[0], size, logdensity, inverse_mass_matrix)
        return end, carry[1] + kinetic

    end, kinetic = jax.lax.fori_loop(0, num_integration_steps, once, (begin, jnp.zeros_like(state.logdensity)))
    return metropolis(choice, state, end, kinetic - end.logdensity + state.logdensity, agree)


def metropolis(
    key: Array, old: IntegratorState, new: IntegratorState, energy: Array, agree: Agree = unchanged
) -> tuple[IntegratorState, AdjustedInfo]:
    """The new state with the probability that its energy error allows, else the old one."""
    fine, energy = agree((trees.all_finite((new, energy)), energy))
    energy = jnp.where(fine, energy, jnp.inf)
    rate = jnp.minimum(1, jnp.exp(-energy))
    accepted = jax.random.uniform(key, dtype=rate.dtype) < rate
    state = trees.where(accepted, new, old)
    return state, AdjustedInfo(rate, accepted, jnp.where(fine, energy, 0), fine)
