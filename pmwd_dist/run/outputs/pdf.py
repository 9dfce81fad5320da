"""The one-point distribution of the density."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np

from pmwd_dist.observe.filters import smoothed
from pmwd_dist.observe.pdf import one_point_pdf
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table
from pmwd_dist.run.outputs.base import Drawing, TableOutput, View
from pmwd_dist.run.settings.section import about
from pmwd_dist.run.settings.simulation_sections import Box


class PDF(TableOutput):
    """One-point distribution of the density, at each output."""

    name = "pdf"
    rank = 1
    caption = Caption(
        "One-point distribution",
        "Probability density of 1 + delta with its Poisson scatter.",
        "a narrow peak at early times, and at late times a peak below 1 with a long tail to high densities.",
    )

    smoothing: float = about("radius of a Gaussian filter on the density [Mpc/h]; 0 for none", 0.0, ge=0, le=1e5)
    low: float = about("lowest density, in units of the mean", 0.01, gt=0)
    high: float = about("highest density", 100.0, gt=0)
    bins: int = about("number of densities, equidistant in their logarithm", 60, ge=2, le=10_000)

    def problems(self, box: Box) -> Iterator[str]:
        if self.high <= self.low:
            least = f"must be greater than observe.pdf.low = {self.low:g}"
            yield f"observe.pdf.high = {self.high}: {least}; for example 100.0"

    def measure(self, view: View) -> Table:
        config, density = view.simulation.config, view.density
        values = np.geomspace(self.low, self.high, self.bins)
        field = smoothed(density, config, self.smoothing) if self.smoothing else density
        found = one_point_pdf(field, config, values)
        columns = {"density": found.values, "probability density": found.density, "cells": found.cells}
        side = math.prod(config.cell_size) ** (1 / 3)
        filtered = f"smoothed by {self.smoothing:g} Mpc/h" if self.smoothing else f"in cells of {side:.3g} Mpc/h"
        columns = {name: np.asarray(x, float) for name, x in columns.items()}
        return Table(f"density {filtered}, {view.title}", columns, {})

    @classmethod
    def plot(cls, table: Table) -> Drawing:
        found = SimpleNamespace(values=table["density"], density=table["probability density"], cells=table["cells"])
        return partial(plot.pdf, found)
