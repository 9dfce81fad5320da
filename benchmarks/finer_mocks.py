"""Bias of sigma8 and Omega_m inferred from finer simulations, without and with a correction of the force.

    python benchmarks/finer_mocks.py --particles 32 --spacing 4 --seeds 3

The field-level posterior of sigma8, Omega_m and the white noise, given the density on the mesh of the model with
Gaussian noise of --density tracers in (Mpc/h)^3. The data come from a simulation with the same modes, twice as many
particles along a side, twice as fine a mesh, and 40 steps from a = 0.05. The posterior is expanded to second order
around the truth (Gauss-Newton, conjugate gradients): no chains. Prints the shift of the means over the standard
deviations, which grows with the root of the volume.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer

TRUTH = {"sigma8": 0.8159, "Omega_m": 0.3089}
PRIOR = {"sigma8": 0.2, "Omega_m": 0.1}  # standard deviations


def data(key: Any, fine: pmd.Config, mesh: int) -> Any:
    """Density of a finer simulation on the mesh of the model."""
    noise = pmd.white_noise(key, fine, nested=True)
    modes, table = infer.Simulation(fine, jax_cosmo.Planck15()).linear_modes(noise, TRUTH)
    end = pmd.nbody(pmd.lpt(modes, table, fine), table, fine).raise_if_failed().particles
    return pmd.density(end, pmd.Config(fine.box_size, mesh, fine.particle_shape, halo=fine.halo))


def solver(config: pmd.Config, sigma: float, correction: Any) -> Any:
    """Shifts of the posterior means and their standard deviations, as a function of a key and the data."""
    model = infer.Simulation(config, jax_cosmo.Planck15(), potential_factor=correction)

    def predict(position: Any) -> Any:
        return model(position["noise"], {name: position[name] for name in TRUTH})[0] / sigma

    @jax.jit
    def shifts(key: Any, truth: Any) -> Any:
        position = {"noise": pmd.white_noise(key, config, nested=True)} | {n: jnp.asarray(v) for n, v in TRUTH.items()}
        value, forward = jax.linearize(predict, position)
        backward = jax.linear_transpose(forward, position)
        zero = jax.tree.map(jnp.zeros_like, position)

        def curvature(x: Any) -> Any:
            scaled = {n: x[n] / PRIOR[n] ** 2 if n in PRIOR else x[n] for n in x}
            return jax.tree.map(jnp.add, scaled, backward(forward(x))[0])

        def solved(right: Any) -> Any:
            found = jax.scipy.sparse.linalg.cg(curvature, right, tol=3e-3, maxiter=200)[0]
            return jnp.stack([found[name] for name in TRUTH])

        units = [zero | {name: jnp.ones(())} for name in TRUTH]
        right = jax.tree.map(lambda *x: jnp.stack(x), backward(truth / sigma - value)[0], *units)
        shift, *inverse = jax.lax.map(solved, right)
        return shift, jnp.sqrt(jnp.diagonal(jnp.stack(inverse)))

    return shifts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=32, help="along a side (32)")
    parser.add_argument("--spacing", type=float, default=4.0, help="of the particles [Mpc/h] (4)")
    parser.add_argument("--cells", type=int, default=1, help="a particle along each axis (1)")
    parser.add_argument("--steps", type=int, default=10, help="of the model (10)")
    parser.add_argument("--density", type=float, default=1e-2, help="tracers in (Mpc/h)^3 (1e-2)")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    n, box, one = options.particles, options.particles * options.spacing, pmd.Decomposition((1, 1), jax.devices()[:1])
    mesh = options.cells * n
    config = pmd.Config(box, mesh, n, steps=options.steps, lpt_order=3, decomposition=one)
    fine = pmd.Config(box, 4 * n, 2 * n, steps=40, a_start=0.05, lpt_order=3, decomposition=one)
    sigma = (options.density * (box / mesh) ** 3) ** -0.5
    corrections = {"without": None, "with": pmd.ForceCorrection.auto(config)}
    solvers = {label: solver(config, sigma, correction) for label, correction in corrections.items()}
    biases = {(label, name): list[float]() for label in corrections for name in TRUTH}
    for seed in range(options.seeds):
        truth = data(jax.random.key(seed), fine, mesh)
        for label, shifts in solvers.items():
            for name, shift, sd in zip(TRUTH, *map(np.asarray, shifts(jax.random.key(seed), truth)), strict=True):
                biases[label, name].append(shift / sd)
                print(f"{seed} {label}: {name} {shift:+.4f}, sd {sd:.4f}, {shift / sd:+.2f} sd", flush=True)
    for (label, name), each in biases.items():
        error = np.std(each) / max(len(each) - 1, 1) ** 0.5
        print(f"{label}: {name} {np.mean(each):+.2f} ± {error:.2f} sd, {box:g} Mpc/h, {jax.devices()[0].device_kind}")


if __name__ == "__main__":
    main()
