"""Maximum of the posterior density over the noise at fixed parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.program import filter_jit
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.parallel.distributed import to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.status import SimulationError


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
def maximise(posterior: Posterior, position: Position, *, steps: int = 100) -> Maximum:
    """Maximise the posterior density over the noise by L-BFGS, with the parameters of the position fixed.

    A joint maximum over field and parameters would be no estimate of the parameters: it ignores the width of the
    field's posterior, and overfits the noise of the data with too large a bias or amplitude.

    Args:
      posterior: posterior of a model, given data.
      position: first position.
      steps: largest number of steps. Ten of them (20 fields) are stored.

    Raises:
      ValueError: a number of steps that is not positive.
      SimulationError: the log density is not finite at the first position.
      ImportError: optax is not installed.

    Examples:
      >>> found = infer.maximise(posterior, posterior.initial(jax.random.key(0)))
    """
    import optax

    whole_number(steps, "steps", least=1)
    config, optimiser = posterior.model.config, optax.lbfgs(10)

    @filter_jit
    def step(posterior: Posterior, position: Position, state: Any) -> Any:
        def loss(noise: Array) -> Any:
            return -config.decomposition.equal_copies(posterior.logdensity(position | {"noise": noise}))

        noise = position["noise"]
        value, slope = jax.value_and_grad(loss)(noise)
        update, state = optimiser.update(slope, state, noise, value=value, grad=slope, value_fn=loss)
        return -value, position | {"noise": optax.apply_updates(noise, update)}, state

    state, best, largest = filter_jit(optimiser.init)(position["noise"]), position, -np.inf
    history = list[float]()
    for _ in range(steps + 1):
        value, moved, state = step(posterior, position, state)
        history.append(float(to_host(value)))
        if history[-1] > largest:
            best, largest = position, history[-1]
        settled = len(history) > 5 and history[-1] - history[-5] < 1e-9 * abs(largest)
        if settled or not np.isfinite(history[-1]):
            break
        position = moved
    if not np.isfinite(history[0]):
        raise SimulationError("the log density is not finite at the first position; begin elsewhere")
    return Maximum(best, largest, np.asarray(history))
