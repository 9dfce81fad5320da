"""Blocks of steps of a batch of chains, and what they show: what tuning learns from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.infer.samplers.isokinetic import IntegratorState, LogDensity, density_shift
from pmwd_dist.infer.samplers.methods import Method, Tuning, transition

TRAJECTORIES = 5  # of a block of an adjusted sampler


class Block(NamedTuple):
    """What a block of steps has shown, of one chain or with a leading axis of chains.

    Args:
      energy_change: of each step.
      nonans: of each step.
      numbers: of the position, its leaves that are no fields, after each step.
      shift: what steps of length 1 add to the log density (`isokinetic.density_shift`), after each step.
      mean: of the position.
      square: mean square of each leaf of the position.
      observed: numbers that an observer has seen of each state.
      informed: mean of the fields that it has seen.
    """

    energy_change: Array
    nonans: Array
    numbers: Array
    shift: Array
    mean: Any
    square: Any
    observed: Array
    informed: Array


Observe = Callable[[Any, Any], tuple[Array, Array]]


def run_block(
    key: Array,
    state: IntegratorState,
    fractions: Array,
    *,
    tuning: Tuning,
    logdensity: LogDensity,
    method: Method = "mclmc",
    observe: Observe | None = None,
) -> tuple[IntegratorState, Block]:
    """A block of transitions of one chain, one for each of the fractions, which all chains share.

    The observer is a function of position and slope of the log density: numbers to keep, and a field to average.
    """
    steps = fractions.shape[0]
    step = partial(transition, logdensity=logdensity, method=method, tuning=tuning)

    def look(position: Any, slope: Any) -> tuple[Array, Array]:
        return observe(position, slope) if observe else (jnp.zeros(0), jnp.zeros(0))

    def once(carry: tuple[IntegratorState, Any, Any, Array], inputs: tuple[Array, Array]) -> Any:
        state, mean, square, informed = carry
        state, info = step(inputs[0], state, fraction=inputs[1])
        mean = jax.tree.map(lambda m, x: m + x / steps, mean, state.position)
        square = jax.tree.map(lambda s, x: s + jnp.mean(x**2) / steps, square, state.position)
        seen, field = look(state.position, state.logdensity_grad)
        numbers = [x for x in jax.tree.leaves(state.position) if not x.ndim]
        shift = density_shift(state, jnp.ones_like(state.logdensity), tuning.inverse_mass_matrix)
        return (state, mean, square, informed + field / steps), (
            info.energy_change,
            info.nonans,
            jnp.stack(numbers) if numbers else jnp.zeros(0),
            shift,
            seen,
        )

    zeros = jax.tree.map(jnp.zeros_like, state.position)
    informed = jax.eval_shape(look, state.position, state.logdensity_grad)[1]
    begin = state, zeros, jax.tree.map(jnp.mean, zeros), jnp.zeros(informed.shape, informed.dtype)
    (state, mean, square, informed), each = jax.lax.scan(once, begin, (jax.random.split(key, steps), fractions))
    energy_change, nonans, numbers, shift, seen = each
    return state, Block(energy_change, nonans, numbers, shift, mean, square, seen, informed)


def run_blocks(
    key: Array,
    states: IntegratorState,
    tuning: Tuning,
    method: Method,
    *,
    logdensity: LogDensity,
    length: int,
    spmd_axis_name: str | None = None,
    observe: Observe | None = None,
) -> tuple[IntegratorState, Block]:
    """A block of a batch of chains: of so many steps of MCLMC, or trajectories of an adjusted sampler."""
    chains = states.logdensity.shape[0]
    fractions = jax.random.uniform(jax.random.fold_in(key, chains), (length if method == "mclmc" else TRAJECTORIES,))
    one = partial(run_block, tuning=tuning, logdensity=logdensity, method=method, observe=observe)
    keys = jax.random.split(key, chains)
    return jax.vmap(lambda k, s: one(k, s, fractions), spmd_axis_name=spmd_axis_name)(keys, states)
