"""Data files of an inference that are damaged or made up: each is read as it was, or refused in one sentence."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numcodecs
import numpy as np
from hdf5_damage import Make, data, objects
from processes import damaged

from pmwd_dist.run.common.data_files import read_files

SHAPE = (4, 6, 8)
VALUES = np.random.default_rng(0).normal(size=SHAPE)
KINDS = {"npy": "d.npy", "hdf5": "d.h5:/group/data"}
Change = Callable[[Path], None]


def write(folder: Path, kind: str) -> None:
    """An undamaged file, or a store."""
    if kind == "npy":
        np.save(folder / "d.npy", VALUES)
    else:
        with h5py.File(folder / "d.h5", "w") as file:
            file.create_dataset("group/data", data=VALUES, chunks=(2, 6, 8), fletcher32=True)


def header(descr: str, shape: str, *, version: bytes = b"\x01\x00", data: int = 0) -> Change:
    """A change to an .npy file with this header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return lambda folder: _replace(folder / "d.npy", b"\x93NUMPY" + version + length + text + bytes(data))


def _replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _pipe(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def _linked(name: str, to: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(to)

    return change


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.npy", b"text")
    return out.getvalue()


def _hdf5(make: Make) -> Change:
    """A change of an HDF5 file that puts something in the place of its data."""

    def change(folder: Path) -> None:
        with h5py.File(folder / "d.h5", "a") as file:
            del file["group/data"]
            make(file["group"], "data")

    return change


def _bomb(chunk: bytes, **options: Any) -> Change:
    def write(group: Any, name: str) -> None:
        data = group.create_dataset(name, SHAPE, "f8", chunks=(2, 6, 8), **options)
        for first in (0, 2):
            data.id.write_direct_chunk((first, 0, 0), chunk)

    return _hdf5(write)


_BOMB = numcodecs.Zstd().encode(bytes(1 << 26))  # 6 kB
MADE_UP: dict[str, dict[str, Change]] = {
    "npy": {
        "pipe": _pipe("d.npy"),
        "link to a device": _linked("d.npy", "/dev/zero"),
        "looping link": _linked("d.npy", "d.npy"),
        "empty": lambda folder: _replace(folder / "d.npy", b""),
        "zip": lambda folder: _replace(folder / "d.npy", _zip()),
        "pickle": lambda folder: np.save(folder / "d.npy", np.array([{}], object), allow_pickle=True),
        "text": lambda folder: _replace(folder / "d.npy", b"1 2 3\n"),
        "folder": lambda folder: ((folder / "d.npy").unlink(), (folder / "d.npy").mkdir())[0],
        "booleans": header("'<f8'", "(True, True, True)", data=8),
        "fractions": header("'<f8'", "(1e20,)"),
        "negative": header("'<f8'", "(-4, -6, 8)", data=8 * 192),
        "1 TB": header("'<f8'", "(1000000, 131072)"),
        "1e60": header("'<f8'", f"({10**20}, {10**20}, {10**20})"),
        "fewer values": header("'<f8'", "(4, 6, 8)", data=80),
        "text of numbers": header("'<U8'", "(4, 6, 8)", data=32 * 192),
        "structured": header("[('a', '<f8')]", "(4, 6, 8)", data=8 * 192),
        "complex": header("'<c16'", "(4, 6, 8)", data=16 * 192),
        "no type": header("'nonsense'", "(4, 6, 8)", data=8 * 192),
        "brackets": header("'<f8'", "(" * 3000),
        "version 9": header("'<f8'", "(4, 6, 8)", version=b"\x09\x00", data=8 * 192),
        "header of 4 GB": lambda folder: _replace(folder / "d.npy", b"\x93NUMPY\x02\0\xff\xff\xff\xef"),
        "no tuple": header("'<f8'", "192", data=8 * 192),
    },
    "hdf5": {
        "pipe": _pipe("d.h5"),
        "text": lambda folder: _replace(folder / "d.h5", b"1 2 3\n"),
        "no group": lambda folder: h5py.File(folder / "d.h5", "w").close(),
        "other shape": _hdf5(data(data=np.zeros((4, 6, 9)))),
        "bomb": _bomb(_BOMB, **hdf5plugin.Zstd()),
        "gzip bomb": _bomb(zlib.compress(bytes(1 << 26)), compression="gzip"),
        "short chunks": _bomb(b"\x50\x2a\x4d\x18" + bytes(4) + _BOMB, **hdf5plugin.Zstd()),
        "short gzip chunks": _bomb(zlib.compress(bytes(700)), compression="gzip"),
        "other filters": _hdf5(data(data=VALUES, chunks=(2, 6, 8), **hdf5plugin.Bitshuffle())),
        "large chunks": _hdf5(data(SHAPE, "f8", maxshape=(None,) * 3, chunks=(400, 400, 400), compression=1)),
        "1 TB": _hdf5(data((10**6, 10**6), "f8", chunks=(1024, 1024))),
    }
    | {what: _hdf5(make) for what, make in objects(SHAPE).items()},
}


def damage(folder: Path, kind: str, rng: np.random.Generator) -> None:
    """Change bytes of a file at random, or cut it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[int(rng.integers(len(files)))]
    path.write_bytes(damaged(path.read_bytes(), rng))


def outcome(folder: Path, kind: str, *, shapes: tuple[tuple[int, ...], ...] = (SHAPE,)) -> str:
    """What becomes of a changed file; AssertionError if that must not be."""
    name = f"{folder}/{KINDS[kind]}"
    arrays, problems = read_files({"data.file": name}, *shapes)
    if problems:
        (line,) = problems
        assert line.startswith("data.file = "), line
        assert len(line) < 320 + len(name), line
        assert line.isprintable(), line
        return "refused"
    found = arrays["data.file"]
    assert found.dtype == float
    assert not shapes or found.shape in shapes
    return "the same" if np.array_equal(found, VALUES) else "other values"
