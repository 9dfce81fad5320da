"""Gradients per effective sample of MCLMC with and without preconditioner, from prior draws.

    python -m benchmarks.preconditioning --mesh 16 --precondition none,conditional

Galaxies of second-order LPT in redshift space at a = 0.5, cells of 10 Mpc/h, Gaussian noise of 0.5 in a cell; sigma8,
Omega_m, b1 and the noise are sampled. The figures are in docs/explanation/inference.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import jax
import jax_cosmo

import pmwd_dist as pmd
from pmwd_dist import infer


def model_of(mesh: int) -> infer.Model:
    config = pmd.Config(10.0 * mesh, mesh, a_stop=0.5, lpt_order=2, decomposition=(1, 1))
    galaxies = infer.LagrangianGalaxies(b1="b1", line_of_sight="z")
    forward = infer.Simulation(config, jax_cosmo.Planck15(), gravity="lpt", observable=galaxies)
    priors = {
        "sigma8": infer.Normal(0.8, 0.15, low=0.1),
        "Omega_m": infer.Normal(0.3, 0.05, low=0.06, high=1.0),
        "b1": infer.Normal(0.5, 0.7, low=-0.5),
    }
    return infer.Model(config, forward, priors, infer.Gaussian(sigma=0.5))


def measure(mesh: int, precondition: str | None, options: Any) -> str:
    model = model_of(mesh)
    truth = model.draw(jax.random.key(0), sigma8=0.8159, Omega_m=0.3075, b1=0.8)
    data = model.mock(jax.random.key(1), truth)
    posterior = model.condition(data, precondition=precondition)
    keys = jax.random.split(jax.random.key(2), options.chains)
    positions = jax.vmap(posterior.initial)(keys)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        chain = infer.sample(
            posterior,
            positions,
            key=jax.random.key(3),
            tuning_steps=options.tune,
            steps=options.steps,
            chunk=min(options.steps, 200),
            output=folder,
        )
    errors = infer.energy_errors(chain.energy_change, mesh**3 + 3)
    gradients = options.chains * options.steps
    table = chain.summary()
    parts = [
        f"{name} {table[name]['mean']:.3f} ± {table[name]['sd']:.3f} "
        f"(ESS {infer.ess_mean(draws):.0f}, R-hat {table[name]['rhat']:.3f})"
        for name, draws in chain.parameters.items()
    ]
    return (
        f"{precondition}: {infer.evaluations_per_ess(chain.parameters, gradients):.0f} gradients per effective sample, "
        f"energy variance {errors['variance']:.1e}, {', '.join(parts)}, {time.perf_counter() - began:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, default=16)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--tune", type=int, default=600)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--precondition", default="none,conditional")
    options = parser.parse_args()
    print(f"{options.mesh}^3, {options.chains} chains of {options.steps} steps after {options.tune}")
    for name in options.precondition.split(","):
        print(measure(options.mesh, None if name == "none" else name, options), flush=True)


if __name__ == "__main__":
    main()
