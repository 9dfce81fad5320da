"""The page of a run: one HTML file with its figures inside, each with a caption."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmwd_dist._files import atomic_write

# Title, content and expectation of each figure, by the beginning of its file name, in the order of the page.
_CAPTIONS = {
    "density": (
        "Density",
        "Mean density of a slice of the box in units of the cosmic mean, on a logarithmic scale.",
        "filaments and voids whose contrast grows with time, without a pattern along the axes.",
    ),
    "power": (
        "Matter power spectrum",
        "P(k) with linear theory (dashed), and their ratio with the scatter of the modes.",
        "a ratio of 1 within the scatter at small k. At late times it rises at large k, before the limited force "
        "resolution lowers it towards the particle Nyquist frequency.",
    ),
    "multipoles": (
        "Multipoles of matter in redshift space",
        "k times the multipoles, with the scatter of the modes, and Kaiser's linear theory (dashed).",
        "agreement at small k. Random velocities lower the quadrupole at larger k, down to negative values.",
    ),
    "galaxies": (
        "Multipoles of galaxies",
        "k times the multipoles of the galaxies, with the scatter of the modes, and Kaiser's linear theory (dashed).",
        "agreement at small k. The monopole flattens to the shot noise at large k, which is not subtracted.",
    ),
    "cross": (
        "Density and its linear field",
        "Correlation r(k) and transfer function T(k) of the density with the linear field of the same phases.",
        "both near 1 at small k. The correlation falls where structure is nonlinear, earlier at lower redshift.",
    ),
    "bispectrum": (
        "Bispectrum",
        "B of triangles of modes with its Gaussian scatter, and tree-level theory.",
        "agreement within the scatter for small sides, and an excess of the measurement for larger ones.",
    ),
    "pdf": (
        "One-point distribution",
        "Probability density of 1 + delta with its Poisson scatter.",
        "a narrow peak at early times, and at late times a peak below 1 with a long tail to high densities.",
    ),
    "convergence": (
        "Weak lensing",
        "Convergence by the light cone for each source, with the shear as sticks on a flat sky, and its angular power "
        "spectra with linear theory (dashed).",
        "spectra that follow linear theory at small multipoles and exceed it at larger ones; sticks around peaks.",
    ),
    "corner": (
        "Posterior of the parameters",
        "Distribution of each parameter and of each pair over all chains, with priors, and true values of a mock "
        "(dashed).",
        "histograms narrower than their priors where the data inform, and true values inside the distributions.",
    ),
    "traces": (
        "Traces",
        "Each parameter and the log density, draw by draw, in one colour a chain; true values of a mock are dashed.",
        "chains on top of each other that fluctuate about the same level, without a trend or a chain apart.",
    ),
    "mixing": (
        "Convergence by scale",
        "R-hat and effective sample size of the modes of the initial conditions, by wavenumber, with their limits "
        "(dashed).",
        "R-hat below its limit and effective sample sizes above theirs on all scales.",
    ),
    "fields": (
        "Posterior prediction by scale",
        "P(k) of data that the draws predict beside that of the data, and correlations of predictions and data; for "
        "a mock, r(k) and T(k) of the initial conditions with the truth. Bands hold 68 % and 95 % of the draws.",
        "data inside the bands. For a mock, r(k) is near 1 at small k and falls to 0 where noise dominates, and T(k) "
        "stays at 1.",
    ),
    "angular": (
        "Posterior prediction of maps by scale",
        "Angular power spectra of maps that the draws predict, noise and mask included, beside those of the data.",
        "data inside the bands, which hold 68 % and 95 % of the draws.",
    ),
    "slices": (
        "Initial conditions",
        "A plane of the linear density at a = 1: mean and standard deviation of the draws, beside the data and the "
        "truth of a mock where there are any.",
        "a mean that shows the large structures of the truth, smoothed where noise hides the small ones, and a "
        "smaller standard deviation where data were taken.",
    ),
    "maps": (
        "Data and predictions",
        "A plane or maps of the data beside predictions of the draws; cells behind the mask are white.",
        "the same structures in both, and in the data the noise besides.",
    ),
}


@dataclass(frozen=True)
class NumberTable:
    """A table of the page.

    Args:
      title: title.
      heads: heads of the columns.
      rows: name as HTML, and cells, of each row.
      note: explanation below the table.
    """

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, list[str]]]
    note: str


def write_page(path: Path, images: Iterable[Path], **content: Any) -> None:
    """Write the page.

    Args:
      path: path of the page.
      images: figures, as PNG files whose names tell their kind; others are left out.
      content: values of the template.

    Raises:
      OSError: a figure can't be read, or the page can't be written.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pmwd_dist", "report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    figures = [_figure(name, image) for name in _CAPTIONS for image in images if re.match(rf"{name}[_.]", image.name)]
    with atomic_write(path) as aside:
        aside.write_text(
            environment.get_template("page.html").render(figures=figures, **content) + "\n", encoding="utf-8"
        )


def _figure(name: str, image: Path) -> dict[str, str]:
    title, seen, expected = _CAPTIONS[name]
    if match := re.search(r"_z(-?\d+\.\d+)\.png$", image.name):
        title += f" at z = {float(match[1]):g}"
    return {
        "title": title,
        "seen": seen,
        "expected": expected,
        "image": base64.b64encode(image.read_bytes()).decode("ascii"),
    }
