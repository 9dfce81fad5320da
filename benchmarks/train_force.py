"""Train corrections of the force on N-body runs of the same phases, and judge them on other seeds and cosmologies.

    python -m benchmarks.train_force --particles 16 --iterations 20 --train 1 --judge 1 --plain     a trial on a CPU
    python -m benchmarks.train_force --spacing 2 --cells 2 1 --steps 20 10 --emulator boosts.npz --out .     one GPU

The truth is P3M (`p3m.py`, needs CuPy; `--plain`: the plain particle mesh on finer cells) with twice as many particles
along a side, from 3LPT at a = 0.02. Cosmologies vary around Planck's by --spread in Omega_m and sigma8, less in n_s and
w0. The loss is the mean over ln k up to the particles' Nyquist frequency, scale factors and simulations of

  (ln P / P_t)^2 + w_r (1 - r),  and over thresholds t of  w_h (ln F_t / F_t,n)^2

with r against the truth, and the share F_t of the mass in cells of a density beyond t, which stands for halos. P_t is
P of the truth, to the power 1 - s, times P of P3M with as many particles (n), to the power s of its scale factor;
from the Nyquist frequency's share --turn it changes to that of n alone, which a force can reach. P of the truth is
multiplied by what twice as many particles again change, --finer, which a run with half the spacing wrote beside its
corrections. With --emulator a file of boosts of EuclidEmulator2 judges, too; it is written where it is missing, by
`pip install euclidemu2`. Prints markdown tables in per cent.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

import pmwd_dist as pmd
from benchmarks import p3m
from pmwd_dist import observe
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s

PLANCK = {"Omega_b": 0.0489, "Omega_k": 0.0, "wa": 0.0, "h": 0.6774}
VARIED = {"Omega_m": 0.3089, "sigma8": 0.8159, "n_s": 0.9667, "w0": -1.0}
NARROW = {"n_s": 0.15, "w0": 0.5}  # share of the spread
SLOPES = {"Omega_m": 0.05, "sigma8": 0.04}  # steps of the differences
SCALE_FACTORS = (0.33, 0.5, 0.67, 1.0)
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)  # of the particles' Nyquist frequency
BANDS = np.arange(17) / 16  # likewise
THRESHOLDS = (10.0, 30.0, 100.0)  # densities over the mean, of cells of half the spacing
HALOS = (50, 100, 200, 500)  # particles


class Truth(eqx.Module):
    """N-body of a cosmology, and the start of the simulation with the same phases."""

    table: Any
    particles: pmd.Particles
    densities: (
        Any  # of twice the particles, on a mesh of two cells for each particle of the simulation, along each axis
    )
    power: Any  # of these densities, (times, bins)
    converged: Any  # with twice as many particles again
    power_of_n: Any  # of as many particles as the simulation has
    dense_of_n: Any  # likewise, shares of dense mass, (times, thresholds)


class Judge(NamedTuple):
    """What only judges of a truth need, at the last scale factor."""

    truth: Truth
    fine: pmd.Particles
    fine_config: pmd.Config
    same: pmd.Particles  # P3M of the same number of particles


def cosmology(**changes: float) -> Any:
    """Planck's cosmology with relative changes of the parameters."""
    values = {name: value * (1 + changes.get(name, 0.0)) for name, value in VARIED.items()}
    values["Omega_c"] = values.pop("Omega_m") - PLANCK["Omega_b"]
    return SimpleNamespace(**PLANCK, **values)


def cosmologies(count: int, spread: float) -> list[Any]:
    """Cosmologies of a Sobol sequence; the first is Planck's."""
    points = qmc.Sobol(len(VARIED), scramble=False).random_base2(math.ceil(math.log2(count + 1)))
    scales = [spread * NARROW.get(name, 1.0) for name in VARIED]
    chosen = (2 * points - 1)[1 : count + 1] * scales
    return [cosmology(**dict(zip(VARIED, point, strict=True))) for point in chosen]


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


