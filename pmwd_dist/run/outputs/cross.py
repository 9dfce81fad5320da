"""Correlation and transfer function of the density with its linear field."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from pmwd_dist.observe.power import cross_power
from pmwd_dist.parallel.fft import fftfreq3d, pirfft3d
from pmwd_dist.pm.paint import density
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table
from pmwd_dist.run.outputs.base import MPC3, PER_MPC, Drawing, TableOutput, View, modes_of


class Cross(TableOutput):
    """Correlation r(k) and transfer function T(k) of the density with its linear field, at each output."""

    name = "cross"
    of_modes = True
    caption = Caption(
        "Density and its linear field",
        "Correlation r(k) and transfer function T(k) of the density with the linear field of the same phases.",
        "both near 1 at small k. The correlation falls where structure is nonlinear, earlier at lower redshift.",
    )

    def measure(self, view: View) -> Table:
        """Cross spectra on the lattice of the particles, where the linear field is known."""
        config = view.simulation.config
        config = replace(config, mesh_shape=config.particle_shape, halo="auto")
        k = fftfreq3d(config.particle_shape, config.decomposition, config.box_size)
        modes = modes_of(view.simulation) * view.growth(jnp.sqrt(k[0] ** 2 + k[1] ** 2 + k[2] ** 2))
        reference = pirfft3d(modes, config.particle_shape, config.decomposition)
        found = cross_power(density(view.particles, config), reference, config, deconvolve=(True, False))
        some = np.asarray(found.modes) > 0
        columns = {
            "k": found.k,
            "r": found.correlation,
            "T": found.transfer,
            "cross power": found.power,
            "power": found.field_power,
            "linear power": found.reference_power,
            "modes": found.modes,
        }
        units = {"k": PER_MPC, "cross power": MPC3, "power": MPC3, "linear power": MPC3}
        columns = {name: np.asarray(values, float)[some] for name, values in columns.items()}
        return Table(f"density and its linear field, {view.title}", columns, units)

    @classmethod
    def plot(cls, table: Table) -> Drawing:
        found = SimpleNamespace(k=table["k"], correlation=table["r"], transfer=table["T"], modes=table["modes"])
        return partial(plot.cross, found)
