"""C_l of convergence maps against pyccl and healpy: `python -m benchmarks.lensing` (needs pyccl, camb and healpy).

Simulations start from pyccl's own linear P(k), by CAMB. Flat sky: the mean power of maps along the three axes, tapered at
the edges of the field, in bands, over Limber's integral with HMcode2020's P(k), with the linear one and with that of the
simulations themselves, of modes that the box has and with the windows of planes and rays. The mean over the planes, which
are periodic, needs no field and has less scatter. Sphere: anafast of maps over the same, with the window of their pixels.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.cosmology.distance import scale_factor_at

PARAMETERS = {"Omega_c": 0.26, "Omega_b": 0.05, "h": 0.68, "n_s": 0.97, "sigma8": 0.81}
AXES = "xyz"
Power = Callable[[np.ndarray, float], np.ndarray]  # P(k, a) [(Mpc/h)^3]


class Cosmology:
    Omega_c, Omega_b, h, n_s, sigma8 = PARAMETERS.values()
    Omega_k, w0, wa = 0.0, -1.0, 0.0


@cache
def _pyccl() -> Any:
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
    return lambda k, a: function(_pyccl(), k * h, a) * h**3


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


def planes_and_rays(cell: float) -> Callable[[np.ndarray, float], np.ndarray]:
    """W^2 of maps: cloud-in-cell when planes are painted, linear interpolation when rays read them."""
    angle = (np.arange(16) + 0.5) * np.pi / 32

    def window(k: np.ndarray, _distance: float) -> np.ndarray:
        x, y = (k[:, None] * part(angle)[None] * cell / (2 * np.pi) for part in (np.cos, np.sin))
        return np.mean((np.sinc(x) * np.sinc(y)) ** 8, axis=1)

    return window


def tapered_power(kappa: np.ndarray, side: float, ell_bands: np.ndarray) -> np.ndarray:
    """Power in bands of l of a map of which the outer eighths are tapered: a field that is not periodic leaks."""
    n = len(kappa)
    edge = np.minimum(np.arange(n) + 0.5, n - 0.5 - np.arange(n)) / n
    taper = np.sin(np.pi / 2 * np.minimum(edge * 8, 1)) ** 2
    weight = taper[:, None] * taper[None, :]
    values = (kappa - np.sum(weight * kappa) / np.sum(weight)) * weight
    power = np.abs(np.fft.fft2(values)) ** 2 * (side / n**2) ** 2 / np.mean(weight**2)
    ell = 2 * np.pi / side * np.hypot(*np.meshgrid(*[np.fft.fftfreq(n, 1 / n)] * 2))
    return np.array([power[(ell >= a) & (ell < b)].mean() for a, b in itertools.pairwise(ell_bands)])


def power_of_planes(cone: Any, mass: np.ndarray, weights: np.ndarray, bands: np.ndarray) -> np.ndarray:
    """Sum over the planes of their power in bands of l, whole periodic planes, their window divided out."""
    delta = np.asarray(cone.overdensity(mass), float)
    n, side = delta.shape[-1], cone.sides[0]
    numbers = np.fft.fftfreq(n, 1 / n)
    k = 2 * np.pi / side * np.hypot(*np.meshgrid(numbers, numbers))
    window = np.multiply.outer(np.sinc(numbers / n) ** 4, np.sinc(numbers / n) ** 4)
    total = np.zeros(len(bands) - 1)
    for plane, weight, x in zip(delta, weights, cone.distances, strict=True):
        power = np.abs(np.fft.fft2(plane)) ** 2 * (side / n**2) ** 2 / window
        for i, (a, b) in enumerate(itertools.pairwise(bands)):
            inside = (k >= a / x) & (k < b / x) & (k > 0) & (k < np.pi * n / side)
            total[i] += weight**2 * power[inside].mean() / x**2 if inside.any() else 0.0
    return total


def flat(options: argparse.Namespace) -> None:
    box, n, source, rays = options.box, options.particles, options.source, 256
    config = pmd.Config(box_size=box, mesh_shape=options.mesh, particle_shape=n, steps=options.steps, lpt_order=3,
                        decomposition=(1, 1))  # fmt: skip
    fine = pmd.Config(box_size=box, mesh_shape=3 * n, particle_shape=n, decomposition=(1, 1))
    far, pixels = distance_of(source), 3 * n
    field = options.field or min(25.0, math.degrees(box / far))
    side = math.radians(field)
    edges = np.append(np.arange(0, far - 0.1 * box, box / 2), far)
    cones = [pmd.observe.FlatSkyLightCone(config, edges, pixels=pixels, line_of_sight=axis) for axis in AXES]
    growth = pmd.growth_table(Cosmology)
    weights = np.asarray(pmd.observe.lensing_weights(tuple(edges), growth, source))
    at = np.linspace(min(100, far / 8), far, 7)
    times = np.asarray(scale_factor_at(at, growth), float)[::-1].tolist()
    saveat = diffrax.SaveAt(
        ts=jnp.asarray(times), fn=lambda _a, particles, _: pmd.power_spectrum(pmd.density(particles, fine), fine)
    )

    @jax.jit
    def simulate(key: jax.Array) -> Any:
        modes = pmd.linear_modes(pmd.white_noise(key, config), Cosmology, config, linear_power=table())
        see = lambda *step: tuple(cone(*step) for cone in cones)  # noqa: E731
        solution = pmd.nbody(pmd.lpt(modes, growth, config), growth, config, accumulate=see, saveat=saveat)
        return solution.accumulated, solution.status.code, solution.snapshots

    @jax.jit
    def look(mass: jax.Array, shifts: jax.Array) -> jax.Array:
        return pmd.observe.convergence(mass, growth, cones[2], source=source, field=field, pixels=rays, offsets=shifts)

    bands = np.geomspace(max(2.5 * 360 / field, options.low), options.high, options.bands + 1)
    rng, maps, planes, powers = np.random.default_rng(0), [], [], []
    for seed in range(options.runs):
        masses, code, saved = simulate(jax.random.key(seed))
        assert code == 0
        powers.append(np.asarray(saved.power)[::-1])
        for cone, mass in zip(cones, masses, strict=True):
            planes.append(power_of_planes(cone, mass, weights, bands))
            views = []
            for _ in range(options.views):
                shifts = rng.uniform(0, box, (len(edges), 2))[np.arange(len(edges) - 1) // 2]
                kappa = np.asarray(look(mass, jnp.asarray(shifts)), float)  # the box is a cube: any cone will do
                views.append(tapered_power(kappa, side, bands))
            maps.append(np.mean(views, axis=0))
    k, own = np.asarray(saved.k, float)[0], np.log(np.mean(powers, axis=0))

    def simulated(wave: np.ndarray, a: float) -> np.ndarray:
        x = float(pmd.comoving_distance(a, growth))
        now = [np.interp(x, at, column) for column in own.T]
        return np.where(wave < k[-1], np.exp(np.interp(np.log(wave), np.log(k), now)), 0)

    ells = np.concatenate([np.linspace(a, b, 9)[:-1] for a, b in itertools.pairwise(bands)])

    def banded(power: Power, window: Any) -> np.ndarray:
        values = limber(ells, edges, source, power, window, low=2 * np.pi / box)
        return np.array([np.average(v, weights=w) for v, w in zip(np.split(values, options.bands), np.split(ells, options.bands), strict=True)])  # fmt: skip

    window = planes_and_rays(box / pixels)
    noise = box**3 / n**3
    expected = [banded(simulated, window), banded(simulated, None), banded(power_of("HMcode2020"), window),
                banded(power_of("linear"), window), banded(lambda k, _: np.full_like(k, noise), window)]  # fmt: skip
    mean, error = np.mean(maps, axis=0), np.std(maps, axis=0) / math.sqrt(len(maps) - 1)
    whole, whole_error = np.mean(planes, axis=0), np.std(planes, axis=0) / math.sqrt(len(planes) - 1)
    print(f"flat sky of {field:.3g} degrees: {n}^3 particles, mesh {options.mesh}^3, {box:g} Mpc/h, {options.runs} runs, "
          f"3 axes, {options.views} views each, sources at z = {source:g}")  # fmt: skip
    print("| l | C_l of maps | its error | maps / own P(k) | planes / own P(k) | planes / HMcode2020 | planes / linear "
          "| error of planes | shot noise |\n|" + "---|" * 9)  # fmt: skip
    for i, (a, b) in enumerate(itertools.pairwise(bands)):
        row = [f"{a:.0f} to {b:.0f}", f"{mean[i]:.3e}"] + [
            f"{x:.3f}" for x in (error[i] / mean[i], mean[i] / expected[0][i], whole[i] / expected[1][i],
                                 whole[i] / banded_ratio(expected, 2, i), whole[i] / banded_ratio(expected, 3, i),
                                 whole_error[i] / whole[i], expected[4][i] / expected[0][i])]  # fmt: skip
        print(f"| {' | '.join(row)} |")


def banded_ratio(expected: list[np.ndarray], which: int, i: int) -> float:
    """C_l of a model without windows: with them, over those of the simulations' own."""
    return float(expected[which][i] * expected[1][i] / expected[0][i])