def configure(options: Any, cells: int, steps: int) -> pmd.Config:
    """The simulation whose force is corrected."""
    n = options.particles
    return pmd.Config(options.spacing * n, cells * n, n, steps=steps, lpt_order=3)


def measured(config: pmd.Config) -> pmd.Config:
    """The same box on two cells for each particle, along each axis."""
    return replace(config, mesh_shape=tuple(2 * n for n in config.particle_shape), halo="auto")


def each_time(snapshots: pmd.Particles) -> list[pmd.Particles]:
    """The snapshots at each scale factor."""
    return [jax.tree.map(lambda x, i=i: x[i], snapshots) for i in range(len(SCALE_FACTORS))]


@partial(jax.jit, static_argnames="config")
def summary(particles: pmd.Particles, config: pmd.Config) -> tuple[Any, Any, Any]:
    """The density of particles on the mesh of a config, its power and the shares of dense mass."""
    density = pmd.density(particles, config)
    log = jnp.log(jnp.maximum(density, 1e-3))
    dense = jnp.stack([jnp.mean(density * jax.nn.sigmoid(4 * (log - math.log(t)))) for t in THRESHOLDS])
    return density, pmd.power_spectrum(density, config).power, dense


@partial(jax.jit, static_argnames="config")
def momentum_power(particles: pmd.Particles, config: pmd.Config) -> Any:
    """Power of the momentum density of particles."""
    flux = [pmd.cic_paint(particles.disp, config, particles.vel[..., i]) for i in range(3)]
    return sum(pmd.power_spectrum(x, config).power for x in flux) / float(math.prod(config.particle_shape)) ** 2


def n_body(key: Any, cosmo: Any, table: Any, config: pmd.Config, options: Any) -> list[pmd.Particles]:
    """N-body particles of the lattice of a config at the scale factors."""
    start = replace(config, a_start=0.02)
    noise = pmd.white_noise(key, start, nested=True)
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, start), table, start)
    if options.plain:
        return pmd.nbody(particles, table, replace(start, steps=40), saveat=list(SCALE_FACTORS)).snapshots
    n, box = config.particle_shape[0], config.box_size[0]
    lattice = np.stack(np.meshgrid(*[np.arange(n, dtype=np.float32) * (box / n)] * 3, indexing="ij"), -1).reshape(-1, 3)
    x, p = (np.asarray(y).reshape(-1, 3) for y in (particles.disp, particles.vel))
    given = {"omega_m": cosmo.Omega_c + cosmo.Omega_b, "w": cosmo.w0, "box": box, "mesh": 2 * n}
    given |= {"omega_l": 1 - given["omega_m"], "softening": box / n / 30, "steps": options.truth_steps}
    found = p3m.evolve(lattice + x, p, start.a_start, SCALE_FACTORS, **given)
    near = [((y - lattice + box / 2) % box - box / 2, p) for y, p in found]
    pairs = [tuple(jnp.asarray(y.reshape(n, n, n, 3)) for y in both) for both in near]
    return jax.tree.map(lambda *each: jnp.stack(each), *[pmd.Particles(*both) for both in pairs])


def make_truth(seed: int, cosmo: Any, options: Any) -> Judge:
    """Run both N-body simulations of a cosmology."""
    config = configure(options, 2, 20)
    fine = replace(config, particle_shape=tuple(2 * n for n in config.particle_shape))
    fine = replace(fine, mesh_shape=tuple((4 if options.plain else 2) * n for n in config.particle_shape))
    key, table, ruler = jax.random.key(seed), pmd.growth_table(cosmo), measured(config)
    particles = pmd.lpt(pmd.linear_modes(pmd.white_noise(key, config, nested=True), cosmo, config), table, config)
    same, finer = (n_body(key, cosmo, table, c, options) for c in (config, fine))
    fine_ruler = replace(ruler, particle_shape=fine.particle_shape)
    densities, power, _ = stacked([summary(x, fine_ruler) for x in each_time(finer)])
    _, *of_n = stacked([summary(x, ruler) for x in each_time(same)])
    k = np.asarray(pmd.power_spectrum(densities[0], ruler).k)
    factor = np.load(options.finer) if options.finer else {"k": k, "ln_ratio": np.zeros((len(SCALE_FACTORS), len(k)))}
    change = np.array([np.interp(k, factor["k"], row, left=0) for row in factor["ln_ratio"]])
    truth = Truth(table, particles, densities, power, power * jnp.exp(jnp.asarray(change, power.dtype)), *of_n)
    last = [jax.tree.map(lambda x: np.asarray(x[-1]), y) for y in (finer, same)]
    return Judge(truth, last[0], fine_ruler, last[1])


