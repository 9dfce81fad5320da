"""Blocks of steps of a batch of chains, with the statistics that tuning uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.infer.samplers.mclmc import IntegratorState, LogDensity
from pmwd_dist.infer.samplers.methods import Method, Tuning, transition

TRAJECTORIES = 5  # trajectories of a block of HMC


class Block(NamedTuple):
    """Statistics of a block of steps, of one chain or with a leading axis of chains.

    Args:
      energy_change: energy error of each step.
      nonans: whether each step is finite.
      observed: what the observer returns, after each step.
      noise: mean of the observer's field.
    """

    energy_change: Array
    nonans: Array
    observed: Any
    noise: Array


def run_blocks(
    key: Array,
    states: IntegratorState,
    tuning: Tuning,
    method: Method,
    *,
    logdensity: LogDensity,
    observe: Callable[[Any, Any], tuple[Any, Array]],
    length: int,
    spmd_axis_name: str | None = None,
    **options: Any,
) -> tuple[IntegratorState, Block]:
    """A block of a batch of chains: `length` steps of MCLMC, or a few trajectories of HMC.

    The observer is a function of position and gradient. It returns arrays to keep and a field to average. Further
    options are those of `transition`.
    """
    chains, steps = states.logdensity.shape[0], length if method == "mclmc" else TRAJECTORIES
    fractions = jax.random.uniform(jax.random.fold_in(key, chains), (steps,))  # shared by all chains
    step = partial(transition, logdensity=logdensity, method=method, tuning=tuning, **options)

    def once(carry: tuple[IntegratorState, Array], inputs: tuple[Array, Array]) -> Any:
        state, noise = carry
        state, info = step(inputs[0], state, fraction=inputs[1])
        observed, field = observe(state.position, state.logdensity_grad)
        return (state, noise + field / steps), (info.energy_change, info.nonans, observed)

    def one(key: Array, state: IntegratorState) -> tuple[IntegratorState, Block]:
        field = jax.eval_shape(observe, state.position, state.logdensity_grad)[1]
        begin = state, jnp.zeros(field.shape, field.dtype)
        (state, noise), each = jax.lax.scan(once, begin, (jax.random.split(key, steps), fractions))
        energy_change, nonans, observed = each
        return state, Block(energy_change, nonans, observed, noise)

    return jax.vmap(one, spmd_axis_name=spmd_axis_name)(jax.random.split(key, chains), states)
