"""Make the tables of the transfer function "boltzmann", and the numbers of its tests, with CAMB (`pip install camb`).

python benchmarks/transfer_table.py transfer.npy camb.npz transfer_n_eff.npy
"""

import sys

import camb
import jax
import numpy as np
from scipy.interpolate import make_interp_spline

from pmwd_dist.cosmology.transfer import (
    N_RANGE,
    N_TABLE,
    RANGES,
    SCALE,
    STEP,
    _with_sound_horizon,
    chebyshev,
    cubic,
    finer_node,
)

ORDERS, N_ORDERS, H = (10, 7), (4, 3, 3), 0.7
TOTAL = 6  # row of CAMB's transfer functions: all matter
PLANCK = {"omega_m": 0.3075, "omega_b": 0.0486, "h": 0.6774, "n_s": 0.9667}
STEPS = {"omega_m": 0.01, "omega_b": 0.001, "h": 0.01, "n_s": 0.01}
EDGES = [(0.2, 0.04, 0.62, 0.92), (0.4, 0.06, 0.75, 1.0), (0.2, 0.055, 0.7, 1.0), (0.4, 0.045, 0.62, 0.96)]
A_S = 2.1e-9


def run(omega_m: float, omega_b: float, h: float, n_s: float, sampling: int, n_eff: float = N_TABLE) -> camb.CAMBparams:
    """Parameters of a flat cosmology with three massless neutrinos; sampling: wavenumbers per e-fold."""
    found = camb.set_params(
        H0=100 * h, ombh2=omega_b * h**2, omch2=(omega_m - omega_b) * h**2, ns=n_s, As=A_S, mnu=0,
        num_massive_neutrinos=0, nnu=n_eff, TCMB=2.726, WantCls=False,
    )  # fmt: skip
    found.set_matter_power(redshifts=[0.0], kmax=20.0, k_per_logint=sampling)
    found.NonLinear = camb.model.NonLinear_none
    return found


def correction(w_m: float, f_b: float) -> np.ndarray:
    """ln(T / T_EH) at the nodes, 0 at the first."""
    data = camb.get_transfer_functions(run(w_m / H**2, f_b * w_m / H**2, H, 0.96, 25)).get_matter_transfer_data()
    k, transfer = data.transfer_data[0, :, 0], data.transfer_data[TOTAL, :, 0]  # k in h/Mpc
    fit, s = map(np.asarray, _with_sound_horizon(k, (1 - f_b) * w_m / H**2, f_b * w_m / H**2, np.float64(H)))
    x = np.log1p(k * H * s / SCALE) / STEP
    spline, nodes = make_interp_spline(x, np.log(transfer / fit)), np.arange(int(x[-1]) + 1)
    return spline(np.clip(nodes, x[0], None)) - spline(x[0])


def table() -> np.ndarray:
    """Chebyshev coefficients of the correction."""
    (least, most), (low, high) = RANGES
    x, y = (np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in ORDERS)
    at = [[correction(least * (most / least) ** ((u + 1) / 2), low + (high - low) * (v + 1) / 2) for v in y] for u in x]
    length = min(len(values) for row in at for values in row)
    values = np.array([[row[:length] for row in rows] for rows in at])
    return series(values, ORDERS)


def series(values: np.ndarray, orders: tuple[int, ...]) -> np.ndarray:
    """Chebyshev coefficients along the first axes, of values at Chebyshev nodes."""
    for axis, n in enumerate(orders):
        matrix = 2 / n * np.cos(np.pi * np.outer(np.arange(n), np.arange(n) + 0.5) / n)
        matrix[0] /= 2
        values = np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)
    return values.astype(np.float32)


def finer_table(first: np.ndarray) -> np.ndarray:
    """Coefficients of what the first table lacks at small k s, then of its change per n_eff - 3.046."""
    (least, most), (low, high) = RANGES
    nodes = [np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in N_ORDERS]

    def at(u: float, v: float) -> list[np.ndarray]:
        w_m, f_b = least * (most / least) ** ((u + 1) / 2), low + (high - low) * (v + 1) / 2

        def transfer(n_eff: float) -> tuple[np.ndarray, np.ndarray]:
            given = run(w_m / H**2, f_b * w_m / H**2, H, 0.96, 25, n_eff)
            data = camb.get_transfer_functions(given).get_matter_transfer_data().transfer_data
            return data[0, :, 0], np.log(data[TOTAL, :, 0])

        k, standard = transfer(N_TABLE)
        fit, s = map(np.asarray, _with_sound_horizon(k, (1 - f_b) * w_m / H**2, f_b * w_m / H**2, np.float64(H)))
        x, y = (np.asarray(chebyshev(z, n)) for z, n in zip((u, v), ORDERS, strict=True))
        known = cubic(np.einsum("i,j,ijk", x, y, first.astype(float)), np.log1p(k * H * s / SCALE) / STEP)
        rest = standard - np.log(fit) - np.asarray(known)
        rest -= rest[0]
        resolved = np.clip(np.log(k * H * s / 1.5) / np.log(4 / 1.5), 0, 1)  # by the first table, from k s = 4 on
        level = np.average(rest[(k * H * s > 4) & (k * H * s < 400)])
        changes = []
        for w in nodes[2]:
            n_eff = N_RANGE[0] + (N_RANGE[1] - N_RANGE[0]) * (w + 1) / 2
            k_n, other = transfer(n_eff)
            change = np.interp(np.log(k), np.log(k_n), other) - standard
            changes.append((change - change[0]) / (n_eff - N_TABLE))
        position = np.asarray(finer_node(k * H * s))
        grid = np.clip(np.arange(int(position[-1]) + 1), position[0], None)
        parts = [(1 - resolved) * rest + resolved * level, *series(np.array(changes), N_ORDERS[2:])]
        splines = [make_interp_spline(position, part) for part in parts]
        return [spline(grid) - spline(position[0]) for spline in splines]

    rows = [[at(u, v) for v in nodes[1]] for u in nodes[0]]
    length = min(len(part) for row in rows for parts in row for part in parts)
    return series(np.array([[[part[:length] for part in parts] for parts in row] for row in rows]), N_ORDERS[:2])


def numbers() -> dict[str, np.ndarray]:
    """P(k) / sigma8^2 and sigma8 around Planck's cosmology and at the edges of priors."""
    changes = [{}] + [{name: sign * step} for name, step in STEPS.items() for sign in (1, -1)]
    cosmologies = [tuple(PLANCK[name] + change.get(name, 0) for name in PLANCK) for change in changes] + EDGES
    k, powers, sigma8 = np.geomspace(0.009, 9.0, 80), [], []
    for values in cosmologies:
        results = camb.get_results(run(*values, 60))
        sigma8.append(results.get_sigma8_0())
        powers.append(results.get_matter_power_interpolator(nonlinear=False).P(0.0, k) / sigma8[-1] ** 2)
    return {
        "cosmologies": np.array(cosmologies), "k": k, "power": np.array(powers), "sigma8": np.array(sigma8),
        "A_s": np.array(A_S), "version": np.array(camb.__version__),
    }  # fmt: skip


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    np.savez(sys.argv[2], **numbers())
    np.save(sys.argv[1], table())
    np.save(sys.argv[3], finer_table(np.load(sys.argv[1])))