def finer_change(truths: Sequence[Truth], config: pmd.Config) -> tuple[np.ndarray, np.ndarray]:
    """k, and the mean ln P of truths over P of P3M with as many particles as the simulation, (times, bins)."""
    k = pmd.power_spectrum(truths[0].densities[0], measured(config)).k
    return np.asarray(k), np.mean([np.log(one.power / one.power_of_n) for one in truths], axis=0)


class Errors(NamedTuple):
    """Wavenumbers, P and 1 - r, (times, bins), and shares of dense mass."""

    k: Any
    power: Any
    decorrelation: Any
    dense: Any


def stacked(each: Sequence[Any]) -> Any:
    """One tree with a leading axis of a sequence of trees."""
    return jax.tree.map(lambda *x: jnp.stack(x), *each)


def errors_of(snapshots: Sequence[pmd.Particles], truth: Truth, config: pmd.Config) -> Errors:
    """Errors of particles at the scale factors."""
    ruler = measured(config)

    def compared(particles: pmd.Particles, density: Any, power: Any) -> Errors:
        own, own_power, dense = summary(particles, ruler)
        rest = pmd.power_spectrum(own - density, ruler)
        # From the difference: the cross power would lose its digits in single precision.
        lost = (rest.power - (jnp.sqrt(own_power) - jnp.sqrt(power)) ** 2) / (2 * jnp.sqrt(own_power * power))
        return Errors(rest.k, own_power, lost, dense)

    return stacked([compared(*each) for each in zip(snapshots, truth.densities, truth.power, strict=True)])


@eqx.filter_jit
def simulate(correction: Any, truth: Truth, config: pmd.Config) -> tuple[Any, Any]:
    """Particles of a simulation at the scale factors, and its status."""
    with jax.ensure_compile_time_eval():
        times = jnp.asarray(SCALE_FACTORS)
    solution = pmd.nbody(truth.particles, truth.table, config, saveat=times, potential_factor=correction)
    return each_time(solution.snapshots), solution.status


def loss(correction: Any, truth: Truth, config: pmd.Config, weights: Any) -> tuple[Any, Any]:
    """The loss of a correction for a truth, and the status of its simulation."""
    snapshots, status = simulate(correction, truth, config)
    found = errors_of(snapshots, truth, config)
    x = found.k[0] * config.box_size[0] / config.particle_shape[0] / math.pi
    weight = jnp.where(x < 1 + 1e-6, 1 / x, 0)
    shares = weights[3:, None]
    share = jnp.clip(shares + 7 * (x - weights[2])[None], shares, 1)
    wanted = (1 - share) * jnp.log(truth.converged) + share * jnp.log(truth.power_of_n)
    each = (jnp.log(found.power) - wanted) ** 2 + weights[0] * found.decorrelation
    rare = truth.dense_of_n < 0.003
    dense = jnp.log(jnp.where(rare, 1, found.dense / truth.dense_of_n)) ** 2
    return jnp.mean(jnp.where(weight > 0, each, 0) @ weight) / jnp.sum(weight) + weights[1] * jnp.mean(dense), status


@eqx.filter_jit
def adam_step(correction: Any, state: Any, truth: Truth, config: pmd.Config, weights: Any, optimiser: Any) -> Any:
    """One step of training: the correction, the state of the optimiser, the loss before it and the status."""
    (value, status), slope = jax.value_and_grad(loss, has_aux=True)(correction, truth, config, weights)
    update, state = optimiser.update(slope, state, correction)
    return eqx.apply_updates(correction, update), state, value, status


