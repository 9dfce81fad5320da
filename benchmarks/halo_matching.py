"""Match halos of two simulations of the same phases by position and mass.

    python -m benchmarks.halo_matching n_body.hdf5 ours.hdf5                     catalogues of `halos.save`
    python -m benchmarks.halo_matching --spacing 2 --particles 128               P3M and ours, on a GPU with CuPy
    python -m benchmarks.halo_matching --spacing 2 --particles 16 --plain        on a CPU

A halo of the first catalogue has a partner in the second one that is the nearest in d / R + |log2 (M' / M)| and has it
as its nearest, with both terms at most 1. R is the radius at 200 times the mean density of its friends-of-friends mass,
at least the spacing of the particles. Prints the share of halos with a partner, the median distance of their cores and
the median, 16 % and 84 % of M' / M, by numbers of particles; of halos with at least --least particles, and partners
with half as many.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import jax
import numpy as np
from scipy.spatial import KDTree

import pmwd_dist as pmd
from benchmarks import train_force
from pmwd_dist import observe

NUMBERS = (20, 50, 100, 200, 500, 1000, 10**9)  # ends of the bins
_NEAREST = 16  # halos that are tried


class Halos(NamedTuple):
    """Numbers of particles and cores [spacing of the particles], in a box [spacing]."""

    number: np.ndarray
    core: np.ndarray
    box: np.ndarray

    @property
    def reach(self) -> np.ndarray:
        """R of each halo."""
        return np.maximum(1, np.cbrt(3 * self.number / (800 * math.pi)))


def halos_of(catalogue: observe.HaloCatalogue, config: pmd.Config) -> Halos:
    """Halos of a catalogue, in units of the spacing."""
    spacing = np.divide(config.box_size, config.particle_shape)
    return Halos(catalogue.number, catalogue.core / spacing, np.asarray(config.particle_shape, float))


def read(path: Path) -> Halos:
    """Halos of a file of `halos.save`."""
    with h5py.File(path) as file:
        if "config" not in file.attrs:
            raise SystemExit(f"{path}: has no lattice; it must be of halos.save of a simulation of this package")
        box, lattice = file.attrs["box_size [Mpc/h]"], json.loads(file.attrs["config"])["particle_shape"]
        core = np.stack([file[f"halo_core_{axis}"][:] for axis in "xyz"], axis=-1)
        return Halos(file["halo_particles"][:], core / np.divide(box, lattice), np.asarray(lattice, float))


def nearest(one: Halos, other: Halos, reach: np.ndarray) -> np.ndarray:
    """Index of the nearest halo of another catalogue for each halo; the number of halos there if there is none."""
    count = min(_NEAREST, len(other.core))
    distance, index = KDTree(other.core % other.box, boxsize=other.box).query(one.core % one.box, count)
    distance, index = distance.reshape(-1, count), index.reshape(-1, count)
    terms = distance / reach[:, None], np.abs(np.log2(other.number[index] / one.number[:, None]))
    cost = np.where((terms[0] <= 1) & (terms[1] <= 1), terms[0] + terms[1], np.inf)
    best = np.argmin(cost, axis=1)
    rows = np.arange(len(best))
    return np.where(np.isfinite(cost[rows, best]), index[rows, best], len(other.core))


def match(one: Halos, other: Halos) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which halos have a partner, and of these the distances of the cores [spacing] and M' / M."""
    there = nearest(one, other, one.reach)
    back = np.append(nearest(other, one, other.reach), -1)
    found = np.flatnonzero(back[there] == np.arange(len(there)))
    d = other.core[there[found]] - one.core[found]
    d -= one.box * np.rint(d / one.box)
    paired = np.isin(np.arange(len(there)), found)
    return paired, np.linalg.norm(d, axis=1), other.number[there[found]] / one.number[found]


def table(label: str, one: Halos, other: Halos, least: int) -> list[str]:
    """Rows of the table of two catalogues."""
    paired, distance, ratio = match(one, other)
    rows = list[str]()
    for low, high in pairwise(sorted({least, *(n for n in NUMBERS if n > least)})):
        some = (one.number >= low) & (one.number < high)
        if not (both := some[paired]).any():
            continue
        low_ratio, middle, high_ratio = np.quantile(ratio[both], [0.16, 0.5, 0.84])
        rows.append(
            f"| {label} | {low}{'' if high == NUMBERS[-1] else f' to {high}'} | {some.sum()} | "
            f"{paired[some].mean():.3f} | {np.median(distance[both]):.3f} | "
            f"{middle:.3f} ({low_ratio:.2f} to {high_ratio:.2f}) |"
        )
    return rows


def simulated(spacing: float, options: Any) -> list[str]:
    """Rows of the tables of our simulations, with one and two cells a particle and with the correction of the force."""
    options.spacing = spacing
    cosmo = train_force.cosmology()
    truth_config, growth = train_force.configure(options, 2, 20), pmd.growth_table(cosmo)
    key = jax.random.key(options.seed)

    def halos(particles: Any, config: pmd.Config, least: int) -> Halos:
        particles = pmd.Particles(particles.disp, particles.vel)
        found = observe.friends_of_friends(particles, growth, config, min_particles=least, a=1.0)
        return halos_of(found, config)

    snapshots = train_force.n_body(key, cosmo, growth, truth_config, options)
    truth = halos(jax.tree.map(lambda x: x[-1], snapshots), truth_config, options.least)
    rows = list[str]()
    for cells, corrected in ((1, False), (2, False), (2, True)):
        config = train_force.configure(options, cells, 20)
        try:
            factor = pmd.ForceCorrection.auto(config, cosmo) if corrected else None
        except ValueError:
            continue  # none was trained for this spacing
        particles = pmd.lpt(pmd.linear_modes(pmd.white_noise(key, config, nested=True), cosmo, config), growth, config)
        solution = pmd.nbody(particles, growth, config, potential_factor=factor)
        solution.raise_if_failed()
        name = f"{spacing:g} Mpc/h, {cells} cell{'s' * (cells > 1)}{', corrected' * corrected}"
        rows += table(name, truth, halos(solution.particles, config, options.least // 2), options.least)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="two catalogues; without them simulations are made")
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--spacing", type=float, nargs="+", default=[2.0], help="of the particles [Mpc/h] (2)")
    parser.add_argument("--truth-steps", type=int, default=400, help="of P3M (400)")
    parser.add_argument("--plain", action="store_true", help="a plain particle mesh in place of P3M")
    parser.add_argument("--least", type=int, default=20, help="particles of a halo (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (0)")
    options = parser.parse_args(arguments)
    print("| run | particles | halos | matched | median distance [spacing] | median M' / M (16 to 84 %) |")
    print("|---|---|---|---|---|---|")
    if options.files:
        one, other = map(read, options.files)
        print(*table(options.files[1].stem, one, other, options.least), sep="\n")
        return
    for spacing in list(options.spacing):
        print(*simulated(spacing, options), sep="\n", flush=True)


if __name__ == "__main__":
    main()
