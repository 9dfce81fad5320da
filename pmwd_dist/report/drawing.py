"""A process that draws the figures of a run from its files: Matplotlib would hold Python's lock for seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from pmwd_dist._files import remove
from pmwd_dist.report import plot, results
from pmwd_dist.report.style import DPI

_SECONDS = 10.0  # longest time for a figure

_process: subprocess.Popen[str] | None = None


def start() -> subprocess.Popen[str]:
    """Start the process, unless it is there; its imports take a second. It ends with this program."""
    global _process
    if _process is None:
        # Without a device, and without a second thread when it forks.
        own, null = os.environ | {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}, subprocess.DEVNULL
        command, pipe = [sys.executable, "-P", "-m", __name__], subprocess.PIPE
        _process = subprocess.Popen(  # noqa: S603
            command, stdin=pipe, stdout=null, stderr=null, env=own, start_new_session=True, text=True
        )
    return _process


def draw(paths: Iterable[Path]) -> None:
    """Draw these figures soon; `finish` draws those again that fail."""
    if (pipe := start().stdin) is not None:
        with suppress(BrokenPipeError):
            pipe.write("".join(f"{path.absolute()}\n" for path in paths))
            pipe.flush()


def finish(folder: Path, names: Container[str]) -> None:
    """Wait for the figures, and draw those of a folder among `names` that are missing and have data.

    If the process has ended early, or hangs, draw all of them: some may be older than their data.
    """
    global _process
    early, paths = False, [path for path in results.figures(folder) if path.name in names]
    if _process is not None:
        process, _process = _process, None
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_SECONDS * len(paths))
        if early := process.returncode != 0:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for path in paths:
        if early or not path.exists():
            results.draw(path)


def _main() -> None:
    """Draw the figures whose paths are the lines of the standard input, each in a process of its own."""
    figure = plot.density(np.ones((2, 2)), (1.0, 1.0))  # for modules and fonts, before the first path comes
    figure.set_dpi(DPI)
    figure.draw_without_rendering()
    running = dict[int, Path]()
    while lines := os.read(0, 1 << 16):
        for path in dict.fromkeys(map(Path, os.fsdecode(lines).splitlines())):
            for child in (child for child, drawn in running.items() if drawn == path):
                os.kill(child, signal.SIGKILL)  # there are newer data
            while path in running.values() or len(running) >= (os.cpu_count() or 1):
                _wait(running)
            if child := os.fork():
                running[child] = path
            else:
                _draw(path)
    while running:
        _wait(running)


def _wait(running: dict[int, Path]) -> None:
    """Wait for one of the processes; an older figure of one that failed or was killed is removed."""
    process, status = os.wait()
    path = running.pop(process)
    if status:
        remove(path)


def _draw(path: Path) -> None:
    """Draw a figure, and end this process; its exit code is zero if there is a new figure."""
    code = 1
    try:
        results.draw(path)
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    _main()
