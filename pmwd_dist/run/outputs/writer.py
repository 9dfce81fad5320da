"""Snapshots, written by a thread while the next steps go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

from pmwd_dist._files import remove, temporary, write_aside
from pmwd_dist._jax.profile import part
from pmwd_dist.io.snapshot.writer import Snapshot
from pmwd_dist.parallel.distributed import all_processes, raise_on_all_processes
from pmwd_dist.pm.status import Status


class Writer:
    """Writes the snapshot of one output at a time, in a thread.

    All communication is in the calls of the main thread.

    Args:
      buffer: memory for chunks of a snapshot that wait to be written [bytes].

    Attributes:
      pending: step of an output that may not be written yet, status then, and a function to call when it is.
    """

    pending: tuple[int, Status, Callable[[], None]] | None = None

    def __init__(self, buffer: int):
        self._buffer = buffer
        self._thread, self._path = ThreadPoolExecutor(1), Path()
        self._task: Future[None] | None = None
        self._waiting = Queue[Any]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # chunks that wait are of no use, and the program ends only after the thread
            with suppress(Empty):
                while True:
                    self._waiting.get_nowait()
            self._waiting.put(None)
        # The second signal to stop, which is no Exception, does not wait for the disk.
        self._thread.shutdown(wait=kind is None or issubclass(kind, Exception))
        if self._path.name:
            remove(temporary(self._path))

    def write(self, snapshot: Snapshot, path: Path) -> str:
        """Copy a snapshot to the host, for the thread to write; return the name of this process's file."""
        self._path = snapshot.path(path)
        self._waiting = Queue[Any](max(2, self._buffer // snapshot.chunk_size) + 1)  # and the end
        self._task = self._thread.submit(_write, snapshot, self._path, iter(self._waiting.get, None))
        for chunk in snapshot.chunks():
            self._waiting.put(chunk)
        self._waiting.put(None)
        return self._path.name

    def finished(self) -> bool:
        """Whether the files are written, on all processes. Collective."""
        return self.pending is not None and all_processes(self._task is None or self._task.done())

    def finish(self) -> None:
        """Wait for a pending output; a snapshot gets its name once all processes have written theirs. Collective.

        Raises:
          OSError, SharedError: a file can't be written; the output is still pending.
        """
        if self.pending is None:
            return
        with part("output: waiting"), raise_on_all_processes():
            if self._task is not None:
                self._task.result()
        if self._path.name:
            os.replace(temporary(self._path), self._path)
        self.pending[-1]()
        self.pending, self._task, self._path = None, None, Path()


@part("output: snapshot")
def _write(snapshot: Snapshot, path: Path, chunks: Iterator[Any]) -> None:
    try:
        with write_aside(path) as aside:
            snapshot.write(aside, chunks)
    finally:
        for _ in chunks:  # those that the main thread still hands over, after an error
            pass
