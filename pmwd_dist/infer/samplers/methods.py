"""The samplers by name, as transitions between states of one type."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.samplers import hmc, mclmc
from pmwd_dist.infer.samplers.mclmc import Agree, IntegratorState, LogDensity, Transition, unchanged

Method = Literal["mclmc", "hmc"]


class Tuning(NamedTuple):
    """Parameters of a sampler, with the names of blackjax.

    Args:
      L: decoherence length of the momentum of MCLMC, or mean length of the trajectories of HMC.
      step_size: size of an integration step. Lengths are distances for MCLMC, and times for HMC.
      inverse_mass_matrix: one number for each leaf of the position.
    """

    L: ArrayLike
    step_size: ArrayLike
    inverse_mass_matrix: Any


def check_method(method: str) -> None:
    """Raise ValueError unless the sampler exists."""
    if method not in get_args(Method):
        remedy = "NumPyro and blackjax have others, for posterior.numpyro_model and posterior.logdensity"
        raise ArgumentError("method", method, f"must be one of {', '.join(get_args(Method))}", remedy)


def transition(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    method: Method,
    tuning: Tuning,
    fraction: Array,
    agree: Agree = unchanged,
) -> tuple[IntegratorState, Transition]:
    """A step of MCLMC, or a trajectory of HMC.

    The state is one of `mclmc.init` or of the previous transition. Trajectories are 2 L fraction long, since a fixed
    length could be a period: `fraction` is a uniform random number, the same for all chains of a batch so that none
    waits for another. Without `agree` the copies of numbers on several processes would drift apart.
    """
    options: dict[str, Any] = {"step_size": tuning.step_size, "inverse_mass_matrix": tuning.inverse_mass_matrix}
    options |= {"agree": agree}
    if method == "mclmc":
        after, info = mclmc.step(key, state, logdensity, L=tuning.L, **options)
    else:
        precision = jax.tree.map(lambda x: 1.0 if x.ndim else 0.0, state.position)
        count = jnp.maximum(jnp.ceil(2 * fraction * jnp.asarray(tuning.L) / tuning.step_size), 1).astype(int)
        options |= {"num_integration_steps": count, "normal_precision": precision}
        after, info = hmc.step(key, state, logdensity, **options)
        after = after._replace(momentum=state.momentum)
    leaves, structure = jax.tree.flatten(after)
    numbers = iter(agree([x for x in leaves if not x.ndim]))  # parts of fields have no copies
    return structure.unflatten([x if x.ndim else next(numbers) for x in leaves]), info
