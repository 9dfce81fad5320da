"""Recovery of the truth of mocks of N-body simulations: parameters, and the initial modes by scale.

    python -m benchmarks.recovery --mesh 32 --mocks 8 --output recovery.npz
    python -m benchmarks.recovery --plot recovery.npz --figure docs/images/recovery.png

The parameters of all mocks are the same; modes, noise and chains are their own. r(k) and T(k) of the posterior mean of
the white noise against the truth, beside those of the Wiener filter, the best that linear theory allows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from benchmarks.mocks import TRUTH, Mocks, galaxies
from pmwd_dist import infer
from pmwd_dist.infer.precondition import wiener
from pmwd_dist.observe.power import cross_power


def filtered(field: Any, factor: Any, config: pmd.Config) -> Any:
    """A field whose modes are multiplied by a factor."""
    modes = pmd.prfft3d(field, config.decomposition) * factor.astype(field.dtype)
    return pmd.pirfft3d(modes, config.particle_shape, config.decomposition)


@eqx.filter_jit
def spectra(posterior: infer.Posterior, mean: Any, truth: Any, data: Any) -> Any:
    """k, r and T of the posterior mean of each mock, and those of the Wiener filter at the truth."""
    model = posterior.model
    config, parameters = model.config, {name: jnp.asarray(value) for name, value in TRUTH.items()}

    def one(fields: Any) -> Any:
        mean, truth, data = fields
        variance, gain = wiener(model, parameters)
        linear = filtered(truth, jnp.sqrt(1 - variance), config)  # as its power is
        of_data = filtered(model.likelihood.contrast(data, parameters), gain, config)
        of_mean = cross_power(mean, truth, config, deconvolve=False)
        of_linear = cross_power(linear, truth, config, deconvolve=False)
        of_wiener = cross_power(of_data, truth, config, deconvolve=False)
        found = of_mean.correlation, of_mean.transfer, of_wiener.correlation, of_wiener.transfer, of_linear.transfer
        return of_mean.k, of_mean.modes, *found

    return jax.lax.map(one, (mean, truth, data))


def plot(file: Path, figure: str) -> None:
    """Parameters of each mock against the truth; r(k) and T(k)."""
    import matplotlib.pyplot as plt

    found = dict(np.load(file))
    _, axes = plt.subplots(1, 5, figsize=(13, 2.8), layout="constrained")
    for axis, (name, truth) in zip(axes, TRUTH.items(), strict=False):
        draws = found[name].reshape(found[name].shape[0], found[name].shape[1], -1)
        mean, sd = draws.mean(axis=(0, 2)), draws.std(axis=(0, 2))
        axis.errorbar(np.arange(mean.size), mean, sd, fmt="o", ms=3)
        axis.axhline(truth, color="black", lw=1)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("mock", fontsize=8)
    some = found["modes"][0] > 0
    k = found["k"][0, some]
    for axis, what in zip(axes[3:], ("r", "T"), strict=True):
        mean, sd = found[what][:, some].mean(axis=0), found[what][:, some].std(axis=0)
        axis.fill_between(k, mean - sd, mean + sd, alpha=0.3)
        axis.plot(k, mean, label="posterior mean")
        axis.plot(k, found["limit"][:, some].mean(axis=0), "k--", lw=1, label="Wiener limit")
        axis.plot(k, found[f"wiener {what}"][:, some].mean(axis=0), ":", label="Wiener filter of the data")
        axis.set_title(f"{what}(k) of the initial modes", fontsize=9)
        axis.set_xlabel("k [h/Mpc]", fontsize=8)
    axes[3].legend(fontsize=6)
    plt.savefig(figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, default=32)
    parser.add_argument("--mocks", type=int, default=8)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--gravity", default="nbody")
    parser.add_argument("--steps", type=int, default=5, help="of the simulation")
    parser.add_argument("--tune", type=int, default=800)
    parser.add_argument("--blocks", type=int, default=300, help="of 20 steps, after tuning")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which drawing ends")
    parser.add_argument("--output", type=Path, default=Path("recovery.npz"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--figure", default="recovery.png")
    options = parser.parse_args()
    if options.plot:
        plot(options.plot, options.figure)
        return
    began, model = time.perf_counter(), galaxies(options.mesh, options.gravity, steps=options.steps)
    mocks = Mocks(model, jax.random.key(10), options.mocks, chains=options.chains, truth=TRUTH)
    mocks.tune("mclmc", options.tune)
    drawn = mocks.draw(options.blocks, options.seconds)
    away, r_hat = {}, {}
    for name, truth in TRUTH.items():
        mean, sd = drawn[name].mean(axis=(0, 2)), drawn[name].std(axis=(0, 2))
        away[name] = (truth - mean) / sd
        r_hat[name] = max(infer.rhat(drawn[name][:, i].T) for i in range(options.mocks))
        smallest = min(infer.ess_mean(drawn[name][:, i].T) for i in range(options.mocks))
        print(f"{name}: truth is {np.array2string(away[name], precision=2)} sd away, mean {away[name].mean():+.2f} ± "
              f"{options.mocks**-0.5:.2f}, rms {np.sqrt(np.mean(away[name] ** 2)):.2f}, sd {sd.mean():.3f}, "
              f"R-hat up to {r_hat[name]:.3f}, effective samples {smallest:.0f} or more", flush=True)  # fmt: skip
    found = spectra(mocks.posterior, jnp.asarray(drawn["noise mean"]), mocks.true_noise, mocks.data)
    names = ("k", "modes", "r", "T", "wiener r", "wiener T", "limit")
    arrays = dict(zip(names, map(np.asarray, found), strict=True))
    np.savez(options.output, **arrays, **{name: drawn[name] for name in TRUTH})
    for i in range(0, arrays["k"].shape[1], max(1, arrays["k"].shape[1] // 8)):
        if arrays["modes"][0, i]:
            shown = ", ".join(f"{name} {arrays[name][:, i].mean():.3f}" for name in names[2:])
            print(f"k = {arrays['k'][0, i]:.3f} h/Mpc: {shown}")
    print(f"{options.gravity}, {options.mesh}³, {len(drawn['b1'])} blocks: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
