"""Simulation-based calibration: ranks of the truth among posterior draws are uniform if all is right (1804.06788).

    python -m benchmarks.calibration --mesh 16 --mocks 100 --gravity lpt --output ranks.json
    python -m benchmarks.calibration --survey counts --gravity cone --mesh 16 --mocks 100 --apart 4
    python -m benchmarks.calibration --survey shear --mesh 16 --mocks 60 --tune 2000 --apart 10
    python -m benchmarks.calibration --plot ranks_*.json --figure docs/images/calibration.png

Files of other seeds are joined with those of the same label.

Each mock has parameters, modes and noise of its own, from the prior; its chain begins at an independent draw, with a
tuning and an adaptation of its own. Ranks of all parameters, of the white noise in one cell and of the log density,
which sees a bias of the sampler. All mocks are one batch. The figures are in docs/explanation/inference.md.

The chains of a batch halve their steps where a block is unstable, and do not correct a bias. `--by-sample` runs
`infer.sample` with its defaults on one mock after the other, with two chains each; ranks are of the parameters alone.
Its mocks are those of a batch with the same seed and number of mocks; `--share 0/16` takes every sixteenth of them.
`--plot` compares means of the same mocks under different labels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from benchmarks.mocks import Mocks, conditioned_on, galaxies, survey, tomography
from pmwd_dist import infer

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


def collected(mocks: Mocks, drawn: Any, apart: int) -> dict[str, np.ndarray]:
    """Ranks, distances of the means from the truth in standard deviations, and energy variances a dimension."""
    found = ranks(mocks.truth, drawn, apart)
    for name in list(found):
        draws, truth = drawn[name][..., 0], np.asarray(mocks.truth[name])
        found[f"shift {name}"] = (draws.mean(axis=0) - truth) / draws.std(axis=0)
    dimensions = mocks.states.position["noise"][0, 0].size + len(mocks.states.position["parameters"])
    return found | {"energy variance": np.nanvar(drawn["energy"], axis=-1)[:, 0] / dimensions}


def sampled(model: infer.Model, options: argparse.Namespace, label: str) -> dict[str, np.ndarray]:
    """Ranks, and distances of the means from the truth, of mocks that `infer.sample` samples one by one.

    The file is written after each mock.
    """
    posterior = model.condition(np.indices(model.forward.layout[0])[0] % 2)
    rows, found = list[Any](), dict[str, Any]()
    first, every = map(int, options.share.split("/"))
    of_mocks = jax.random.split(jax.random.key(options.seed), (2, options.mocks))[0]  # as in `Mocks`
    for i in range(first, options.mocks, every):
        keys, began = jax.random.split(of_mocks[i], 4), time.perf_counter()
        truth = model.draw(keys[0])
        own = conditioned_on(posterior, model.mock(keys[1], truth))
        starts = jax.vmap(own.initial)(jax.random.split(keys[2], options.chains))
        with tempfile.TemporaryDirectory() as folder:
            how: Any = {"tuning_steps": options.tune, "chunk": 250, "output": folder, "progress": False}
            chain = infer.sample(own, starts, key=keys[3], steps=options.draws, method=options.methods, **how)
        row = {"energy variance": np.var(chain.energy_change) / (chain.noise_mean.size + len(chain.parameters))}
        row["mock"] = options.seed * 10**4 + i
        for name, x in model.parameters(truth).items():
            draws = np.asarray(chain.parameters[name], float).ravel()
            some = draws[np.linspace(0, draws.size - 1, DRAWS).astype(int)]
            row |= {name: np.sum(some < float(x)), f"shift {name}": (draws.mean() - float(x)) / draws.std()}
        rows.append(row)
        print(f"mock {i}: {time.perf_counter() - began:.0f} s, {chain.gradients} gradients", flush=True)
        found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        write(options.output, label, found)
    return found


def write(file: Path, label: str, found: dict[str, np.ndarray]) -> None:
    """A file with the p-values, and the ranks and further numbers of each mock."""
    p = {name: uniformity(found[name]) for name in names_of(found)}
    rows = {name: values.tolist() for name, values in found.items()}
    file.write_text(json.dumps({"label": label, "p": p, "mocks": rows}, indent=1), encoding="utf-8")


def joined(files: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """What the files of each label hold."""
    labels: dict[str, list[dict[str, np.ndarray]]] = {}
    for file in files:
        stored = json.loads(Path(file).read_text(encoding="utf-8"))
        labels.setdefault(stored["label"], []).append(stored["mocks"])
    return {label: {name: np.concatenate([x[name] for x in several]) for name in several[0]}
            for label, several in labels.items()}  # fmt: skip


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> str:
    """Mean differences of the posterior means of the mocks that both have, in standard deviations."""
    _, mine, yours = np.intersect1d(one["mock"], other["mock"], return_indices=True)
    parts = [f"{mine.size} mocks in common"]
    for name in names_of(one) if mine.size > 1 else []:
        if f"shift {name}" in other:
            away = one[f"shift {name}"][mine] - other[f"shift {name}"][yours]
            parts.append(f"{name} {away.mean():+.3f} ± {away.std() / np.sqrt(away.size):.3f}")
    return ", ".join(parts)


def names_of(found: dict[str, np.ndarray]) -> list[str]:
    return [name for name in found if f"shift {name}" in found]


def report(label: str, found: dict[str, np.ndarray]) -> None:
    variance, line = found["energy variance"], label.replace("\n", ", ")
    print(f"{line}, {variance.size} mocks: energy variance {np.median(variance):.1e}, largest {variance.max():.1e}")
    for name in names_of(found):
        values, shift = found[name], found[f"shift {name}"]
        print(f"  {name:16} {histogram(values)} p = {uniformity(values):.3f}, mean rank {values.mean() / DRAWS:.3f} "
              f"± {1 / np.sqrt(12 * values.size):.3f}, (mean - truth) / sd {shift.mean():+.3f} "
              f"± {shift.std() / np.sqrt(shift.size):.3f}", flush=True)  # fmt: skip


def plot(files: list[str], figure: str) -> None:
    """Histograms of the ranks in files, a row for each label, with the band of 95 % of uniform ones."""
    import matplotlib.pyplot as plt

    everything = joined(files)
    for (label, one), (against, other) in itertools.combinations(everything.items(), 2):
        print(f"{label} - {against}".replace("\n", ", "), differences(one, other), sep=": ")
    columns = names_of(next(iter(everything.values())))
    size = (2.2 * len(columns), 1.7 * len(everything))
    _, axes = plt.subplots(len(everything), len(columns), figsize=size, layout="constrained", squeeze=False)
    for row, (label, found) in zip(axes, everything.items(), strict=True):
        report(label, found)
        for axis, name in zip(row, columns, strict=True):
            counts = histogram(found[name])
            low, high = stats.binom(found[name].size, 1 / counts.size).ppf((0.025, 0.975))
            axis.axhspan(low, high, color="0.85")
            axis.stairs(counts, np.linspace(0, 1, counts.size + 1), fill=True, color="tab:blue")
            axis.set_title(f"{name}, p = {uniformity(found[name]):.2f}", fontsize=8)
            axis.set_ylim(0, None)
            axis.tick_params(labelsize=7)
        row[0].set_ylabel(f"{label}\n{found[columns[0]].size} mocks", fontsize=7)
    plt.savefig(figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, default=16)
    parser.add_argument("--mocks", type=int, default=100)
    parser.add_argument("--gravity", default="lpt", choices=("linear", "lpt", "nbody", "cone"))
    parser.add_argument("--steps", type=int, default=3, help="of nbody")
    parser.add_argument(
        "--survey", choices=("counts", "density", "shear"), help="mask, selection and noise of a survey"
    )
    parser.add_argument("--methods", default="mclmc", help="one with --by-sample")
    parser.add_argument("--energy-variance", default="1e-3", help="targets of mclmc")
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--apart", type=int, default=2, help="blocks of 20 steps, or of 5 trajectories, between draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("ranks.json"))
    parser.add_argument("--by-sample", action="store_true", help="by infer.sample with its defaults")
    parser.add_argument("--share", default="0/1", help="of the mocks, with --by-sample")
    parser.add_argument("--chains", type=int, default=2, help="on each mock, with --by-sample")
    parser.add_argument("--draws", type=int, default=2500, help="of each chain, with --by-sample")
    parser.add_argument("--plot", nargs="+")
    parser.add_argument("--figure", default="calibration.png")
    options = parser.parse_args()
    if options.plot:
        plot(options.plot, options.figure)
        return
    if options.survey == "shear":
        model, what = tomography(options.mesh, steps=options.steps), "shear of two bins"
    else:
        model, what = galaxies(options.mesh, options.gravity, steps=options.steps), options.gravity
        if options.survey is not None:
            model, what = survey(model, options.survey), f"{what}, survey of {options.survey}"
    if options.by_sample:
        label = f"{what}, {options.mesh}³\ninfer.sample, {options.methods}"
        report(label, sampled(model, options, label))
        return
    mocks = Mocks(model, jax.random.key(options.seed), options.mocks)
    targets = [float(x) for x in options.energy_variance.split(",")]
    for method in options.methods.split(","):
        for target in targets if method == "mclmc" else targets[:1]:
            began = time.perf_counter()
            file = options.output.with_name(f"{options.output.stem}_{method}_{target:g}.json")
            mocks.tune(method, options.tune, target, file.with_suffix(".state"))
            drawn = mocks.draw(DRAWS * options.apart)
            aim = f", target {target:g}" if method == "mclmc" else ""
            label, found = f"{what}, {options.mesh}³\n{method}{aim}", collected(mocks, drawn, options.apart)
            found["mock"] = options.seed * 10**4 + np.arange(options.mocks)
            report(label, found)
            print(f"  {time.perf_counter() - began:.0f} s, L and step {np.median(mocks.lengths(), axis=0)}", flush=True)
            write(file, label, found)


if __name__ == "__main__":
    main()
