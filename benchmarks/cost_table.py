"""Accuracy of what a user chooses: spacing, cells a particle, steps, order of LPT and correction, against N-body.

    python -m benchmarks.cost_table --spacings 2 4 1 --finer 2=finer_1.npz 4=finer_2.npz --out table.npz

Truths are P3M of the same phases with eight times as many particles, times the change of P by eight times more where
`--finer` has a file of `benchmarks/train_force.py` for the spacing, in two cosmologies (36 s each on a GPU; settings
take 2 s each). Printed are the largest |P / P of the truth - 1| in per cent up to 1/4, 1/2 and 0.7 of the particles'
Nyquist frequency at z = 1 and at z = 0, 1 - r in per cent at 1/2 of it, and groups of at least 50, 100, 200 and 500
particles over those of P3M with as many.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pmwd_dist as pmd
from benchmarks.train_force import Judge, configure, cosmologies, errors_of, halos, make_truth, measured, simulate

HELD_OUT, FIRST_SEED = cosmologies(8, 0.2)[6:], 10  # no correction of the package was trained with these
CORRECTIONS = Path(pmd.__file__).parent / "pm" / "force_corrections"


def settings(spacing: float) -> list[tuple[int, int, int, pmd.ForceCorrection | None]]:
    """Order of LPT, cells, steps and correction."""
    found: list[Any] = [(3, cells, steps, None) for cells in (1, 2) for steps in (10, 20, 40)]
    found += [(2, cells, 20, None) for cells in (1, 2)]
    for trained in (pmd.ForceCorrection.load(path) for path in sorted(CORRECTIONS.glob("*.json"))):
        if trained.spacing == spacing:
            found += [(3, trained.cells, steps, replace(trained, steps=(10, 40))) for steps in (10, 20, 40)]
    return found


def row(judges: Sequence[Judge], groups: Any, setting: Any, options: Any) -> dict[str, np.ndarray]:
    """Powers over those of the truths, 1 - r and numbers of groups over those of N-body, of each judge."""
    order, cells, steps, correction = setting
    config = replace(configure(options, cells, steps), lpt_order=order)
    found = []
    for seed, (judge, of_n) in enumerate(zip(judges, groups, strict=True)):
        truth = judge.truth
        if order != 3:
            noise = pmd.white_noise(jax.random.key(FIRST_SEED + seed), config, nested=True)
            cosmo = HELD_OUT[seed]
            truth = replace(truth, particles=pmd.lpt(pmd.linear_modes(noise, cosmo, config), truth.table, config))
        snapshots, _ = simulate(correction, truth, config)
        errors = errors_of(snapshots, truth, config)
        number = np.ones(4) if options.plain else halos(snapshots[-1], config) / of_n
        found.append((errors.power / truth.converged, errors.decorrelation, number))
    return dict(zip(("power", "lost", "groups"), map(np.array, zip(*found, strict=True)), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--spacings", type=float, nargs="+", default=[2.0, 4.0, 1.0], help="of the particles [Mpc/h]")
    parser.add_argument("--judges", type=int, default=2, choices=(1, 2), help="truths, each of its cosmology (2)")
    parser.add_argument("--truth-steps", type=int, default=400, help="of P3M (400)")
    parser.add_argument("--plain", action="store_true", help="a finer particle mesh as the truth, without groups")
    parser.add_argument("--finer", nargs="*", default=[], metavar="SPACING=FILE", help="change of P by finer particles")
    parser.add_argument("--out", type=Path, help="file of all numbers")
    options = parser.parse_args(arguments)
    files = {float(text.split("=")[0]): Path(text.split("=")[1]) for text in options.finer}
    saved: dict[str, Any] = {}
    for spacing in options.spacings:
        options.spacing, options.finer = spacing, files.get(spacing)
        judges = [make_truth(FIRST_SEED + i, HELD_OUT[i], options) for i in range(options.judges)]
        ruler = measured(configure(options, 2, 20))
        groups = [1 if options.plain else halos(judge.same, configure(options, 2, 20)) for judge in judges]
        k = np.asarray(pmd.power_spectrum(judges[0].truth.densities[0], ruler).k) * spacing / math.pi
        for setting in settings(spacing):
            found = row(judges, groups, setting, options)
            name = "{}LPT, {} cells, {} steps, {}".format(*setting[:3], "corrected" if setting[3] else "plain")
            errors = [
                [100 * np.abs(found["power"][:, i, k <= f] - 1).max(initial=0) for f in (0.25, 0.5, 0.7)]
                for i in (1, 3)
            ]
            lost = 100 * found["lost"][:, 3, np.argmin(np.abs(k - 0.5))].mean()
            print(f"{spacing:g} Mpc/h, {name}:", *np.round(errors, 1), round(lost, 2), found["groups"].mean(0).round(2))
            saved |= {f"{spacing:g} {name} {key}": values for key, values in found.items()}
        saved[f"{spacing:g} k"] = k
        if options.out:
            np.savez(options.out, **saved)


if __name__ == "__main__":
    main()
