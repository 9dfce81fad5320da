"""The public figures: their import, their style, and the page with all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import pmwd_dist as pmd
from pmwd_dist import infer, observe
from pmwd_dist.cosmology.sampled_parameters import SYMBOLS
from pmwd_dist.report import plot
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
    with pytest.raises(
        ValueError, match=r"field=.* must have the shape \(nx, ny, nz\) or \(nx, ny\); pass the density first"
    ):
        pmd.plot.density(64.0, field)


def test_figures_draw_in_a_notebook_without_pyplot_and_without_latex() -> None:
    k = np.arange(1.0, 9)
    with mpl.rc_context({"text.usetex": True}):
        figure: Any = pmd.plot.bands(k, {"r(k)": (np.ones((3, 8)), None, "")})
    image = figure._repr_png_()  # what IPython asks for
    assert image.startswith(b"\x89PNG") and len(image) > 5000


def test_the_axes_of_a_distribution_end_where_it_does() -> None:
    values = np.append(0, np.geomspace(0.01, 100, 39))  # 0 has no place on a logarithmic axis
    found = observe.OnePointPDF(*map(jnp.asarray, (values, np.exp(-values), np.full(40, 1.0))))  # scatter of 100 %
    low, high = pmd.plot.pdf(found).axes[0].get_ylim()
    assert low == pytest.approx(0.3 * np.exp(-100)) and 1 < high < 10


def test_theory_is_beside_the_multipole_of_its_order() -> None:
    lines = pmd.plot.multipoles(poles(4, 2), poles(0, 2, 4)).axes[0].lines
    dashed = [line.get_ydata() for line in lines if len(line.get_xdata()) == 4 and line.get_linestyle() != "None"]
    np.testing.assert_allclose(dashed, [5 * np.arange(1.0, 5), 3 * np.arange(1.0, 5)])


def poles(*orders: int) -> observe.Multipoles:
    """Multipoles of order l with the power l + 1, at k = 1, 2, 3, 4."""
    k = jnp.arange(1.0, 5)
    return observe.Multipoles(k, jnp.outer(1.0 + jnp.asarray(orders), jnp.ones(4)), jnp.ones(4), orders)


DRAWS = {"a": np.ones((2, 9))}
SPECTRUM = pmd.PowerSpectrum(*(np.arange(1.0, 5),) * 3)
IN_OTHER_BINS = r"shape=\(.*\) of a curve must be \(4,\), the bins of the spectrum"
COUNT = "must be a list with an entry for each spectrum"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot.power(SPECTRUM, None), IN_OTHER_BINS),
        (lambda: plot.power(SPECTRUM, 1.0), IN_OTHER_BINS),
        (lambda: plot.power(SPECTRUM, np.ones(3)), IN_OTHER_BINS),
        (lambda: plot.power([SPECTRUM] * 2, [np.ones(4)]), f"linear {COUNT}"),
        (lambda: plot.power([SPECTRUM] * 2, None), f"linear {COUNT}"),
        (lambda: plot.power([SPECTRUM] * 2, [np.ones(4)] * 2, labels=["a"]), f"labels {COUNT}"),
        (lambda: plot.power(SPECTRUM, np.ones(4), shot_noise="x"), "shot_noise='x' must be a finite number"),
        (lambda: plot.power(SPECTRUM, np.ones(4), shot_noise=0), "shot_noise=0 must be a finite number, 1e-30"),
        (lambda: plot.multipoles(poles(0), replace(poles(0), k=np.arange(2.0, 6))), "linear.k must be measured.k"),
        (lambda: plot.multipoles(poles(0), [poles(0)]), "linear is or holds a list, which has no k; pass what obs"),
        (lambda: plot.multipoles(SPECTRUM), "measured is or holds a PowerSpectrum, which has no poles; pass what obs"),
        (
            lambda: plot.multipoles(poles(0, 2), poles(0)),
            r"linear.poles=\(0,\) must hold all of measured.poles",
        ),
        (lambda: plot.multipoles(poles(2), error=np.ones((3, 4))), r"error must have a row for each of poles=\(2,\)"),
        (lambda: plot.multipoles(poles(2), error=1.0), "error must have a row for each of poles"),
        (lambda: plot.bispectrum(SPECTRUM), "measured is or holds a PowerSpectrum, which has no bispectrum"),
        (lambda: plot.cross(SPECTRUM), "found is or holds a PowerSpectrum, which has no correlation; pass what obs"),
        (lambda: plot.pdf([SPECTRUM]), "found is or holds a list, which has no values"),
        (lambda: plot.wedge(np.ones(3)), "columns must hold RA, DEC and Z by name; pass the columns of a catalogue"),
        (lambda: plot.mass_function({}), "found is or holds a dict, which has no mass; pass what observe.mass_func"),
        (lambda: plot.angular_power(SPECTRUM), "spectra is or holds a PowerSpectrum, which has no ell"),
        (lambda: plot.corner({"a": np.full((2, 9), np.nan)}), r"draws\['a'\] must be a finite number"),
        (lambda: plot.corner({}), "draws={} has no parameters"),
        (lambda: plot.corner(DRAWS, priors=(1, 2)), "priors is a tuple and must be a mapping"),
        (lambda: plot.corner(DRAWS, priors={"b": 1}), r"priors\['b'\] is of no parameter; use names of a$"),
        (lambda: plot.corner(DRAWS, truth={"sigma_8": 0.8}), r"truth\['sigma_8'\] is of no parameter; use names of a"),
        (lambda: plot.corner(DRAWS, truth=["a"]), r"truth is a list and must be a mapping from names; pass {"),
        (lambda: plot.traces(DRAWS, truth={"b": 1.0}), r"truth\['b'\] is of no parameter"),
        (lambda: plot.traces(DRAWS, truth=[]), "truth is a list and must be a mapping"),
        (lambda: plot.traces(DRAWS, truth={"a": np.nan}), r"truth\['a'\]=nan must be a finite number"),
        (lambda: plot.traces(np.ones((2, 9))), "draws is a ndarray and must be a mapping from names; pass a chain"),
    ],
)
def test_what_is_no_result_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("draw", [plot.corner, plot.traces])
def test_some_of_the_parameters_are_drawn_with_the_whole_truth(draw: Callable[..., Any]) -> None:
    axes = draw(DRAWS, truth={"a": 0.5, "other": 7.0}).axes
    drawn = [line.get_ydata() if draw is plot.traces else line.get_xdata() for line in axes[0].lines]
    assert any(np.all(np.equal(values, 0.5)) for values in drawn)


def test_theory_may_be_an_array_of_jax() -> None:
    ratio = plot.power([SPECTRUM] * 2, jnp.ones((2, 4))).axes[1].lines[0].get_ydata()
    np.testing.assert_allclose(ratio, SPECTRUM.power)
    spectra = {"a": observe.AngularPower(*(np.arange(1.0, 5),) * 3)}
    assert len(plot.angular_power(spectra.values(), jnp.ones((1, 4))).axes[0].lines) == 3


def test_draws_of_one_axis_are_a_chain() -> None:
    assert [len(line.get_xdata()) for line in plot.traces({"a": np.arange(9.0)}).axes[0].lines] == [9]


@pytest.mark.parametrize("name", [*SYMBOLS, "nbar_3", "template_12"])
def test_labels_of_parameters_are_html_without_latex(name: str) -> None:
    assert not {*"\\{^"} & {*markup(name)}
    assert markup("Omega_m") == "&Omega;<sub>m</sub>" and markup("a<b") == "a&lt;b"
    assert markup("eta_IA") == "&eta;<sub>IA</sub>" and markup("delta_z") == "&Delta; z"
    assert markup("template_12") == "A<sub>12</sub>" and markup("template_x") == "template<sub>x</sub>"


def test_text_of_users_is_escaped_in_the_page(tmp_path: Path) -> None:
    content = {"numbers": {}, "run": [("box", "<b>")], "timing": [], "provenance": [], "config": "a < b", "good": True}
    write_page(tmp_path / "report.html", [], title="<script>", verdict="<i>", advice=["&"], **content)
    text = (tmp_path / "report.html").read_text()
    assert "<script>" not in text and "<b>" not in text and "<i>" not in text and "a &lt; b" in text


# --- chains and planes -------------------------------------------------------------------------------------------


def test_bands_of_curves_that_are_nowhere_numbers_are_left_out() -> None:
    curves = np.ones((5, 3))
    curves[:, 1] = np.nan  # as r(k) is of data that are the same everywhere
    plot.bands(np.arange(1.0, 4), {"r(k)": (curves, None, "")})
    plot.bands(np.arange(1.0, 4), {"r(k)": (curves * np.nan, None, "")})


def test_bands_hold_68_and_95_percent_of_the_curves() -> None:
    rng, k = np.random.default_rng(0), np.arange(1.0, 4)
    curves = {"r(k)": rng.permuted(np.linspace(-1, 1, 201)[:, None] * k, axis=0), "T(k)": rng.random((201, 3))}
    figure = plot.bands(k, {name: (x, 5 * k, "truth") for name, x in curves.items()})
    for axes, (name, x) in zip(figure.axes, curves.items(), strict=True):
        assert axes.get_ylabel() == name
        middle, reference = (line.get_ydata() for line in axes.lines)
        np.testing.assert_allclose(middle, np.median(x, axis=0), atol=1e-12)
        np.testing.assert_allclose(reference, 5 * k)
        for band, share in zip(axes.collections, (95, 68), strict=True):
            low, high = np.percentile(x, [50 - share / 2, 50 + share / 2], axis=0)
            corners = {(round(a, 9), round(b, 9)) for a, b in band.get_paths()[0].vertices}
            assert {(a, round(b, 9)) for y in (low, high) for a, b in zip(k, y, strict=True)} <= corners
    low, high = (np.percentile(curves["r(k)"][:, 0], p) for p in (16, 84))
    assert (low, high) == (pytest.approx(-0.68), pytest.approx(0.68))


def test_cells_without_data_are_white_and_scales_are_of_the_others() -> None:
    planes = [np.full((2, 2), x) for x in (1.0, 7.0, 3.0)]
    planes[0][0, 0] = np.nan
    images = [(str(i), x) for i, x in enumerate(planes)]
    figure = plot.planes(images, (1.0, 1.0), quantity=["a", "b", "c"], alike=(0, 2))
    shown = [axes.images[0] for axes in figure.axes if axes.images]
    assert [image.get_clim() for image in (shown[0], shown[2])] == [(1, 3)] * 2
    assert shown[0].get_array().mask.sum() == 1
    assert [image.colorbar.ax.get_ylabel() for image in shown] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "prior", [infer.Normal(1.0, 0.5), infer.Uniform(0.0, 2.0), infer.LogNormal(1.0, 0.3), infer.Normal(1, 1, low=0.2)]
)
def test_priors_are_drawn_as_densities_beside_the_histograms(prior: infer.Normal | infer.Uniform) -> None:
    u = np.random.default_rng(0).standard_normal(200_000)
    draws = {"sigma8": np.asarray(prior.forward(u))[None], "b1": u[None]}
    figure = plot.corner(draws, priors={"sigma8": prior}, truth={"b1": 0.0})
    panel, _, _, _ = figure.axes
    (line,) = panel.lines
    x, density = line.get_xdata(), line.get_ydata()
    heights, edges = np.histogram(draws["sigma8"], 40, density=True)
    centres = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_allclose(np.interp(centres[1:-1], x, density), heights[1:-1], atol=0.03 * heights.max())
    assert figure.axes[2].get_xlabel() == r"$\sigma_8$" and figure.axes[2].get_ylabel() == "$b_1$"


def test_figures_are_drawn_on_given_axes() -> None:
    figure = Figure()
    figure.subplots(2)
    k = np.arange(1.0, 5)
    assert (
        plot.bands(k, {"r(k)": (np.ones((3, 4)), None, ""), "T(k)": (np.ones((3, 4)), None, "")}, axes=figure.axes)
        is figure
    )
    assert plot.density(np.ones((4, 4)), (8.0, 8.0), axes=figure.axes[1]) is figure
    with pytest.raises(ValueError, match=r"axes=2 must be 1 axes; pass those of plt.subplots\(1, 1\)"):
        plot.density(np.ones((4, 4)), (8.0, 8.0), axes=figure.axes[:2])
