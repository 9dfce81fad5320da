"""Train corrections of the force, and judge them on other seeds and cosmologies; needs `pip install '.[infer]'`.

    python benchmarks/train_force.py --particles 32 --iterations 40 --train 2 --judge 1      a trial on a CPU
    python benchmarks/train_force.py --spacing 2 --cells 2 1 --also 10 40 --emulator boosts.npz --out .

References have twice as many particles along a side, and twice as many cells as these, 60 steps from 3LPT at a = 0.05,
and modes of fixed modulus, two signs in turn. Cosmologies vary around Planck's by --spread in Omega_m and sigma8, less
in n_s and w0. With --emulator the wanted P(k) has the level of EuclidEmulator2: its mean over the cosmologies of the
references that lie in its range. The file holds its boosts; without the file, it is written by `pip install euclidemu2`
(any machine). Prints markdown tables for each number of cells and steps: P over the wanted one, less one, in per cent,
and 1 - r in brackets, in the runs of references; and P and its derivatives over those of the emulator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.stats import qmc

import pmwd_dist as pmd
from pmwd_dist import observe
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s

PLANCK = {"Omega_b": 0.0489, "Omega_k": 0.0, "wa": 0.0, "h": 0.6774}
VARIED = {"Omega_m": 0.3089, "sigma8": 0.8159, "n_s": 0.9667, "w0": -1.0}
NARROW = {"n_s": 0.15, "w0": 0.5}  # share of the spread
SLOPES = {"Omega_m": 0.05, "sigma8": 0.04}  # steps of the differences
SCALE_FACTORS = (0.33, 0.5, 0.67, 1.0)
FRACTIONS = (0.1, 0.25, 0.4, 0.6, 0.8, 1.0)  # of the particles' Nyquist frequency
BANDS = np.arange(17) / 16  # likewise


def cosmology(**changes: float) -> Any:
    """Planck's cosmology with relative changes of the parameters."""
    values = {name: value * (1 + changes.get(name, 0.0)) for name, value in VARIED.items()}
    values["Omega_c"] = values.pop("Omega_m") - PLANCK["Omega_b"]
    return SimpleNamespace(**PLANCK, **values)


def cosmologies(count: int, spread: float) -> list[Any]:
    """Cosmologies of a Sobol sequence; the first two are Planck's."""
    points = 2 * qmc.Sobol(len(VARIED), scramble=False).random_base2(math.ceil(math.log2(max(count, 2)))) - 1
    points[0] = 0
    scales = [spread * NARROW.get(name, 1.0) for name in VARIED]
    return [cosmology(**dict(zip(VARIED, point * scales, strict=True))) for point in points[:count]]


def emulated(path: Path, every: Sequence[Any]) -> list[Any]:
    """ln P(ln k) of EuclidEmulator2 for each cosmology, at the scale factors; None outside of its range."""
    if not path.is_file():
        import euclidemu2

        emulator, found, k = euclidemu2.PyEuclidEmulator(), list[Any](), np.zeros(1)
        for cosmo in every:
            A_s = 2.1e-9 * (cosmo.sigma8 / float(sigma8_of_A_s(2.1e-9, cosmo))) ** 2
            given = {"As": A_s, "ns": cosmo.n_s, "Omb": cosmo.Omega_b, "Omm": cosmo.Omega_b + cosmo.Omega_c}
            given |= {"h": cosmo.h, "mnu": 0.0, "w": cosmo.w0, "wa": cosmo.wa}
            try:
                k, boosts = emulator.get_boost(given, [1 / a - 1 for a in SCALE_FACTORS])
                found.append([boosts[i] for i in range(len(SCALE_FACTORS))])
            except ValueError:
                found.append(np.full((len(SCALE_FACTORS), 1), np.nan))
        np.savez(path, k=k, boosts=[np.broadcast_to(one, (len(SCALE_FACTORS), len(k))) for one in found])
    content = np.load(path)
    if len(content["boosts"]) != len(every):
        raise SystemExit(f"{path}: has boosts of other cosmologies; remove it to make it again")
    growth = [2 * np.log(np.asarray(pmd.growth(np.asarray(SCALE_FACTORS), cosmo))) for cosmo in every]

    def power(i: int, k: np.ndarray) -> np.ndarray:
        boosts = [np.interp(np.log(k), np.log(content["k"]), np.log(one)) for one in content["boosts"][i]]
        return np.exp(growth[i][:, None] + boosts) * np.asarray(pmd.linear_power(k, every[i]))

    return [None if np.isnan(one).any() else partial(power, i) for i, one in enumerate(content["boosts"])]


