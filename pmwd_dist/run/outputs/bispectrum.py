"""The bispectrum of the density, with tree-level theory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Literal

import jax.numpy as jnp
import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.observe.bispectrum import bispectrum, bispectrum_edges, tree_bispectrum
from pmwd_dist.observe.filters import interlaced_density
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table
from pmwd_dist.run.outputs.base import PER_MPC, Drawing, TableOutput, View, k_max_problems
from pmwd_dist.run.settings.section import about
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.simulation_sections import Box


class Bispectrum(TableOutput):
    """Bispectrum of the density in real space, at each output."""

    name = "bispectrum"
    rank = 1
    stage = "the bispectrum"
    remedy = "use fewer observe.bispectrum.shells"
    caption = Caption(
        "Bispectrum",
        "B of triangles of modes with its Gaussian scatter, and tree-level theory.",
        "agreement within the scatter for small sides, and an excess of the measurement for larger ones.",
    )

    shells: int = about(
        "number of shells of wavenumbers, of equal width, in which sides of triangles lie", 8, ge=1, le=64
    )
    k_max: float | None = about(
        "largest wavenumber of a side [h/Mpc]; default: 2/3 of the Nyquist frequency of the mesh, beyond which "
        "triangles would close by aliases",
        None,
        0.3,
        gt=0,
    )
    triangles: Literal["all", "isosceles", "equilateral"] = about("all, isosceles or equilateral", "all")

    def problems(self, box: Box) -> Iterator[str]:
        lowest = math.sqrt(2), "first closed triangle in the box"
        return k_max_problems(self, self.k_max, box, lowest, (2 / 3, "2/3 of the Nyquist frequency"))

    def memory(self, simulation: SimulationSetup, config: Config) -> int:
        """Memory of a field for each shell, beside the particles."""
        numbers = 6 * math.prod(config.particle_shape) + (self.shells + 6) * math.prod(config.mesh_shape)
        return numbers * np.dtype(jnp.result_type(float)).itemsize // config.decomposition.size

    def measure(self, view: View) -> Table:
        simulation, config = view.simulation, view.simulation.config
        edges = bispectrum_edges(config, self.shells, self.k_max)
        # One mesh with the cells of a cold lattice has aliases of half the signal.
        density = interlaced_density(view.particles, config)
        found = bispectrum(density, config, edges=edges, triangles=self.triangles)
        tree = tree_bispectrum(
            lambda k: np.nan_to_num(simulation.linear_power(k) * view.growth(k) ** 2), edges, found.shells
        )
        some = np.asarray(found.triangles) > 0
        columns = {f"k{i + 1}": np.asarray(found.k)[:, i] for i in range(3)}
        columns |= {
            "B": found.bispectrum,
            "error of B": found.scatter,
            "tree level": tree,
            "Q": found.reduced,
            "triangles": found.triangles,
        }
        units = {f"k{i}": PER_MPC for i in (1, 2, 3)} | dict.fromkeys(("B", "error of B", "tree level"), "(Mpc/h)^6")
        columns = {name: np.asarray(values, float)[some] for name, values in columns.items()}
        return Table(f"bispectrum of the density, {self.triangles} triangles, {view.title}", columns, units)

    @classmethod
    def plot(cls, table: Table) -> Drawing:
        columns = {"bispectrum": "B", "scatter": "error of B", "triangles": "triangles"}
        sides = np.stack([table[f"k{i}"] for i in (1, 2, 3)], axis=1)
        found = SimpleNamespace(k=sides, **{name: table[column] for name, column in columns.items()})
        return partial(plot.bispectrum, found, table["tree level"])
