"""Checkpoints: the exact state of a run, one file a process, in a folder that appears when it is complete."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from numpy.lib.npyio import NpzFile

from pmwd_dist._files import atomic_write, remove, sync, temporary
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes

_NAME = re.compile(r"checkpoint_(\d{6,})")
_OWN = re.compile(r"meta\.json|\d+\.npz|\.(meta\.json|\d+\.npz)\.part")
_META = "meta.json"
_META_BYTES = 1 << 20
_CHECKSUM = "sha256"  # key of the description, and name of an array in each part
_REMEDY = "remove this checkpoint to start over"


Box = tuple[tuple[int, int], ...]  # first and end element along each axis


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or holds something else than it should."""


def path_of(folder: Path, step: int) -> Path:
    """Path of the checkpoint of a step."""
    return folder / f"checkpoint_{step:06d}"


def save(folder: Path, step: int, tree: Any, meta: dict[str, Any]) -> Path:
    """Write a pytree of arrays as the checkpoint of a step. Collective.

    Args:
      folder: of the run.
      step: steps done.
      tree: arrays on any devices.
      meta: further content, as JSON holds it, the same on all processes.

    Returns:
      The checkpoint, a folder with one file a process.

    Raises:
      OSError: it can't be written; there is none then.
    """
    path = path_of(folder, step)
    aside = temporary(path)
    leaves = jax.tree.leaves(tree)
    description = meta | {
        "step": step,
        "processes": jax.process_count(),
        "leaves": [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves],
    }
    checksum = _checksum(description)
    try:
        with raise_on_all_processes():
            if distributed.is_main():
                discard(aside)
                aside.mkdir()
                with atomic_write(aside / _META) as file:
                    file.write_text(json.dumps(description | {_CHECKSUM: checksum}, indent=1), encoding="utf-8")
        part = aside / f"{jax.process_index()}.npz"
        # Until every part has its name, the folder must keep its own.
        with raise_on_all_processes(), atomic_write(part) as file, file.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **{_CHECKSUM: np.asarray(checksum)}, **_blocks(leaves))
        with raise_on_all_processes():
            if distributed.is_main():
                if path.exists():  # interrupted just after a regular checkpoint, which is the same
                    discard(aside)
                else:
                    sync(aside)
                    os.replace(aside, path)
                    sync(folder)
    except BaseException:
        discard(aside)
        raise
    return path


def discard(path: Path) -> None:
    """Remove a checkpoint, complete or not; its folder stays if it holds other files."""
    if path.is_symlink() or not path.is_dir():
        return
    with suppress(FileNotFoundError):  # after an error all processes remove what is unfinished
        for file in path.iterdir():
            if _OWN.fullmatch(file.name):
                remove(file)
    with suppress(OSError):  # not empty
        path.rmdir()


def latest(folder: Path) -> Path | None:
    """Path of the last complete checkpoint of a run; None if there is none."""
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return max(found, default=None, key=_step)


