"""Checkpoints: the exact state of a run, one file a process, in a folder that appears when it is complete."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.lib.npyio import NpzFile

from pmwd_dist._files import atomic_write, remove
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes

_NAME = re.compile(r"checkpoint_(\d+)$")
_META = "meta.json"


def save(folder: Path, step: int, tree: Any, meta: dict[str, Any]) -> Path:
    """Write a pytree of arrays as the checkpoint of a step, then remove older ones. Collective.

    Args:
      folder: of the run.
      step: steps done.
      tree: arrays on any devices.
      meta: further content, as JSON holds it.

    Returns:
      The checkpoint, a folder with one file a process.

    Raises:
      OSError: it can't be written; the previous one is then still there.
    """
    path = folder / f"checkpoint_{step:06d}"
    aside = folder / f".{path.name}.part"
    leaves = jax.tree.leaves(tree)
    description = meta | {
        "step": step,
        "processes": jax.process_count(),
        "leaves": [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves],
    }
    try:
        with raise_on_all_processes():
            if distributed.is_main():
                remove(aside)
                aside.mkdir()
                (aside / _META).write_text(json.dumps(description, indent=1), encoding="utf-8")
        part = aside / f"{jax.process_index()}.npz"
        with atomic_write(part, guard=raise_on_all_processes()) as file, file.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **_blocks(leaves))
        with raise_on_all_processes():
            if distributed.is_main():
                if path.exists():  # interrupted just after a regular checkpoint, which is the same
                    remove(aside)
                else:
                    os.replace(aside, path)
    except BaseException:
        remove(aside)
        raise
    clear(folder, keep=path)
    return path


def clear(folder: Path, keep: Path | None = None) -> None:
    """Remove the checkpoints of a run, all or all but one, and unfinished ones."""
    if distributed.is_main():
        unfinished = folder.glob(".checkpoint_*.part")
        for path in [*_all(folder), *unfinished]:
            if path != keep:
                remove(path)


def latest(folder: Path) -> Path | None:
    """Path of the last complete checkpoint of a run; None if there is none."""
    return max(_all(folder), default=None, key=lambda path: int(path.name.rpartition("_")[2]))


def _all(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _NAME.match(path.name) and path.is_dir()]


def meta(path: Path) -> dict[str, Any]:
    """Content of a checkpoint besides the arrays.

    Raises:
      ValueError: the checkpoint is damaged.
    """
    try:
        content = json.loads((path / _META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / _META}: damaged ({error}); remove this checkpoint to start over") from error
    return dict(content)


def load(path: Path, like: Any) -> Any:
    """Read the pytree of a checkpoint, with the shardings of `like`; it may have been saved from others.

    Args:
      path: of the checkpoint.
      like: pytree of arrays or of jax.ShapeDtypeStruct with shardings.

    Raises:
      ValueError: the checkpoint is damaged, or holds other arrays.
    """
    description = meta(path)
    leaves, structure = jax.tree.flatten(like)
    saved = [(tuple(shape), dtype) for shape, dtype in description["leaves"]]
    if saved != [(leaf.shape, str(leaf.dtype)) for leaf in leaves]:
        raise ValueError(f"{path}: holds the arrays of another run; resume with the settings that it was made with")
    try:
        with ExitStack() as opened:
            parts = [opened.enter_context(np.load(path / f"{i}.npz")) for i in range(description["processes"])]
            where = _index(parts)
            arrays = [_assemble(where[i], leaf) for i, leaf in enumerate(leaves)]
    except (OSError, KeyError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: damaged or incomplete ({error}); remove this checkpoint to start over") from error
    return jax.tree.unflatten(structure, arrays)


Box = tuple[tuple[int, int], ...]  # first and end element along each axis


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


def _index(parts: list[NpzFile]) -> dict[int, list[tuple[NpzFile, str, Box]]]:
    """Blocks of each array: the file, the name in it and the place in the array."""
    where: dict[int, list[tuple[NpzFile, str, Box]]] = {}
    for part in parts:
        for name in part.files:
            leaf, _, place = name.partition("@")
            pairs = [edges.split(":") for edges in place.split(",") if edges]
            where.setdefault(int(leaf), []).append((part, name, tuple((int(low), int(high)) for low, high in pairs)))
    return where


def _assemble(blocks: list[tuple[NpzFile, str, Box]], like: Any) -> jax.Array:
    """An array with the sharding of `like`; each device reads only the blocks that overlap with its own."""

    def read(index: Any) -> np.ndarray:
        mine = _box(index, like.shape)
        out = np.empty([high - low for low, high in mine], like.dtype)
        missing = out.size
        for part, name, box in blocks:
            common = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(mine, box, strict=True))
            if all(low < high for low, high in common):
                out[_within(common, mine)] = part[name][_within(common, box)]
                missing -= math.prod(high - low for low, high in common)
        if missing:
            raise KeyError(f"{missing} elements are missing")
        return out

    return jax.make_array_from_callback(like.shape, like.sharding, read)


def _within(part: Box, whole: Box) -> tuple[slice, ...]:
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(part, whole, strict=True))
