"""Weak lensing of sources at z = 1 by a light cone through nine repetitions of a box: draws light_cone.png.

128^3 particles in a box of 256 Mpc/h, 20 steps: 30 s of CPU time on two cores, compilation and figure included.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax_cosmo
import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

import pmwd_dist as pmd

BOX, SOURCE, FIELD, RAYS = 256.0, 1.0, 6.0, 256


def main() -> None:
    """Simulate, look and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", type=int, default=128, help="cells and particles along each side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("light_cone.png"))
    options = parser.parse_args()

    pmd.enable_compilation_cache()
    cosmo = jax_cosmo.Planck15()
    config = pmd.Config(box_size=BOX, mesh_shape=options.mesh, steps=20, decomposition=(1, 1))
    farthest = float(pmd.comoving_distance(1 / (1 + SOURCE), cosmo))
    edges = np.arange(0, farthest + BOX / 2, BOX / 2)
    cone = pmd.observe.FlatSkyLightCone(config, edges, pixels=2 * options.mesh)
    # Each repetition of the box is shifted, so that rays don't meet the same halo twice.
    shifts = np.random.default_rng(options.seed).uniform(0, BOX, (len(edges), 2))[np.arange(len(edges) - 1) // 2]

    @jax.jit
    def lens(key: jax.Array) -> tuple[pmd.Status, jax.Array, jax.Array]:
        table = pmd.growth_table(cosmo)
        modes = pmd.linear_modes(pmd.white_noise(key, config), cosmo, config)
        solution = pmd.nbody(pmd.lpt(modes, table, config), table, config, accumulate=cone)
        see = {"source": SOURCE, "field": FIELD, "pixels": RAYS, "offsets": shifts}
        mass = solution.accumulated
        kappa = pmd.observe.convergence(mass, table, cone, **see)
        return solution.status, kappa, pmd.observe.shear(mass, table, cone, **see)

    status, kappa, shear = lens(jax.random.key(options.seed))
    status.raise_if_failed()
    draw(np.asarray(kappa), np.asarray(shear), options.output)


def draw(kappa: np.ndarray, shear: np.ndarray, output: Path) -> None:
    """Convergence in colour; sticks along the shear, by which images of galaxies are stretched."""
    figure, axes = plt.subplots(figsize=(7.2, 6), layout="constrained")
    low, high = np.percentile(kappa, [0.5, 99.7])
    image = axes.imshow(
        kappa.T, origin="lower", extent=(-FIELD / 2, FIELD / 2) * 2, cmap="magma", vmin=low, vmax=high,
        interpolation="bicubic",
    )  # fmt: skip
    step = RAYS // 28
    x = ((np.arange(RAYS) + 0.5) / RAYS - 0.5)[step // 2 :: step] * FIELD
    gamma = shear[:, step // 2 :: step, step // 2 :: step]
    length, angle = np.hypot(*gamma), np.arctan2(gamma[1], gamma[0]) / 2
    arrows = {"headwidth": 0, "headlength": 0, "headaxislength": 0, "pivot": "mid", "width": 0.0022, "color": "white"}
    u, v = length * np.cos(angle), length * np.sin(angle)
    axes.quiver(x, x, u.T, v.T, scale=np.percentile(length, 95) * 28, alpha=0.75, **arrows)
    axes.set(xlabel="degrees", ylabel="degrees", title=f"Convergence and shear of sources at z = {SOURCE:g}")
    figure.colorbar(image, label="convergence", shrink=0.9)
    figure.savefig(output, dpi=160)


if __name__ == "__main__":
    main()
