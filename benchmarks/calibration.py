"""Simulation-based calibration: ranks of the truth among posterior draws are uniform if all is right (1804.06788).

    python -m benchmarks.calibration --mesh 16 --mocks 100

Each mock has parameters, modes and noise of its own, from the prior; a chain begins at an independent draw. Ranks of
sigma8, Omega_m, b1, of the white noise in one cell and of the log density, which sees a bias of the sampler. The
figures are in docs/inference.md.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
from scipy import stats

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.tuning import Tuning, block_length, run_block, tune

DRAWS = 19  # so that ranks fall into 20, 10 or 5 equal bins
BINS = 10


def model_of(mesh: int, gravity: str) -> infer.Model:
    config = pmd.Config(10.0 * mesh, mesh, a_stop=0.5, lpt_order=2, decomposition=(1, 1))
    if gravity == "linear":
        forward: Any = infer.LinearField(config, jax_cosmo.Planck15(), bias="b1", line_of_sight="z")
    else:
        galaxies = infer.LagrangianGalaxies(b1="b1", line_of_sight="z")
        forward = infer.Simulation(config, jax_cosmo.Planck15(), gravity="lpt", observable=galaxies)
    priors = {
        "sigma8": infer.Normal(0.8, 0.1, low=0.3),
        "Omega_m": infer.Normal(0.3, 0.05, low=0.1, high=1.0),
        "b1": infer.Normal(1.5 if gravity == "linear" else 0.6, 0.3, low=-0.5),
    }
    return infer.Model(config, forward, priors, infer.Gaussian(sigma=0.5))


def given(posterior: infer.Posterior, data: Any) -> infer.Posterior:
    """The posterior of other data."""
    return eqx.tree_at(lambda p: (p.data, p.preconditioner.data), posterior, (data, data))


def numbers(posterior: infer.Posterior, position: Any) -> dict[str, Any]:
    noise, parameters = posterior.unwhiten(position)
    return parameters | {"noise in a cell": noise[1, 2, 3], "log density": posterior.logdensity(position)}


@eqx.filter_jit
def one(key: Any, posterior: infer.Posterior, tuning: Tuning, warm: int, thin: int) -> Any:
    """Numbers of the truth of a mock, and of draws of its posterior; mean energy error."""
    keys = jax.random.split(key, 5)
    model = posterior.model
    truth = model.draw_around(keys[0], {})
    posterior = given(posterior, model.mock(keys[1], truth))
    state = mclmc.init(keys[2], posterior.initial(keys[3]), posterior.logdensity)
    settle = jax.tree.map(jnp.zeros_like, tuning.inverse_mass_matrix["parameters"])  # fields come to parameters first
    held = tuning.inverse_mass_matrix | {"parameters": settle}

    def step(state: Any, inputs: Any) -> Any:
        key, early = inputs
        masses = jax.tree.map(lambda a, b: jnp.where(early, a, b), held, tuning.inverse_mass_matrix)
        size = jnp.where(early, 0.25, 1.0) * tuning.step_size
        return mclmc.step(key, state, posterior.logdensity, L=tuning.L, step_size=size, inverse_mass_matrix=masses)

    def draw(state: Any, inputs: Any) -> Any:
        state, info = jax.lax.scan(step, state, inputs)
        return state, (numbers(posterior, state.position), jnp.var(info.energy_change))

    early = jnp.arange(-(-warm // thin) + DRAWS) < -(-warm // thin) // 2
    inputs = jax.random.split(keys[4], (early.size, thin)), jnp.broadcast_to(early[:, None], (early.size, thin))
    _, (draws, errors) = jax.lax.scan(draw, state, inputs)
    at_truth = posterior.whiten(truth["noise"], truth["parameters"])
    return numbers(posterior, at_truth), jax.tree.map(lambda x: x[-DRAWS:], draws), jnp.mean(errors[-DRAWS:])


def tuned(key: Any, posterior: infer.Posterior, steps: int) -> Tuning:
    """By two chains of one mock."""
    keys = jax.random.split(key, 2)
    states = jax.vmap(lambda k: mclmc.init(k, posterior.initial(k), posterior.logdensity))(keys)

    @eqx.filter_jit
    def run(key: Any, states: Any, tuning: Tuning, posterior: infer.Posterior) -> Any:
        def block(key: Any, state: Any) -> Any:
            return run_block(key, state, tuning, posterior.logdensity, block_length(steps))

        return jax.vmap(block)(jax.random.split(key, 2), states)

    return tune(key, states, lambda k, s, t: run(k, s, t, posterior), steps=steps)[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, default=16)
    parser.add_argument("--mocks", type=int, default=100)
    parser.add_argument("--gravity", default="linear", choices=("linear", "lpt"))
    parser.add_argument("--tune", type=int, default=600)
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--thin", type=int, default=20)
    options = parser.parse_args()
    began, model = time.process_time(), model_of(options.mesh, options.gravity)
    data = model.mock(jax.random.key(1), model.draw(jax.random.key(0)))
    posterior = model.condition(data, precondition="conditional")
    tuning = tuned(jax.random.key(2), posterior, options.tune)
    ranks: dict[str, list[int]] = {}
    errors = []
    for i in range(options.mocks):
        truth, draws, error = jax.device_get(
            one(jax.random.key(100 + i), posterior, tuning, options.warm, options.thin)
        )
        errors.append(float(error) / (options.mesh**3 + 3))
        for name, value in truth.items():
            ranks.setdefault(name, []).append(int(np.sum(draws[name] < value)))
        if (i + 1) % 10 == 0:
            print(f"{i + 1} mocks, {time.process_time() - began:.0f} s of CPU", flush=True)
    print(f"{options.gravity}, {options.mesh}^3, {options.mocks} mocks, {DRAWS} draws {options.thin} steps apart; "
          f"energy variance {np.mean(errors):.1e} a dimension")  # fmt: skip
    for name, values in ranks.items():
        histogram = np.bincount(np.asarray(values) * BINS // (DRAWS + 1), minlength=BINS)
        p = stats.chisquare(histogram).pvalue
        print(f"{name:16} {histogram} p = {p:.2f}, mean rank {np.mean(values) / DRAWS:.3f}")


if __name__ == "__main__":
    main()
