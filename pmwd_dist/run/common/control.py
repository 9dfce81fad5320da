"""Requests to stop a job, by a signal or its time limit, and the times of its checkpoints."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pmwd_dist._jax.profile import Profile
from pmwd_dist.parallel.distributed import SharedError, from_main, largest
from pmwd_dist.run.settings.section import duration, duration_text


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
