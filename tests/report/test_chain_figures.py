"""Pictures of chains."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pmwd_dist.report.chains import draw_bands


def test_bands_of_curves_that_are_nowhere_numbers_are_left_out(tmp_path: Path) -> None:
    curves = np.ones((5, 3))
    curves[:, 1] = np.nan  # as r(k) is of data that are the same everywhere
    draw_bands(tmp_path / "some.png", np.arange(1.0, 4), {"r(k)": (curves, None, "")})
    draw_bands(tmp_path / "none.png", np.arange(1.0, 4), {"r(k)": (curves * np.nan, None, "")})
    assert (tmp_path / "none.png").stat().st_size > 0
