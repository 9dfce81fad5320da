"""Files that are complete or absent, and errors of one process that are errors of all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import jax
import numpy as np

_MESSAGE_BYTES = 4096
_ROOM = 1 << 20  # a file system with less than this is full


@contextmanager
def atomic_write(path: Path, *, collective: bool = False) -> Iterator[Path]:
    """A path beside the final one to write to; it gets its final name only if all went well.

    Args:
      path: of this process's file or folder.
      collective: every process is writing a file of its own here, and none is kept unless all are well.

    Raises:
      OSError: the file could not be written; nothing is left under either name.
      SharedError: this or another process of several could not write its file.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with raise_on_all_processes() if collective else nullcontext(), _naming(path):
            yield aside
            _sync(aside)
        os.replace(aside, path)
    except BaseException:
        remove(aside)
        raise


def _sync(path: Path) -> None:
    """Have the operating system put a file on the disk, so that a rename cannot come before its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise a failed write as an OSError with its cause and the file's name: HDF5 hides them in its message."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if number is None and f"errno = {code}," in str(error):
                number = code
        if number is None and free_space(path) < _ROOM:
            number = errno.ENOSPC
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def reserve(path: Path, size: int) -> None:
    """Try whether a file of this size [bytes] can be written; it is empty or absent afterwards.

    For libraries that end in a heap of messages when the disk fills up under them.

    Raises:
      OSError: it can't.
    """
    if hasattr(os, "posix_fallocate"):
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(0)


def free_space(path: Path) -> int:
    """Free bytes on the file system on which this path is, or will be."""
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def first_error(problem: str | None) -> str | None:
    """The problem of the first process that has one; collective. With it, all stop rather than one hang."""
    if jax.process_count() == 1:
        return problem
    from jax.experimental import multihost_utils

    text = (problem or "").encode()[:_MESSAGE_BYTES]
    mine = np.zeros(_MESSAGE_BYTES, np.uint8)
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, _MESSAGE_BYTES)
    messages = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in everyone]
    return next((message for message in messages if message), None)


def message(error: OSError) -> str:
    """What went wrong with which file, without the number of the error."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


class SharedError(RuntimeError):
    """An error that all processes have agreed on."""


@contextmanager
def raise_on_all_processes() -> Iterator[None]:
    """Run this on every process; if it fails on one, all raise. Collective at its end.

    Raises:
      SharedError: it failed on this or another process, of several.
    """
    problem: Exception | None = None
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        problem = error
    if jax.process_count() == 1:
        if problem is not None:
            raise problem
        return
    text = message(problem) if isinstance(problem, OSError) else str(problem)
    text = first_error(None if problem is None else text)
    if text:
        raise SharedError(text) from problem
