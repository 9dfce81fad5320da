"""Requests to stop a job, by a signal or its time limit, times of its checkpoints, and a watchdog of its processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import jax

from pmwd_dist._jax.profile import Profile
from pmwd_dist._jax.program import calls
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, from_main, largest
from pmwd_dist.parallel.launcher import note
from pmwd_dist.run.common.folder import Log, StartError
from pmwd_dist.run.settings.section import duration, duration_text

PATIENCE = "PMWD_WATCHDOG"
_SECONDS, _SLOWER = "600", 3.0  # default; longest program against the longest so far
_GRACE = 5.0  # of the other processes, so that one line is printed [s]


class Interrupted(SharedError):
    """The run was asked to stop, by a signal or, with the number 0, by its time limit; its checkpoint is written."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


class StopRequest:
    """The first signal is remembered until the current step is done; a second one ends the program without waiting.

    Python sees a signal when compiled code returns, such as a compilation or the computation of a step.
    """

    signal_number = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal of this process."""
        del frame
        if not self.signal_number:
            self.signal_number = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    def received(self) -> int:
        """Number of the signal that some process has received, 0 if none has. Collective."""
        return largest(self.signal_number)


@contextmanager
def stop_requests() -> Generator[StopRequest]:
    """Catch signals that ask to stop in a StopRequest; outside the main thread, which alone can, catch nothing.

    Launchers forward SIGUSR1 and SIGUSR2 alone without killing the processes a moment later.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        numbers.append(signal.SIGHUP)
    before = [signal.signal(number, stop.handle) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Control:
    """Signals and clock of a job; all processes use the clock of process 0.

    Later steps don't need the compilation of the profile. `limit` is the time from the start of the program until the
    job has to be over [s], or None.
    """

    def __init__(self, folder: Path, stop: StopRequest, profile: Profile, limit: float | None):
        self.profile = profile
        self._folder, self._stop, self._limit = folder, stop, limit
        self._last_checkpoint = time.perf_counter()
        self._asked = dict[str, tuple[float, float]]()
        self._longest = defaultdict[str, float](float)

    def raise_if_stopped(self, done: str, what: str = "step") -> None:
        """Raise Interrupted after a signal, or if the next step, block or chunk may end after the limit. Collective."""
        if number := self._stop.received():
            raise Interrupted(f"interrupted {done}; go on with `pmwd-dist resume {self._folder}`", number)
        if self._limit is not None and self._time_is_over(self._limit, what):
            resume = f"pmwd-dist resume {self._folder} --time-limit {duration_text(self._limit)}"
            raise Interrupted(f"stopped {done}, by the time limit; go on with `{resume}`", 0)

    def _time_is_over(self, limit: float, what: str) -> bool:
        """Whether a step as long as the longest so far may end after the limit. Called before each step. Collective."""
        now, compiled, before = time.perf_counter(), self.profile.compilation, self._asked.get(what)
        self._asked[what] = now, compiled
        if before is None:
            return False  # each start takes one step, however short the limit is
        self._longest[what] = max(self._longest[what], now - before[0] - (compiled - before[1]))
        return bool(from_main(now - self.profile.began + self._longest[what] > limit))

    def checkpoint_due(self, step: int, every: int | str) -> bool:
        """Whether a checkpoint is due after so many steps, with an interval in steps or a duration. Collective."""
        if not isinstance(every, str):
            return every > 0 and step % every == 0
        now = time.perf_counter()
        due = bool(from_main(now - self._last_checkpoint >= duration(every)))
        if due:
            self._last_checkpoint = now
        return due


@contextmanager
def watchdog(folder: Path, log: Log, longer: float) -> Generator[None]:
    """End all processes, with a line, if no program ends and no event is logged for ten minutes within the body.

    The environment variable PMWD_WATCHDOG is this time in seconds; 0 switches the watchdog off. A program may take
    three times as long as the longest so far, times `longer`. Raises StartError if the variable is not a number.
    """
    try:
        patience = float(os.environ.get(PATIENCE, _SECONDS))
    except ValueError:
        raise StartError(f"{PATIENCE}={os.environ[PATIENCE]}: must be a number of seconds, or 0") from None
    ended = threading.Event()
    if patience > 0 and jax.process_count() > 1:
        arguments = ended, lambda: (calls(), log.last), patience, _SLOWER * longer, folder
        threading.Thread(target=_watch, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(
    ended: threading.Event, state: Callable[[], tuple[int, str]], patience: float, factor: float, folder: Path
) -> None:
    before, quiet, longest, grace = state(), 0.0, 0.0, 0.0 if distributed.is_main() else _GRACE
    while not ended.wait(interval := min(1.0, patience / 10)):
        quiet += interval  # not by a clock: a suspended job is quiet, too
        if (now := state()) != before:
            before, quiet, longest = now, 0.0, max(longest, quiet)
        elif quiet > max(patience, factor * longest) + grace:
            kept = max((x.name for x in folder.glob("ch*_0*")), default="nothing")  # chunks or checkpoints
            note(
                f"no sign of life for {duration_text(quiet)} after `{now[1]}`; {kept} is on disk; go on with "
                f"`pmwd-dist resume {folder}`, and wait longer with {PATIENCE}=SECONDS in the environment"
            )
            distributed.abort(1)
