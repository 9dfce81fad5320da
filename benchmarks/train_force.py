"""Train a correction of the force, and judge it on other seeds and cosmologies; needs `pip install '.[infer]'`.

    python benchmarks/train_force.py --particles 32 --iterations 40 --train 2 --judge 1      a trial on a CPU
    python benchmarks/train_force.py --particles 128 --spacing 2 --cells 2 --out force.json
    python benchmarks/train_force.py --emulator --out force.json      needs `pip install euclidemu2`

References have twice as many particles along a side, and twice as many cells as these, 60 steps from 3LPT at a = 0.05,
and modes of fixed modulus. Cosmologies vary around Planck's by --spread in Omega_m and sigma8, less in n_s and w0.
With --emulator the wanted P(k) has the level of EuclidEmulator2 over a pair of references of Planck's cosmology. Prints
a markdown table: P over the wanted one, less one, in per cent, and 1 - r in brackets, without and with the correction.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.stats import qmc

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s

PLANCK = {"Omega_b": 0.0489, "Omega_k": 0.0, "wa": 0.0, "h": 0.6774}
VARIED = {"Omega_m": 0.3089, "sigma8": 0.8159, "n_s": 0.9667, "w0": -1.0}
NARROW = {"n_s": 0.25, "w0": 0.5}  # share of the spread
SCALE_FACTORS = (0.33, 0.5, 0.67, 1.0)
FRACTIONS = (0.1, 0.25, 0.4, 0.6, 0.8, 1.0)  # of the particles' Nyquist frequency


def cosmologies(count: int, spread: float) -> list[Any]:
    """Cosmologies of a Sobol sequence; the first is Planck's."""
    points = qmc.Sobol(len(VARIED), scramble=False).random(max(count, 1))
    found = []
    for i, point in enumerate(points):
        x = 2 * point - 1 if i else 0 * point
        values = {n: v * (1 + spread * NARROW.get(n, 1.0) * s) for (n, v), s in zip(VARIED.items(), x, strict=True)}
        values["Omega_c"] = values.pop("Omega_m") - PLANCK["Omega_b"]
        found.append(SimpleNamespace(**PLANCK, **values))
    return found


def level(config: pmd.Config, fine: pmd.Config) -> np.ndarray:
    """P(k) of EuclidEmulator2 over P(k) of a pair of references, in Planck's cosmology."""
    import euclidemu2

    cosmo, redshifts = cosmologies(1, 0.0)[0], [1 / a - 1 for a in SCALE_FACTORS]
    pair = [
        infer.force_reference(jax.random.key(1000), cosmo, config, fine, SCALE_FACTORS, fixed=True, paired=paired)
        for paired in (False, True)
    ]
    found = [infer.force_error(None, reference) for reference in pair]
    k, power = np.asarray(found[0].k), np.mean([np.asarray(one.power / one.power_ratio) for one in found], axis=0)
    A_s = 2.1e-9 * (cosmo.sigma8 / float(sigma8_of_A_s(2.1e-9, cosmo))) ** 2
    parameters = {"As": A_s, "ns": cosmo.n_s, "Omb": cosmo.Omega_b, "Omm": cosmo.Omega_b + cosmo.Omega_c}
    parameters |= {"h": cosmo.h, "mnu": 0.0, "w": cosmo.w0, "wa": cosmo.wa}
    at, boost = euclidemu2.get_boost(parameters, redshifts)
    boosts = [np.exp(np.interp(np.log(k), np.log(at), np.log(boost[i]))) for i in range(len(redshifts))]
    growth = np.asarray(pmd.growth(np.asarray(SCALE_FACTORS), cosmo)) ** 2
    return growth[:, None] * np.asarray(pmd.linear_power(k, cosmo)) * np.asarray(boosts) / power


def row(label: str, found: infer.ForceError, spacing: float) -> list[str]:
    """Rows of the table, one for each scale factor."""
    x = np.asarray(found.k) * spacing / math.pi
    near = [int(np.argmin(abs(x - fraction))) for fraction in FRACTIONS]
    ratio, lost = np.asarray(found.power_ratio), np.asarray(found.decorrelation)
    cells = [[f"{100 * r[i] - 100:+.1f} ({d[i]:.0e})" for i in near] for r, d in zip(ratio, lost, strict=True)]
    return [f"| {label} | {a:g} | {' | '.join(c)} |" for a, c in zip(SCALE_FACTORS, cells, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--spacing", type=float, default=2.0, help="of the particles [Mpc/h] (2)")
    parser.add_argument("--cells", type=int, default=2, help="a particle along each axis (2)")
    parser.add_argument("--steps", type=int, default=20, help="of the corrected simulation (20)")
    parser.add_argument("--train", type=int, default=8, help="references to train with, each of its cosmology (8)")
    parser.add_argument("--judge", type=int, default=4, help="references to judge with (4)")
    parser.add_argument("--spread", type=float, default=0.2, help="of the cosmologies around Planck (0.2)")
    parser.add_argument("--iterations", type=int, default=200, help="of Adam (200)")
    parser.add_argument("--rate", type=float, default=0.03, help="learning rate (0.03)")
    parser.add_argument("--decorrelation", type=float, default=1.0, help="weight of 1 - r (1)")
    parser.add_argument("--emulator", action="store_true", help="take the level of EuclidEmulator2")
    parser.add_argument("--out", type=Path, help="file of the correction")
    options = parser.parse_args(arguments)
    n, box = options.particles, options.particles * options.spacing
    config = pmd.Config(box, options.cells * n, n, steps=options.steps)
    fine = pmd.Config(box, 4 * n, 2 * n, steps=60, a_start=0.05, lpt_order=3)
    every = cosmologies(options.train + options.judge, options.spread)
    wanted = np.asarray(level(config, fine) if options.emulator else 1.0, np.float32)
    made = [
        infer.force_reference(jax.random.key(seed), cosmo, config, fine, SCALE_FACTORS, fixed=True)
        for seed, cosmo in enumerate(every)
    ]
    made = [eqx.tree_at(lambda reference: reference.level, reference, wanted) for reference in made]
    train = made[: options.train]
    correction, history = infer.train_force(
        pmd.ForceCorrection(options.spacing),
        train,
        steps=options.iterations,
        learning_rate=options.rate,
        decorrelation=options.decorrelation,
    )
    first, last = history[: len(train)].mean(), history[-len(train) :].mean()
    print(f"loss {first:.5f} -> {last:.5f} in {options.iterations} iterations, {jax.devices()[0].device_kind}\n")
    print(f"| seed | a | {' | '.join(f'{f:g} k_Ny' for f in FRACTIONS)} |\n|{'---|' * (2 + len(FRACTIONS))}")
    for seed, reference in enumerate(made[options.train :], options.train):
        for label, used in (("without", None), ("with", correction)):
            found = infer.force_error(used, reference)
            print("\n".join(row(f"{seed} {label}", found, options.spacing)), flush=True)
    if options.out is not None:
        own = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        versions = {"pmwd-dist": pmd.__version__, "jax": jax.__version__}
        correction.save(options.out, options=own, loss=[float(first), float(last)], versions=versions)


if __name__ == "__main__":
    main()
