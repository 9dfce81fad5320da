"""Step size, momentum decoherence length and masses of MCLMC, from a run of it (Robnik & Seljak 2023).

The step size follows the energy error: its variance grows as the sixth power of the step, and its target is 5e-4 per
dimension. L is 0.4 of the distance over which positions decorrelate. Masses are one number for each field, whose modes
a preconditioner has brought to one scale, and one for each parameter: no field of them is stored.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer import trees
from pmwd_dist.infer.diagnostics import ess_mean
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.isokinetic import IntegratorState, LogDensity

ENERGY_VARIANCE = 5e-4  # per dimension
_MEMORY = 150  # effective number of steps that the step size is averaged over
_TRUST = 1.5  # steps whose energy error is far from the target by more than e^(6 * this) count little
_PROJECTIONS = 8  # directions of the position whose correlation is followed


class Tuning(NamedTuple):
    """Parameters of MCLMC, with the names of blackjax."""

    L: Array
    step_size: Array
    inverse_mass_matrix: Any


class _Averages(NamedTuple):
    weight: Array  # of the step size
    inverse_sixth: Array
    largest: Array  # step size that did not fail
    time: Array  # of the moments
    mean: Any
    square: Any


def tune(
    key: Array, state: IntegratorState, logdensity: LogDensity, *, steps: int, tuning: Tuning | None = None
) -> tuple[IntegratorState, Tuning]:
    """Run MCLMC for some steps, and find its parameters.

    A quarter of the steps finds the step size, two the masses and the step size that goes with them, and the last L.

    Args:
      key: of jax.random.
      state: from `mclmc.init`.
      logdensity: function of the position, a pytree of arrays.
      steps: in all.
      tuning: to begin with; default: steps of a quarter of the root of the dimensions.

    Returns:
      The last state, and the parameters.

    Raises:
      ValueError: fewer than 40 steps.
    """
    if steps < 40:
        raise ArgumentError("steps", steps, "must be 40 or more to tune")
    root = math.sqrt(trees.size(state.position))
    if tuning is None:
        ones = jax.tree.map(lambda _: jnp.ones((), state.logdensity.dtype), state.position)
        tuning = Tuning(jnp.asarray(root), jnp.asarray(0.25 * root), ones)
    keys = jax.random.split(key, 4)
    part = steps // 4
    state, tuning, _ = _adapt(keys[0], state, logdensity, tuning, part)
    state, tuning, variance = _adapt(keys[1], state, logdensity, tuning, part)
    tuning = _with_masses(tuning, variance, state.position)
    # Where scales differ, the narrowest direction has most of the energy error, and too small a variance at first.
    state, tuning, variance = _adapt(keys[2], state, logdensity, tuning, part)
    tuning = _with_masses(tuning, variance, state.position)
    state, followed = _follow(keys[3], state, logdensity, tuning, part)
    sizes = [ess_mean(x[None]) for x in np.asarray(followed, float).T]
    correlated = np.mean([len(followed) / size for size in sizes])
    length = 0.4 * float(correlated) * float(tuning.step_size)
    return state, tuning._replace(L=jnp.asarray(max(length, float(tuning.step_size)), state.logdensity.dtype))


@eqx.filter_jit
def _adapt(
    key: Array, state: IntegratorState, logdensity: LogDensity, tuning: Tuning, steps: int
) -> tuple[IntegratorState, Tuning, Any]:
    """The state and step size after some steps, and the variance of each leaf of the position, weighted by steps."""
    dimensions, dtype = trees.size(state.position), state.logdensity.dtype
    decay = (_MEMORY - 1) / (_MEMORY + 1)
    zero = jnp.zeros((), dtype)
    means = jax.tree.map(jnp.zeros_like, state.position)
    begin = _Averages(zero, zero, jnp.asarray(jnp.inf, dtype), zero, means, jax.tree.map(_mean, means))

    def once(carry: tuple[IntegratorState, Array, _Averages], key: Array) -> Any:
        state, size, was = carry
        state, info = mclmc.step(key, state, logdensity, **tuning._replace(step_size=size)._asdict())
        ratio = info.energy_change**2 / (dimensions * ENERGY_VARIANCE) + 1e-8
        trust = jnp.where(info.nonans, jnp.exp(-0.5 * (jnp.log(ratio) / (6 * _TRUST)) ** 2), 0)
        weight = decay * was.weight + trust
        sixth = decay * was.inverse_sixth + trust * ratio / size**6
        largest = jnp.where(info.nonans, was.largest, 0.8 * size)
        some = weight > 0
        wanted = jnp.where(some, (jnp.where(some, weight, 1) / jnp.where(some, sixth, 1)) ** (1 / 6), size)
        time = was.time + size
        share = size / time
        mean = jax.tree.map(lambda m, x: m + share * (x - m), was.mean, state.position)
        square = jax.tree.map(lambda m, x: m + share * (_mean(x**2) - m), was.square, state.position)
        return (state, jnp.minimum(wanted, largest), _Averages(weight, sixth, largest, time, mean, square)), None

    (state, size, last), _ = jax.lax.scan(once, (state, tuning.step_size, begin), jax.random.split(key, steps))
    variance = jax.tree.map(lambda square, m: jnp.maximum(square - _mean(m**2), 1e-6), last.square, last.mean)
    return state, tuning._replace(step_size=size), variance


@eqx.filter_jit
def _follow(
    key: Array, state: IntegratorState, logdensity: LogDensity, tuning: Tuning, steps: int
) -> tuple[IntegratorState, Array]:
    """The state after some steps, and at each the numbers of the position and projections of its fields."""
    directions = jax.random.key(0)

    def project(position: Any) -> Array:
        fields = [x for x in jax.tree.leaves(position) if x.ndim]
        numbers = [x for x in jax.tree.leaves(position) if not x.ndim]

        def along(key: Array) -> Array:
            return trees.dot(fields, trees.normal_like(key, fields))

        along_all = jax.lax.map(along, jax.random.split(directions, _PROJECTIONS)) if fields else jnp.zeros(0)
        return jnp.concatenate([along_all, jnp.asarray(numbers, along_all.dtype)])

    def once(state: IntegratorState, key: Array) -> tuple[IntegratorState, Array]:
        state, _ = mclmc.step(key, state, logdensity, **tuning._asdict())
        return state, project(state.position)

    return jax.lax.scan(once, state, jax.random.split(key, steps))


def _with_masses(tuning: Tuning, variance: Any, position: Any) -> Tuning:
    """In units of the new masses every direction has a variance of 1. The step goes with their root mean square."""
    ratio = _mean_square(tuning.inverse_mass_matrix, position) / _mean_square(variance, position)
    size = trees.size(position)
    root = jnp.sqrt(jnp.asarray(size, tuning.step_size.dtype))
    return Tuning(root, tuning.step_size * jnp.sqrt(ratio), variance)


def _mean(x: Array) -> Array:
    return jnp.mean(x)


def _mean_square(variance: Any, position: Any) -> Array:
    """Mean over the dimensions of variances that are one number a leaf."""
    weighted = jax.tree.map(lambda v, x: v * x.size, variance, position)
    return sum(jax.tree.leaves(weighted), jnp.zeros(())) / trees.size(position)
