"""C_l of convergence maps against Limber's integral: `python -m benchmarks.lensing`.

Flat sky (needs pyccl and camb): the mean power in bands of l of maps along the three axes, tapered at the edges of the
field, over Limber's integral of the simulations' own P(k), of HMcode2020's and of the linear one, of modes that the box
has, with the windows of planes and rays; and of the periodic planes alone, over that of such slabs.
Planes: the power of the planes of light cones of several observers along the three axes, over that of all slabs of
snapshots at the mean distances of the shells, of pairs of simulations with fixed amplitudes. Both have the same modes
and windows, so that only the light cone differs.
Sphere: C_l of HEALPix maps of several observers over that of the simulations' own P(k), a sum over the waves of the box
with the window of the pixels, of pairs of simulations with fixed amplitudes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import fftconvolve

import pmwd_dist as pmd
from benchmarks.lensing_theory import Cosmology, Power, distance_of, limber, power_of, table
from pmwd_dist.cosmology.distance import scale_factor_at
from pmwd_dist.observe.angular_power import pixel_window

AXES, RAYS = "xyz", 256
SLABS = 16  # along the box, of which half are a shell
RESOLVED = 0.5  # of the Nyquist frequency of planes: aliases are stronger beyond


def of_planes(ells: np.ndarray, cone: Any, weights: np.ndarray, power: Power) -> np.ndarray:
    """Sum over the shells of the power of each plane: of thick shells of a periodic box, each by itself."""
    box, total = cone.sides[0], np.zeros(len(ells))
    along = 2 * np.pi / box * np.arange(-400, 401)
    for weight, x, thickness in zip(weights, cone.distances, np.diff(cone.edges), strict=True):
        a = float(scale_factor_at(x, pmd.growth_table(Cosmology)))
        k = np.hypot((ells / x)[:, None], along[None, :])
        shape = np.sinc(along * thickness / (2 * np.pi)) ** 2 / box
        plane = (power(k.ravel(), a).reshape(k.shape) * shape).sum(1)
        inside = (ells / x > 2 * np.pi / box * 0.999) & (ells / x < RESOLVED * np.pi * cone.pixels[0] / box)
        total += np.where(inside, plane, 0) * (weight / x) ** 2
    return total


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
    return in_bands(np.abs(np.fft.fft2(delta)) ** 2, cone, weights, bands)


def in_bands(squares: np.ndarray, cone: Any, weights: np.ndarray, bands: np.ndarray) -> np.ndarray:
    """Sum over the planes of the squares of their modes in bands of l, with their window divided out."""
    n, side = squares.shape[-1], cone.sides[0]
    numbers = np.fft.fftfreq(n, 1 / n)
    k = 2 * np.pi / side * np.hypot(*np.meshgrid(numbers, numbers))
    window = np.multiply.outer(np.sinc(numbers / n) ** 4, np.sinc(numbers / n) ** 4)
    total = np.zeros(len(bands) - 1)
    for square, weight, x in zip(squares, weights, cone.distances, strict=True):
        power = np.asarray(square, float) * (side / n**2) ** 2 / window
        for i, (a, b) in enumerate(itertools.pairwise(bands)):
            inside = (k >= a / x) & (k < b / x) & (k > 0)
            resolved = inside & (k < RESOLVED * np.pi * n / side)
            total[i] += weight**2 * power[resolved].sum() / max(inside.sum(), 1) / x**2
    return total


@dataclass(frozen=True)
class Sky:
    """What is looked at: three cones of one simulation, in bands of l."""

    config: pmd.Config
    cones: tuple[Any, ...]
    source: float
    field: float  # [degrees]
    bands: np.ndarray

    @property
    def edges(self) -> np.ndarray:
        return np.asarray(self.cones[0].edges)

    @property
    def weights(self) -> np.ndarray:
        return np.asarray(pmd.observe.lensing_weights(self.cones[0].edges, Cosmology, self.source))

    def banded(self, model: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Means over the modes of each band of C_l."""
        means = []
        for a, b in itertools.pairwise(self.bands):
            ells = a + (b - a) * (np.arange(8) + 0.5) / 8
            means.append(np.average(model(ells), weights=ells))
        return np.array(means)


