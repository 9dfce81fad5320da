"""Blocks of steps of a batch of chains, with the statistics that tuning uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.infer.samplers.isokinetic import IntegratorState, LogDensity, density_shift
from pmwd_dist.infer.samplers.methods import Method, Tuning, transition

TRAJECTORIES = 5  # trajectories of a block of an adjusted sampler


class Block(NamedTuple):
    """Statistics of a block of steps, of one chain or with a leading axis of chains.

    Args:
      energy_change: energy error of each step.
      nonans: whether each step is finite.
      numbers: leaves of the position without axes, after each step.
      shift: shift of the log density by steps of length 1 (`isokinetic.density_shift`), after each step.
      mean: mean position.
      square: mean square of each leaf of the position.
      observed: numbers from the observer, after each step.
      noise: mean of the observer's field.
    """

    energy_change: Array
    nonans: Array
    numbers: Array
    shift: Array
    mean: Any
    square: Any
    observed: Array
    noise: Array


Observe = Callable[[Any, Any], tuple[Array, Array]]


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
    **options: Any,
) -> tuple[IntegratorState, Block]:
    """A block of a batch of chains: `length` steps of MCLMC, or a few trajectories of an adjusted sampler.

    The observer is a function of position and gradient. It returns numbers to keep and a field to average. Further
    options are those of `transition`.
    """
    chains, steps = states.logdensity.shape[0], length if method == "mclmc" else TRAJECTORIES
    fractions = jax.random.uniform(jax.random.fold_in(key, chains), (steps,))  # shared by all chains
    step = partial(transition, logdensity=logdensity, method=method, tuning=tuning, **options)

    def look(position: Any, slope: Any) -> tuple[Array, Array]:
        return observe(position, slope) if observe else (jnp.zeros(0), jnp.zeros(0))

    def once(carry: tuple[IntegratorState, Any, Any, Array], inputs: tuple[Array, Array]) -> Any:
        state, mean, square, noise = carry
        state, info = step(inputs[0], state, fraction=inputs[1])
        mean = jax.tree.map(lambda m, x: m + x / steps, mean, state.position)
        square = jax.tree.map(lambda s, x: s + jnp.mean(x**2) / steps, square, state.position)
        observed, field = look(state.position, state.logdensity_grad)
        leaves = [x for x in jax.tree.leaves(state.position) if not x.ndim]
        numbers = jnp.stack(leaves) if leaves else jnp.zeros(0)
        shift = density_shift(state, jnp.ones_like(state.logdensity), tuning.inverse_mass_matrix)
        each = info.energy_change, info.nonans, numbers, shift, observed
        return (state, mean, square, noise + field / steps), each

    def one(key: Array, state: IntegratorState) -> tuple[IntegratorState, Block]:
        zeros = jax.tree.map(jnp.zeros_like, state.position)
        field = jax.eval_shape(look, state.position, state.logdensity_grad)[1]
        begin = state, zeros, jax.tree.map(jnp.mean, zeros), jnp.zeros(field.shape, field.dtype)
        (state, mean, square, noise), each = jax.lax.scan(once, begin, (jax.random.split(key, steps), fractions))
        energy_change, nonans, numbers, shift, observed = each
        return state, Block(energy_change, nonans, numbers, shift, mean, square, observed, noise)

    return jax.vmap(one, spmd_axis_name=spmd_axis_name)(jax.random.split(key, chains), states)
