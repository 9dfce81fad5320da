"""The public figures: their import, their style, and the page with all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist import observe
from pmwd_dist.cosmology.sampled_parameters import SYMBOLS
from pmwd_dist.report.page import write_page
from pmwd_dist.report.style import markup


def test_ticks_have_the_style_of_the_figure_when_it_is_drawn_later() -> None:
    k = np.arange(1.0, 9)
    figure = pmd.plot.bands(k, {"r(k)": (np.ones((3, 8)), None, "")})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert {tick.get_tickdir() for tick in (*axes.xaxis.get_major_ticks(), *axes.yaxis.get_major_ticks())} == {"in"}


@pytest.mark.parametrize("side", [64.0, np.int64(64), np.array(64.0, np.float32), pmd.Config(64.0, 8)])
def test_a_side_is_the_one_of_a_cube(side: Any) -> None:
    field = np.random.default_rng(0).lognormal(size=(8, 8, 8))
    one, three = (pmd.plot.density(field, sides, thickness=16.0).axes[0] for sides in (side, (64.0, 64.0, 64.0)))
    np.testing.assert_array_equal(one.images[0].get_array(), three.images[0].get_array())
    assert one.images[0].get_extent() == three.images[0].get_extent() == [0, 64, 0, 64]


def test_figures_draw_in_a_notebook_without_pyplot_and_without_latex() -> None:
    k = np.arange(1.0, 9)
    with mpl.rc_context({"text.usetex": True}):
        figure: Any = pmd.plot.bands(k, {"r(k)": (np.ones((3, 8)), None, "")})
    image = figure._repr_png_()  # what IPython asks for
    assert image.startswith(b"\x89PNG") and len(image) > 5000


def test_the_axes_of_a_distribution_end_where_it_does() -> None:
    values = np.geomspace(0.01, 100, 40)
    found = observe.OnePointPDF(*map(jnp.asarray, (values, np.exp(-values), np.full(40, 1.0))))  # scatter of 100 %
    low, high = pmd.plot.pdf(found).axes[0].get_ylim()
    assert low == pytest.approx(0.3 * np.exp(-100)) and 1 < high < 10


@pytest.mark.parametrize("name", SYMBOLS)
def test_labels_of_parameters_are_html_without_latex(name: str) -> None:
    assert "\\" not in markup(name) and "{" not in markup(name)
    assert markup("Omega_m") == "&Omega;<sub>m</sub>" and markup("a<b") == "a&lt;b"


def test_text_of_users_is_escaped_in_the_page(tmp_path: Path) -> None:
    content = {"numbers": {}, "run": [("box", "<b>")], "timing": [], "provenance": [], "config": "a < b", "good": True}
    write_page(tmp_path / "report.html", [], title="<script>", verdict="<i>", advice=["&"], **content)
    text = (tmp_path / "report.html").read_text()
    assert "<script>" not in text and "<b>" not in text and "<i>" not in text and "a &lt; b" in text
