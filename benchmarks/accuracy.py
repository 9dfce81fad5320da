"""Measure what a configuration is worth: P(k) and the correlation with a converged run, from the same initial modes.

    python benchmarks/accuracy.py starts --particles 64                     start, order of LPT and steps
    python benchmarks/accuracy.py steps --spacings 2                        solvers and steps
    python benchmarks/accuracy.py compensations --spacings 1,2,4,16         compensated forces
    python benchmarks/accuracy.py meshes --particles 256 --out meshes.json  mesh and gradient, in large and small boxes

Every suite runs for some spacings of the particles [Mpc/h]. It prints a markdown table:
P over that of the reference, less one, in per cent, and 1 - r in brackets, at z = 0 and fractions of the particles'
Nyquist frequency. With --out, all bins are written as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.parallel.fft import spectrum_shape
from pmwd_dist.pm.particles import exact
from pmwd_dist.pm.solvers import FORMULAS
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.time_steps import step_times

FRACTIONS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Case:
    """A run.

    Args:
      spacing: of the particles [Mpc/h].
      mesh: cells a particle along each axis, such as "3/2".
      steps, a_start, order, solver, gradient, compensated: as in a Config.
      refine: particles of a finer lattice with the same modes, per particle along each axis.
    """

    spacing: float
    mesh: str = "1"
    steps: int = 20
    a_start: float = 0.1
    order: int = 2
    solver: str = "bullfrog"
    gradient: Any = "finite-difference"
    refine: int = 1
    compensated: bool = False


Group = tuple[Case, list[Case]]  # a reference, and cases that are compared with it


def starts(spacing: float) -> Iterator[Group]:
    """Start, order and number of steps, against a lattice twice as fine; with a converged mesh and with usual ones."""
    exact = [Case(spacing, "4", 200, a_start, order) for a_start, order in product((0.02, 0.05, 0.1, 0.2), (1, 2, 3))]
    usual = [
        Case(spacing, mesh, steps, a_start, order)
        for mesh, a_start, order, steps in product(("1", "2"), (0.02, 0.05, 0.1, 0.2), (2, 3), (10, 20, 40))
    ]
    late = [Case(spacing, "2", 20, 0.3, 3), Case(spacing, "2", 20, 0.1, 1)]
    yield Case(spacing, "2", 100, 0.05, 3, refine=2), exact + usual + late


def steps(spacing: float) -> Iterator[Group]:
    """Solver and number of steps, against many steps from the same start."""
    for a_start in (0.02, 0.05, 0.1, 0.2):
        cases = [
            Case(spacing, "2", count, a_start, solver=solver)
            for solver, count in product(FORMULAS, (5, 10, 20, 40, 80))
        ]
        yield Case(spacing, "2", 300, a_start), cases


def meshes(spacing: float) -> Iterator[Group]:
    """Mesh and gradient."""
    cases = [
        Case(spacing, mesh, 60, gradient=gradient)
        for mesh, gradient in product(("1/2", "1", "3/2", "2", "3"), ("finite-difference", "spectral"))
    ]
    yield Case(spacing, "4", 60), cases


def compensations(spacing: float) -> Iterator[Group]:
    """Compensation of what differences and aliases take from the force, against a lattice twice as fine."""
    cases = [Case(spacing, mesh, 20, 0.1, 3, compensated=on) for mesh, on in product(("1", "2"), (False, True))]
    yield Case(spacing, "2", 20, 0.1, 3, refine=2), cases


SUITES = {function.__name__: function for function in (starts, steps, meshes, compensations)}


_step_times = jax.jit(step_times, static_argnames="config")


class Laboratory:
    """Runs cases from the same white noise; what only depends on the spacing or the mesh is compiled once."""

    def __init__(self, particles: int, seed: int = 0, devices: int | None = None):
        self.particles, self.seed, self.cosmo = particles, seed, jax_cosmo.Planck15()
        self.decomposition = pmd.Decomposition(devices=jax.devices()[:devices])
        self.table = pmd.growth_table(self.cosmo)

    def config(self, case: Case, mesh: str | None = None, **changes: Any) -> pmd.Config:
        """The config of a case; by default with steps, start and order that are the same for all."""
        lattice = self.particles * case.refine
        cells = lattice * Fraction(case.mesh if mesh is None else mesh)
        if cells.denominator > 1:
            raise ValueError(f"--particles {self.particles}: must be even for a mesh of {case.mesh} cells a particle")
        return pmd.Config(
            case.spacing * self.particles,
            int(cells),
            lattice,
            gradient=case.gradient,
            compensated=case.compensated,
            decomposition=self.decomposition,
            **changes,
        )

    @cache  # noqa: B019  a laboratory lives as long as the program
    def modes(self, spacing: float, refine: int = 1) -> jax.Array:
        """Linear modes, the same for all cases of a spacing; those of the lattice's Nyquist frequency are left out."""
        config, fine = self.config(Case(spacing)), self.config(Case(spacing, refine=refine))
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(self.seed), config), self.cosmo, config)
        n, nk = self.particles, self.particles // 2 + 1
        numbers = np.fft.fftfreq(n, 1 / n).astype(int)
        low = np.abs(numbers) < n / 2
        keep = low[:, None, None] & low[None, :, None] & (np.arange(nk) < n / 2)
        at = numbers % (n * refine)
        padded = jnp.zeros(spectrum_shape(fine.particle_shape, self.decomposition), modes.dtype)
        modes = jnp.where(keep, modes[..., :nk], 0) * refine**3
        return padded.at[at[:, None, None], at[None, :, None], np.arange(nk)].set(modes)

    def run(self, case: Case) -> tuple[jax.Array, float]:
        """The density at z = 0 on a mesh twice as fine as the lattice, and the seconds of the run."""
        config, formula = self.config(case), FORMULAS[case.solver]
        lattice = self.config(Case(case.spacing, refine=case.refine), lpt_order=case.order)
        span = self.config(Case(case.spacing), a_start=case.a_start, steps=case.steps)
        times = _step_times(self.table, span)
        began = time.perf_counter()
        particles = pmd.lpt(self.modes(case.spacing, case.refine), self.table, lattice, a=case.a_start)
        schedule = host.make_schedule(self.table, times, config, formula)
        moved = host.half_drift(exact(particles, config), successful(times.dtype), schedule, 0, config)
        for done in range(len(times) - 1):
            moved = jax.block_until_ready(host.advance(moved, schedule, done, config))
        moved.status.raise_if_failed()
        particles = host.with_units(host.undo_half_drift(moved, config), schedule, len(times) - 1)
        seconds = time.perf_counter() - began
        painted = self.config(Case(case.spacing, refine=case.refine), str(Fraction(2, case.refine)))
        return pmd.density(particles, painted), seconds

    def compare(self, field: jax.Array, reference: jax.Array, spacing: float) -> dict[str, list[float]]:
        """Wavenumbers over the particles' Nyquist frequency, P over that of the reference, and 1 - r."""
        config = self.config(Case(spacing), "2")
        first, second, difference = (
            pmd.power_spectrum(x, config, deconvolve=False) for x in (field, reference, field - reference)
        )
        k, p1, p2, d = (np.asarray(x, float) for x in (first.k, first.power, second.power, difference.power))
        # 1 - r from the difference: from the cross spectrum it would lose its digits in single precision.
        lost = (d - (np.sqrt(p1) - np.sqrt(p2)) ** 2) / (2 * np.sqrt(p1 * p2))
        keep = np.arange(len(k)) < self.particles // 2
        values = {"k_over_nyquist": k * spacing / np.pi, "power_ratio": p1 / p2, "decorrelation": lost}
        return {name: np.round(value[keep], 8).tolist() for name, value in values.items()}


