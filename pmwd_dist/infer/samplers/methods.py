"""The samplers by name, as transitions between states of one kind: what `sample` and its tuning run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.samplers import hmc, isokinetic, mclmc, nuts
from pmwd_dist.infer.samplers.isokinetic import IntegratorState, LogDensity
from pmwd_dist.infer.samplers.mclmc import ChainState

Method = Literal["mclmc", "adjusted-mclmc", "hmc", "nuts"]
NEEDS_BLACKJAX = "needs blackjax; `pip install '.[nuts]'`, or use another method"


class Tuning(NamedTuple):
    """Parameters of a sampler, with the names of blackjax.

    Args:
      L: length over which the momentum forgets its direction, or mean length of the trajectories of adjusted samplers.
      step_size: of an integration step. Lengths are distances for MCLMC, and times for HMC.
      inverse_mass_matrix: one number for each leaf of the position.
      tilt: slope along each leaf without axes, which MCLMC takes away from the log density against what finite steps
        add to it (`isokinetic.density_shift`), so that to first order no parameter is shifted; None: none.
    """

    L: ArrayLike
    step_size: ArrayLike
    inverse_mass_matrix: Any
    tilt: Any = None


class Transition(NamedTuple):
    """What happened in a transition.

    Args:
      energy_change: error of the energy.
      nonans: false where it ended in a failed simulation, or nowhere, and was undone; a trajectory of NUTS ends.
      acceptance_rate: probability with which it was accepted; of NUTS the mean over a trajectory; 1 of MCLMC.
      gradients: that were evaluated.
    """

    energy_change: Array
    nonans: Array
    acceptance_rate: Array
    gradients: Array


def density_shift(state: IntegratorState, method: Method, tuning: Tuning) -> Array:
    """What finite steps and the tilt add to the log density that is sampled; nothing with a Metropolis step."""
    if method != "mclmc":
        return jnp.zeros_like(state.logdensity)
    added = isokinetic.density_shift(state, jnp.asarray(tuning.step_size), tuning.inverse_mass_matrix)
    return added - tilt(state.position, tuning)


def tilt(position: Any, tuning: Tuning) -> Array:
    """What is taken away from the log density at a position."""
    leaves = jax.tree.leaves(position)
    slopes = [0.0] * len(leaves) if tuning.tilt is None else jax.tree.leaves(tuning.tilt)
    each = (slope * x for slope, x in zip(slopes, leaves, strict=True) if not x.ndim)
    return sum(each, jnp.zeros((), jnp.result_type(*leaves)))


def tilted(state: IntegratorState, tuning: Tuning) -> IntegratorState:
    """The state at the same position, of the density with the tilt."""
    if tuning.tilt is None:
        return state
    slope = jax.tree.map(lambda g, t: g if g.ndim else g - t, state.logdensity_grad, tuning.tilt)
    return state._replace(logdensity=state.logdensity - tilt(state.position, tuning), logdensity_grad=slope)


def check_method(method: str) -> None:
    """Raise ValueError unless there is such a sampler, and what it needs."""
    if method not in get_args(Method):
        raise ArgumentError("method", method, f"must be one of {', '.join(get_args(Method))}")
    if method == "nuts" and find_spec("blackjax") is None:
        raise ArgumentError("method", method, NEEDS_BLACKJAX)


def trajectory_length(method: Method, dimensions: int) -> float:
    """Mean length of the trajectories of an adjusted sampler: a quarter of the period of unit variances."""
    return float(jnp.pi) / 2 * (dimensions**0.5 if method == "adjusted-mclmc" else 1.0)


def transition(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    method: Method,
    tuning: Tuning,
    fraction: Array,
) -> tuple[IntegratorState, Transition]:
    """A step of MCLMC, or a trajectory of an adjusted sampler.

    Args:
      key: of jax.random.
      state: from `mclmc.init`, or of the transition before.
      logdensity: function of the position.
      method: the sampler.
      tuning: its parameters; trajectories of NUTS have no L.
      fraction: uniform random number, the same for all chains of a batch, so that none waits for another: trajectories
        are up to twice L long, since those of one length could return to where they began.
    """
    if method == "mclmc":
        lengths: dict[str, Any] = {"L": tuning.L, "step_size": tuning.step_size}
        lengths["inverse_mass_matrix"] = tuning.inverse_mass_matrix
        state, info = mclmc.step(key, state, lambda x: logdensity(x) - tilt(x, tuning), **lengths)
        one = jnp.ones_like(info.energy_change)
        return state, Transition(info.energy_change, info.nonans, one, jnp.asarray(1))
    before = ChainState(state.position, state.logdensity, state.logdensity_grad)
    normal = jax.tree.map(lambda x: 1.0 if x.ndim else 0.0, state.position)
    options: dict[str, Any] = {"step_size": tuning.step_size, "inverse_mass_matrix": tuning.inverse_mass_matrix}
    if method == "nuts":
        after, info, count = nuts.step(key, before, logdensity, normal_precision=normal, **options)
        new = state._replace(**after._asdict())
        return new, Transition(info.energy_change, info.nonans, info.acceptance_rate, count)
    count = jnp.maximum(jnp.ceil(2 * fraction * jnp.asarray(tuning.L) / tuning.step_size), 1).astype(int)
    step, each = (hmc.step, 1) if method == "hmc" else (mclmc.adjusted_step, 2)
    options |= {"normal_precision": normal} if method == "hmc" else {}
    after, info = step(key, before, logdensity, num_integration_steps=count, **options)
    return state._replace(**after._asdict()), Transition(
        info.energy_change, info.nonans, info.acceptance_rate, each * count
    )
