"""Files of arrays by name with a description: complete or absent, with checksums.

A file is an .npz archive of NumPy, with a CRC-32 of each array. The description is JSON, as one more array.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib.npyio import NpzFile

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write, open_regular

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]
About = Mapping[str, Any]

RESTORE = "restore it from a copy, or sample again in another folder"
_ABOUT = "about"  # name of the description among the arrays


class ArrayFileError(ValueError):
    """A file of arrays that is missing or damaged, or holds other arrays than expected."""


class _Content(ValueError):
    """Unexpected content; the message follows the name of the file."""


def fingerprint(about: Any) -> str:
    """Short digest of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def reading(path: Path, remedy: str = RESTORE) -> Generator[None]:
    """Raise errors of the body as ArrayFileError, with the name of the file and the remedy."""
    try:
        yield
    except ArrayFileError:
        raise
    except FileNotFoundError as error:
        raise ArrayFileError(f"{path}: is missing; {remedy}") from error
    except KeyError as error:
        raise ArrayFileError(f"{path}: lacks {error.args[0]!r}; {remedy}") from error
    except Exception as error:
        cause = error if isinstance(error, _Content | ArgumentError) else "is damaged"
        raise ArrayFileError(f"{path}: {cause}; {remedy}") from error


def write_arrays(path: Path, arrays: Arrays, about: About) -> None:
    """Write arrays by name, and their description, which JSON can hold; the file is complete or absent."""
    described: dict[str, Any] = {_ABOUT: np.frombuffer(json.dumps(dict(about)).encode(), np.uint8)}
    with atomic_write(path) as aside, aside.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **described, **arrays)


class ArrayFile:
    """A file of arrays, open for reading; the remedy is advice at the end of error messages.

    Raises ArrayFileError if the file is missing or damaged, and OSError if it can't be opened.
    """

    def __init__(self, path: Path, remedy: str = RESTORE):
        self.path, self._remedy = path, remedy
        try:
            self._stream = open_regular(path)
        except FileNotFoundError as error:
            raise ArrayFileError(f"{path}: is missing; {remedy}") from error
        try:
            with self.reading():
                self._file: Any = NpzFile(self._stream)
                if sum(item.file_size for item in self._file.zip.infolist()) > os.fstat(self._stream.fileno()).st_size:
                    raise _Content("is compressed, which `write_arrays` never does")
                self.names = [name for name in self._file.files if name != _ABOUT]
                self.about: dict[str, Any] = dict(json.loads(self._file[_ABOUT].tobytes()))
        except ArrayFileError:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._stream.close()

    def reading(self) -> AbstractContextManager[None]:
        """Raise errors of the body as ArrayFileError."""
        return reading(self.path, self._remedy)

    @property
    def digest(self) -> str:
        """Digest of the names and checksums of all arrays."""
        return fingerprint([[item.filename, item.CRC] for item in self._file.zip.infolist()])

    def expect(self, about: About) -> None:
        """Raise ArrayFileError unless the description has the entries of `about`."""
        for key, value in about.items():
            if (there := self.about.get(key)) != value:
                raise self.error(f"is of another run or place: it has {key} = {there!r:.60}, not {value!r:.60}")

    def error(self, cause: str) -> ArrayFileError:
        """ArrayFileError with the name of the file, a cause and the remedy."""
        return ArrayFileError(f"{self.path}: {cause}; {self._remedy}")

    def read(self, name: str) -> np.ndarray:
        """Read an array and verify its checksum."""
        with self.reading():
            return self._file[name]

    def arrays(self, shapes: Shapes | None = None) -> Arrays:
        """All arrays, after a check of the shapes of required ones."""
        found = {name: self.read(name) for name in self.names}
        with self.reading():
            check_shapes(found, shapes or {})
        return found


def read_arrays(
    path: Path, about: About | None = None, shapes: Shapes | None = None, *, remedy: str = RESTORE
) -> Arrays:
    """Read the arrays of a file, with required entries of the description, and names and shapes of required arrays.

    Raises ArrayFileError if the file is missing or damaged, of another run, or holds other arrays.
    """
    with ArrayFile(path, remedy) as file:
        file.expect(about or {})
        return file.arrays(shapes)


def check_shapes(arrays: Arrays, shapes: Shapes) -> None:
    """Raise, for `reading`, unless the arrays of `shapes` exist, hold numbers and have these shapes."""
    for name, shape in shapes.items():
        there = arrays[name]
        if there.dtype.kind not in "biuf":
            raise _Content(f"has no numbers as {name!r}")
        if there.shape != shape:
            raise _Content(f"has {name!r} of shape {there.shape}, not {shape}")
