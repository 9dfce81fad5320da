"""Checkpoints: what is saved on one division over devices loads on any other."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.io import checkpoint


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
    with pytest.raises(ValueError, match="another run"):
        checkpoint.load(path, {"disp": tree["table"]})