def mean_power(
    correction: pmd.ForceCorrection, like: observe.ForceReference, cosmo: Any, pairs: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """k, and the mean P of fixed and paired runs of a cosmology."""
    config, table, found = like.config, pmd.growth_table(cosmo), list[observe.ForceError]()
    for i in range(2 * pairs):
        noise = pmd.white_noise(jax.random.key(seed + i // 2), config, nested=True, fixed=True, paired=bool(i % 2))
        particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
        found.append(observe.force_error(correction, replace(like, particles=particles, table=table)))
    return np.asarray(found[0].k, float), np.mean([np.asarray(one.power, float) for one in found], axis=0)


def level(references: Sequence[observe.ForceReference], every: Sequence[Any], powers: Sequence[Any], pairs: int) -> Any:
    """P(k) of the emulator over P(k) of the references: a polynomial in k and sigma8 D1, 1 for long waves.

    The first is taken over the mean P of runs without a correction, the last over P of such a run with the same modes.
    """
    config = references[0].config
    spacing = config.box_size[0] / config.particle_shape[0]
    none = pmd.ForceCorrection(spacing)

    def terms(reference: observe.ForceReference, x: np.ndarray) -> np.ndarray:
        s = np.asarray(reference.table.cosmo.sigma8 * reference.table.D1(np.asarray(SCALE_FACTORS)), float)
        return np.stack([np.outer(s**q, x**p) for p in (2, 3, 4) for q in (0, 1, 2)], axis=-1)

    left, right, x = list[np.ndarray](), list[np.ndarray](), np.zeros(1)
    for reference, cosmo, power in zip(references, every, powers, strict=True):
        if power is not None:
            k, mean = mean_power(none, reference, cosmo, pairs, 500)
            x, ratio = k * spacing / math.pi, observe.force_error(none, reference).power_ratio
            left.append(terms(reference, x) * x[:, None])  # weight: number of modes
            right.append(np.log(power(k) / mean * np.asarray(ratio, float)) * x)
    fit = np.linalg.lstsq(np.concatenate(left).reshape(-1, 9), np.concatenate(right).ravel())[0]
    at = [int(np.argmin(abs(x - fraction))) for fraction in FRACTIONS]
    print(f"level at {FRACTIONS} k_Ny:\n{np.exp(terms(references[0], x) @ fit)[:, at]}", flush=True)
    return lambda reference: np.exp(terms(reference, x) @ fit).astype(np.float32)


def rows(label: str, found: observe.ForceError, spacing: float) -> list[str]:
    """Rows of the table, one for each scale factor."""
    x = np.asarray(found.k) * spacing / math.pi
    near = [int(np.argmin(abs(x - fraction))) for fraction in FRACTIONS]
    ratio, lost = np.asarray(found.power_ratio), np.asarray(found.decorrelation)
    cells = [[f"{100 * r[i] - 100:+.1f} ({d[i]:.1e})" for i in near] for r, d in zip(ratio, lost, strict=True)]
    return [f"| {label} | {a:g} | {' | '.join(c)} |" for a, c in zip(SCALE_FACTORS, cells, strict=True)]


def bands(correction: pmd.ForceCorrection, like: observe.ForceReference, test: Any, pairs: int) -> np.ndarray:
    """ln P of fixed and paired runs, and of the emulator, in bands of k."""
    cosmo, power = test
    k, mean = mean_power(correction, like, cosmo, pairs, 1000)
    at = np.digitize(k * correction.spacing / math.pi, BANDS * (1 + 1e-6), right=True)
    weight = (at[:, None] == np.arange(1, len(BANDS))) * k[:, None] ** 2
    weight /= weight.sum(axis=0)
    wanted = np.log(power(k)) @ weight
    return np.array([wanted + np.log(mean / power(k) @ weight), wanted])


def against_references(corrections: dict[str, pmd.ForceCorrection], held: Sequence[observe.ForceReference]) -> None:
    """Print P and r in the runs of references."""
    print(f"\n| seed | a | {' | '.join(f'{f:g} k_Ny' for f in FRACTIONS)} |\n|{'---|' * (2 + len(FRACTIONS))}")
    for i, reference in enumerate(held):
        for label, used in corrections.items():
            print("\n".join(rows(f"{i} {label}", observe.force_error(used, reference), used.spacing)), flush=True)


def against_emulator(
    corrections: dict[str, pmd.ForceCorrection], like: observe.ForceReference, tests: dict[str, Any], pairs: int
) -> dict[str, np.ndarray]:
    """Print ln P and its derivatives, less the emulator's, in per cent, and d ln P / d ln sigma8 relative to it."""
    found = dict[str, np.ndarray]()
    for label, used in corrections.items():
        own = {name: bands(used, like, test, pairs) for name, test in tests.items()}
        lines = {name: one[0] - one[1] for name, one in own.items() if name[-1] not in "-+"}
        for name, step in SLOPES.items():
            if f"{name}+" in own:
                ours, wanted = (own[f"{name}+"] - own[f"{name}-"]) / (2 * step)
                lines[f"d ln P / d ln {name}"] = ours - wanted if name == "Omega_m" else ours / wanted - 1
        if "sigma8+" in own and "Planck" in own:
            print(f"{label}: P(k) up to k_Ny / 2 shifts {parameter_shifts(own, used.spacing)}", flush=True)
        for name, line in lines.items():
            for a in (0.5, 1.0):
                text = " | ".join(f"{100 * x:+.1f}" for x in line[SCALE_FACTORS.index(a)])
                print(f"| {label} | {name} | {a:g} | {text} |", flush=True)
        found |= {f"{name} {label}": one for name, one in own.items()}
    return found


def parameter_shifts(own: dict[str, np.ndarray], spacing: float) -> str:
    """Shift of parameters fitted to P(k) of Planck's cosmology at z = 0 up to k_Ny / 2, in 1 (Gpc/h)^3 of 1e-2 tracers.

    With the derivatives of the emulator, and Gaussian errors of P(k).
    """
    count = len(BANDS) // 2
    (ours, wanted), k = own["Planck"][:, -1, :count], BANDS[: count + 1] * math.pi / spacing
    modes = 1e9 * np.diff(k**3) / (12 * np.pi**2)  # half of them are independent
    weight = modes / (1 + 100 * np.exp(-wanted)) ** 2
    slopes = [(own[f"{n}+"] - own[f"{n}-"])[1, -1, :count] / (2 * step * VARIED[n]) for n, step in SLOPES.items()]
    inverse = np.linalg.inv(slopes @ (weight[:, None] * np.transpose(slopes)))
    shifts, errors = inverse @ (slopes @ (weight * (ours - wanted))), np.sqrt(np.diag(inverse))
    each = zip(SLOPES, shifts, errors, strict=True)
    return ", ".join(f"{name} {shift:+.4f} ({shift / error:+.1f} sd)" for name, shift, error in each)


def largest_error(found: dict[str, np.ndarray]) -> tuple[float, float]:
    """Largest error of P at z = 0 [per cent] in bands up to 1/4 and to 1/2 of the Nyquist frequency."""
    each = [one[0, -1] - one[1, -1] for name, one in found.items() if name.endswith(" with")]
    worst = 100 * np.max(np.abs(np.expm1(each)), axis=0)
    return round(float(worst[:4].max()), 2), round(float(worst[:8].max()), 2)


def train_and_judge(cells: int, made: Sequence[observe.ForceReference], tests: dict[str, Any], options: Any) -> None:
    """Train a correction with so many cells a particle, write it, and print its tables."""

    def own(steps: int) -> list[observe.ForceReference]:
        n, spacing = options.particles, options.spacing
        return [replace(one, config=pmd.Config(spacing * n, cells * n, n, steps=steps)) for one in made]

    correction, history = observe.train_force(
        pmd.ForceCorrection(options.spacing, cells=cells, steps=(options.steps, options.steps)),
        own(options.steps)[: options.train],
        steps=options.iterations,
        learning_rate=options.rate,
        decorrelation=options.decorrelation,
    )
    losses = [float(history[: options.train].mean()), float(history[-options.train :].mean())]
    print(f"\n{cells} cells: loss {losses[0]:.2e} -> {losses[1]:.2e} in {options.iterations} iterations", flush=True)
    given = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    versions = {"pmwd-dist": pmd.__version__, "jax": jax.__version__}
    provenance = {"options": given, "emulator": bool(options.emulator), "loss": losses, "versions": versions}
    file = options.out / f"force_{options.spacing:g}_{cells}_{options.steps}.json" if options.out else None
    if file:
        correction.save(file, **provenance)
    both = {"without": pmd.ForceCorrection(options.spacing), "with": correction}
    for steps in (options.steps, *options.also):
        held, main_one = own(steps)[options.train :], steps == options.steps
        print(f"\n{cells} cells, {steps} steps")
        if some := {name: test for name, test in tests.items() if main_one or name[-1] not in "-+"}:
            found = against_emulator(both, held[0], some, options.pairs)
            error = largest_error(found)
            print(f"largest error up to k_Ny / 4 and k_Ny / 2: {error} %", flush=True)
            if file:
                np.savez(file.with_name(f"{file.stem}_in_{steps}.npz"), **found)
            if file and main_one:
                replace(correction, error=error).save(file, **provenance)
        against_references(both, held)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--spacing", type=float, default=2.0, help="of the particles [Mpc/h] (2)")
    parser.add_argument("--cells", type=int, nargs="+", default=[2], help="a particle along each axis (2)")
    parser.add_argument("--steps", type=int, default=20, help="of the corrected simulation (20)")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="other steps to judge with")
    parser.add_argument("--train", type=int, default=8, help="references to train with, each of its cosmology (8)")
    parser.add_argument("--judge", type=int, default=2, help="references to judge with (2)")
    parser.add_argument("--pairs", type=int, default=4, help="pairs to compare with the emulator (4)")
    parser.add_argument("--spread", type=float, default=0.2, help="of the cosmologies around Planck (0.2)")
    parser.add_argument("--iterations", type=int, default=160, help="of Adam (160)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument("--decorrelation", type=float, default=0.02, help="weight of 1 - r (0.02)")
    parser.add_argument("--emulator", type=Path, help="boosts of EuclidEmulator2; take its level")
    parser.add_argument("--out", type=Path, help="folder of the corrections")
    options = parser.parse_args(arguments)
    n, spacing = options.particles, options.spacing
    fine = pmd.Config(spacing * n, 4 * n, 2 * n, steps=60, a_start=0.05, lpt_order=3)
    slopes = [cosmology(**{name: sign * step}) for name, step in SLOPES.items() for sign in (-1, 1)]
    every = cosmologies(options.train + options.judge, options.spread)
    powers = emulated(options.emulator, every + slopes) if options.emulator else [None] * (len(every) + 4)

    config = pmd.Config(spacing * n, options.cells[0] * n, n, steps=options.steps)
    made = [
        observe.force_reference(
            jax.random.key(i // 2),
            cosmo,
            config,
            fine,
            SCALE_FACTORS,
            fixed=True,
            paired=bool(i % 2),
        )
        for i, cosmo in enumerate(every)
    ]
    if options.emulator:
        wanted = level(*(x[: options.train] for x in (made, every, powers)), options.pairs)
        made = [eqx.tree_at(lambda reference: reference.level, one, wanted(one)) for one in made]
    names = ["Planck", *(f"held-out {i}" for i in range(options.judge)), *(f"{n}{s}" for n in SLOPES for s in "-+")]
    used = [0, *range(options.train, len(powers))]
    tests = {name: ([*every, *slopes][i], powers[i]) for name, i in zip(names, used, strict=True) if powers[i]}
    for cells in options.cells:
        train_and_judge(cells, made, tests, options)


if __name__ == "__main__":
    main()