def train(correction: Any, truths: Sequence[Truth], config: pmd.Config, weights: Sequence[float], options: Any) -> Any:
    """The correction, and the loss before each step."""
    optimiser, history = adam(options.rate, options.iterations), list[float]()
    state = optimiser.init(correction)
    for i in range(options.iterations):
        given = truths[i % len(truths)], config, jnp.asarray(weights, jnp.float32), optimiser
        correction, state, value, status = adam_step(correction, state, *given)
        status.raise_if_failed()
        history.append(float(value))
    return correction, history


@cache
def adam(rate: float, steps: int) -> Any:
    """Adam with a learning rate that falls to zero as a cosine."""
    import optax

    return optax.adam(optax.cosine_decay_schedule(rate, steps))


def at_fractions(k: Any, spacing: float) -> list[int]:
    """Bins of the fractions of the Nyquist frequency."""
    return [int(np.argmin(abs(np.asarray(k) * spacing / math.pi - fraction))) for fraction in FRACTIONS]


def print_errors(label: str, found: Errors, truth: Truth, spacing: float) -> None:
    """Rows of P over that of the truth, less 1, with 1 - r in brackets, and of dense mass, for each scale factor."""
    at = at_fractions(found.k[0], spacing)
    # Means of three bins around each wavenumber: single bins of few modes scatter.
    near = lambda row: [float(np.mean(row[max(i - 1, 0) : i + 2])) for i in at]  # noqa: E731
    for i, a in enumerate(SCALE_FACTORS):
        pairs = zip(
            near(np.asarray(found.power / truth.converged)[i]), near(np.asarray(found.decorrelation)[i]), strict=True
        )
        text = " | ".join(f"{100 * p - 100:+.1f} ({100 * d:.2f})" for p, d in pairs)
        dense = " ".join(f"{x:.2f}" for x in np.asarray(found.dense / truth.dense_of_n)[i])
        print(f"| {label} | {a:g} | {text} | {dense} |", flush=True)


def halos(x: Any, config: pmd.Config) -> np.ndarray:
    """Numbers of groups with at least so many particles."""
    n, box = config.particle_shape[0], config.box_size[0]
    lattice = np.stack(np.meshgrid(*[np.arange(n) * (box / n)] * 3, indexing="ij"), -1)
    sizes = p3m.group_sizes(((np.asarray(x.disp) + lattice) % box).reshape(-1, 3), box)
    return np.array([(sizes >= least).sum() for least in HALOS])


def other_statistics(particles: Any, table: Any, config: pmd.Config) -> list[np.ndarray]:
    """P0, P2, momentum power and the equilateral bispectrum at the last scale factor, with shells to k_Ny / 2."""
    particles = jax.tree.map(jnp.asarray, particles)
    moved = observe.redshift_space(particles, table, config, a=1.0)
    poles = observe.power_multipoles(pmd.density(moved, config), config, poles=(0, 2))
    nyquist = math.pi * config.mesh_shape[0] / 2 / config.box_size[0]
    edges, field = np.linspace(0.05, 0.5, 5) * nyquist, pmd.density(particles, config)
    three = observe.bispectrum(field, config, edges=edges, triangles="equilateral")
    at = at_fractions(poles.k, math.pi / nyquist)[:7:2]
    chosen = [np.asarray(x)[at] for x in (*poles.power, momentum_power(particles, config))]
    return [*chosen, np.asarray(three.bispectrum)]


