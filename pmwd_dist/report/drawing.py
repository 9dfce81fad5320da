"""A process that draws the figures of a run from its files: Matplotlib would hold Python's lock for seconds."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from pmwd_dist._files import remove
from pmwd_dist.report.style import drawing_errors, save

Drawing = Callable[[], Any]  # a function of report/ with its data, which returns a figure, also in another process
Figures = Mapping[Path, Callable[[], Drawing]]  # functions that read data, by the paths of figures
_SECONDS = 60  # longest time for a figure
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}  # for this program alone

_executor: ProcessPoolExecutor | None = None
_futures: dict[Path, Future[None]] = {}


def start() -> ProcessPoolExecutor:
    """Start the process, unless it is there; its imports take a second. It ends with this program."""
    global _executor
    if _executor is None:
        # Python's tracker of semaphores would write a line about those of a program that was killed.
        sys.warnoptions.append("ignore:resource_tracker")
        _executor = ProcessPoolExecutor(1, get_context("spawn"), _begin)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # which the process inherits
        try:
            _executor.submit(int)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _executor


def draw(figures: Figures) -> None:
    """Draw these figures soon, in place of figures of earlier data; `finish` draws those again that fail."""
    for name, read in figures.items():
        remove(path := name.absolute())
        if path in _futures:
            _futures[path].cancel()
        try:
            with drawing_errors(path):
                _futures[path] = start().submit(_draw, path, read())
        except (OSError, ValueError):  # the process has ended, or data are damaged
            _futures.pop(path, None)


def finish(figures: Figures) -> None:
    """Wait for the figures, and draw the ones that are missing; the first error is raised after all of them."""
    global _executor
    wait(_futures.values())
    failed = {path for path, future in _futures.items() if future.cancelled() or future.exception() is not None}
    _futures.clear()
    if _executor is not None:
        _executor.shutdown(wait=False, cancel_futures=True)  # the end of a process takes tenths of a second
        _executor = None
    errors = list[Exception]()
    for path, read in figures.items():
        if path.absolute() in failed or not path.exists():
            try:
                write(path, read)
            except (OSError, ValueError) as error:
                errors.append(error)
    if errors:
        raise errors[0]


def write(path: Path, read: Callable[[], Drawing]) -> None:
    """Draw a figure, and write it as PNG; ValueError if its data are damaged."""
    with drawing_errors(path):
        save(read()(), path)


def _begin() -> None:
    """Prepare the process: it writes nothing, ends with the program, and has Matplotlib before the first data."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    importlib.import_module("matplotlib.figure")


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _draw(path: Path, figure: Drawing) -> None:
    signal.alarm(_SECONDS)  # ends the process; `finish` draws the figures that are missing
    try:
        with drawing_errors(path):
            save(figure(), path)
    finally:
        signal.alarm(0)
