"""Compare P(k) at z = 0 with HMcode2020 (Mead et al. 2021); needs `pip install camb`.

    python benchmarks/hmcode.py --particles 128 --spacing 2

Modes have a fixed modulus, and pairs of runs opposite signs, which cancels much of the cosmic variance (Angulo &
Pontzen 2016). Two cells a particle along each axis, 20 BullFrog steps from 3LPT at a = 0.1. Prints a markdown table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd

WAVENUMBERS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.1)  # [h/Mpc]
WIDTH = 0.08  # of the bins, in k, to each side


def camb_power(cosmo: Any, *, nonlinear: bool) -> tuple[np.ndarray, np.ndarray]:
    """k [h/Mpc] and P(k) [(Mpc/h)^3] at z = 0, linear or by HMcode2020, with the sigma8 of a cosmology."""
    import camb

    h, first_guess = float(cosmo.h), 2e-9
    params = camb.CAMBparams()
    params.set_cosmology(H0=100 * h, ombh2=float(cosmo.Omega_b) * h**2, omch2=float(cosmo.Omega_c) * h**2, mnu=0)
    params.InitPower.set_params(As=first_guess, ns=float(cosmo.n_s))
    params.set_matter_power(redshifts=[0.0], kmax=40)
    sigma8 = camb.get_results(params).get_sigma8_0()
    params.InitPower.set_params(As=first_guess * (float(cosmo.sigma8) / sigma8) ** 2, ns=float(cosmo.n_s))
    if nonlinear:
        params.NonLinear = camb.model.NonLinear_both
        params.NonLinearModel.set_params(halofit_version="mead2020")
    k, _, power = camb.get_results(params).get_matter_power_spectrum(minkh=1e-3, maxkh=30, npoints=1500)
    return k, power[0]


def fixed_noise(seed: int, config: pmd.Config) -> jax.Array:
    """White noise whose modes have a fixed modulus and random phases."""
    modes = jnp.fft.rfftn(pmd.white_noise(jax.random.key(seed), config))
    modes = modes / jnp.abs(modes) * math.sqrt(math.prod(config.particle_shape))
    return jnp.fft.irfftn(modes.at[0, 0, 0].set(0), config.particle_shape)


def power(noise: jax.Array, cosmo: Any, config: pmd.Config, linear_power: Any) -> tuple[np.ndarray, np.ndarray]:
    """k and P(k) at z = 0 of a run."""
    modes = pmd.linear_modes(noise, cosmo, config, linear_power=linear_power)
    solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config).raise_if_failed()
    spectrum = pmd.power_spectrum(pmd.density(solution.particles, config), config)
    return np.asarray(spectrum.k), np.asarray(spectrum.power)


def ratios(pairs: int, particles: int, spacing: float) -> list[float]:
    """P over that of HMcode2020 in the bins, as a mean over pairs of runs."""
    cosmo = jax_cosmo.Planck15()
    linear, exact = (camb_power(cosmo, nonlinear=nonlinear) for nonlinear in (False, True))
    box, device = particles * spacing, pmd.Decomposition(devices=jax.devices()[:1])
    config = pmd.Config(box, 2 * particles, particles, lpt_order=3, decomposition=device)
    runs = [power(sign * fixed_noise(seed, config), cosmo, config, linear) for seed in range(pairs) for sign in (1, -1)]
    k = runs[0][0]
    ratio = np.mean([p for _, p in runs], axis=0) / np.exp(np.interp(np.log(k), np.log(exact[0]), np.log(exact[1])))
    bins = [np.abs(k / center - 1) < WIDTH for center in WAVENUMBERS]
    return [float(np.average(ratio[b], weights=k[b] ** 2)) if b.any() else math.nan for b in bins]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--spacing", type=float, default=2.0, help="of the particles [Mpc/h] (2)")
    parser.add_argument("--pairs", type=int, default=1, help="of runs (1)")
    options = parser.parse_args(arguments)
    print(f"| P / P(HMcode2020) at k [h/Mpc] | {' | '.join(f'{k:g}' for k in WAVENUMBERS)} |\n|{'---|' * 7}")
    found = ratios(options.pairs, options.particles, options.spacing)
    print(f"| {options.spacing:g} Mpc/h | {' | '.join(f'{x:.3f}' for x in found)} |", flush=True)


if __name__ == "__main__":
    main()