def sphere(options: argparse.Namespace) -> None:
    import healpy

    box, nside, source = options.box, options.nside, 0.2
    config = pmd.Config(box_size=box, mesh_shape=options.mesh, particle_shape=options.particles, steps=options.steps,
                        lpt_order=3, decomposition=(1, 1))  # fmt: skip
    edges = np.linspace(0, distance_of(source), 9)
    cone = pmd.observe.SphericalLightCone(config, edges, nside)
    growth = pmd.growth_table(Cosmology)

    @jax.jit
    def simulate(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        modes = pmd.linear_modes(pmd.white_noise(key, config), Cosmology, config, linear_power=table())
        solution = pmd.nbody(pmd.lpt(modes, growth, config), growth, config, accumulate=cone)
        return pmd.observe.convergence(solution.accumulated, growth, cone, source=source), solution.status.code

    spectra = []
    for seed in range(options.runs):
        kappa, code = simulate(jax.random.key(seed))
        assert code == 0
        spectra.append(healpy.anafast(np.asarray(kappa, float)))
    bands = np.array([8, 12, 18, 27, 40, 60])
    pixel = healpy.pixwin(nside)[: len(spectra[0])] ** 4  # a mass is shared by four pixels, of which each is a mean
    ell = np.arange(bands[0], bands[-1])
    theory = {name: limber(ell, edges, source, power_of(name), low=2 * np.pi / box) * pixel[ell]
              for name in ("HMcode2020", "linear")}  # fmt: skip
    print(f"sphere: {options.particles}^3 particles, mesh {options.mesh}^3, {box:g} Mpc/h, {options.runs} runs, "
          f"nside {nside}, sources at z = {source:g}")  # fmt: skip
    print("| l | C_l | Gaussian error | / HMcode2020 | / linear | pixel window |\n|" + "---|" * 6)
    for a, b in itertools.pairwise(bands):
        modes = np.arange(a, b)
        weight = 2 * modes + 1
        value = np.mean([np.average(s[a:b], weights=weight) for s in spectra])
        ratios = [value / np.average(t[a - bands[0] : b - bands[0]], weights=weight) for t in theory.values()]
        error = math.sqrt(2 / (weight.sum() * options.runs))
        print(f"| {a} to {b - 1} | {value:.3e} | {error:.3f} | {ratios[0]:.3f} | {ratios[1]:.3f} "
              f"| {np.average(pixel[a:b], weights=weight):.3f} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sky", choices=["flat", "sphere"], default="flat")
    parser.add_argument("--box", type=float, default=256.0)
    parser.add_argument("--particles", type=int, default=64)
    parser.add_argument("--mesh", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--source", type=float, default=1.0)
    parser.add_argument("--field", type=float, help="side [degrees]; default: that of the box at the sources")
    parser.add_argument("--low", type=float, default=0.0, help="first l; default: 2.5 waves in the field")
    parser.add_argument("--high", type=float, default=800.0, help="last l")
    parser.add_argument("--bands", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--nside", type=int, default=128)
    options = parser.parse_args()
    {"flat": flat, "sphere": sphere}[options.sky](options)


if __name__ == "__main__":
    main()