def judge(label: str, correction: Any, judges: Sequence[Judge], config: pmd.Config, options: Any) -> None:
    """Print the errors of a correction, of "none" or of P3M with as many particles ("n-body"), for each truth."""
    counts = np.zeros((2, len(HALOS)))
    for i, one in enumerate(judges):
        if correction == "n-body":
            last = one.same
        else:
            snapshots, _ = simulate(None if correction == "none" else correction, one.truth, config)
            print_errors(f"{label}, {i}", errors_of(snapshots, one.truth, config), one.truth, options.spacing)
            last = snapshots[-1]
        if not options.plain:
            counts += [halos(x, config) for x in (last, one.same)]
        ours = other_statistics(last, one.truth.table, measured(config))
        true = other_statistics(one.fine, one.truth.table, one.fine_config)
        text = "; ".join(" ".join(f"{100 * x:+.1f}" for x in a / b - 1) for a, b in zip(ours, true, strict=True))
        print(f"{label}, {i}: P0; P2; V at {FRACTIONS[:7:2]} k_Ny; B in four shells: {text}", flush=True)
    if counts[1].any():
        text = ", ".join(f"{least}: {x / y:.3f} ({y:.0f})" for least, x, y in zip(HALOS, *counts, strict=True))
        print(f"{label}: groups over those of P3M with as many particles, {text}", flush=True)


