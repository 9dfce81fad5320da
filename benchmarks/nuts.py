"""NUTS of blackjax, from where the tuning of our HMC has ended, on one device: what samplers are compared with."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import nuts
from jax.flatten_util import ravel_pytree

from pmwd_dist import infer
from pmwd_dist.infer import adaptation
from pmwd_dist.infer.chains import ChainFolder
from pmwd_dist.infer.samplers.methods import Tuning
from pmwd_dist.infer.state import restored

DRAWS = 10  # between looks at the budget


class NUTS:
    """Chains of NUTS, with the positions, step size and masses that `infer.sample` has found for HMC.

    Args:
      posterior: of a model, given data.
      positions: where the chains of `infer.sample` began.
      folder: where it has left the state after its tuning.
    """

    def __init__(self, posterior: infer.Posterior, positions: Any, folder: Path):
        stored = ChainFolder(folder, json.loads((folder / "chain.json").read_text(encoding="utf-8"))).state()
        assert stored is not None
        self.posterior = posterior.adapted(restored(stored, adaptation.start(posterior), "adaptation"))
        self.positions = restored(stored, positions)  # the first arrays of the state
        one = jnp.ones(())
        tuning = restored(stored, Tuning(one, one, *[jax.tree.map(lambda _: one, positions)] * 2), "tuning")
        self.step_size = tuning.step_size
        position = jax.tree.map(lambda x: x[0], positions)
        widths = jax.tree.map(lambda m, x: jnp.full(x.shape, m, x.dtype), tuning.inverse_mass_matrix, position)
        self.inverse_mass_matrix = ravel_pytree(widths)[0]

    def draw(self, gradients: int, until: float, key: Any) -> dict[str, Any]:
        """Parameters and log densities, (chains, draws): of one block, and more until so many gradients or a time."""
        states = _begin(self.posterior, self.positions)
        drawn, spent, chains = list[Any](), 0, self.positions["noise"].shape[0]
        while not drawn or (spent < gradients and time.perf_counter() < until):
            key, own = jax.random.split(key)
            keys = jax.random.split(own, chains)
            states, block = _block(keys, states, self.posterior, self.step_size, self.inverse_mass_matrix)
            drawn.append(jax.tree.map(np.asarray, block))
            spent += int(np.sum(drawn[-1]["steps"]))
        arrays = {name: np.concatenate([x[name] for x in drawn], axis=1) for name in drawn[0]}
        del arrays["steps"]
        accepted, energy = arrays.pop("accepted").mean(), arrays.pop("energy")
        return arrays | {"gradients": spent, "accepted": accepted, "energy": energy}


@eqx.filter_jit
def _begin(posterior: infer.Posterior, positions: Any) -> Any:
    return jax.vmap(partial(nuts.init, logdensity_fn=posterior.logdensity))(positions)


@eqx.filter_jit
def _block(keys: Any, states: Any, posterior: infer.Posterior, step_size: Any, inverse_mass_matrix: Any) -> Any:
    """So many transitions of all chains."""
    kernel = blackjax.nuts.build_kernel()
    options: dict[str, Any] = {"step_size": step_size, "inverse_mass_matrix": inverse_mass_matrix}

    def once(state: Any, key: Any) -> Any:
        before = state.logdensity
        state, info = kernel(key, state, posterior.logdensity, **options)
        kinetic = 0.5 * jnp.sum(inverse_mass_matrix * ravel_pytree(info.momentum)[0] ** 2)
        seen = {"steps": info.num_integration_steps, "accepted": info.acceptance_rate}
        seen |= {"log density": state.logdensity, "energy": info.energy - (kinetic - before)}
        return state, seen | posterior.parameters(state.position)

    return jax.vmap(lambda key, state: jax.lax.scan(once, state, jax.random.split(key, DRAWS)))(keys, states)
