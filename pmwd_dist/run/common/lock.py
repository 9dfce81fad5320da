"""One run a folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pmwd_dist._files import check_regular

NAME = ".pmwd-dist.lock"
_MOST = 1000  # bytes of the number of a process and its host
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class InUseError(ValueError):
    """Another process, or another run in this one, holds a lock."""


@contextmanager
def folder_lock(folder: Path, name: str = NAME, *, wait: bool = False) -> Generator[None]:
    """Hold the lock of a run's folder, which has to exist, or another one of this name there.

    The kernel locks an open file (flock) and releases it when the process ends, however it ends. On NFS the server
    locks it, for all clients. A file system without locks, such as Lustre mounted without `flock`, excludes nobody. The
    file stays, and is empty while nobody holds the lock. Raises InUseError if another holds it, unless it is to wait.
    """
    path, flags = folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o666), "rb+", buffering=0) as file:
        check_regular(file.fileno(), path, own=True)  # it would be emptied
        holder = file.read(_MOST).decode(errors="replace").split()
        is_known = len(holder) == 2 and holder[0].isdecimal() and int(holder[0]) > 0  # no process is 0
        who = f"process {int(holder[0])} on {holder[1]}" if is_known else "another process"
        with _naming(path):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    in_use = f"{folder}: {who} runs in this folder; wait for its end, or use another folder"
                    raise InUseError(in_use) from error
                if error.errno not in _UNSUPPORTED:
                    raise
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        finally:
            with _naming(path):
                os.ftruncate(file.fileno(), 0)


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Give an OSError of the body the name of the lock file, and a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free space there, or use a folder on another file system"
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}; {remedy}", str(path)) from error
