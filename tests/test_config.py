"""What a config accepts, what it makes of it, and what its errors say."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd


def configure(**changes: Any) -> pmd.Config:
    return pmd.Config(
        **({"box_size": 16.0, "mesh_shape": 8, "decomposition": pmd.Decomposition(pdims=(1, 1))} | changes)
    )


def test_one_number_stands_for_three() -> None:
    config = configure(box_size=(8, 16, 24.0), mesh_shape=[8, 12, 6], particle_shape=4)
    assert config.box_size == (8.0, 16.0, 24.0)
    assert config.mesh_shape == (8, 12, 6)
    assert config.particle_shape == (4, 4, 4)
    assert configure().particle_shape == configure().mesh_shape == (8, 8, 8)


def test_numbers_and_arrays_of_numpy_and_jax_are_taken() -> None:
    plain = configure(box_size=(8.0, 16.0, 24.0), mesh_shape=(8, 12, 6), halo=3, lpt_order=1)
    box, mesh = np.array([8.0, 16.0, 24.0]), np.array([8, 12, 6])
    for kind in (np.asarray, jnp.asarray):
        config = configure(box_size=kind(box), mesh_shape=kind(mesh), halo=np.int64(3), lpt_order=np.int64(1))
        assert config == plain
        assert hash(config) == hash(plain)
        assert {type(x) for x in (config.halo, config.lpt_order, *config.mesh_shape)} == {int}
    assert configure(mesh_shape=np.array(8)) == configure(mesh_shape=np.int64(8)) == configure()


def test_a_decomposition_may_be_its_pdims() -> None:
    assert configure(decomposition=(2, 2)) == configure(decomposition=pmd.Decomposition((2, 2)))
    assert configure(decomposition=[1, 1]) == configure()


def test_derived_geometry() -> None:
    config = configure(box_size=(8, 16, 24), mesh_shape=(8, 12, 6), particle_shape=(4, 8, 6))
    assert config.cell_size == (1.0, 16 / 12, 4.0)
    assert config.spacing == ((2, 1), (3, 2), (1, 1))
    assert config.particles_per_cell == 192 / 576


def test_is_frozen_hashable_and_equal_by_value() -> None:
    assert configure() == configure(box_size=(16, 16, 16), mesh_shape=(8, 8, 8))
    assert hash(configure()) == hash(configure(steps=20))
    assert configure() != configure(steps=21)
    assert configure() != configure(decomposition=pmd.Decomposition(pdims=(2, 2)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        configure().steps = 3  # type: ignore[misc]


def test_all_devices_are_used_by_default_as_slabs_or_else_pencils() -> None:
    assert pmd.Config(box_size=1.0, mesh_shape=8).decomposition.pdims == (4, 1)
    assert pmd.Config(box_size=1.0, mesh_shape=(6, 8, 8)).decomposition.pdims == (2, 2)
    assert pmd.Config(box_size=1.0, mesh_shape=(5, 8, 8)).decomposition.pdims == (1, 4)
    with pytest.raises(ValueError, match=r"shape=\(5, 5, 5\) can't be divided over 4 devices; .*fewer devices"):
        pmd.Config(box_size=1.0, mesh_shape=(5, 5, 5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"box_size": -1.0}, r"box_size=-1.0 must be a finite number from 1e-06 to 1e\+09 Mpc/h; pass box_size in"),
        ({"box_size": (8.0, 1e-7, 8.0)}, r"box_size=1e-07 must be a finite number"),
        ({"box_size": "wide"}, r"box_size='wide' must be a finite number"),
        ({"box_size": jnp.float32(jnp.nan)}, r"box_size=Array\(nan, .* must be a finite number"),
        ({"box_size": (1.0, 2.0)}, r"box_size=\(1.0, 2.0\) has 2 entries; pass one number or three"),
        ({"mesh_shape": 1}, r"mesh_shape=1 must be a whole number, 2 or more"),
        ({"mesh_shape": 8.5}, r"mesh_shape=8.5 must be a whole number"),
        ({"mesh_shape": True}, r"mesh_shape=True must be a whole number"),
        ({"particle_shape": (8, 8, None)}, r"particle_shape=None must be a whole number"),
        ({"a_start": 1e-4}, r"a_start=0.0001 must be a finite number from 0.001 to 2; growth is tabulated there"),
        ({"a_start": 1.0}, r"a_start=1.0 must be less than a_stop=1.0"),
        ({"a_stop": 2.5}, r"a_stop=2.5 must be a finite number from 0.001 to 2"),
        ({"steps": 1.5}, r"steps=1.5 must be a whole number"),
        ({"lpt_order": 4}, r"lpt_order=4 must be 1 or 2 or 3"),
        ({"lpt_order": True}, r"lpt_order=True must be 1 or 2 or 3"),
        ({"gradient": "exact"}, r"gradient='exact' must be 'finite-difference' or 'spectral'"),
        ({"compensated": 1}, r"compensated=1 must be True or False"),
        ({"compensated": True, "gradient": "spectral"}, r"compensated=True is for finite differences, .*; use"),
        ({"halo": -1}, r"halo=-1 must be a whole number of cells, 0 or more"),
        ({"halo": 1.5}, r"halo=1.5 must be a whole number"),
        ({"halo": True}, r"halo=True must be a whole number"),
        ({"mesh_shape": np.ones((3, 3))}, r"mesh_shape=array\(\[1., 1., 1.\]\) must be a whole number"),
        ({"mesh_shape": np.array([8, 8])}, r"mesh_shape=array\(\[8, 8\]\) has 2 entries"),
        ({"mesh_shape": np.True_}, r"mesh_shape=np.True_ must be a whole number"),
        ({"gradient": np.array(["spectral"])}, r"gradient=array.* must be 'finite-difference' or 'spectral'"),
        ({"halo": np.array([1, 2])}, r"halo=array\(\[1, 2\]\) must be a whole number"),
        ({"decomposition": (4,)}, r"pdims=\(4,\) must be two positive numbers"),
        ({"decomposition": 4}, r"decomposition=4 must be a Decomposition; for example"),
        ({"halo": "wide"}, r"halo='wide' must be a whole number"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_misuse_names_argument_value_and_remedy(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(**changes)


def test_shapes_that_do_not_divide_are_refused_with_those_that_do() -> None:
    slabs = pmd.Decomposition(pdims=(4, 1))
    with pytest.raises(ValueError, match=r"mesh_shape\[0\]=10 is not divisible by 4 .* use 8 or 12, or other pdims"):
        configure(mesh_shape=(10, 8, 8), decomposition=slabs)
    with pytest.raises(ValueError, match=r"particle_shape\[1\]=2 is not divisible by 4 .* use 4, or other pdims"):
        configure(particle_shape=(8, 2, 8), decomposition=slabs)


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_pickled(decomposition: pmd.Decomposition, backend: Any) -> None:
    """A config, with its decomposition over the same devices, returns equal and compiles nothing anew."""
    own = pmd.Decomposition(decomposition.pdims, backend=backend)
    config = pmd.Config(64.0, 16, decomposition=own)
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert hash(again) == hash(config)
    assert again.decomposition.sharding == own.sharding
    abstract = pmd.Decomposition(mesh=own.mesh.abstract_mesh)
    assert pickle.loads(pickle.dumps(abstract)) == abstract


def test_pickled_with_devices_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    text = pickle.dumps(pmd.Decomposition((4, 1)))
    devices = jax.devices()[:2]
    monkeypatch.setattr(jax, "devices", lambda platform=None: devices)
    with pytest.raises(ValueError, match=r"cpu devices that are not here: \[2, 3\]"):
        pickle.loads(text)


def test_a_config_prints_in_rows() -> None:
    rows = str(pmd.Config(box_size=(8.0, 16.0, 24.0), mesh_shape=(8, 8, 6), steps=3, decomposition=(1, 1)))
    for row in (
        "box         8 x 16 x 24 Mpc/h",
        "mesh        8 x 8 x 6 cells of 1 x 2 x 4 Mpc/h",
        "time        a 0.1 to 1 in 3 steps, from 3LPT",
        "devices     1 x 1, backend xla, halo auto",
    ):
        assert row in rows.splitlines()
