"""Checkpoints: what is saved on one division over devices loads on any other."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import fuzz_checkpoints
import jax
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.io import checkpoint
from pmwd_dist.io.checkpoint import CheckpointError


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
    with pytest.raises(CheckpointError, match="another run"):
        checkpoint.load(path, {"disp": tree["table"]})


@pytest.fixture
def saved(single: pmd.Decomposition, tmp_path: Path) -> tuple[Path, dict[str, jax.Array]]:
    """A checkpoint of step 3, and its content."""
    values = np.random.default_rng(0).normal(size=(4, 4, 4, 3))
    tree = {"disp": jax.device_put(values, single.sharding), "code": jax.device_put(np.int32(3), single.replicated)}
    return checkpoint.save(tmp_path, 3, tree, {"times": [0.1, 1.0]}), tree


def test_description_is_verified(saved: tuple[Path, dict[str, jax.Array]], tmp_path: Path):
    path, tree = saved
    meta = path / "meta.json"
    whole = meta.read_text()
    for old, new in (('"step": 3', '"step": 2'), ("0.1", "0.2"), ('"processes": 1', '"processes": 0'), (whole, "3")):
        assert old in whole
        meta.write_text(whole.replace(old, new))
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(path, tree)
    meta.write_text(whole)
    with pytest.raises(CheckpointError, match="of step 3, renamed"):
        checkpoint.load(path.rename(tmp_path / "checkpoint_000002"), tree)
    other = checkpoint.save(tmp_path, 3, tree | {"code": tree["code"] + 1}, {"times": [0.1, 2.0]})
    shutil.copy(tmp_path / "checkpoint_000002" / "0.npz", other)
    with pytest.raises(CheckpointError, match="of another checkpoint"):
        checkpoint.load(other, tree)


def test_damage_is_an_error_or_without_effect(saved: tuple[Path, dict[str, jax.Array]]):
    """Flipped bits, cuts, repetitions and zeros at random places; fuzz_checkpoints.py tries many more."""
    path, tree = saved
    outcomes = Counter(fuzz_checkpoints.damage_and_load(path, tree, seed) for seed in range(60))
    assert set(outcomes) == {"refused", "the same"}
    assert outcomes["refused"] > 30
