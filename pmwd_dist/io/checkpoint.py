"""Checkpoints: the exact state of a run, one file a process, in a folder that appears when it is complete."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmwd_dist._files import remove, sync, temporary
from pmwd_dist.io.arrays import ArrayFile, ArrayFileError, reading, write_arrays
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes

_NAME = re.compile(r"checkpoint_(\d{6,})")
_OWN = re.compile(r"\d+\.npz|\.\d+\.npz\.part")
REMEDY = "remove this checkpoint to start over"

Box = tuple[tuple[int, int], ...]  # first and end element along each axis
Block = tuple[ArrayFile, str, Box]  # its file, its name there, and its place in the array


def path_of(folder: Path, step: int) -> Path:
    """Path of the checkpoint of a step."""
    return folder / f"checkpoint_{step:06d}"


def save(folder: Path, step: int, tree: Any, meta: dict[str, Any]) -> Path:
    """Write a pytree of arrays as the checkpoint of a step. Collective.

    `meta` is further content that JSON can hold, the same on all processes. Returns the checkpoint, a folder with one
    file a process. Raises OSError if it can't be written; it is absent then.
    """
    path = path_of(folder, step)
    aside = temporary(path)
    leaves = jax.tree.leaves(tree)
    description = meta | {
        "step": step,
        "processes": jax.process_count(),
        "leaves": [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves],
    }
    try:
        with raise_on_all_processes():
            if distributed.is_main():
                discard(aside)
                aside.mkdir()
        # Until every part has its name, the folder must keep its own.
        with raise_on_all_processes():
            write_arrays(aside / f"{jax.process_index()}.npz", _blocks(leaves), description)
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
    with suppress(FileNotFoundError):  # after an error all processes remove the unfinished files
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


def meta(path: Path) -> dict[str, Any]:
    """Description of a checkpoint; ArrayFileError if it is damaged, or renamed after another step."""
    with ArrayFile(path / "0.npz", REMEDY) as part:
        with part.reading():
            step, count = part.about["step"], part.about["processes"]
        if step != _step(path):
            raise ArrayFileError(f"{path}: is the checkpoint of step {step}, renamed; {REMEDY}")
        if not isinstance(count, int) or count < 1:
            raise part.error("is damaged")
        return part.about


def load(path: Path, like: Any) -> Any:
    """Read the pytree of a checkpoint, with the shardings of `like`, which may differ from the saved ones.

    `like` holds arrays, or jax.ShapeDtypeStruct with shardings. Raises ArrayFileError if the checkpoint is damaged, or
    holds other arrays.
    """
    description = meta(path)
    leaves, structure = jax.tree.flatten(like)
    with reading(path, REMEDY):
        saved = [(tuple(shape), dtype) for shape, dtype in description["leaves"]]
    if saved != [(leaf.shape, str(leaf.dtype)) for leaf in leaves]:
        raise ArrayFileError(f"{path}: holds the arrays of another run; resume with the settings of its own run")
    with ExitStack() as opened:
        parts = [opened.enter_context(ArrayFile(path / f"{i}.npz", REMEDY)) for i in range(description["processes"])]
        for part in parts:
            part.expect(description)
        where = _index(parts)
        arrays = [_assemble(path, where.get(i, []), leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, arrays)


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple((s.start or 0, n if s.stop is None else s.stop) for s, n in zip(index, shape, strict=True))


def _blocks(leaves: list[jax.Array]) -> dict[str, np.ndarray]:
    """Blocks of all arrays that this process writes, by names of array index and box, such as "0@0:4,0:8"."""
    return {
        f"{i}@" + ",".join(f"{low}:{high}" for low, high in _box(shard.index, leaf.shape)): np.asarray(shard.data)
        for i, leaf in enumerate(leaves)
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    }


def _index(parts: list[ArrayFile]) -> dict[int, list[Block]]:
    """Blocks by array index."""
    where = defaultdict[int, list[Block]](list)
    for part in parts:
        for name in part.names:
            with part.reading():
                leaf, _, place = name.partition("@")
                pairs = [edges.split(":") for edges in place.split(",") if edges]
                where[int(leaf)].append((part, name, tuple((int(low), int(high)) for low, high in pairs)))
    return where


def _assemble(path: Path, blocks: list[Block], like: Any) -> jax.Array:
    """An array with the sharding of `like`; each device reads only the blocks that overlap with its own."""

    def read(index: Any) -> np.ndarray:
        mine = _box(index, like.shape)
        out = np.empty([high - low for low, high in mine], like.dtype)
        missing = out.size
        for part, name, box in blocks:
            common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(mine, box, strict=True))
            if all(low < high for low, high in common):
                values = part.read(name)
                if values.shape != tuple(high - low for low, high in box) or values.dtype != out.dtype:
                    raise part.error(f"is damaged: {name} is of shape {values.shape} and type {values.dtype}")
                out[_within(common, mine)] = values[_within(common, box)]
                missing -= math.prod(high - low for low, high in common)
        if missing:
            raise ArrayFileError(f"{path}: incomplete ({missing} elements are missing); {REMEDY}")
        return out

    return jax.make_array_from_callback(like.shape, like.sharding, read)


def _within(part: Box, whole: Box) -> tuple[slice, ...]:
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(part, whole, strict=True))
