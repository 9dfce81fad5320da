"""Speed of field-level inference: gradients per effective sample of the samplers, and milliseconds of a gradient.

    python -m benchmarks.field_level --mesh 64 --gravity lpt --methods mclmc,hmc
    python -m benchmarks.field_level --mesh 16 --cell 10 --methods mclmc,hmc --save draws
    python -m benchmarks.field_level --compare draws
    python -m benchmarks.field_level --gravity cone --mesh 64 --methods mclmc --chains 2 --seconds 120
    python -m benchmarks.field_level --gravity lensing --mesh 128 --cell 4 --methods mclmc --end slice_1 --seconds 400
    python -m benchmarks.field_level --gravity lensing --mesh 128 --cell 4 --methods mclmc --begin slice_1 --end slice_2

Galaxies with a Lagrangian bias in redshift space at a = 0.5, cells of 5 Mpc/h (320 Mpc/h for 64^3), Gaussian noise as
of 1e-3 galaxies in (Mpc/h)^3; sigma8, Omega_m, b1 and the noise are sampled, from draws of their priors and of the
noise given these. Or their counts on an N-body light cone, with a mask, n(z), and mean and dispersion free. Or
convergence maps of an N-body light cone, without b1, from draws of the prior. All samplers stop
after the same number of gradients. The figures are in benchmarks/RESULTS.md.

MCLMC may run in slices (`--begin`, `--end`), on machines that keep nothing: a slice ends with files of a size that may
be copied, noise in half precision, and the next one goes on with the same tuning, new momenta and other random numbers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.mocks import TRUTH, galaxies, lensing, survey
from benchmarks.slices import begin_slice, directions, end_slice, together
from pmwd_dist import infer
from pmwd_dist.infer.chain.folder import load_chain
from pmwd_dist.infer.constants import ENERGY_VARIANCE
from pmwd_dist.pm.status import SimulationError

DENSITY = 1e-3


class _Spent(Exception):
    """The budget of gradients is used up."""


def conditioned(
    mesh: int, gravity: str, steps: int, cell: float = 5.0, devices: int = 1
) -> tuple[infer.Posterior, Any]:
    """The posterior of a mock, and the truth."""
    sigma = float((DENSITY * cell**3) ** -0.5)
    if gravity == "lensing":
        model = lensing(mesh, cell=cell, steps=steps)
    else:
        model = galaxies(mesh, gravity, cell=cell, sigma=sigma, steps=steps, sd=0.2, devices=devices)
    if gravity == "cone":
        model = survey(model, "counts", nbar=DENSITY * cell**3)
    truth = model.draw(jax.random.key(0), **{name: TRUTH[name] for name in model.priors if name in TRUTH})
    data = model.mock(jax.random.key(1), truth)
    return model.condition(data), truth


def sampled(posterior: infer.Posterior, method: Any, options: Any) -> tuple[str, dict[str, Any]]:
    """One sampler, for the budget: what its draws say, and the draws."""
    chains, spent, found = options.chains, 0, dict[str, Any]()
    positions = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(2 + 10 * options.seed), chains))

    def watch(progress: infer.Progress) -> None:
        nonlocal spent
        spent += int(np.sum(progress.draws.get("gradients", 0)))
        found["step"] = progress.step_size
        seconds = time.perf_counter() - began
        print(f"{spent} gradients, {seconds:.0f} s", flush=True)
        if progress.chunks and (spent >= options.gradients * chains or seconds > options.seconds):
            raise _Spent("the budget is spent")

    chunk = options.chunk if method == "mclmc" else 5
    arguments: dict[str, Any] = {"key": jax.random.key(3 + 10 * options.seed), "tuning_steps": options.tune}
    arguments |= {"method": method, "energy_variance": options.energy_variance}
    earlier, began = dict[str, Any](), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if options.begin:
            earlier = {name: np.asarray(x) for name, x in np.load(options.begin / "draws.npz").items()}
            arguments["key"] = jax.random.fold_in(arguments["key"], earlier["energy"].shape[1])
            begin_slice(options.begin, folder, posterior, arguments["key"])
        try:
            steps = 10**6 * chunk
            infer.sample(posterior, positions, steps=steps, chunk=chunk, output=folder, listener=watch, **arguments)
        except (_Spent, SimulationError) as end:
            print(end, flush=True)
        found = together(earlier, found | _of(load_chain(folder)))
        if options.end:
            end_slice(folder, options.end, found)
    dimensions = sum(leaf[0].size for leaf in jax.tree.leaves(positions))
    found["step"] /= dimensions**0.5 if "mclmc" in method else 1
    found["variance"] = infer.energy_errors(found.pop("energy"), dimensions)["variance"]
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        np.savez(options.save / f"{method}.npz", **found)
    return f"{method}: {described(found)}; {time.perf_counter() - began:.0f} s in all", found


def _of(chain: infer.Chain) -> dict[str, Any]:
    accepted, spent = chain.acceptance_rate.mean(), chain.gradients
    numbers = {"accepted": accepted, "gradients": spent, "energy": chain.energy_change, "shift": chain.density_shift}
    return numbers | chain.parameters | {"log density": chain.logdensity}


def described(found: Any) -> str:
    """What draws, of shape (chains, draws), say."""
    draws = {name: np.asarray(found[name], float) for name in TRUTH if name in found}
    spent, (chains, length) = int(found["gradients"]), draws["sigma8"].shape
    parts = [
        f"{name} {x.mean():.4f} ± {x.std():.4f} (truth {(TRUTH[name] - x.mean()) / x.std():+.1f} sd, ESS "
        f"{infer.ess_mean(x):.0f}, R-hat {infer.rhat(x):.3f}{_shift(x, found)})"
        for name, x in draws.items()
    ]
    ways = [
        f"{name} {x.mean():.4f} ± {x.std():.4f} (ESS {infer.ess_mean(x):.0f}, R-hat {infer.rhat(x):.4f}, "
        f"{spent / infer.ess_mean(x):.0f} gradients for each)"
        for name, x in directions(draws).items()
    ]
    return (
        f"{infer.evaluations_per_ess(draws, spent):.0f} gradients per effective sample, {spent} gradients of {chains} "
        f"chains, {length} draws, step {_step(found)}, accepted "
        f"{float(found['accepted']):.2f}, energy variance a dimension {float(found['variance']):.1e}, "
        f"{', '.join(parts + ways)}"
    )


def _step(found: Any) -> str:
    return f"{float(found['step']):.3f}" if "step" in found else "unknown"


def _shift(x: np.ndarray, found: Any) -> str:
    """What finite steps do to a parameter, of samplers that say it."""
    if "shift" not in found:
        return ""
    shift, error = infer.step_bias(x, found["shift"])
    return f", steps shift it by {shift:+.2f} ± {error:.2f} sd"


def compare(folder: Path) -> None:
    """Means of the samplers against those of HMC, in its standard deviations, with their Monte Carlo errors."""
    found = {file.stem: dict(np.load(file)) for file in sorted(folder.glob("*.npz"))}
    if "hmc" not in found:
        there = ", ".join(found) or "nothing"
        raise SystemExit(f"{folder} has no hmc.npz, only {there}: run --methods hmc --save {folder} first")
    exact = found["hmc"]
    for method, own in found.items():
        print(f"{method}: {described(own)}")
        for name in (*TRUTH, "log density"):
            ours, theirs = np.asarray(own[name], float), np.asarray(exact[name], float)
            sizes = infer.ess_mean(ours), infer.ess_mean(theirs)
            away, error = (ours.mean() - theirs.mean()) / theirs.std(), np.sqrt(1 / sizes[0] + 1 / sizes[1])
            print(f"  {name:12} mean {away:+.3f} ± {error:.3f} sd from HMC, width {ours.std() / theirs.std():.3f}, "
                  f"ESS {sizes[0]:.0f}")  # fmt: skip


def timed(function: Any, *arguments: Any, seconds: float = 3.0) -> float:
    """Median time of a call [ms]."""
    jax.block_until_ready(function(*arguments))
    times, began = list[float](), time.perf_counter()
    while len(times) < 5 or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - before)
    return 1e3 * float(np.median(times))


def speed(posterior: infer.Posterior, truth: Any, chains: int) -> str:
    """Times of the forward model, of a gradient, and of those of a batch of chains."""

    @eqx.filter_jit
    def forward(position: Any, posterior: infer.Posterior) -> Any:
        return posterior.logdensity(position)

    @eqx.filter_jit
    def gradient(position: Any, posterior: infer.Posterior) -> Any:
        return jax.value_and_grad(posterior.logdensity)(position)

    @eqx.filter_jit
    def batch(positions: Any, posterior: infer.Posterior) -> Any:
        return jax.vmap(lambda z: gradient(z, posterior))(positions)

    position = posterior.to_latent(truth["noise"], truth["parameters"])
    positions = jax.tree.map(lambda x: jnp.stack([x] * chains), position)
    one, slope = timed(forward, position, posterior), timed(gradient, position, posterior)
    many = timed(batch, positions, posterior)
    return (
        f"log density {one:.2f} ms, with gradient {slope:.2f} ms ({slope / one:.1f}), of {chains} chains {many:.2f} ms "
        f"({many / chains:.2f} each)"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, default=64)
    parser.add_argument("--gravity", default="lpt", choices=("linear", "lpt", "nbody", "cone", "lensing"))
    parser.add_argument("--cell", type=float, default=5.0, help="side of a cell [Mpc/h]")
    parser.add_argument("--nbody-steps", type=int, default=5)
    parser.add_argument("--methods", default="mclmc,hmc", help='"" for times alone')
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the chains, for the same mock")
    parser.add_argument("--devices", type=int, default=1, help="over which each field is divided")
    parser.add_argument("--chunk", type=int, default=100, help="steps of mclmc between looks at the budget")
    parser.add_argument("--twice", action="store_true", help="run each method twice, and compare the bits")
    parser.add_argument("--energy-variance", type=float, default=ENERGY_VARIANCE, help="that tuning of mclmc aims at")
    parser.add_argument("--tune", type=int, default=800)
    parser.add_argument("--gradients", type=int, default=4000, help="of each chain, after tuning")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="of each method, after which its sampling stops"
    )
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--save", type=Path, help="folder for draws")
    parser.add_argument("--begin", type=Path, help="folder of an earlier slice of the same mclmc, which goes on")
    parser.add_argument("--end", type=Path, help="folder for what a later slice begins with")
    parser.add_argument("--compare", type=Path, help="folder with draws")
    options = parser.parse_args()
    if options.gravity == "lensing" and options.devices > 1:
        parser.error("--devices: lensing runs on one")
    if (options.begin or options.end) and options.methods != "mclmc":
        parser.error("--begin and --end: slices are of --methods mclmc")
    if options.compare:
        compare(options.compare)
        return
    size = options.cell, options.devices
    posterior, truth = conditioned(options.mesh, options.gravity, options.nbody_steps, *size)
    device = f"{options.devices} {jax.devices()[0].device_kind}"
    label = f"{options.gravity}, {options.mesh}³ of {options.cell:g} Mpc/h, {device}"
    for method in filter(None, options.methods.split(",")):
        told, found = sampled(posterior, method, options)
        print(f"{label}, {told}", flush=True)
        if options.twice:
            told, again = sampled(posterior, method, options)
            same = [name for name, x in found.items() if np.array_equal(x, again[name])]
            print(
                f"{label}, again, {told}\n  the same bits: {', '.join(same)} ({len(same)} of {len(found)})", flush=True
            )
    if options.time:
        print(f"{label}: {speed(posterior, truth, options.chains)}", flush=True)


if __name__ == "__main__":
    main()
