"""Microcanonical Langevin Monte Carlo (Robnik & Seljak 2023, arXiv 2303.18221)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import (
    Agree,
    IntegratorState,
    LogDensity,
    Transition,
    langevin_step,
    start,
    unchanged,
)
from pmwd_dist.parallel.explicit_axes import on_auto_axes


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
    return new, Transition(jnp.where(fine, energy, 0), fine, jnp.ones_like(energy), jnp.asarray(1))
