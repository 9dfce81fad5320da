"""Numbers of CAMB with radiation and massive neutrinos, for tests (`pip install camb`).

python benchmarks/neutrinos.py tests/cosmology/camb_neutrinos.npz tests/cosmology/camb_universes.npz
"""

import sys

import camb
import numpy as np
from camb.model import Transfer_nonu, Transfer_nu
from scipy.interpolate import CubicSpline

OMEGA_M, OMEGA_B, H, N_S, N_EFF = 0.3075, 0.0486, 0.6774, 0.9667, 3.044  # OMEGA_M includes neutrinos
MASSES = (0.0, 0.1, 0.3)  # sums of three degenerate masses [eV]
REDSHIFTS = (9.0, 3.0, 1.0, 0.0)
K = np.geomspace(0.01, 5.0, 16)
SCALE_FACTORS = np.array([0.01, 0.1, 0.5])


def run(m_nu: float) -> dict[str, np.ndarray]:
    """Growth and P(k) of cold matter, delta_nu / delta_cb, sigma8 of all matter, E."""
    given = camb.CAMBparams()
    species = {"num_massive_neutrinos": 3, "neutrino_hierarchy": "degenerate"} if m_nu else {"num_massive_neutrinos": 0}
    densities = {"H0": 100 * H, "ombh2": OMEGA_B * H**2, "mnu": m_nu, "nnu": N_EFF, "TCMB": 2.7255, **species}
    given.set_cosmology(omch2=0.1, **densities)
    given.set_cosmology(omch2=(OMEGA_M - OMEGA_B) * H**2 - given.omnuh2, **densities)
    given.InitPower.set_params(As=2.1e-9, ns=N_S)
    given.set_matter_power(redshifts=REDSHIFTS, kmax=20.0, k_per_logint=60)
    given.set_accuracy(AccuracyBoost=2, lAccuracyBoost=2)
    given.NonLinear, given.WantCls = camb.model.NonLinear_none, False
    results = camb.get_results(given)
    data = results.get_matter_transfer_data().transfer_data  # [kind, k, z]; over k^2

    def at(kind: int) -> np.ndarray:
        ln_k = np.log(data[0, :, 0])
        return np.array([np.exp(np.interp(np.log(K), ln_k, np.log(data[kind - 1, :, i]))) for i in range(4)])

    cold, nu = at(Transfer_nonu), at(Transfer_nu) if m_nu else np.zeros((4, len(K)))
    f_nu, sigma8 = given.omnuh2 / (OMEGA_M * H**2), results.get_sigma8_0()
    matter = results.get_matter_power_interpolator(nonlinear=False).P(0.0, K)
    response = nu / cold
    return {
        "growth": cold / cold[-1], "response": response, "sigma8": np.array(sigma8),
        "power": matter / (1 - f_nu + f_nu * response[-1]) ** 2 / sigma8**2,
        "E": np.array([results.hubble_parameter(1 / a - 1) for a in SCALE_FACTORS]) / (100 * H),
    }  # fmt: skip


PLANCK = (OMEGA_M, OMEGA_B, H, N_S)
UNIVERSES = [  # Omega_m, Omega_b, h, n_s, m_nu, n_eff
    *((*PLANCK, 0.0, 3.044), (*PLANCK, 0.3, 3.044), (*PLANCK, 0.0, 4.0), (*PLANCK, 0.15, 2.5)),
    *((0.4, 0.055, 0.72, 1.0, 0.6, 3.044), (0.25, 0.05, 0.6, 0.96, 0.0, 2.5), (0.2, 0.04, 0.65, 0.95, 0.06, 3.044)),
    *((*PLANCK, 0.3, 3.9), (0.25, 0.07, 0.65, 0.96, 0.6, 3.044), (0.2, 0.02, 0.55, 0.96, 0.6, 4.0)),
    # Corners of the ranges, where the transfer function is worst: massless ones, and massive ones.
    *((0.972, 0.2428, 0.6, 0.96, 0.0, 3.044), (0.1305, 0.0053, 1.0, 0.96, 0.0, 4.0)),
    *((0.972, 0.3108, 0.6, 0.96, 0.0, 3.044), (0.2005, 0.0402, 0.5, 0.96, 0.0, 4.0)),
    *((0.0705, 0.0208, 0.879, 0.96, 0.4, 2.5), (0.092, 0.0253, 0.7965, 0.96, 0.6, 4.0)),
]


def universe(omega_m: float, omega_b: float, h: float, n_s: float, m_nu: float, n_eff: float, k: np.ndarray) -> tuple:
    """P(k) of cold matter over sigma8^2 of all matter, and sigma8, for neutrinos of one temperature."""
    given = camb.CAMBparams()
    species = {"num_massive_neutrinos": 3, "neutrino_hierarchy": "degenerate"} if m_nu else {"num_massive_neutrinos": 0}
    densities = {"H0": 100 * h, "ombh2": omega_b * h**2, "mnu": m_nu, "nnu": n_eff, "TCMB": 2.7255, **species}
    densities |= {"standard_neutrino_neff": n_eff} if m_nu else {}
    given.set_cosmology(omch2=0.1, **densities)
    given.set_cosmology(omch2=(omega_m - omega_b) * h**2 - given.omnuh2, **densities)
    given.InitPower.set_params(As=2.1e-9, ns=n_s)
    given.set_matter_power(redshifts=[0.0], kmax=10 * h + 2, k_per_logint=40)
    given.NonLinear, given.WantCls = camb.model.NonLinear_none, False
    results = camb.get_results(given)
    data, sigma8 = results.get_matter_transfer_data().transfer_data, results.get_sigma8_0()
    cold = np.exp(CubicSpline(np.log(data[0, :, 0]), np.log(data[Transfer_nonu - 1, :, 0]))(np.log(k)))
    primordial = 2.1e-9 * (k * h / 0.05) ** (n_s - 1)
    return 2 * np.pi**2 * primordial * cold**2 * k * h**4 / sigma8**2, sigma8


if __name__ == "__main__":
    k = np.geomspace(3e-4, 9, 60)
    power, sigma8 = map(np.array, zip(*(universe(*values, k) for values in UNIVERSES), strict=True))
    known = {"universes": np.array(UNIVERSES), "k": k, "A_s": np.array(2.1e-9), "version": np.array(camb.__version__)}
    np.savez(sys.argv[2], power=power, sigma8=sigma8, **known)
    runs = [run(m_nu) for m_nu in MASSES]
    numbers = {name: np.array([found[name] for found in runs]) for name in runs[0]}
    given = {"k": K, "a": SCALE_FACTORS, "z": np.array(REDSHIFTS), "m_nu": np.array(MASSES)}
    np.savez(sys.argv[1], **given, **numbers, version=np.array(camb.__version__))
