"""C_l of maps of one simulation by width of shells, planes and pixels: `python -m benchmarks.lensing_windows [sphere]`.

All maps are of the same simulation, over the finest one: the scatter of the modes cancels. A second number divides by
this ratio in `limber_power(..., cone=)`, and is 1 where its windows are right.
"""

from __future__ import annotations

import itertools
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd

BOX, VIEWS = 128.0, 4
BANDS = np.array([30, 100, 300, 600, 1000])


def cones(sky: str, config: pmd.Config, far: float) -> dict[str, Any]:
    """The light cones, the finest one first."""

    def edges(width: float) -> np.ndarray:
        return np.append(np.arange(0, far - 0.1 * width, width), far)

    if sky == "sphere":
        make: Any = partial(pmd.observe.SphericalLightCone, config)
        sizes = {f"nside {n}": make(edges(16), n) for n in (256, 128, 64)}
        options = {"nside 128, nearest": {"assignment": "nearest"}, "nside 128, rotated": {"seed": 0}}
        others = {name: make(edges(16), 128, **option) for name, option in options.items()}
        return sizes | {f"nside 256, shells of {w} Mpc/h": make(edges(w), 256) for w in (32, 64, 128)} | others
    make = partial(pmd.observe.FlatSkyLightCone, config)
    planes = {f"pixels of {BOX / n:g} Mpc/h": make(edges(32), pixels=n) for n in (512, 256, 128, 64)}
    return planes | {f"shells of {w} Mpc/h": make(edges(w), pixels=512) for w in (64, 128, 256)}


def main() -> None:
    sky, n = "sphere" if "sphere" in sys.argv else "flat", 64
    source = 0.15 if sky == "sphere" else 1.0
    cosmo = pmd.growth_table(jax_cosmo.Planck15())
    config = pmd.Config(BOX, n, steps=8, a_start=0.2, decomposition=(1, 1))
    far = float(pmd.comoving_distance(1 / (1 + source), cosmo))
    named = cones(sky, config, far)
    bands = BANDS[:3] if sky == "sphere" else BANDS[1:]
    side, rng = float(np.degrees(BOX / far)), np.random.default_rng(0)
    shifts = rng.uniform(0, BOX, (VIEWS, int(far / BOX) + 1, 2))

    @jax.jit
    def start() -> Any:
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
        return pmd.lpt(modes, cosmo, config)

    def spectra(cone: Any) -> tuple[np.ndarray, np.ndarray, float]:
        """C_l, linear theory at the same multipoles, and the time of the light cone."""
        run = jax.jit(lambda particles: pmd.nbody(particles, cosmo, config, accumulate=cone).accumulated)
        particles = start()
        program = run.lower(particles).compile()
        began = time.process_time()
        mass = jax.block_until_ready(program(particles))
        seconds, found = time.process_time() - began, []
        middle = (np.asarray(cone.edges[1:]) + cone.edges[:-1]) / 2
        for shift in shifts if sky == "flat" else shifts[:1]:
            view: Any = {} if sky == "sphere" else {"field": side, "pixels": 512}
            if view:
                view["offsets"] = jnp.asarray(shift[np.floor(middle / BOX).astype(int)])
            kappa = pmd.observe.convergence(mass, cosmo, cone, source=source, **view)
            power = pmd.observe.angular_power(kappa, side=side if view else None, bins=64)
            found.append(np.asarray(power.power, float))
        ell, modes = (np.asarray(x, float) for x in (power.ell, power.modes))
        index = np.where(modes > 0, np.searchsorted(bands, ell) - 1, -1)
        some = (index >= 0) & (index < len(bands) - 1)
        linear = lambda k: pmd.linear_power(k, cosmo)  # noqa: E731
        theory = np.asarray(pmd.observe.limber_power(ell[some], linear, cosmo, cone.edges, source, cone=cone))
        of_bands = [np.bincount(index[some], modes[some] * x) for x in (np.mean(found, axis=0)[some], theory)]
        return of_bands[0], of_bands[1], seconds

    print(f"{sky}: {n}^3 particles and cells in {BOX:g} Mpc/h, sources at z = {source:g}, process seconds of a run")
    print("| | " + " | ".join(f"l = {a} to {b}" for a, b in itertools.pairwise(bands)) + " | s |")
    print("|---" * (len(bands) + 1) + "|")
    first = None
    for name, cone in named.items():
        found, theory, seconds = spectra(cone)
        first = first or (found, theory)
        ratios = found / first[0]
        rows = [f"{r:.4f} ({q:.4f})" for r, q in zip(ratios, ratios / (theory / first[1]), strict=True)]
        print(f"| {name} | {' | '.join(rows)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
