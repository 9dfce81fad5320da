"""Fixtures of all tests of runs."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest

from pmwd_dist import infer
from pmwd_dist.report import drawing
from pmwd_dist.run.inference import plan, verdict
from pmwd_dist.run.inference.memory import InferenceMemory


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files for figures, which take longer than all the rest of a small run."""
    leave_out_figures(monkeypatch)


@pytest.fixture(scope="module")
def no_figures_of_module() -> Iterator[None]:
    """The same for all runs of a module, also those of its fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        yield


def leave_out_figures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drawing, "start", lambda: None)
    patch.setattr(drawing, "draw", lambda figures: None)
    patch.setattr(drawing, "write", lambda path, read: path.touch())


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files for pictures of an inference."""
    monkeypatch.setattr(verdict, "plot", MagicMock())
    monkeypatch.setattr(verdict, "save", lambda figure, path: path.touch())


@pytest.fixture
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts without checks of fit and prior (`test_predictive_checks`), which compile most of the forward models."""
    for name in ("check_fit", "check_prior"):
        monkeypatch.setattr(infer, name, lambda *_: {})


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradients that are compiled for the memory of an inference, which `test_memory` tests."""
    nothing = InferenceMemory(0, 0, 0, 0)
    monkeypatch.setattr(plan, "inference_memory", lambda *_: nothing)
