"""C_l of pyccl: its P(k), linear and HMcode2020 by CAMB, in Limber's integral with our weights, and its own tracer.

`python -m benchmarks.lensing_theory` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import pmwd_dist as pmd
from pmwd_dist.cosmology.distance import scale_factor_at

PARAMETERS = {"Omega_c": 0.26, "Omega_b": 0.05, "h": 0.68, "n_s": 0.97, "sigma8": 0.81}
Power = Callable[[np.ndarray, float], np.ndarray]  # P(k, a) [(Mpc/h)^3]


class Cosmology:
    Omega_c, Omega_b, h, n_s, sigma8 = PARAMETERS.values()
    Omega_k, w0, wa = 0.0, -1.0, 0.0


@cache
def pyccl_cosmology() -> Any:
    import pyccl

    halofit = {"camb": {"halofit_version": "mead2020", "kmax": 30.0}}
    return pyccl.Cosmology(
        **PARAMETERS, transfer_function="boltzmann_camb", matter_power_spectrum="camb", extra_parameters=halofit
    )


def power_of(name: str) -> Power:
    """P(k, a) of pyccl: "linear", or "HMcode2020"."""
    import pyccl

    h = PARAMETERS["h"]
    function = pyccl.linear_matter_power if name == "linear" else pyccl.nonlin_matter_power
    return lambda k, a: function(pyccl_cosmology(), k * h, a) * h**3


def table() -> tuple[np.ndarray, np.ndarray]:
    """Linear P(k) at a = 1."""
    k = np.geomspace(1e-4, 20, 400)
    return k, power_of("linear")(k, 1.0)


def limber(
    ells: np.ndarray, edges: np.ndarray, source: float, power: Power, window: Any = None, low: float = 0.0
) -> np.ndarray:
    """C_l of the matter between the first and the last edge, of modes k > low [h/Mpc], with a window W^2(k)."""
    grid = np.linspace(max(edges[0], 1.0), min(edges[-1], distance_of(source)), 401)
    kernel = np.asarray(pmd.observe.lensing_weights(grid, Cosmology, source))
    total = np.zeros(len(ells))
    for weight, x in zip(kernel, (grid[1:] + grid[:-1]) / 2, strict=True):
        k = (ells + 0.5) / x
        value = power(k, float(scale_factor_at(x, pmd.growth_table(Cosmology))))
        total += np.where(k > low, value * (1 if window is None else window(k, x)), 0) * (weight / x) ** 2
    return total / (grid[1] - grid[0])


def distance_of(z: float) -> float:
    return float(pmd.comoving_distance(1 / (1 + z), Cosmology))


def main() -> None:
    import pyccl

    source, ells = 1.0, np.array([100, 200, 400, 700, 1000])
    z = np.linspace(source - 0.02, source + 0.02, 101)
    tracer = pyccl.WeakLensingTracer(pyccl_cosmology(), dndz=(z, np.exp(-(((z - source) / 0.004) ** 2) / 2)))
    expected = pyccl.angular_cl(pyccl_cosmology(), tracer, tracer, ells)
    found = limber(ells, np.array([0.0, distance_of(source)]), source, power_of("HMcode2020"))
    print("l, C_l by our weights over that of pyccl's tracer, less one")
    for ell, ratio in zip(ells, found / expected, strict=True):
        print(f"{ell:6} {ratio - 1:+.1e}")


if __name__ == "__main__":
    main()
