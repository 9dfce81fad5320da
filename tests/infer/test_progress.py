"""Progress of `sample`."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from pmwd_dist.infer.chain.progress import Progress, displayed, is_shown


@pytest.mark.parametrize(("done", "first"), [(0, "compiling the first block"), (1, "1 of 2 chunks are on disk")])
def test_stages_are_shown_and_an_error_ends_the_line(done: int, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []
    with suppress(RuntimeError), displayed(done, 2, calls.append, calls.append) as (sampled, tuned):
        tuned(SimpleNamespace(share=0.5, step_size=0.25, L=3.0))
        for chunks in range(3):
            sampled(Progress(chunks, 0.25, 3.0, {}, restarts=chunks // 2))
        raise RuntimeError
    out, err = capsys.readouterr()
    assert [getattr(call, "chunks", call) for call in calls[1:]] == [0, 1, 2]  # the user's listeners
    sampling = [f"sampling {50 * i}%, {i} of 2 chunks{', restart 1' * (i // 2)}" for i in range(3)]
    lines = [first, "tuning 50%, step size 0.25, L 3", *sampling]
    assert out == "" and err == "".join(f"\r{text:<72}" for text in lines) + "\n"


def test_progress_is_shown_in_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert [is_shown(x) for x in (None, True, False)] == [False, True, False]
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert [is_shown(x) for x in (None, True, False)] == [True, True, False]
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert is_shown(None)
