"""Multipoles of the power of matter in redshift space, and what tables of multipoles have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from pmwd_dist.config import Config
from pmwd_dist.observe import multipoles as observed
from pmwd_dist.observe.filters import interlaced_density
from pmwd_dist.observe.power import shot_noise
from pmwd_dist.observe.redshift_space import redshift_space
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table
from pmwd_dist.run.outputs.base import MPC3, PER_MPC, Axis, Drawing, TableOutput, View, k_max_problems
from pmwd_dist.run.settings.section import about
from pmwd_dist.run.settings.simulation_sections import Box

POLES = (0, 2, 4)
_LISTED = 400_000  # modes that are listed, of the first bins
SHOT_NOISE = "P0 holds no shot noise: a Poisson sample of the field has P0 + shot noise; its scatter is {} the errors"
# Interlaced spectra are right to 0.4 % of the monopole up to there.
K_MAX: Any = about(
    "largest wavenumber of the table [h/Mpc]; default: 0.95 of the Nyquist frequency of the mesh", None, 0.5, gt=0
)


class Multipoles(TableOutput):
    """Multipoles of the power of matter in redshift space, at each output."""

    name = "multipoles"
    caption = Caption(
        "Multipoles of matter in redshift space",
        "k times the multipoles, with the scatter of the modes, and Kaiser's linear theory (dashed).",
        "agreement at small k. Random velocities lower the quadrupole at larger k, down to negative values.",
    )

    line_of_sight: Axis = about("axis along which redshifts move the particles: x, y or z", "z")
    k_max: float | None = K_MAX

    def problems(self, box: Box) -> Iterator[str]:
        return k_max_problems(self, self.k_max, box)

    def measure(self, view: View) -> Table:
        simulation, a, axis = view.simulation, view.a, self.line_of_sight
        config = simulation.config
        moved = redshift_space(view.particles, simulation.cosmo, config, line_of_sight=axis, a=a)
        options: Any = {"line_of_sight": axis, "poles": POLES}
        measured = observed.power_multipoles(interlaced_density(moved, config), config, **options)
        theory = observed.kaiser_multipoles(simulation.linear_power, simulation.cosmo, config, a=a, **options)
        table = poles_table(self, view, f"matter in redshift space along {axis}", measured, theory, 0.0)
        table.columns["shot noise"][:] = shot_noise(config)  # of random particles; ours begin on a lattice
        return replace(table, note=SHOT_NOISE.format("not in"))

    @classmethod
    def plot(cls, table: Table) -> Drawing:
        measured, linear = (
            SimpleNamespace(
                k=table["k"], modes=table["modes"], poles=POLES, power=[table[f"{kind}P{pole}"] for pole in POLES]
            )
            for kind in ("", "linear ")
        )
        return partial(plot.multipoles, measured, linear, error=[table[f"error of P{pole}"] for pole in POLES])


def poles_table(
    output: Any,
    view: View,
    title: str,
    measured: observed.Multipoles,
    theory: observed.Multipoles,
    noise: float,
    *,
    bias: ArrayLike | Callable[[Array], Array] = 1.0,
    real_space: bool = False,
) -> Table:
    """Multipoles, the scatter of their modes and linear theory; without empty bins, and those beyond k_max."""
    config = view.simulation.config
    power, modes = np.asarray(measured.power, float), np.asarray(measured.modes, float)
    largest = 0.95 * math.pi / max(config.cell_size) if output.k_max is None else output.k_max
    some = (modes > 0) & (np.asarray(measured.k) <= largest)
    columns = {"k": np.asarray(measured.k, float)}
    columns |= {f"P{pole}": row for pole, row in zip(POLES, power, strict=True)}
    linear = np.asarray(theory.power, float)
    nodes = jnp.asarray(observed.mesh_nodes(config))  # as in linear theory, whose programs serve again
    rate = 0.0 if real_space else view.simulation.growth.linear(nodes, view.a)[1]
    at_nodes = np.broadcast_arrays(bias(nodes) if callable(bias) else bias, rate, nodes)
    factors = np.stack([np.interp(columns["k"], at_nodes[2], x) for x in at_nodes[:2]])
    errors = _scatter(power[0], factors, modes, noise, config, output.line_of_sight)
    columns |= {f"error of P{pole}": row for pole, row in zip(POLES, errors, strict=True)}
    columns["modes"] = modes
    columns |= {f"linear P{pole}": row for pole, row in zip(POLES, linear, strict=True)}
    columns["shot noise"] = np.full_like(modes, noise)
    units = {name: MPC3 for name in columns if name != "modes"} | {"k": PER_MPC}
    columns = {name: values[some] for name, values in columns.items()}
    if not np.isfinite(columns["P0"]).all():
        moved, sight = view.particles, output.line_of_sight
        if not real_space:
            moved = redshift_space(moved, view.simulation.cosmo, config, line_of_sight=sight, a=view.a)
        divided = np.flatnonzero(np.array(config.decomposition.pdims) > 1)
        cells = float(jnp.abs(moved.disp[..., divided]).max()) / min(config.cell_size)
        text = f"displacements of {cells:.2f} cells, and half a cell, exceed devices.halo = {config.halo}"
        remedy = f'set it to "auto", or to {cells + 1:.0f} cells or more'
        raise SimulationError(f"observe.{output.name} at z = {view.z:g} is not finite: {text}; {remedy}")
    return Table(f"{title}, {view.title}", columns, units)


def _scatter(
    monopole: np.ndarray, factors: np.ndarray, modes: np.ndarray, noise: float, config: Config, axis: Axis
) -> np.ndarray:
    """Standard deviations of the multipoles of Gaussian fields (Taruya et al. 2010, eq. C4): (poles, bins).

    They have the angles of linear theory, (b + f mu^2)^2 with `factors` b and f, and the amplitude that was measured.
    A mode and its conjugate count twice but scatter as one.
    """
    rows = []
    for power, (b, f), number, mu in zip(monopole, factors.T, modes, _cosines(config, axis, modes), strict=True):
        of_mu = (b + f * mu**2) ** 2
        of_mu = power * of_mu / max(np.mean(of_mu), 1e-30) + noise
        values = [of_mu * np.polynomial.legendre.Legendre.basis(pole)(mu) for pole in POLES]
        rows.append([np.sqrt(2 / max(number, 1) * np.mean(row**2)) for row in values])
    return np.transpose(rows) * (2 * np.asarray(POLES)[:, None] + 1)


def _cosines(config: Config, axis: Axis, modes: np.ndarray) -> Iterator[np.ndarray]:
    """Cosines of the angles to an axis in each bin: of its modes, or at equal distances where they are many."""
    step, few = 2 * math.pi / max(config.box_size), int(np.searchsorted(np.cumsum(modes), _LISTED, side="right"))
    sides = zip(config.mesh_shape, config.box_size, strict=True)
    waves = [2 * math.pi / length * np.fft.fftfreq(n, 1 / n) for n, length in sides]
    waves = np.meshgrid(*(k[abs(k) < (few + 1) * step] for k in waves), indexing="ij")
    modulus = np.sqrt(sum(k**2 for k in waves))
    bins = np.rint(modulus / step)
    for i in range(1, len(modes) + 1):
        among = (bins == i) & (i <= few)
        yield waves["xyz".index(axis)][among] / modulus[among] if among.any() else (np.arange(64) + 0.5) / 64
