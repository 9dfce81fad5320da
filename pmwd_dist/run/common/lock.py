"""One run a folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NAME = ".pmwd-dist.lock"
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Hold the lock of a run's folder, which has to exist.

    The kernel locks an open file (flock) and releases it when the process ends, however it ends. On NFS the server
    locks it, for all clients. On a file system without locks, such as Lustre mounted without `flock`, the process id
    in the file excludes only processes of the same host.

    Raises:
      ValueError: another process, or another run in this one, holds the lock.
      OSError: the lock file can't be written.
    """
    path = folder / NAME
    handle = _acquire(path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _acquire(path: Path) -> int:
    """The open file, locked."""
    while True:
        if path.is_symlink():
            raise _in_the_way(path)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            _check_own(handle, path)
            _lock(handle, path)
            if _is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the holder before us removed it while we opened it


def _check_own(handle: int, path: Path) -> None:
    """Raise ValueError unless it is a regular file that has no other name."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise _in_the_way(path)


def _in_the_way(path: Path) -> ValueError:
    return ValueError(f"{path}: is in the way, and not the lock of a run; move it")


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise ValueError(_in_use(path)) from error
        if error.errno not in _UNSUPPORTED:
            raise
        if _lives_here(path):
            raise ValueError(_in_use(path)) from error


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _holder(path: Path) -> tuple[int, str] | None:
    """Process and host that the file of a lock names."""
    try:
        pid, host = path.read_text(encoding="utf-8").split()
        return int(pid), host
    except (OSError, ValueError):
        return None


def _in_use(path: Path) -> str:
    holder = _holder(path)
    who = "another process" if holder is None else f"process {holder[0]} on {holder[1]}"
    return f"{path.parent}: {who} runs in this folder; wait for its end, or use another folder"


def _lives_here(path: Path) -> bool:
    """Whether the process that the file names is on this host and lives."""
    holder = _holder(path)
    if holder is None or holder[1] != socket.gethostname():
        return False
    try:
        os.kill(holder[0], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
