"""Damaged checkpoints load as they were or not at all: `python tests/io/fuzz_checkpoints.py --count 500`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import numpy as np

from pmwd_dist.io import checkpoint
from pmwd_dist.io.arrays import ArrayFileError

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes


def damage_and_load(path: Path, tree: dict[str, jax.Array], seed: int) -> str:
    """Damage one file of a copy of a checkpoint, load it, and say what came of it."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(path, Path(folder) / path.name))
        file = copy / str(rng.choice(sorted(path.name for path in copy.iterdir())))
        if rng.random() < 0.05:
            file.unlink()
        else:
            file.write_bytes(processes.damaged(file.read_bytes(), rng))
        try:
            loaded = checkpoint.load(copy, tree)
        except ArrayFileError as error:
            return "refused" if len(str(error).splitlines()) == 1 else f"wrong: several lines: {error}"
    same = all(np.array_equal(loaded[name], tree[name]) for name in tree)
    return "the same" if same else "wrong: other numbers"


def main() -> int:
    """Try many, each in a process of its own, and print the counts."""
    count, seed = processes.arguments(__doc__)
    tally = processes.Tally("damaged checkpoints")
    with tempfile.TemporaryDirectory() as folder:
        path = processes.in_own_process(partial(_save, Path(folder)))
        for case in range(seed, seed + count):
            tally.add(f"seed {case}", processes.in_own_process(partial(_case, Path(path), case)))
    return tally.report()


def _tree() -> dict[str, jax.Array]:
    values = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype(np.float32)
    return {"disp": jax.numpy.asarray(values), "code": jax.numpy.int32(3)}


def _save(folder: Path) -> str:
    return str(checkpoint.save(folder, 3, _tree(), {"times": [0.1, 1.0]}))


def _case(path: Path, seed: int) -> str:
    return damage_and_load(path, _tree(), seed)


if __name__ == "__main__":
    sys.exit(main())
