"""Time of a catalogue of galaxies on the light cone to z = 1, beside the same run without it.

    python -m benchmarks.galaxy_cone --particles 512

n^3 particles in a box of 2n Mpc/h, which is repeated around the observer, one device; 2LPT at a = 0.1, steps to a = 1.
The whole sky with a linear bias; the catalogue is written. Medians of calls after a first one that compiles.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pmwd_dist as pmd
from benchmarks.mocks import PLANCK15


def timed(label: str, function: Callable[[], Any], repeat: int) -> float:
    """Median seconds of a call, the first one left out."""
    seconds = list[float]()
    for i in range(repeat + 1):
        began = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - began)
        print(f"{label}, {'with compilation' if i == 0 else f'call {i}'}: {seconds[-1]:.2f} s", flush=True)
    return float(np.median(seconds[1:]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--particles", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--density", type=float, default=1e-4, help="of near galaxies [(h/Mpc)^3], a tenth at the end")
    parser.add_argument("--redshift", type=float, default=1.0, help="at which the survey ends")
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    n, one = options.particles, pmd.Decomposition((1, 1), jax.devices()[:1])
    config = pmd.Config(2.0 * n, n, a_start=0.1, steps=options.steps, lpt_order=2, decomposition=one)
    table = pmd.growth_table(PLANCK15)
    z, near = options.redshift, options.density
    survey = pmd.observe.Survey(([0.01, z / 2, z], [near, near, 0.1 * near]))
    noise = pmd.white_noise(jax.random.key(0), config)
    modes = jax.block_until_ready(jax.jit(lambda noise: pmd.linear_modes(noise, table, config))(noise))
    del noise

    def weights(a: float) -> Any:
        return pmd.observe.bias_weights(modes, pmd.observe.LagrangianBias(b1=0.5), table, config, smoothing=8.0, a=a)

    def particles() -> Any:
        return pmd.lpt(modes, table, config)

    def plain() -> Any:
        return pmd.nbody(particles(), table, config).raise_if_failed().particles.disp

    def with_galaxies(path: Path) -> Any:
        key = jax.random.key(1)
        catalogue = pmd.observe.galaxy_light_cone(particles(), table, config, survey, key=key, weights=weights)
        catalogue.save(path)
        return catalogue.columns["Z"]

    device = jax.devices()[0].device_kind
    print(f"{n}^3 particles, {options.steps} steps, {survey.number(table):.3g} galaxies, {device}", flush=True)
    without = timed("without", plain, options.repeat)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "galaxies.hdf5"
        seconds = timed("with the catalogue", lambda: with_galaxies(path), options.repeat)
        size = path.stat().st_size / 1e6
    print(f"{seconds:.2f} s with the catalogue ({size:.0f} MB), {without:.2f} s without: {seconds / without:.2f} times")


if __name__ == "__main__":
    main()
