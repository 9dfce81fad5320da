"""Requests to stop a run, by Ctrl-C, by the batch system or by the loss of the terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from pmwd_dist.parallel.distributed import SharedError, largest


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