def make_sky(options: argparse.Namespace) -> Sky:
    box, n, far = options.box, options.particles, distance_of(options.source)
    config = pmd.Config(box, options.mesh, n, steps=options.steps, lpt_order=3, decomposition=(1, 1))
    field = options.field or min(25.0, math.degrees(box / far))
    edges = np.append(np.arange(0, far - 0.1 * box, box / 2), far)
    cones = [pmd.observe.FlatSkyLightCone(config, edges, pixels=3 * n, line_of_sight=axis) for axis in AXES]
    bands = np.geomspace(max(2.5 * 360 / field, options.low), options.high, options.bands + 1)
    return Sky(config, tuple(cones), options.source, field, bands)


def simulate(sky: Sky, runs: int, views: int) -> tuple[np.ndarray, np.ndarray, Power]:
    """C_l of maps and of planes in bands, of each run, and the mean P(k, a) of all."""
    config, box, far = sky.config, sky.config.box_size[0], sky.edges[-1]
    growth, side, shells = pmd.growth_table(Cosmology), math.radians(sky.field), len(sky.edges) - 1
    fine = pmd.Config(box, sky.cones[0].pixels[0], config.particle_shape, decomposition=(1, 1))
    at = np.linspace(min(100, far / 8), far, 7)
    times = jnp.asarray(np.asarray(scale_factor_at(at, growth), float)[::-1].tolist())

    def spectrum(_a: Any, particles: pmd.Particles, _: Any) -> Any:
        return pmd.power_spectrum(pmd.density(particles, fine), fine)

    def see(*step: Any) -> tuple[Any, ...]:
        return tuple(cone(*step) for cone in sky.cones)

    @jax.jit
    def run(key: jax.Array) -> Any:
        modes = pmd.linear_modes(pmd.white_noise(key, config), Cosmology, config, linear_power=table())
        saveat = diffrax.SaveAt(ts=times, fn=spectrum)
        solution = pmd.nbody(pmd.lpt(modes, growth, config), growth, config, accumulate=see, saveat=saveat)
        return solution.accumulated, solution.status.code, solution.snapshots

    @jax.jit
    def look(mass: jax.Array, offsets: jax.Array) -> jax.Array:
        cone: Any = sky.cones[2]  # the box is a cube: any will do
        options = {"source": sky.source, "field": sky.field, "pixels": RAYS, "offsets": offsets}
        return pmd.observe.convergence(mass, growth, cone, **options)

    rng, maps, planes, powers = np.random.default_rng(0), [], [], []
    for seed in range(runs):
        masses, code, saved = run(jax.random.key(seed))
        assert code == 0
        powers.append(np.asarray(saved.power)[::-1])
        pairs = zip(sky.cones, masses, strict=True)
        planes.append(np.mean([power_of_planes(*pair, sky.weights, sky.bands) for pair in pairs], axis=0))
        seen = []
        for mass, _ in itertools.product(masses, range(views)):
            offsets = rng.uniform(0, box, (shells, 2))[np.arange(shells) // 2]
            seen.append(tapered_power(np.asarray(look(mass, jnp.asarray(offsets)), float), side, sky.bands))
        maps.append(np.mean(seen, axis=0))
    power = between(at, np.asarray(saved.k, float)[0], np.mean(powers, axis=0))
    return np.array(maps), np.array(planes), power


def between(at: np.ndarray, k: np.ndarray, power: np.ndarray) -> Power:
    """P(k, a) between those of a simulation at comoving distances; nothing beyond its last wavenumber."""
    growth, logs = pmd.growth_table(Cosmology), np.log(power)

    def interpolated(wave: np.ndarray, a: float) -> np.ndarray:
        now = [np.interp(float(pmd.comoving_distance(a, growth)), at, column) for column in logs.T]
        return np.where(wave < k[-1], np.exp(np.interp(np.log(wave), np.log(k), now)), 0)

    return interpolated


def flat(options: argparse.Namespace) -> None:
    sky = make_sky(options)
    box, cone, noise = options.box, sky.cones[0], (options.box / options.particles) ** 3
    maps, planes, own = simulate(sky, options.runs, options.views)
    models: dict[str, Power] = {
        "own P(k)": own,
        "HMcode2020": power_of("HMcode2020"),
        "linear": power_of("linear"),
        "noise": lambda k, _: np.full_like(k, noise),
    }
    window, low, weights = planes_and_rays(box / cone.pixels[0]), 2 * np.pi / box, sky.weights
    of_maps, by_plane = {}, {}
    for name, power in models.items():
        of_maps[name] = sky.banded(lambda ell, power=power: limber(ell, sky.edges, sky.source, power, window, low))
        by_plane[name] = sky.banded(lambda ell, power=power: of_planes(ell, cone, weights, power))
    columns = {"l": [f"{a:.0f} to {b:.0f}" for a, b in itertools.pairwise(sky.bands)]}
    for label, values, expected in (("maps", maps, of_maps), ("planes", planes, by_plane)):
        mean, error = values.mean(0), values.std(0) / math.sqrt(max(len(values) - 1, 1))
        columns[f"C_l of {label}"] = [f"{x:.3e}" for x in mean]
        columns[f"error of {label}"] = [f"{x:.3f}" for x in error / mean]
        for name in ("own P(k)", "HMcode2020", "linear"):
            columns[f"{label} / {name}"] = [f"{x:.3f}" for x in mean / expected[name]]
    columns["shot noise"] = [f"{x:.3f}" for x in by_plane["noise"] / by_plane["own P(k)"]]
    print(
        f"flat sky of {sky.field:.3g} degrees: {options.particles}^3 particles, mesh {options.mesh}^3, {box:g} Mpc/h, "
        f"{options.runs} runs, 3 axes, {options.views} views each, sources at z = {sky.source:g}"
    )
    print_table(columns)


def mean_slab(particles: pmd.Particles, cone: Any) -> jax.Array:
    """Mean squares of the modes of all slabs of half a box along the line of sight of a cone."""
    config, (nx, ny) = cone.config, cone.pixels
    at = particles.positions(config).reshape(-1, 3) / config.box_size[0]
    slab = jnp.floor(at[:, cone.along] * SLABS).astype(int) % SLABS
    x, y = (at[:, i] * n for i, n in zip(cone.across, (nx, ny), strict=True))
    slabs = jnp.zeros((SLABS, nx, ny))
    for i, j in itertools.product((0, 1), repeat=2):
        share = [part if k else 1 - part for part, k in ((x % 1, i), (y % 1, j))]
        slabs = slabs.at[slab, (jnp.floor(x).astype(int) + i) % nx, (jnp.floor(y).astype(int) + j) % ny].add(
            share[0] * share[1]
        )
    slabs = slabs / (math.prod(config.particle_shape) / (2 * nx * ny))

    def square(first: jax.Array) -> jax.Array:
        return jnp.abs(jnp.fft.fft2(jnp.sum(jnp.roll(slabs, -first, axis=0)[: SLABS // 2], axis=0))) ** 2

    return jnp.mean(jax.lax.map(square, jnp.arange(SLABS)), axis=0)


def fixed_run(config: pmd.Config, cones: list[Any], saveat: diffrax.SaveAt) -> Any:
    """A simulation with fixed amplitudes: masses of light cones, code and snapshots, of a key and the sign of noise."""
    growth = pmd.growth_table(Cosmology)

    @jax.jit
    def run(key: jax.Array, sign: float) -> Any:  # -1 for the other of a pair
        modes = pmd.linear_modes(sign * pmd.white_noise(key, config, fixed=True), Cosmology, config)
        see = lambda *step: tuple(cone(*step) for cone in cones)  # noqa: E731
        solution = pmd.nbody(pmd.lpt(modes, growth, config), growth, config, accumulate=see, saveat=saveat)
        return solution.accumulated, solution.status.code, solution.snapshots

    return run


def planes(options: argparse.Namespace) -> None:
    box, n, growth = options.box, options.particles, pmd.growth_table(Cosmology)
    config = pmd.Config(box, options.mesh, n, steps=options.steps, lpt_order=3, decomposition=(1, 1))
    shells = math.floor(distance_of(options.source) / (box / 2))
    edges, pixels = box / 2 * np.arange(shells + 1), options.pixels or 3 * n
    looks = itertools.product(AXES, np.arange(options.views) * box / 2 / options.views)
    cones = [pmd.observe.FlatSkyLightCone(config, edges, pixels=pixels, line_of_sight=axis, observer=float(place))
             for axis, place in looks]  # fmt: skip
    bands = np.geomspace(max(30.0, options.low), options.high, options.bands + 1)
    sky = Sky(config, tuple(cones), options.source, 0.0, bands)
    times = np.asarray(scale_factor_at(cones[0].distances[::-1].copy(), growth), float)

    def slabs(_a: Any, particles: pmd.Particles, _: Any) -> jax.Array:
        return jnp.stack([mean_slab(particles, cone) for cone in cones[:: options.views]])

    saveat = diffrax.SaveAt(ts=jnp.asarray(times.tolist()), fn=slabs)

    run = fixed_run(config, cones, saveat)
    seen, own = [], []
    for seed, sign in itertools.product(range(options.runs), (1.0, -1.0)):
        masses, code, saved = run(jax.random.key(seed), sign)
        assert code == 0
        pairs = zip(cones, masses, strict=True)
        seen.append(np.mean([power_of_planes(*pair, sky.weights, bands) for pair in pairs], axis=0))
        squares = np.mean(np.asarray(saved)[::-1], axis=1)
        own.append(in_bands(squares, cones[0], sky.weights, bands))

    ratios = np.array(seen).reshape(options.runs, 2, -1).mean(1) / np.array(own).reshape(options.runs, 2, -1).mean(1)
    error = np.std(ratios, axis=0) / math.sqrt(max(options.runs - 1, 1))
    print(
        f"planes: {n}^3 particles, mesh {options.mesh}^3, {box:g} Mpc/h, planes of {pixels}^2, {options.runs} pairs, "
        f"3 axes, {options.views} observers each, {shells} shells, sources at z = {sky.source:g}"
    )
    columns = {"l": [f"{a:.0f} to {b:.0f}" for a, b in itertools.pairwise(bands)]}
    columns["light cone / slabs"] = [f"{x:.4f}" for x in ratios.mean(0)]
    columns["error"] = [f"{x:.4f}" for x in error]
    print_table(columns)


def print_table(columns: dict[str, list[str]]) -> None:
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    for row in zip(*columns.values(), strict=True):
        print(f"| {' | '.join(row)} |")


def of_box(ells: np.ndarray, edges: np.ndarray, source: float, power: Power, box: float) -> np.ndarray:
    """C_l of the matter between the first and the last edge, as a sum over the waves of a cubic box.

    It is Limber's integral over k = (l + 1/2) / distance with the number of waves in place of a density: the mean over
    all places of an observer among repetitions of the box, in which a box of few waves differs by some percent.
    """
    most = int(((ells.max() + 0.5) / edges[0] * box / (2 * np.pi)) ** 2) + 1
    one = np.zeros(most + 1)
    one[np.arange(math.isqrt(most) + 1) ** 2] = 2
    one[0] = 1
    waves = np.rint(fftconvolve(fftconvolve(one, one)[: most + 1], one)[: most + 1])[1:]
    k = 2 * np.pi / box * np.sqrt(np.arange(1, most + 1))
    grid = np.linspace(edges[0], min(edges[-1], distance_of(source)), 401)
    kernel, middle = np.asarray(pmd.observe.lensing_weights(grid, Cosmology, source)), (grid[1:] + grid[:-1]) / 2
    total = np.zeros(len(ells))
    for weight, x, near, far in zip(kernel / np.diff(grid), middle, grid[:-1], grid[1:], strict=True):
        a = float(scale_factor_at(x, pmd.growth_table(Cosmology)))
        sums = np.append(0, np.cumsum(waves * 2 * np.pi**2 / (k**2 * box**3) * power(k, a)))
        inside = np.searchsorted(k, (ells + 0.5) / far), np.searchsorted(k, (ells + 0.5) / near)
        total += weight**2 / (ells + 0.5) * (sums[inside[1]] - sums[inside[0]])
    return total


def _in_bands(ell: np.ndarray, values: np.ndarray, bands: np.ndarray) -> np.ndarray:
    """Sums of values at multipoles in each band."""
    return np.bincount(np.searchsorted(bands, ell, side="right") - 1, values, len(bands) - 1)


def sphere(options: argparse.Namespace) -> None:
    box, n, nside, source = options.box, options.particles, options.nside, options.source
    config = pmd.Config(box, options.mesh, n, steps=options.steps, lpt_order=3, decomposition=(1, 1))
    fine = pmd.Config(box, options.pixels or 3 * n, n, decomposition=(1, 1))
    growth, far = pmd.growth_table(Cosmology), distance_of(source)
    edges = np.append(np.arange(box / 2, far - box / 16, box / 8), far)
    places = np.random.default_rng(0).uniform(0, box, (options.views, 3)).tolist()
    cones = [pmd.observe.SphericalLightCone(config, edges, nside, observer=place) for place in places]
    at = np.linspace(edges[0], far, 16)
    times = jnp.asarray(np.asarray(scale_factor_at(at, growth), float)[::-1].tolist())
    saveat = diffrax.SaveAt(ts=times, fn=lambda _a, x, _: pmd.power_spectrum(pmd.density(x, fine), fine))
    run = fixed_run(config, cones, saveat)

    @jax.jit
    def spectrum(mass: jax.Array) -> Any:
        kappa = pmd.observe.convergence(mass, growth, cones[0], source=source)
        return pmd.observe.angular_power(kappa, bins=128)

    bands = np.geomspace(max(30.0, options.low), options.high, options.bands + 1)
    pixel, ratios = pixel_window(nside, math.ceil(options.high)) ** 2, []
    for seed in range(options.runs):
        began = time.perf_counter()
        pair = [jax.block_until_ready(run(jax.random.key(seed), sign)) for sign in (1.0, -1.0)]
        print(f"pair {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        assert all(code == 0 for _, code, _ in pair)
        saved = [x for *_, x in pair]
        own = between(at, np.asarray(saved[0].k, float)[0], np.mean([x.power for x in saved], axis=0)[::-1])
        for masses in zip(*(masses for masses, *_ in pair), strict=True):
            seen = [spectrum(mass) for mass in masses]
            ell, modes, found = (np.mean([getattr(x, name) for x in seen], 0) for name in ("ell", "modes", "power"))
            some = (modes > 0) & (ell >= bands[0]) & (ell < bands[-1])
            theory = of_box(ell[some], edges, source, own, box) * np.interp(ell[some], np.arange(len(pixel)), pixel)
            measured, expected = (_in_bands(ell[some], modes[some] * x, bands) for x in (found[some], theory))
            ratios.append(measured / expected)
    mean, error = np.mean(ratios, axis=0), np.std(ratios, axis=0) / math.sqrt(max(len(ratios) - 1, 1))
    print(
        f"sphere: {n}^3 particles, mesh {options.mesh}^3, {box:g} Mpc/h, nside {nside}, {options.runs} pairs, "
        f"{options.views} observers each, {len(edges) - 1} shells, sources at z = {source:g}"
    )
    columns = {"l": [f"{a:.0f} to {b:.0f}" for a, b in itertools.pairwise(bands)]}
    print_table(columns | {"C_l / own P(k)": [f"{x:.4f}" for x in mean], "error": [f"{x:.4f}" for x in error]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sky", choices=["flat", "sphere", "planes"], default="flat")
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
    parser.add_argument("--pixels", type=int, help="pixels along a plane; default: 3 for each particle")
    parser.add_argument("--nside", type=int, default=128)
    options = parser.parse_args()
    {"flat": flat, "sphere": sphere, "planes": planes}[options.sky](options)


if __name__ == "__main__":
    main()
