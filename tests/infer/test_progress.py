"""Progress of `sample`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pmwd_dist.infer.chain import progress
from pmwd_dist.infer.chain.progress import is_shown, with_bar


def run(calls: list[Any]) -> None:
    with with_bar(0, 2, calls.append, None) as (sampled, tuned):
        for share in (0.5, 1.0):
            tuned(SimpleNamespace(share=share, step_size=0.25, L=3.0))
        for chunks in range(3):
            sampled(progress.Progress(chunks, 0.25, 3.0, {}, restarts=chunks // 2))


@pytest.mark.parametrize("bar", [False, True])
def test_stages_are_shown_with_and_without_tqdm(
    bar: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if not bar:
        monkeypatch.setattr(progress, "find_spec", lambda name: None)
    calls: list[Any] = []
    run(calls)
    out, err = capsys.readouterr()
    assert [call.chunks for call in calls] == [0, 1, 2]  # the user's listener
    assert out == ""
    for words in ("compiling", "tuning", "step size 0.25, L 3", "sampling", "50%", "1/2 chunks", "100%", "restart 1"):
        assert words in err
    assert err.index("2/2 chunks") > err.index("1/2 chunks") > err.index("step size")
    if not bar:
        assert len(err.splitlines()) == 6


def test_the_bar_is_closed_by_an_error_and_begins_with_the_chunks_on_disk(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError), with_bar(1, 2, None, None):
        raise RuntimeError
    err = capsys.readouterr().err
    assert "1/2 chunks" in err and "compiling" not in err
    assert err.endswith("\n")


def test_progress_is_shown_in_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert [is_shown(x) for x in (None, True, False)] == [False, True, False]
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert [is_shown(x) for x in (None, True, False)] == [True, True, False]
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert is_shown(None)