def _step(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _checksum(description: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def meta(path: Path) -> dict[str, Any]:
    """Content of a checkpoint besides the arrays, which its checksum and the name of its folder confirm.

    Raises:
      CheckpointError: the checkpoint is damaged.
    """
    file = path / _META
    try:
        with file.open("rb") as stream:
            content = dict(json.loads(stream.read(_META_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged ({error}); {_REMEDY}") from error
    if content.pop(_CHECKSUM, None) != _checksum(content):
        raise CheckpointError(f"{file}: damaged (its checksum is not that of its content); {_REMEDY}")
    if content["step"] != _step(path):
        raise CheckpointError(f"{path}: is the checkpoint of step {content['step']}, renamed; {_REMEDY}")
    return content


def load(path: Path, like: Any) -> Any:
    """Read the pytree of a checkpoint, with the shardings of `like`; it may have been saved from others.

    Args:
      path: of the checkpoint.
      like: pytree of arrays or of jax.ShapeDtypeStruct with shardings.

    Raises:
      CheckpointError: the checkpoint is damaged, or holds other arrays.
    """
    description = meta(path)
    leaves, structure = jax.tree.flatten(like)
    saved = [(tuple(shape), dtype) for shape, dtype in description["leaves"]]
    if saved != [(leaf.shape, str(leaf.dtype)) for leaf in leaves]:
        raise CheckpointError(
            f"{path}: holds the arrays of another run; resume with the settings that it was made with"
        )
    with ExitStack() as opened:
        parts = [opened.enter_context(_Part(path / f"{i}.npz")) for i in range(description["processes"])]
        for part in parts:
            part.check(_checksum(description))
        where = _index(parts)
        arrays = [_assemble(path, where.get(i, []), leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, arrays)


class _Part:
    """The file of one process; whatever zip and NumPy raise on reading it is a CheckpointError."""

    def __init__(self, path: Path):
        self.path = path
        self._stream = self._attempt(lambda: path.open("rb"))
        try:
            self._file: NpzFile = self._attempt(lambda: NpzFile(self._stream))
        except CheckpointError:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._stream.close()

    def blocks(self) -> list[tuple[int, str, Box]]:
        """Blocks in the file: the number of the array, the name in the file and the place in the array."""
        return self._attempt(lambda: [_place(name) for name in self._file.files if name != _CHECKSUM])

    def check(self, checksum: str) -> None:
        """Raise unless the file belongs to the description with this checksum."""
        if str(self._attempt(lambda: self._file[_CHECKSUM])) != checksum:
            raise self._damaged("of another checkpoint")

    def read(self, name: str, box: Box, dtype: np.dtype) -> np.ndarray:
        """A block; zip verifies its checksum."""
        values = self._attempt(lambda: self._file[name])
        if values.shape != tuple(high - low for low, high in box) or values.dtype != dtype:
            raise self._damaged(f"{name} is of shape {values.shape} and type {values.dtype}")
        return values

    def _attempt(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            raise self._damaged(str(error) or type(error).__name__) from error

    def _damaged(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: damaged or incomplete ({reason}); {_REMEDY}")


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple((s.start or 0, n if s.stop is None else s.stop) for s, n in zip(index, shape, strict=True))


def _blocks(leaves: list[jax.Array]) -> dict[str, np.ndarray]:
    """Blocks of all arrays that this process writes, by names with the array's number and the block's place."""
    return {
        f"{i}@" + ",".join(f"{low}:{high}" for low, high in _box(shard.index, leaf.shape)): np.asarray(shard.data)
        for i, leaf in enumerate(leaves)
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    }


def _place(name: str) -> tuple[int, str, Box]:
    leaf, _, place = name.partition("@")
    pairs = [edges.split(":") for edges in place.split(",") if edges]
    return int(leaf), name, tuple((int(low), int(high)) for low, high in pairs)


def _index(parts: list[_Part]) -> dict[int, list[tuple[_Part, str, Box]]]:
    """Blocks of each array: the file, the name in it and the place in the array."""
    where: dict[int, list[tuple[_Part, str, Box]]] = {}
    for part in parts:
        for leaf, name, box in part.blocks():
            where.setdefault(leaf, []).append((part, name, box))
    return where


def _assemble(path: Path, blocks: list[tuple[_Part, str, Box]], like: Any) -> jax.Array:
    """An array with the sharding of `like`; each device reads only the blocks that overlap with its own."""

    def read(index: Any) -> np.ndarray:
        mine = _box(index, like.shape)
        out = np.empty([high - low for low, high in mine], like.dtype)
        missing = out.size
        for part, name, box in blocks:
            common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(mine, box, strict=True))
            if all(low < high for low, high in common):
                out[_within(common, mine)] = part.read(name, box, out.dtype)[_within(common, box)]
                missing -= math.prod(high - low for low, high in common)
        if missing:
            raise CheckpointError(f"{path}: incomplete ({missing} elements are missing); {_REMEDY}")
        return out

    return jax.make_array_from_callback(like.shape, like.sharding, read)


def _within(part: Box, whole: Box) -> tuple[slice, ...]:
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(part, whole, strict=True))
