"""Files that are complete or absent."""

from __future__ import annotations

import errno
import math
import os
import shutil
import stat
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import BinaryIO

LARGEST = 64_000_000  # usual limit of a file that is read at once [bytes]
_FULL = 1 << 20  # a file system with fewer free bytes is full
# Errors of file systems (SMB, FUSE, NFS) that can't flush folders, or reserve space.
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.EBADF)


def cache_folder() -> Path:
    """The user's folder for caches: pmwd_dist under XDG_CACHE_HOME, else under ~/.cache."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "pmwd_dist"


@contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yield a temporary path beside the final one, and rename it to the final one if no error occurs.

    A symbolic link at either name is replaced and never followed.

    Raises:
      OSError: the file could not be written; nothing is left under either name.
    """
    try:
        with write_aside(path) as aside:
            yield aside
        os.replace(temporary(path), path)
    except BaseException:
        with suppress(OSError):
            remove(temporary(path))
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file by `atomic_write`."""
    with atomic_write(path) as aside:
        aside.write_bytes(text.encode())


@contextmanager
def write_aside(path: Path) -> Generator[Path]:
    """Yield a temporary path beside the final one, for a file that is complete and on the disk afterwards.

    Raises:
      OSError: the file could not be written; it names the final path.
    """
    aside, written = temporary(path), Event()
    with _naming(path), ThreadPoolExecutor(1) as pool:
        aside.unlink(missing_ok=True)
        flushing = pool.submit(_flush, aside, written)
        try:
            yield aside
        finally:
            written.set()
        flushing.result()
        sync(aside)


def _flush(path: Path, written: Event) -> None:
    """Flush a file while it is written: the system itself would begin seconds later."""
    while not written.wait(0.1):
        with suppress(FileNotFoundError):
            sync(path)


def temporary(path: Path) -> Path:
    """The temporary path beside a final one."""
    return path.with_name(f".{path.name}.part")


def exists(path: Path) -> bool:
    """Whether there is anything at a path, including a broken link."""
    return os.path.lexists(path)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(str(path)):
            os.fsync(handle)
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Flush a file to the disk, or the names in a folder where its file system can."""
    try:
        fsync(path)
    except OSError as error:
        if error.errno not in _UNSUPPORTED or not path.is_dir():
            raise


def remove(path: Path) -> None:
    """Remove a file or a link, if it is there; a folder stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Raise a failed write as an OSError with its cause and the file's name: HDF5 hides them in its message."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if number is None and f"errno = {code}," in str(error):
                number = code
        if number is None and free_space(path) < _FULL:
            number = errno.ENOSPC
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def naming(name: str) -> Generator[None]:
    """Give an OSError of the body this file name if it has none, as errors of writing to an open file have."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), name) from error


def reserve(path: Path, size: int) -> None:
    """Raise unless a file of this size [bytes] can be written; it is empty or absent afterwards.

    HDF5 prints many messages when the disk fills up while it writes.

    Raises:
      OSError: the file does not fit.
    """
    if hasattr(os, "posix_fallocate"):
        with path.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            file.truncate(0)


def append_text(path: Path, text: str) -> None:
    """Append a text to a regular file, without following a link or waiting for the reader of a pipe.

    Raises:
      OSError: the file can't be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        check_regular(file.fileno(), path, own=True)
        file.write(text)


def open_regular(path: Path, *, own: bool = False) -> BinaryIO:
    """Open a regular file for reading: reading a pipe or a device may never end.

    A file of a run's own folder (`own`) is no link: a folder of somebody else could name any file.

    Raises:
      OSError: the file can't be read, is not regular, or is a link and `own`.
    """
    if own and path.is_symlink():
        raise OSError(errno.ELOOP, "is a link, perhaps to a file outside of its folder", str(path))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | own * os.O_NOFOLLOW)
    try:
        check_regular(handle, path, own=own)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def check_regular(handle: int, path: Path, *, own: bool) -> None:
    """Raise OSError unless an open file is regular and, of a run's own folder (`own`), no hard link."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if own and status.st_nlink > 1:
        remedy = "put a copy in its place"
        raise OSError(errno.EMLINK, f"is a hard link, perhaps to a file outside of its folder; {remedy}", str(path))


def read_bytes(path: Path, most: int = LARGEST, *, pipe: bool = False, own: bool = False) -> bytes:
    """Content of a regular file, or also of a pipe with `pipe`, of at most `most` bytes.

    Raises:
      OSError: the file can't be read, is larger, or is not regular, or is a link and `own`.
    """
    with path.open("rb") if pipe and path.is_fifo() else open_regular(path, own=own) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most / 1e6:g} MB", str(path))
    return content


def read_text(path: Path, most: int = LARGEST, *, pipe: bool = False, own: bool = False) -> str:
    """Text of a file as `read_bytes` reads it.

    Raises:
      OSError: an error of `read_bytes`.
      UnicodeDecodeError: the file isn't UTF-8.
    """
    return read_bytes(path, most, pipe=pipe, own=own).decode("utf-8-sig")


def free_space(path: Path) -> float:
    """Free bytes on the file system of a path, which need not exist; infinite where it does not tell them."""
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError:  # as of a file system in user space
        return math.inf
    return free if total else math.inf


def message(error: Exception) -> str:
    """Cause of an error; of an OSError with its file name, and without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    name = error.filename2 or error.filename  # of a file that is renamed: its final name
    return f"{name}: {error.strerror}" if name else error.strerror
