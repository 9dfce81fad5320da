"""Fixtures of all tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmwd_dist.report import drawing, results


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files for figures, which take longer than all the rest of a small run."""
    monkeypatch.setattr(drawing, "draw", lambda paths: None)
    monkeypatch.setattr(results, "draw", Path.touch)