def run_suite(name: str, laboratory: Laboratory, spacings: Sequence[float]) -> Iterator[dict[str, Any]]:
    """One record a case: the case, its reference, seconds (some compile), and the comparison of the two."""
    for reference, cases in (group for spacing in spacings for group in SUITES[name](spacing)):
        exact, _ = laboratory.run(reference)
        for case in cases:
            try:
                field, seconds = laboratory.run(case)
            except ValueError as error:
                yield {"case": asdict(case), "error": str(error).partition("\n")[0]}
                continue
            values = laboratory.compare(field, exact, case.spacing)
            yield {"case": asdict(case), "reference": asdict(reference), "seconds": round(seconds, 3), **values}


def row(record: dict[str, Any]) -> str:
    """A record as a row of the table."""
    label = [_label(value) for value in record["case"].values()]
    if "error" in record:
        return f"| {' | '.join([*label, record['error']])} |"
    k = np.asarray(record["k_over_nyquist"])
    near = [int(np.argmin(abs(k - fraction))) for fraction in FRACTIONS]
    cells = [f"{100 * record['power_ratio'][i] - 100:+.2f} ({record['decorrelation'][i]:.0e})" for i in near]
    return f"| {' | '.join([*label, *cells, format(record['seconds'], '.1f')])} |"


def _label(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_label, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def header() -> str:
    """The head of the table."""
    names = [*Case.__dataclass_fields__, *(f"{fraction:g} k_Ny" for fraction in FRACTIONS), "s"]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--particles", type=int, default=64, help="along a side (64)")
    parser.add_argument("--spacings", default="1,4,16", help="of the particles [Mpc/h] (1,4,16)")
    parser.add_argument("--seed", type=int, default=0, help="of the white noise (0)")
    parser.add_argument("--devices", type=int, help="how many (all)")
    parser.add_argument("--out", type=Path, help="JSON file with all bins")
    options = parser.parse_args(arguments)
    laboratory = Laboratory(options.particles, options.seed, options.devices)
    records = []
    print(f"{options.suite}, {options.particles}^3 particles, {jax.devices()[0].device_kind}\n\n{header()}")
    for record in run_suite(options.suite, laboratory, [float(s) for s in options.spacings.split(",")]):
        print(row(record), flush=True)
        records.append(record)
        if options.out:
            options.out.write_text(json.dumps(records), encoding="utf-8")


if __name__ == "__main__":
    main()
