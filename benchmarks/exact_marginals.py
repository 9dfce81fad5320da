"""Linear, Gaussian posteriors whose marginals are known exactly, from dense matrices.

The data of seen cells are normal with the covariance sigma8^2 (b1^2 K0 + b1 K1 + K2) + sigma^2 at given parameters.

    python -m benchmarks.exact_marginals --cases 11
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer

CELLS, CELL = 8, 20.0


class Case(NamedTuple):
    """A posterior of b1 and sigma8, given data in some cells."""

    model: infer.Model
    data: np.ndarray
    mask: np.ndarray
    sigma: float


def case(seed: int) -> Case:
    """Data of redshift space with three planes seen to 30 % for seed 0; else random masks, noise and priors."""
    rng = np.random.default_rng(1000 + seed)
    shape, named = (CELLS,) * 3, seed == 0
    mask = np.ones(shape, bool)
    planes = 3 if named else rng.integers(0, 6)
    mask[:planes] = rng.random((planes, CELLS, CELLS)) < (0.3 if named else rng.uniform(0.1, 0.9))
    if not named and seed % 3 == 0:
        mask[:, : rng.integers(1, 5)] = False
    sigma = 0.35 if named else float(rng.uniform(0.2, 0.8))
    b1 = infer.Normal(1.5, 0.4 if named else float(rng.uniform(0.2, 0.6)), low=0.3)
    middle, half = (0.85, 0.35) if named else (float(rng.uniform(0.7, 0.9)), float(rng.uniform(0.1, 0.4)))
    config = pmd.Config(CELL * CELLS, CELLS, a_stop=0.5, decomposition=(1, 1))
    along: Any = "z" if named or seed % 2 else None
    forward = infer.LinearField(config, jax_cosmo.Planck15(), bias="b1", line_of_sight=along)
    priors = {"b1": b1, "sigma8": infer.Uniform(middle - half, middle + half)}
    model = infer.Model(config, forward, priors, infer.Gaussian(sigma, mask=mask))
    data = model.mock(jax.random.key(2 * seed + 1), model.draw(jax.random.key(2 * seed)))
    return Case(model, np.asarray(data), mask, sigma)


def moments(one: Case, points: int = 41) -> dict[str, tuple[float, float]]:
    """Exact mean and standard deviation of each parameter."""
    seen = one.mask.ravel()
    impulses = jnp.eye(CELLS**3).reshape(-1, *(CELLS,) * 3)

    def response(b1: float) -> np.ndarray:
        at = {"b1": jnp.asarray(b1), "sigma8": jnp.ones(())}
        fields = jax.lax.map(lambda x: one.model.predict(x, at)[0] - 1, impulses)
        return np.asarray(fields, float).reshape(CELLS**3, -1)[:, seen]

    matter = response(0.0)
    galaxies = response(1.0) - matter
    data, priors = (one.data - 1).ravel()[seen], one.model.priors
    b1 = np.linspace(priors["b1"].low, priors["b1"].mean + 5 * priors["b1"].sd, points)
    sigma8 = np.linspace(priors["sigma8"].low, priors["sigma8"].high, 4 * points)
    log = np.empty((points, sigma8.size))
    for i, bias in enumerate(b1):
        both = bias * galaxies + matter
        values, axes = np.linalg.eigh(both.T @ both)
        variance = sigma8[:, None] ** 2 * np.maximum(values, 0) + one.sigma**2
        log[i] = -0.5 * np.sum((axes.T @ data) ** 2 / variance + np.log(variance), axis=1)
    log -= 0.5 * ((b1 - priors["b1"].mean) / priors["b1"].sd)[:, None] ** 2
    weight = np.exp(log - log.max())
    weight[:, [0, -1]] *= 0.5  # trapezoids
    weight[[0, -1]] *= 0.5
    found = {}
    for name, x, w in (("b1", b1, weight.sum(1)), ("sigma8", sigma8, weight.sum(0))):
        mean = float(np.average(x, weights=w))
        found[name] = mean, float(np.sqrt(np.average((x - mean) ** 2, weights=w)))
    return found


def compared(one: Case, seed: int, **options: Any) -> dict[str, dict[str, float]]:
    """Shift [standard deviations] and width of each parameter in chains, relative to the exact ones, with errors."""
    exact, posterior = moments(one), one.model.condition(one.data)
    starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(100 + seed), 4))
    with tempfile.TemporaryDirectory() as folder:
        chain = infer.sample(posterior, starts, key=jax.random.key(200 + seed), output=Path(folder), **options)
    table = {}
    for name, (mean, sd) in exact.items():
        x = np.asarray(chain.parameters[name], float)
        square = (x - x.mean()) ** 2
        table[name] = {
            "mean": mean,
            "sd": sd,
            "shift": (x.mean() - mean) / sd,
            "shift error": 1 / np.sqrt(infer.ess_mean(x)),
            "width": x.std() / sd,
            "width error": 0.5 * square.std() / square.mean() / np.sqrt(infer.ess_mean(square)),
            "rhat": infer.rhat(x),
            "gradients": chain.gradients / infer.ess_mean(x),
        }
    errors = chain.energy_errors()["all"]
    table["energy"] = {"variance": errors["variance"], "outliers": errors["outliers"]}
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="0,1,2,3,4,5,6,7,8,9,10")
    parser.add_argument("--method", default="mclmc")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[])
    options = parser.parse_args()
    extra = {k: float(v) for k, v in (x.split("=") for x in options.set)}
    for seed in map(int, options.cases.split(",")):
        began, one = time.perf_counter(), case(seed)
        table = compared(
            one, options.seed, steps=options.steps, chunk=1000, tuning_steps=options.tune,
            method=options.method, **extra,
        )  # fmt: skip
        energy = table.pop("energy")
        for name, row in table.items():
            print(
                f"{seed:2} {name:6} {row['mean']:.3f} ± {row['sd']:.3f}  shift {row['shift']:+.3f} ± "
                f"{row['shift error']:.3f}  width {row['width']:.3f} ± {row['width error']:.3f}  R-hat "
                f"{row['rhat']:.3f}  {row['gradients']:.0f} gradients/ESS",
                flush=True,
            )
        print(f"   energy {energy}, {one.mask.mean():.2f} seen, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
