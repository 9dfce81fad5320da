"""Fixtures of all tests of runs."""

from __future__ import annotations

import pytest

from pmwd_dist.run.simulation import output


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files for figures, which take longer than all the rest of a small run."""
    for name in ("draw_spectra", "draw_slab"):
        monkeypatch.setattr(output, name, lambda path, content: path.touch())
