"""Files of a chain: complete or absent, with a checksum, and named in one line where they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

RESTORE = "restore it from a copy, or sample again in another folder"
_USER_BLOCK = 512  # bytes that HDF5 leaves to others at the start of a file: the mark and the checksum
_MARK = b"pmwd_dist sha256 "


class ChainFileError(ValueError):
    """A file of a chain that is missing or damaged, or holds something else than it should."""


@contextmanager
def reading(path: Path, remedy: str = RESTORE) -> Generator[None]:
    """Raise what goes wrong in the body as ChainFileError, with the name of the file and what to do.

    Raises:
      ChainFileError: the file is missing, damaged, or holds something else.
      OSError: the system does not let it be read.
    """
    try:
        yield
    except ChainFileError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if path.exists() and number is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise ChainFileError(f"{path}: {_cause(path, error)}; {remedy}") from error


def _cause(path: Path, error: Exception) -> str:
    if not path.exists():
        return "is missing"
    if path.stat().st_size == 0:
        return "is empty"
    if isinstance(error, KeyError):
        return f"lacks {error.args[0]!r}"
    if isinstance(error, _Content | ArgumentError):
        return str(error)
    return "is damaged"


class _Content(ValueError):
    """Content that is not as it should be; its message follows the name of the file."""


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays by name as HDF5, with a checksum; the file is complete or absent.

    Raises:
      OSError: the file can't be written.
    """
    with atomic_write(path) as aside:
        with h5py.File(aside, "w", userblock_size=_USER_BLOCK) as file:
            for name, values in arrays.items():
                file.create_dataset(name, data=values)
        checksum = _checksum(aside)
        with aside.open("r+b") as raw:
            raw.write(_MARK + checksum)


def read_arrays(path: Path, shapes: Shapes | None = None, *, remedy: str = RESTORE) -> Arrays:
    """Read the arrays of such a file.

    Args:
      path: of the file.
      shapes: of arrays that must be there, by name.
      remedy: what to do where it is damaged.

    Raises:
      ChainFileError: the file is missing or damaged, or holds other arrays.
      OSError: the system does not let it be read.
    """
    with reading(path, remedy):
        _check_bytes(path)
        arrays = _read(path)
        check_shapes(arrays, shapes or {})
    return arrays


def _check_bytes(path: Path) -> None:
    """Raise, for `reading`, if the checksum is wrong; files of versions that wrote none have no mark."""
    with path.open("rb") as raw:
        mark, checksum = raw.read(len(_MARK)), raw.read(hashlib.sha256().digest_size)
    if mark == _MARK and checksum != _checksum(path):
        raise _Content("is damaged")


def _checksum(path: Path) -> bytes:
    """Of all that HDF5 wrote, which it must not even open if a byte is wrong: it may crash the program."""
    with path.open("rb") as raw:
        raw.seek(_USER_BLOCK)
        return hashlib.file_digest(raw, "sha256").digest()


def _read(path: Path) -> Arrays:
    arrays: Arrays = {}
    with h5py.File(path, "r") as file:

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                arrays[name] = np.asarray(item[()])

        file.visititems(visit)
    return arrays


def check_shapes(arrays: Arrays, shapes: Shapes) -> None:
    """Raise, for `reading`, unless these arrays are there and hold numbers, and in these shapes."""
    for name, shape in shapes.items():
        there = arrays[name]
        if there.dtype.kind not in "biuf":
            raise _Content(f"has no numbers as {name!r}")
        if there.shape != shape:
            raise _Content(f"has {name!r} of shape {there.shape}, not {shape}")


def write_text(path: Path, content: Mapping[str, str]) -> None:
    """Write texts by name as JSON; the file is complete or absent.

    Raises:
      OSError: the file can't be written.
    """
    with atomic_write(path) as aside:
        aside.write_text(json.dumps(dict(content), indent=1), encoding="utf-8")


def read_text(path: Path) -> dict[str, str]:
    """Read the texts of such a file.

    Raises:
      ChainFileError: the file is missing or damaged.
      OSError: the system does not let it be read.
    """
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
            raise _Content("is damaged")
        return content
