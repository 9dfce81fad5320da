"""Durations, checkpoints by the clock, the time limit, and the watchdog of several processes."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import jax
import pytest

from pmwd_dist._jax.profile import Profile, recording
from pmwd_dist._jax.program import jit
from pmwd_dist.parallel import distributed
from pmwd_dist.run.common import control
from pmwd_dist.run.common.control import PATIENCE, Control, Interrupted, StopRequest, watchdog
from pmwd_dist.run.common.folder import Log, StartError
from pmwd_dist.run.settings.section import duration, duration_text


@pytest.mark.parametrize(
    ("text", "seconds", "shortest"),
    [
        ("10 min", 600, "10m"),
        ("3h55m", 14100, "3h55m"),
        ("90 s", 90, "1m30s"),
        ("1 day 2 Hours", 93600, "1d2h"),
        ("1.5h", 5400, "1h30m"),
        ("2 d 1 sec", 172801, "2d1s"),
        ("24:00:00", 86400, "1d"),
        ("2-03:05:00", 183900, "2d3h5m"),
    ],
)
def test_durations(text: str, seconds: float, shortest: str):
    assert duration(text) == seconds
    assert duration_text(seconds) == shortest
    assert duration(shortest) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "min", "3h 5", "-1 h", "0 min", "1e3 s", "10 parsecs", "1:30", "0:00:00", "1:60:00"]
)
def test_what_is_no_duration(text: str):
    with pytest.raises(ValueError, match="must be"):
        duration(text)


class Time:
    """A clock that the test sets."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(control, "time", clock)
    return clock


def control_of(profile: Profile, limit: float | None = None) -> Control:
    return Control(Path("run"), StopRequest(), profile, limit)


def stopped(job: Control) -> bool:
    """Whether the time is over."""
    try:
        job.raise_if_stopped("after a step")
    except Interrupted:
        return True
    return False


def test_checkpoints_by_steps():
    due = control_of(Profile(0.0)).checkpoint_due
    assert [step for step in range(1, 8) if due(step, 3)] == [3, 6]
    assert not any(due(step, 0) for step in range(1, 8))


def test_checkpoints_by_the_clock(clock: Time):
    due = control_of(Profile(0.0)).checkpoint_due
    found = []
    for step in range(1, 8):
        clock.now += 25
        if due(step, "1 min"):
            found.append(step)
    assert found == [3, 6]


def test_time_limit_leaves_time_for_the_longest_step(clock: Time):
    over = partial(stopped, control_of(Profile(90.0), 100.0))  # 10 s of the 100 s are gone
    assert not over()
    for seconds, expected in ((40, False), (5, False), (6, True)):
        clock.now += seconds
        assert over() is expected


def test_compilation_is_not_part_of_the_longest_step(clock: Time):
    with recording(90.0) as profile:
        over = partial(stopped, control_of(profile, 100.0))
        assert not over()
        jax.monitoring.record_event_time_span("/jax/core/compile/backend_compile_duration", 100.0, 135.0)
        for seconds in (40, *[5] * 9):  # 35 of the first 40 s are compilation
            clock.now += seconds
            assert not over()
        clock.now += 1
        assert over()


def test_a_run_without_time_takes_one_step(clock: Time):
    over = partial(stopped, control_of(Profile(0.0), 1.0))
    assert not over()
    assert over()
    assert not stopped(control_of(Profile(0.0)))


# --- processes that wait for one of them -------------------------------------------------------------------------


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
