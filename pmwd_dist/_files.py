"""Files that are complete or absent."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

_FULL = 1 << 20  # a file system with fewer free bytes is full


def cache_folder() -> Path:
    """The user's folder of what can be computed again: pmwd_dist under XDG_CACHE_HOME, else under ~/.cache."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "pmwd_dist"


@contextmanager
def atomic_write(path: Path, *, guard: AbstractContextManager[None] | None = None) -> Generator[Path]:
    """Yield a temporary path beside the final one, and rename it to the final one if no error occurs.

    Args:
      path: the file to write.
      guard: context in which the file is written, before it is renamed: `raise_on_all_processes()` where each process
        writes a file of its own, of which none is kept unless all are complete.

    Raises:
      OSError: the file could not be written; nothing is left under either name.
    """
    aside = temporary(path)
    try:
        with guard or nullcontext(), _naming(path):
            yield aside
            sync(aside)
        os.replace(aside, path)
    except BaseException:
        remove(aside)
        raise


def temporary(path: Path) -> Path:
    """The path beside a final one under which it is written."""
    return path.with_name(f".{path.name}.part")


def exists(path: Path) -> bool:
    """Whether there is anything at a path, be it a link that leads nowhere."""
    return os.path.lexists(path)


def sync(path: Path) -> None:
    """Flush a file to the disk, or the names in a folder, before what relies on them is written or removed."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
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
    """Give an OSError of the body this name where it has none: writing to an open file tells the cause only."""
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
            os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(0)


def read_text(path: Path, most: int, *, pipe: bool = False) -> str:
    """Text of a regular file, or of a pipe where that is right, of at most so many bytes.

    Raises:
      OSError: it can't be read, is larger, or is something that may never end.
      UnicodeDecodeError: it isn't UTF-8.
    """
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or (pipe and stat.S_ISFIFO(kind))):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most / 1e6:g} MB", str(path))
    return content.decode("utf-8-sig")


def free_space(path: Path) -> int:
    """Free bytes on the file system on which this path is, or will be."""
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def message(error: OSError) -> str:
    """The name of the file and the cause of the error, without its number."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
