"""The largest posterior density over the noise, parameters fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.model import Position, Posterior

Method = Literal["l-bfgs", "adam"]


class Maximum(NamedTuple):
    """Where the posterior density is largest, as far as an optimiser got.

    Args:
      position: the best one.
      logdensity: there.
      history: log density after each step, on the host.
    """

    position: Position
    logdensity: float
    history: np.ndarray


def maximise(
    posterior: Posterior,
    position: Position,
    *,
    steps: int = 100,
    method: Method = "l-bfgs",
    learning_rate: float = 0.05,
    free: Sequence[str] = (),
) -> Maximum:
    """Maximise the posterior density over the noise, with the parameters of the position fixed.

    Parameters are fixed unless they are named as free: the largest joint density over field and parameters is no
    estimate of the parameters. It leaves the width of the field's posterior out, and so overfits the noise of the data
    with too strong a bias or too large a fluctuation.

    Args:
      posterior: of a model, given data.
      position: where to begin.
      steps: at most.
      method: "l-bfgs", which remembers ten steps (20 fields), or "adam", which keeps two fields.
      learning_rate: of Adam.
      free: names of parameters to maximise over, too.

    Raises:
      ValueError: a name that is no parameter, or another method.
      ImportError: optax is not installed.
    """
    import optax

    _check(posterior, position, method, free)
    optimiser = optax.lbfgs(10) if method == "l-bfgs" else optax.adam(learning_rate)
    fixed = {name: u for name, u in position["parameters"].items() if name not in free}

    def whole(variables: Any) -> Position:
        return {"noise": variables["noise"], "parameters": fixed | variables["parameters"]}

    @eqx.filter_jit
    def step(posterior: Posterior, variables: Any, state: Any) -> Any:
        def loss(variables: Any) -> Any:
            return -posterior.logdensity(whole(variables))

        value, slope = jax.value_and_grad(loss)(variables)
        options = {"value": value, "grad": slope, "value_fn": loss} if method == "l-bfgs" else {}
        update, state = optimiser.update(slope, state, variables, **options)
        return -value, optax.apply_updates(variables, update), state

    variables: Any = {"noise": position["noise"], "parameters": {name: position["parameters"][name] for name in free}}
    state, best, largest, history = eqx.filter_jit(optimiser.init)(variables), variables, -np.inf, []
    for _ in range(steps + 1):
        value, moved, state = step(posterior, variables, state)
        history.append(float(jnp.asarray(value)))
        if history[-1] > largest:
            best, largest = variables, history[-1]
        if not np.isfinite(history[-1]) or (
            method == "l-bfgs" and len(history) > 5 and history[-1] - history[-5] < 1e-9 * abs(largest)
        ):
            break
        variables = moved
    return Maximum(whole(best), largest, np.asarray(history))


def _check(posterior: Posterior, position: Position, method: Method, free: Sequence[str]) -> None:
    """ArgumentError for a method that there is not, or for parameters that can't be free."""
    if method not in ("l-bfgs", "adam"):
        raise ArgumentError("method", method, 'must be "l-bfgs" or "adam"')
    for name in free:
        if name not in position["parameters"]:
            remedy = f"use some of {', '.join(position['parameters'])}" if position["parameters"] else "there are none"
            raise ArgumentError("free", name, "is no parameter", remedy)
    if free and posterior.preconditioner is not None:
        constraint = "can't be told from the noise where it is counted from a mean that depends on them"
        raise ArgumentError("free", tuple(free), constraint, "use precondition=None")
