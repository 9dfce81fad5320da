"""Checkpoints: what is saved on one division over devices loads on any other."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import damaged

import pmwd_dist as pmd
from pmwd_dist._files import reserve, sync
from pmwd_dist.io import checkpoint
from pmwd_dist.io.arrays import ArrayFile, ArrayFileError, write_arrays


def test_checkpoint_loads_on_any_devices(decomposition: pmd.Decomposition, tmp_path: Path):
    shape = (8, 8, 4, 3)
    values = np.random.default_rng(0).normal(size=shape)
    tree = {
        "disp": jax.device_put(values, decomposition.sharding),
        "code": jax.device_put(np.int32(3), decomposition.replicated),
        "table": jax.device_put(np.arange(5.0), decomposition.replicated),
    }
    path = checkpoint.save(tmp_path, 7, tree, {"times": [0.1, 1.0]})
    assert checkpoint.meta(path)["step"] == 7
    for pdims in ((1, 1), (4, 1), (2, 2)):
        other = pmd.Decomposition(pdims)
        like = {
            "disp": jax.ShapeDtypeStruct(shape, values.dtype, sharding=other.sharding),
            "code": jax.device_put(np.int32(0), other.replicated),
            "table": jax.device_put(np.zeros(5), other.replicated),
        }
        read_back = checkpoint.load(path, like)
        np.testing.assert_array_equal(read_back["disp"], values)
        np.testing.assert_array_equal(read_back["table"], np.arange(5.0))
        assert int(read_back["code"]) == 3
        assert read_back["disp"].sharding == other.sharding
    with pytest.raises(ArrayFileError, match="another run"):
        checkpoint.load(path, {"disp": tree["table"]})


@pytest.fixture
def saved(single: pmd.Decomposition, tmp_path: Path) -> tuple[Path, dict[str, jax.Array]]:
    """A checkpoint of step 3, and its content."""
    values = np.random.default_rng(0).normal(size=(4, 4, 4, 3))
    tree = {"disp": jax.device_put(values, single.sharding), "code": jax.device_put(np.int32(3), single.replicated)}
    return checkpoint.save(tmp_path, 3, tree, {"times": [0.1, 1.0]}), tree


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES])
def test_a_file_system_that_can_not_flush_folders_or_reserve_space(
    saved: tuple[Path, dict[str, jax.Array]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    """Errors of another number, and of files, stay errors."""
    (_, tree), files = saved, False

    def fail(handle: int, *space: int) -> None:
        if space or files or stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "posix_fallocate", fail)
    loaded = checkpoint.load(checkpoint.save(tmp_path, 4, tree, {}), tree)
    np.testing.assert_array_equal(loaded["disp"], tree["disp"])
    reserve(tmp_path / "file", 100)
    assert (tmp_path / "file").stat().st_size == 0
    files = True
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        sync(tmp_path / "file")
    files, number = False, errno.EIO
    with pytest.raises(OSError, match="Input/output error: .*checkpoint_000005"):
        checkpoint.save(tmp_path, 5, tree, {})
    assert not checkpoint.path_of(tmp_path, 5).exists()


def test_description_is_verified(saved: tuple[Path, dict[str, jax.Array]], tmp_path: Path):
    path, tree = saved
    with ArrayFile(path / "0.npz") as file:
        arrays, about = file.arrays(), file.about
    for change in ({"step": "3"}, {"processes": 0}, {"processes": 2}, {"leaves": 3}):
        write_arrays(path / "0.npz", arrays, about | change)
        with pytest.raises(ArrayFileError, match=r"damaged|missing|renamed"):
            checkpoint.load(path, tree)
    np.savez_compressed(path / "0.npz", **arrays, zeros=np.zeros(1 << 20))
    with pytest.raises(ArrayFileError, match="is compressed"):
        checkpoint.load(path, tree)
    write_arrays(path / "0.npz", arrays, about)
    with pytest.raises(ArrayFileError, match="of step 3, renamed"):
        checkpoint.load(path.rename(tmp_path / "checkpoint_000002"), tree)
    other = checkpoint.save(tmp_path, 3, tree | {"code": tree["code"] + 1}, {"times": [0.1, 2.0]})
    for part, times in (("0.npz", [0.1, 2.0]), ("1.npz", [0.1, 1.0])):
        write_arrays(other / part, arrays, about | {"processes": 2, "times": times})
    with pytest.raises(ArrayFileError, match=r"1.npz: is of another run or place: it has times = "):
        checkpoint.load(other, tree)


def damage_and_load(path: Path, tree: dict[str, jax.Array], seed: int) -> str:
    """Damage one file of a copy of a checkpoint, load it, and say what came of it."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(path, Path(folder) / path.name))
        file = copy / str(rng.choice(sorted(path.name for path in copy.iterdir())))
        if rng.random() < 0.05:
            file.unlink()
        else:
            file.write_bytes(damaged(file.read_bytes(), rng))
        try:
            loaded = checkpoint.load(copy, tree)
        except ArrayFileError as error:
            return "refused" if len(str(error).splitlines()) == 1 else f"wrong: several lines: {error}"
    same = all(np.array_equal(loaded[name], tree[name]) for name in tree)
    return "the same" if same else "wrong: other numbers"


def test_damage_is_an_error_or_without_effect(saved: tuple[Path, dict[str, jax.Array]], fuzz_count: int):
    """Flipped bits, cuts, repetitions and zeros at random places."""
    path, tree = saved
    outcomes = Counter(damage_and_load(path, tree, seed) for seed in range(fuzz_count))
    assert set(outcomes) == {"refused", "the same"}
    assert outcomes["refused"] > fuzz_count / 2
