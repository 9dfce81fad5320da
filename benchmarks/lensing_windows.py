"""C_l of maps of one simulation by width of shells, planes and pixels: `python -m benchmarks.lensing_windows [sphere]`.

All maps are of the same simulation. The first row is C_l over `limber_power(..., cone=)` with the simulation's own P(k)
at one redshift. The others are C_l over that of the first row, and in brackets also over its ratio in theory, where the
scatter of the modes mostly cancels: 1 where the windows of the theory are right.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd

BOX, VIEWS, MIDDLE = 128.0, 20, 0.75  # the scale factor of P(k)
BANDS = np.array([30, 100, 300, 600, 1000])


def cones(sky: str, config: pmd.Config, far: float) -> dict[str, Any]:
    """The light cones, the finest one first."""

    def edges(width: float) -> np.ndarray:
        return np.append(np.arange(0, far - 0.1 * width, width), far)

    if sky == "sphere":
        make: Any = partial(pmd.observe.SphericalLightCone, config)
        sizes = {f"nside {n}": make(edges(16), n) for n in (256, 128, 64)}
        options = {"nside 128, nearest": {"assignment": "nearest"}, "nside 128, rotated": {"seed": 0}}
        others = {name: make(edges(16), 128, **option) for name, option in options.items()}
        return sizes | {f"nside 256, shells of {w} Mpc/h": make(edges(w), 256) for w in (32, 64, 128)} | others
    make = partial(pmd.observe.FlatSkyLightCone, config)
    planes = {f"pixels of {BOX / n:g} Mpc/h": make(edges(32), pixels=n) for n in (512, 256, 128)}
    return planes | {f"shells of {w} Mpc/h": make(edges(w), pixels=512) for w in (64, 128)}


def main() -> None:
    sky, n = "sphere" if "sphere" in sys.argv else "flat", 64
    source = 0.15 if sky == "sphere" else 1.0
    cosmo = pmd.growth_table(jax_cosmo.Planck15())
    config = pmd.Config(BOX, n, steps=8, a_start=0.2, decomposition=(1, 1))
    far = float(pmd.comoving_distance(1 / (1 + source), cosmo))
    named = cones(sky, config, far)
    resolved = cones(sky, replace(config, mesh_shape=1024, particle_shape=1024), far)  # theory with all waves
    bands = BANDS[:3] if sky == "sphere" else BANDS[1:]
    side = None if sky == "sphere" else float(np.degrees(BOX / far))
    shifts = np.random.default_rng(0).uniform(0, BOX, (VIEWS if side else 1, int(far / BOX) + 1, 2))

    def start() -> Any:
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
        return pmd.lpt(modes, cosmo, config)

    @jax.jit
    def see() -> Any:
        cone = lambda *step: [cone(*step) for cone in named.values()]  # noqa: E731
        return pmd.nbody(start(), cosmo, config, accumulate=cone).accumulated

    @jax.jit
    def own_power() -> Any:
        fine = replace(config, mesh_shape=4 * n, particle_shape=n)
        particles = pmd.nbody(start(), cosmo, replace(config, a_stop=MIDDLE)).particles
        return pmd.power_spectrum(pmd.density(particles, fine), fine)

    own, growth = own_power(), float(cosmo.D1(MIDDLE))
    k, power = (np.asarray(x, float) for x in (own.k, own.power))
    k, power = k[np.isfinite(power)], power[np.isfinite(power)]

    def at_present(wave: Any) -> np.ndarray:
        return np.exp(np.interp(np.log(np.maximum(wave, k[0])), np.log(k), np.log(power))) / growth**2

    def spectra(cone: Any, fine: Any, mass: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means over bands of C_l, and of the theory at the same multipoles."""
        found, middle = [], (np.asarray(cone.edges[1:]) + cone.edges[:-1]) / 2
        for shift in shifts:
            offsets = jnp.asarray(shift[np.floor(middle / BOX).astype(int)])
            view: Any = {"field": side, "pixels": 512, "offsets": offsets} if side else {}
            kappa = pmd.observe.convergence(mass, cosmo, cone, source=source, **view)
            measured = pmd.observe.angular_power(kappa, side=side, bins=64)
            found.append(np.asarray(measured.power, float))
        ell, modes = (np.asarray(x, float) for x in (measured.ell, measured.modes))
        index = np.where(modes > 0, np.searchsorted(bands, ell) - 1, -1)
        some = (index >= 0) & (index < len(bands) - 1)
        theory = pmd.observe.limber_power(ell[some], at_present, cosmo, cone.edges, source, cone=fine)
        both = np.mean(found, axis=0)[some], np.asarray(theory, float)
        one, two = (np.bincount(index[some], modes[some] * x) for x in both)
        return one, two

    print(f"{sky}: {n}^3 particles and cells in {BOX:g} Mpc/h, sources at z = {source:g}")
    print(f"| | {' | '.join(f'l = {a} to {b}' for a, b in itertools.pairwise(bands))} |")
    print("|---" * len(bands) + "|")
    first: Any = None
    for name, mass in zip(named, see(), strict=True):
        found, theory = spectra(named[name], resolved[name], mass)
        if first is None:
            first, cells = (found, theory), [f"{r:.3f}" for r in found / theory]
        else:
            pairs = zip(found / first[0], found / first[0] * first[1] / theory, strict=True)
            cells = [f"{r:.4f} ({q:.4f})" for r, q in pairs]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
