"""Simulation-based calibration: ranks of the truth among posterior draws are uniform if all is right (1804.06788).

    python -m benchmarks.calibration --mesh 16 --mocks 100 --gravity lpt --output ranks.npz
    python -m benchmarks.calibration --plot ranks.npz other.npz --figure docs/images/calibration.png

Each mock has parameters, modes and noise of its own, from the prior; its chain begins at an independent draw and has a
tuning of its own. Ranks of sigma8, Omega_m, b1, of the white noise in one cell and of the log density, which sees a
bias of the sampler. All mocks are one batch. The figures are in docs/inference.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from benchmarks.mocks import Mocks, galaxies

DRAWS = 19  # so that ranks fall into 20, 10 or 5 equal bins


def ranks(truth: Any, drawn: Any, apart: int) -> dict[str, np.ndarray]:
    """Ranks of the truth among draws that are so many blocks apart, of each mock."""
    kept = {name: drawn[name][apart - 1 :: apart, :, 0] for name in truth}
    return {name: np.sum(kept[name] < np.asarray(truth[name]), axis=0) for name in truth}


def uniformity(ranks: np.ndarray) -> float:
    """Probability of a larger chi squared of the histogram of uniform ranks, in 10 bins, 5 of fewer than 50 mocks."""
    return float(stats.chisquare(histogram(ranks)).pvalue)


def histogram(ranks: np.ndarray) -> np.ndarray:
    bins = 10 if ranks.size >= 50 else 5
    return np.bincount(ranks * bins // (DRAWS + 1), minlength=bins)


def report(label: str, mocks: Mocks, drawn: Any, found: dict[str, np.ndarray], seconds: float) -> None:
    dimensions = mocks.states.position["noise"][0, 0].size + len(mocks.states.position["parameters"])
    variance = np.var(drawn["energy"], axis=-1) / dimensions
    step, length = np.median(mocks.lengths(), axis=0)
    print(f"{label}: energy variance a dimension {np.median(variance):.1e}, largest {variance.max():.1e}; "
          f"step {step:.3g}, L {length:.3g}; {seconds:.0f} s")  # fmt: skip
    for name, values in found.items():
        draws, truth = drawn[name][..., 0], np.asarray(mocks.truth[name])
        shift = (draws.mean(axis=0) - truth) / draws.std(axis=0)
        print(f"  {name:16} {histogram(values)} p = {uniformity(values):.3f}, mean rank {values.mean() / DRAWS:.3f} "
              f"± {1 / np.sqrt(12 * values.size):.3f}, (mean - truth) / sd {shift.mean():+.3f} "
              f"± {shift.std() / np.sqrt(shift.size):.3f}", flush=True)  # fmt: skip


def plot(files: list[str], figure: str) -> None:
    """Histograms of the ranks in files, a row each."""
    import matplotlib.pyplot as plt

    found = [dict(np.load(file)) for file in files]
    names = [name for name in found[0] if name != "label"]
    size = (2.2 * len(names), 1.7 * len(found))
    _, axes = plt.subplots(len(found), len(names), figsize=size, layout="constrained", squeeze=False)
    for row, arrays in zip(axes, found, strict=True):
        for axis, name in zip(row, names, strict=True):
            counts = histogram(arrays[name])
            low, high = stats.binom(arrays[name].size, 1 / counts.size).ppf((0.025, 0.975))
            axis.axhspan(low, high, color="0.85")
            axis.stairs(counts, np.linspace(0, 1, counts.size + 1), fill=True, color="tab:blue")
            axis.set_title(f"{name}, p = {uniformity(arrays[name]):.2f}", fontsize=8)
            axis.set_ylim(0, None)
            axis.tick_params(labelsize=7)
        row[0].set_ylabel(str(arrays["label"]), fontsize=7)
    plt.savefig(figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, default=16)
    parser.add_argument("--mocks", type=int, default=100)
    parser.add_argument("--gravity", default="lpt", choices=("linear", "lpt", "nbody"))
    parser.add_argument("--steps", type=int, default=3, help="of nbody")
    parser.add_argument("--methods", default="mclmc")
    parser.add_argument("--energy-variance", default="5e-4", help="targets of mclmc")
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--apart", type=int, default=2, help="blocks of 20 steps, or of 5 trajectories, between draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("ranks.npz"))
    parser.add_argument("--plot", nargs="+")
    parser.add_argument("--figure", default="calibration.png")
    options = parser.parse_args()
    if options.plot:
        plot(options.plot, options.figure)
        return
    model = galaxies(options.mesh, options.gravity, steps=options.steps)
    mocks = Mocks(model, jax.random.key(options.seed), options.mocks)
    targets = [float(x) for x in options.energy_variance.split(",")]
    for method in options.methods.split(","):
        for target in targets if method == "mclmc" else targets[:1]:
            began = time.perf_counter()
            mocks.tune(method, options.tune, target)
            drawn = mocks.draw(DRAWS * options.apart)
            found = ranks(mocks.truth, drawn, options.apart)
            aim = f", target {target:g}" if method == "mclmc" else ""
            label = f"{options.gravity}, {options.mesh}³, {options.mocks} mocks\n{method}{aim}"
            report(label.replace("\n", ", "), mocks, drawn, found, time.perf_counter() - began)
            suffix = f"_{method}_{target:g}.npz"
            np.savez(options.output.with_name(options.output.stem + suffix), label=label, **found)


if __name__ == "__main__":
    main()
