"""Suppression of P(k) by massive neutrinos, against EuclidEmulator2 and HMcode2020.

    pip install camb euclidemu2
    python benchmarks/suppression.py --particles 128

One seed with modes of fixed modulus, a box of 256 Mpc/h, two cells a particle along each axis, 20 BullFrog steps from
a = 0.05. The power of all matter with neutrinos over that without, at equal A_s. Prints a markdown table.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import camb
import euclidemu2
import jax
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s

OMEGA_M, OMEGA_B, H, N_S, A_S = 0.3075, 0.0486, 0.6774, 0.9667, 2.1e-9  # OMEGA_M includes neutrinos
MASSES = (0.1, 0.15, 0.3)  # sums of three degenerate masses [eV]; EuclidEmulator2 ends at 0.15
EDGES = (0.03, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)  # of the bins [h/Mpc]
REDSHIFTS = (0.0, 1.0)


def simulated(m_nu: float, config: pmd.Config) -> tuple[np.ndarray, list[np.ndarray]]:
    """k, and P(k) of all matter at each redshift."""
    base: Any = SimpleNamespace(Omega_c=0.0, Omega_b=OMEGA_B, h=H, n_s=N_S, sigma8=0.8, Omega_k=0.0, w0=-1.0, wa=0.0)
    base.Omega_c = OMEGA_M - OMEGA_B - float(pmd.with_neutrinos(base, m_nu=m_nu).Omega_nu)
    cosmo = pmd.with_neutrinos(base, m_nu=m_nu)
    table = pmd.growth_table(replace(cosmo, sigma8=sigma8_of_A_s(A_S, cosmo)))
    noise = pmd.white_noise(jax.random.key(3), config, fixed=True)
    particles = pmd.lpt(pmd.linear_modes(noise, table, config, linear_power="boltzmann"), table, config)
    solution = pmd.nbody(particles, table, config, saveat=[0.5]).raise_if_failed()
    outputs = (solution.particles, jax.tree.map(lambda x: x[0], solution.snapshots))
    spectra = [pmd.power_spectrum(pmd.density(found, config), config) for found in outputs]
    k, response = spectra[0].k, table.response
    totals = [1.0 if response is None else np.asarray(response.total(k, 1 / (1 + z))) for z in REDSHIFTS]
    return np.asarray(k), [np.asarray(x.power) * total**2 for x, total in zip(spectra, totals, strict=True)]


def of_camb(m_nu: float) -> Any:
    """Functions (z, k) of linear P(k), and of that of HMcode2020."""
    given, neutrinos = camb.CAMBparams(), {"num_massive_neutrinos": 3, "neutrino_hierarchy": "degenerate"}
    densities = {"H0": 100 * H, "ombh2": OMEGA_B * H**2, "mnu": m_nu, "nnu": 3.044, "TCMB": 2.7255}
    densities |= neutrinos if m_nu else {"num_massive_neutrinos": 0}
    given.set_cosmology(omch2=0.1, **densities)
    given.set_cosmology(omch2=(OMEGA_M - OMEGA_B) * H**2 - given.omnuh2, **densities)
    given.InitPower.set_params(As=A_S, ns=N_S)
    given.set_matter_power(redshifts=sorted(REDSHIFTS, reverse=True), kmax=20)
    given.NonLinear, given.WantCls = camb.model.NonLinear_both, False
    given.NonLinearModel.set_params(halofit_version="mead2020")
    results = camb.get_results(given)
    return [results.get_matter_power_interpolator(nonlinear=nonlinear).P for nonlinear in (False, True)]


def of_emulator(m_nu: float, k: np.ndarray) -> list[np.ndarray]:
    """Nonlinear over linear P(k) at each redshift."""
    given = {"As": A_S, "ns": N_S, "Omb": OMEGA_B, "Omm": OMEGA_M, "h": H, "mnu": m_nu, "w": -1.0, "wa": 0.0}
    boosts = euclidemu2.PyEuclidEmulator().get_boost(given, list(REDSHIFTS), k)[1]
    return [np.asarray(boosts[i]) for i in range(len(REDSHIFTS))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128)
    n = parser.parse_args().particles
    order = 3 if n <= 64 else 2
    config = pmd.Config(256.0, 2 * n, n, steps=20, lpt_order=order, decomposition=(1, 1), a_start=0.05)
    k, massless = simulated(0.0, config)
    linear, hmcode = of_camb(0.0)
    print("| m_nu [eV] | z | k | suppression | over EuclidEmulator2 | over HMcode2020 |\n|---|---|---|---|---|---|")
    for m_nu in MASSES:
        massive, (linear_nu, hmcode_nu) = simulated(m_nu, config)[1], of_camb(m_nu)
        for i, z in enumerate(REDSHIFTS):
            for low, high in pairwise(EDGES):
                inside = (k >= low) & (k < high)
                if not np.any(inside):
                    continue
                own, at = massive[i][inside].mean() / massless[i][inside].mean(), k[inside]
                emulated = "too heavy"
                if m_nu <= 0.15:
                    boosts = [of_emulator(m, at)[i] for m in (m_nu, 0.0)]
                    ratio = np.mean(boosts[0] / boosts[1] * linear_nu(z, at) / linear(z, at))
                    emulated = f"{own / ratio - 1:+.2%}"
                halo = f"{own / np.mean(hmcode_nu(z, at) / hmcode(z, at)) - 1:+.2%}"
                print(f"| {m_nu} | {z:g} | {low:g} to {high:g} | {own:.4f} | {emulated} | {halo} |")


if __name__ == "__main__":
    main()
