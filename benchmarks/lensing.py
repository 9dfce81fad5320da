"""C_l of convergence maps against pyccl and healpy: `python -m benchmarks.lensing` (needs pyccl and healpy).

Flat sky: the mean over some simulations of the power of maps, in bands, over pyccl's C_l (halofit's P(k), and the
linear one) within the wavenumbers that box and mesh have. Sphere: anafast of a map over the same C_l.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.cosmology.distance import scale_factor_at

PARAMETERS = {"Omega_c": 0.26, "Omega_b": 0.05, "h": 0.68, "n_s": 0.97, "sigma8": 0.81}


class Cosmology:
    Omega_c, Omega_b, h, n_s, sigma8 = PARAMETERS.values()
    Omega_k, w0, wa = 0.0, -1.0, 0.0


def theory(ells: np.ndarray, edges: np.ndarray, source: float, low: float, high: float) -> dict[str, np.ndarray]:
    """C_l of the matter between the first and the last edge, of modes low < k < high [h/Mpc] only.

    By Limber's integral over pyccl's P(k, a), with our weights: pyccl's own tracer has all modes.
    """
    import pyccl

    h = PARAMETERS["h"]
    out = {}
    grid = np.linspace(
        max(edges[0], 1.0), min(edges[-1], float(pmd.comoving_distance(1 / (1 + source), Cosmology))), 400
    )
    shells = np.append(grid, 2 * grid[-1] - grid[-2])
    kernel = np.asarray(pmd.observe.lensing_weights(shells, Cosmology, source))
    middle = (shells[1:] + shells[:-1]) / 2
    for name in ("linear", "halofit"):
        cosmo = pyccl.Cosmology(**PARAMETERS, transfer_function="eisenstein_hu", matter_power_spectrum=name)
        a = pyccl.scale_factor_of_chi(cosmo, middle / h)
        total = np.zeros(len(ells))
        for i, ell in enumerate(ells):
            k = (ell + 0.5) / middle
            power = np.array([pyccl.nonlin_matter_power(cosmo, kk * h, aa) for kk, aa in zip(k, a, strict=True)]) * h**3
            inside = (k > low) & (k < high)
            total[i] = np.sum(kernel**2 / np.diff(shells) / middle**2 * power * inside)
        out[name] = total
        if name == "halofit":
            z = np.linspace(source - 0.02, source + 0.02, 101)
            tracer = pyccl.WeakLensingTracer(cosmo, dndz=(z, np.exp(-(((z - source) / 0.004) ** 2) / 2)))
            out["pyccl's tracer"] = pyccl.angular_cl(cosmo, tracer, tracer, ells)
    return out


def from_spectra(ells: np.ndarray, weights: dict, k: np.ndarray, power: np.ndarray, at: np.ndarray, cell: float) -> Any:
    """Limber's integral over the spectra of the simulations themselves, with the windows of planes and rays.

    Args:
      ells: multipoles.
      weights: of thin shells, by their distance [Mpc/h].
      k: wavenumbers [h/Mpc].
      power: spectra, by distance.
      at: distances of the spectra, ascending [Mpc/h].
      cell: side of a plane's pixels [Mpc/h].
    """
    angle = (np.arange(16) + 0.5) * np.pi / 32
    total = np.zeros(len(ells))
    thickness = np.diff(list(weights)).mean()
    for distance, weight in weights.items():
        wave = (ells + 0.5) / distance
        inside = (wave > k[0]) & (wave < k[-1])
        now = [np.interp(distance, at, column) for column in np.log(power).T]
        # Cloud-in-cell when painted, linear interpolation when read: the same window twice, squared.
        x, y = (wave[:, None] * part(angle)[None] * cell / (2 * np.pi) for part in (np.cos, np.sin))
        window = np.mean((np.sinc(x) * np.sinc(y)) ** 8, axis=1)
        total += (
            np.where(inside, np.exp(np.interp(np.log(wave), np.log(k), now)), 0) * window * (weight / distance) ** 2
        )
    return total / thickness


def flat(options: argparse.Namespace) -> None:
    box, mesh, source, field, rays = options.box, options.mesh, 1.0, 6.0, 128
    config = pmd.Config(box_size=box, mesh_shape=mesh, steps=20, decomposition=(1, 1))
    farthest = float(pmd.comoving_distance(1 / (1 + source), Cosmology))
    edges = np.arange(0, farthest + box / 2, box / 2)
    cone = pmd.observe.FlatSkyLightCone(config, edges, pixels=2 * mesh)
    table = pmd.growth_table(Cosmology)

    at = np.linspace(100, farthest, 7)
    times = np.asarray(scale_factor_at(at, table), float)[::-1].tolist()

    saveat = diffrax.SaveAt(
        ts=jnp.asarray(times),
        fn=lambda _a, particles, _table: pmd.power_spectrum(pmd.density(particles, config), config),
    )

    @jax.jit
    def simulate(key: jax.Array) -> Any:
        modes = pmd.linear_modes(pmd.white_noise(key, config), Cosmology, config)
        solution = pmd.nbody(pmd.lpt(modes, table, config), table, config, accumulate=cone, saveat=saveat)
        return solution.accumulated, solution.status.code, solution.snapshots

    @jax.jit
    def see(mass: jax.Array, shifts: jax.Array) -> jax.Array:
        return pmd.observe.convergence(mass, table, cone, source=source, field=field, pixels=rays, offsets=shifts)

    side = np.radians(field)
    ell = 2 * np.pi / side * np.hypot(*np.meshgrid(*[np.fft.fftfreq(rays, 1 / rays)] * 2))
    bands = np.array([120, 180, 260, 380, 550, 800])
    rng, spectra, powers = np.random.default_rng(0), [], []
    for seed in range(options.runs):
        mass, code, saved = simulate(jax.random.key(seed))
        assert code == 0
        powers.append(np.asarray(saved.power)[::-1])
        for _ in range(options.views):
            shifts = rng.uniform(0, box, (len(edges), 2))[np.arange(len(edges) - 1) // 2]
            kappa = np.asarray(see(mass, jnp.asarray(shifts)))
            power = np.abs(np.fft.fft2(kappa - kappa.mean())) ** 2 * (side / rays**2) ** 2
            spectra.append([power[(ell >= a) & (ell < b)].mean() for a, b in itertools.pairwise(bands)])
    spectra = np.array(spectra).reshape(options.runs, options.views, -1).mean(1)
    mean, error = spectra.mean(0), spectra.std(0) / np.sqrt(max(options.runs - 1, 1))
    ells = np.sqrt(bands[:-1] * bands[1:])
    expected = theory(ells, edges, source, 2 * np.pi / box, np.inf)
    thin = np.linspace(1, farthest, 401)
    weights = np.asarray(pmd.observe.lensing_weights(thin, table, source))
    by_distance = dict(zip((thin[1:] + thin[:-1]) / 2, weights, strict=True))
    own = from_spectra(ells, by_distance, np.asarray(saved.k)[0], np.mean(powers, axis=0), at, box / (2 * mesh))
    print(
        f"flat sky: {mesh}^3, {box:g} Mpc/h, {options.runs} runs, {options.views} views each, sources at z = {source:g}"
    )
    print("l, C_l, its error over C_l, C_l over: own P(k), halofit with the box's modes, linear, pyccl's tracer")
    for row in zip(ells, mean, error / mean, mean / own, mean / expected["halofit"], mean / expected["linear"],
                   mean / expected["pyccl's tracer"], strict=True):  # fmt: skip
        print("{:6.0f} {:.3e} {:.3f} {:.3f} {:.3f} {:.3f} {:.3f}".format(*row))


def sphere(options: argparse.Namespace) -> None:
    import healpy

    box, mesh, nside, source = options.box, options.mesh, 64, 0.2
    config = pmd.Config(box_size=box, mesh_shape=mesh, steps=20, decomposition=(1, 1))
    farthest = float(pmd.comoving_distance(1 / (1 + source), Cosmology))
    edges = np.linspace(0, farthest, 9)
    cone = pmd.observe.SphericalLightCone(config, edges, nside)
    table = pmd.growth_table(Cosmology)

    @jax.jit
    def simulate(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        modes = pmd.linear_modes(pmd.white_noise(key, config), Cosmology, config)
        solution = pmd.nbody(pmd.lpt(modes, table, config), table, config, accumulate=cone)
        return pmd.observe.convergence(solution.accumulated, table, cone, source=source), solution.status.code

    spectra = []
    for seed in range(options.runs):
        kappa, code = simulate(jax.random.key(seed))
        assert code == 0
        spectra.append(healpy.anafast(np.asarray(kappa, float)))
    bands = np.array([8, 12, 18, 27, 40, 60])
    ells = np.sqrt(bands[:-1] * bands[1:])
    expected = theory(ells, edges, source, 2 * np.pi / box, np.inf)
    print(f"sphere: {mesh}^3, {box:g} Mpc/h, {options.runs} runs, nside {nside}, sources at z = {source:g}")
    print("l, C_l, C_l over halofit with the box's modes, linear, pyccl's tracer with all modes")
    for i, (a, b) in enumerate(itertools.pairwise(bands)):
        value = np.mean([s[a:b] for s in spectra])
        ratios = [value / expected[name][i] for name in ("halofit", "linear", "pyccl's tracer")]
        print("{:6.0f} {:.3e} {:.3f} {:.3f} {:.3f}".format(ells[i], value, *ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--box", type=float, default=256.0)
    parser.add_argument("--mesh", type=int, default=64)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--sky", choices=["flat", "sphere"], default="flat")
    options = parser.parse_args()
    {"flat": flat, "sphere": sphere}[options.sky](options)


if __name__ == "__main__":
    main()
