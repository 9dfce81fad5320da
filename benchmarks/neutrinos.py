"""Numbers of CAMB with radiation and massive neutrinos, for tests (`pip install camb`).

python benchmarks/neutrinos.py tests/cosmology/camb_neutrinos.npz
"""

import sys

import camb
import numpy as np
from camb.model import Transfer_nonu, Transfer_nu

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


if __name__ == "__main__":
    runs = [run(m_nu) for m_nu in MASSES]
    numbers = {name: np.array([found[name] for found in runs]) for name in runs[0]}
    given = {"k": K, "a": SCALE_FACTORS, "z": np.array(REDSHIFTS), "m_nu": np.array(MASSES)}
    np.savez(sys.argv[1], **given, **numbers, version=np.array(camb.__version__))
