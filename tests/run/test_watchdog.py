"""Processes that wait for one of them are ended, with a line that says how to go on."""

from __future__ import annotations

import time
from pathlib import Path

import jax
import pytest

from pmwd_dist._jax.program import jit
from pmwd_dist.parallel import distributed
from pmwd_dist.run.common.folder import Log, StartError
from pmwd_dist.run.common.watchdog import PATIENCE, watchdog


def lines_of(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, alive: float = 0.0
) -> list[str]:
    """Lines of a job that calls programs for some seconds and then waits."""
    ends = list[int]()
    monkeypatch.setattr(distributed, "abort", lambda code: ends.append(code) or time.sleep(2))
    log, program = Log(folder, lambda event: None), jit(lambda x: x + 1)
    log("tuning", "tuning 14%  step size 6.4")
    with watchdog(folder, log, 1.0):
        until = time.monotonic() + alive
        while time.monotonic() < until:
            program(1.0)
            time.sleep(0.02)
        assert not ends
        time.sleep(1.2)
    assert ends in ([], [1])
    return capsys.readouterr().err.splitlines()


def test_processes_without_a_sign_of_life_are_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    (tmp_path / "chunk_00003.npz").touch()
    monkeypatch.setenv(PATIENCE, "0.5")
    (line,) = lines_of(tmp_path, capsys, monkeypatch, alive=1.0)
    for text in ("after `tuning 14%  step size 6.4`", "chunk_00003.npz is on disk", f"`pmwd-dist resume {tmp_path}`"):
        assert text in line
    monkeypatch.setenv(PATIENCE, "0")
    assert lines_of(tmp_path, capsys, monkeypatch) == []
    monkeypatch.setenv(PATIENCE, "ten")
    with pytest.raises(StartError, match="PMWD_WATCHDOG=ten: must be a number of seconds, or 0"):
        lines_of(tmp_path, capsys, monkeypatch)
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    monkeypatch.setenv(PATIENCE, "0.5")
    assert lines_of(tmp_path, capsys, monkeypatch) == []
