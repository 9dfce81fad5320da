"""Maximum of the posterior density over the noise at fixed parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.precondition import filtered
from pmwd_dist.parallel.distributed import to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm import fourier
from pmwd_dist.pm.status import SimulationError

Method = Literal["l-bfgs", "adam"]


class Maximum(NamedTuple):
    """Result of an optimiser.

    Args:
      position: position with the largest log density.
      logdensity: largest log density.
      history: log density after each step, on the host.
    """

    position: Position
    logdensity: float
    history: np.ndarray


@on_auto_axes
def maximise(
    posterior: Posterior,
    position: Position,
    *,
    steps: int = 100,
    method: Method = "l-bfgs",
    learning_rate: float = 0.05,
    free: Sequence[str] = (),
    anneal: Sequence[float] = (),
) -> Maximum:
    """Maximise the posterior density over the noise, with the parameters of the position fixed.

    Parameters are fixed unless they are named as free. A joint maximum over field and parameters is no estimate of the
    parameters: it ignores the width of the field's posterior, and overfits the noise of the data with too large a bias
    or amplitude.

    Args:
      posterior: posterior of a model, given data.
      position: first position.
      steps: largest number of steps.
      method: "l-bfgs", which stores ten steps (20 fields), or "adam", which stores two fields.
      learning_rate: learning rate of Adam.
      free: names of parameters that are maximised too.
      anneal: ascending wavenumbers [h/Mpc]. Modes up to each of them move first, and all at the end, with equal numbers
        of steps. Otherwise small structures far from their places match wrong ones, and hold large structures back.

    Raises:
      ValueError: a name that is no parameter, another method, numbers out of range, or wavenumbers that do not ascend.
      SimulationError: the log density is not finite at the first position.
      ImportError: optax is not installed.

    Examples:
      >>> found = infer.maximise(posterior, posterior.initial(jax.random.key(0)))
    """
    _check(posterior, position, method, free)
    whole_number(steps, "steps", least=1)
    if not 0 < learning_rate < np.inf:
        raise ArgumentError("learning_rate", learning_rate, "must be positive and finite")
    limits: list[float | None] = [float(k) for k in anneal]
    if list(anneal) != sorted(anneal) or not all(k > 0 for k in anneal):
        raise ArgumentError("anneal", limits, "must be positive wavenumbers, ascending")
    limits.append(None)
    largest, history = -np.inf, list[float]()
    for i, limit in enumerate(limits):
        count = (i + 1) * (steps + 1) // len(limits) - i * (steps + 1) // len(limits)
        factor = None if len(limits) == 1 else _up_to(limit, posterior.model.config, position["noise"].dtype)
        position, largest, values = _climb(posterior, position, (method, learning_rate), count, free, factor)
        history += values
        if not np.isfinite(history[0]):
            raise SimulationError("the log density is not finite at the first position; begin elsewhere")
    return Maximum(position, largest, np.asarray(history))


def _climb(
    posterior: Posterior,
    position: Position,
    method: tuple[Method, float],
    count: int,
    free: Sequence[str],
    factor: Array | None,
) -> tuple[Position, float, list[float]]:
    """The best of `count` positions, its log density, and the history; `factor` filters the modes of each move."""
    import optax

    optimiser = optax.lbfgs(10) if method[0] == "l-bfgs" else optax.adam(method[1])
    searches, config = method[0] == "l-bfgs", posterior.model.config

    def whole(variables: Any, position: Position, factor: Array | None) -> Position:
        moved = variables["noise"] if factor is None else filtered(variables["noise"], factor, config)
        parameters = position["parameters"] | variables["parameters"]
        return {"noise": position["noise"] + moved, "parameters": parameters}

    @eqx.filter_jit
    def step(posterior: Posterior, position: Position, variables: Any, state: Any, factor: Array | None) -> Any:
        def loss(variables: Any) -> Any:
            return -config.decomposition.equal_copies(posterior.logdensity(whole(variables, position, factor)))

        value, slope = jax.value_and_grad(loss)(variables)
        options = {"value": value, "grad": slope, "value_fn": loss} if searches else {}
        update, state = optimiser.update(slope, state, variables, **options)
        moved: Any = optax.apply_updates(variables, update)
        return -value, moved | {"parameters": config.decomposition.equal_copies(moved["parameters"])}, state

    parameters = {name: position["parameters"][name] for name in free}
    variables: Any = {"noise": jnp.zeros_like(position["noise"]), "parameters": parameters}
    state, best, largest, history = eqx.filter_jit(optimiser.init)(variables), variables, -np.inf, list[float]()
    for _ in range(count):
        value, moved, state = step(posterior, position, variables, state, factor)
        history.append(float(to_host(value)))
        if history[-1] > largest:
            best, largest = variables, history[-1]
        settled = searches and len(history) > 5 and history[-1] - history[-5] < 1e-9 * abs(largest)
        if settled or not np.isfinite(history[-1]):
            break
        variables = moved
    return eqx.filter_jit(whole)(best, position, factor), largest, history


@partial(jax.jit, static_argnames=("limit", "config", "dtype"))
def _up_to(limit: float | None, config: Config, dtype: Any) -> Array:
    """1 for modes up to a wavenumber, and 0 beyond."""
    decomposition, shape = config.decomposition, config.particle_shape

    def factor() -> Array:
        k2 = fourier.k_squared(shape, config, dtype)
        return jnp.ones_like(k2) if limit is None else jnp.where(k2 <= limit**2, 1, jnp.zeros_like(k2))

    return decomposition.shard_map(factor, (), decomposition.spectrum_spec)()


def _check(posterior: Posterior, position: Position, method: Method, free: Sequence[str]) -> None:
    """Raise ValueError for an unknown method, or for parameters that can't be free."""
    if method not in ("l-bfgs", "adam"):
        raise ArgumentError("method", method, 'must be "l-bfgs" or "adam"')
    for name in free:
        if name not in position["parameters"]:
            remedy = f"use some of {', '.join(position['parameters'])}" if position["parameters"] else "there are none"
            raise ArgumentError("free", name, "is no parameter", remedy)
    if free and posterior.preconditioner is not None:
        constraint = "can't be told from the noise where it is counted from a mean that depends on them"
        raise ArgumentError("free", tuple(free), constraint, "use precondition=None")
