"""Pictures of chains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmwd_dist.report import chains
from pmwd_dist.report.chains import draw_bands, draw_slices


def test_bands_of_curves_that_are_nowhere_numbers_are_left_out(tmp_path: Path) -> None:
    curves = np.ones((5, 3))
    curves[:, 1] = np.nan  # as r(k) is of data that are the same everywhere
    draw_bands(tmp_path / "some.png", np.arange(1.0, 4), {"r(k)": (curves, None, "")})
    draw_bands(tmp_path / "none.png", np.arange(1.0, 4), {"r(k)": (curves * np.nan, None, "")})
    assert (tmp_path / "none.png").stat().st_size > 0


def test_bands_hold_68_and_95_percent_of_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(chains, "save", lambda figure, path: drawn.append(figure))
    rng, k = np.random.default_rng(0), np.arange(1.0, 4)
    curves = {"r(k)": rng.permuted(np.linspace(-1, 1, 201)[:, None] * k, axis=0), "T(k)": rng.random((201, 3))}
    draw_bands(Path("any.png"), k, {name: (x, 5 * k, "truth") for name, x in curves.items()})
    (figure,) = drawn
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


def test_cells_without_data_are_white_and_scales_are_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(chains, "save", lambda figure, path: drawn.append(figure))
    planes = [np.full((2, 2), x) for x in (1.0, 7.0, 3.0)]
    planes[0][0, 0] = np.nan
    draw_slices(
        Path("any.png"),
        [(str(i), x) for i, x in enumerate(planes)],
        (1.0, 1.0),
        quantity=["a", "b", "c"],
        alike=(0, 2),
        place="plane",
    )
    shown = [axes.images[0] for axes in drawn[0].axes if axes.images]
    assert [image.get_clim() for image in (shown[0], shown[2])] == [(1, 3)] * 2
    assert shown[0].get_array().mask.sum() == 1
    assert [image.colorbar.ax.get_ylabel() for image in shown] == ["a", "b", "c"]
    assert drawn[0].get_suptitle() == "plane"