def mean_power(correction: Any, cosmo: Any, config: pmd.Config, pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """k, and the mean P of fixed and paired runs of a cosmology."""
    table, found, k, ruler = pmd.growth_table(cosmo), list[Any](), np.zeros(1), measured(config)
    for i in range(2 * pairs):
        noise = pmd.white_noise(jax.random.key(seed + i // 2), config, nested=True, fixed=True, paired=bool(i % 2))
        particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
        for x in simulate(correction, Truth(table, particles, *[None] * 5), config)[0]:
            spectrum = pmd.power_spectrum(pmd.density(x, ruler), ruler)
            k = np.asarray(spectrum.k, float)
            found.append(np.asarray(spectrum.power, float))
    keep = k * config.box_size[0] / config.particle_shape[0] < math.pi * (1 + 1e-6)
    return k[keep], np.reshape(found, (2 * pairs, len(SCALE_FACTORS), -1)).mean(axis=0)[:, keep]


def bands(correction: pmd.ForceCorrection, config: pmd.Config, test: Any, pairs: int) -> np.ndarray:
    """ln P of fixed and paired runs, and of the emulator, in bands of k."""
    cosmo, power = test
    k, mean = mean_power(correction, cosmo, config, pairs, 1000)
    at = np.digitize(k * correction.spacing / math.pi, BANDS * (1 + 1e-6), right=True)
    weight = (at[:, None] == np.arange(1, len(BANDS))) * k[:, None] ** 2
    weight /= weight.sum(axis=0)
    wanted = np.log(power(k)) @ weight
    return np.array([wanted + np.log(mean / power(k) @ weight), wanted])


def against_emulator(
    corrections: dict[str, pmd.ForceCorrection], config: pmd.Config, tests: dict[str, Any], pairs: int
) -> dict[str, np.ndarray]:
    """Print ln P and its derivatives, less the emulator's, in per cent, and d ln P / d ln sigma8 relative to it."""
    found = dict[str, np.ndarray]()
    for label, used in corrections.items():
        own = {name: bands(used, config, test, pairs) for name, test in tests.items()}
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


def train_and_judge(cells: int, steps: int, made: Sequence[Judge], tests: dict[str, Any], options: Any) -> None:
    """Train a correction with so many cells a particle and steps, write it, and print its tables."""
    config, truths = configure(options, cells, steps), [one.truth for one in made[: options.train]]
    used = cosmologies(options.train + options.judge, options.spread)
    values = {"Omega_m": [c.Omega_c + c.Omega_b for c in used]}
    values |= {name: [getattr(c, name) for c in used] for name in ("sigma8", "w0")}
    ranges = {name: (float(min(x)), float(max(x))) for name, x in values.items()}
    of_training = {"start": (config.a_start, config.lpt_order), "cosmologies": ranges}
    start = pmd.ForceCorrection(options.spacing, cells=cells, steps=(steps, steps), **of_training)
    shares = np.broadcast_to(options.share, len(SCALE_FACTORS))
    weights = options.decorrelation, options.halos, options.turn, *shares.tolist()
    correction, history = train(start, truths, config, weights, options)
    losses = [float(np.mean(x)) for x in (history[: options.train], history[-options.train :])]
    label = f"{cells} cells, {steps} steps"
    print(f"\n{label}: loss {losses[0]:.2e} -> {losses[1]:.2e}, weights {weights}", flush=True)
    given = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    provenance = {"options": given, "loss": losses, "versions": {"pmwd-dist": pmd.__version__, "jax": jax.__version__}}
    file = options.out / f"force_{options.spacing:g}_{cells}_{steps}.json" if options.out else None
    if file:
        correction.save(file, **provenance)
    held = made[options.train :]
    for name, used in {"without": "none", "n-body": "n-body", "with": correction}.items():
        judge(f"{label}, {name}", used, held, config, options)
    for other in options.also:
        judge(f"{label}, in {other} steps", correction, held, configure(options, cells, other), options)
    if tests:
        found = against_emulator({"without": start, "with": correction}, config, tests, options.pairs)
        print(f"{label}: largest error up to k_Ny / 4 and k_Ny / 2: {largest_error(found)} %", flush=True)
        if file:
            np.savez(file.with_suffix(".npz"), **found)
            replace(correction, error=largest_error(found)).save(file, **provenance)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--spacing", type=float, default=2.0, help="of the particles [Mpc/h] (2)")
    parser.add_argument("--cells", type=int, nargs="+", default=[2], help="a particle along each axis (2)")
    parser.add_argument("--steps", type=int, nargs="+", default=[20], help="of the corrected simulations (20)")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="other steps to judge with")
    parser.add_argument("--train", type=int, default=6, help="truths to train with, each of its cosmology (6)")
    parser.add_argument("--judge", type=int, default=2, help="truths to judge with (2)")
    parser.add_argument("--truth-steps", type=int, default=400, help="of P3M (400)")
    parser.add_argument("--plain", action="store_true", help="a finer particle mesh as the truth")
    parser.add_argument("--pairs", type=int, default=4, help="pairs to compare with the emulator (4)")
    parser.add_argument("--spread", type=float, default=0.2, help="of the cosmologies around Planck (0.2)")
    parser.add_argument("--iterations", type=int, default=200, help="of Adam (200)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument("--decorrelation", type=float, default=0.1, help="weight w_r (0.1)")
    parser.add_argument("--halos", type=float, default=0.003, help="weight w_h (0.003)")
    parser.add_argument("--share", type=float, nargs="+", default=[0.3], help="s in P_t, one or for each time (0.3)")
    parser.add_argument("--turn", type=float, default=0.7, help="share of k_Ny at which s begins to rise (0.7)")
    parser.add_argument("--finer", type=Path, help="change of P by finer particles, of a run with half the spacing")
    parser.add_argument("--emulator", type=Path, help="boosts of EuclidEmulator2, to judge")
    parser.add_argument("--out", type=Path, help="folder of the corrections")
    options = parser.parse_args(arguments)
    slopes = [cosmology(**{name: sign * step}) for name, step in SLOPES.items() for sign in (-1, 1)]
    every = cosmologies(options.train + options.judge, options.spread)
    powers = emulated(options.emulator, every + slopes) if options.emulator else [None] * (len(every) + 4)
    made = list[Judge]()
    for i, cosmo in enumerate(every):
        made.append(make_truth(i, cosmo, options))
        print(f"truth {i + 1} of {len(every)}", flush=True)
    if options.out:
        k, ratios = finer_change([one.truth for one in made], configure(options, 2, 20))
        np.savez(options.out / f"finer_{options.spacing:g}.npz", k=k, ln_ratio=ratios)
    names = ["Planck", *(f"held-out {i}" for i in range(options.judge)), *(f"{n}{s}" for n in SLOPES for s in "-+")]
    used = [0, *range(options.train, len(powers))]
    tests = {name: ([*every, *slopes][i], powers[i]) for name, i in zip(names, used, strict=True) if powers[i]}
    for cells in options.cells:
        for steps in options.steps:
            train_and_judge(cells, steps, made, tests, options)


if __name__ == "__main__":
    main()
