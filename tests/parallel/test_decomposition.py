"""Layouts: which device holds what, one's own device mesh, and misuse."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd


def test_all_devices_are_slabs_by_default() -> None:
    decomposition = pmd.Decomposition()
    assert decomposition.pdims == (4, 1)
    assert decomposition.size == 4
    assert set(decomposition.mesh.devices.flat) == set(jax.devices())


def test_blocks_lie_where_documented(decomposition: pmd.Decomposition) -> None:
    px, py = decomposition.pdims
    shape = (8, 12, 4)
    assert decomposition.block(shape) == (8 // px, 12 // py, 4)
    field = jax.device_put(np.zeros(shape), decomposition.sharding)
    spectrum = jax.device_put(np.zeros(shape), decomposition.spectrum_sharding)
    for i in range(px):
        for j in range(py):
            device = decomposition.mesh.devices[i, j]
            x, y, _ = field.sharding.devices_indices_map(shape)[device]
            assert x.indices(8)[:2] == (i * 8 // px, (i + 1) * 8 // px)
            assert y.indices(12)[:2] == (j * 12 // py, (j + 1) * 12 // py)
            x, y, z = spectrum.sharding.devices_indices_map(shape)[device]
            assert x.indices(8)[:2] == (0, 8)
            assert y.indices(12)[:2] == (i * 12 // px, (i + 1) * 12 // px)
            assert z.indices(4)[:2] == (j * 4 // py, (j + 1) * 4 // py)
    assert decomposition.replicated.is_fully_replicated


def test_a_choice_of_devices_is_respected() -> None:
    chosen = jax.devices()[2:]
    decomposition = pmd.Decomposition(devices=chosen)
    assert decomposition.pdims == (2, 1)
    assert list(decomposition.mesh.devices.flat) == chosen
    assert pmd.Decomposition(pdims=(1, 2), devices=chosen).pdims == (1, 2)
    assert list(pmd.Decomposition(pdims=(2, 1)).mesh.devices.flat) == jax.devices()[:2]


def test_equal_layouts_are_equal_and_hash_alike() -> None:
    first, second = pmd.Decomposition(pdims=(2, 2)), pmd.Decomposition(pdims=(2, 2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != pmd.Decomposition(pdims=(4, 1))
    assert first != "2x2"
    assert first != pmd.Decomposition(mesh=Mesh(first.mesh.devices.T, ("x", "y"), axis_types=(AxisType.Auto,) * 2))
    assert "(2, 2)" in repr(first)


@pytest.mark.parametrize(
    "spec", [P("rows", "columns"), P(("rows", "columns")), P(None, ("rows", "columns")), P("columns")]
)
def test_a_mesh_of_ones_own_gives_the_same_numbers(spec: Any) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    decomposition = pmd.Decomposition(mesh=mesh, spec=spec)
    field = np.random.default_rng(0).standard_normal((8, 8, 6))
    config = pmd.Config(box_size=6.0, mesh_shape=(8, 8, 6), decomposition=decomposition, halo=2)
    disp = np.random.default_rng(1).uniform(-1, 1, (8, 8, 6, 3))
    modes, painted = jax.jit(lambda f, d: (pmd.prfft3d(f, decomposition), pmd.cic_paint(d, config)))(field, disp)
    np.testing.assert_allclose(modes[..., :4], np.fft.rfftn(field), rtol=0, atol=1e-12)
    alone = pmd.Config(box_size=6.0, mesh_shape=(8, 8, 6), decomposition=pmd.Decomposition(pdims=(1, 1)))
    np.testing.assert_allclose(painted, pmd.cic_paint(disp, alone), rtol=0, atol=1e-13)
    assert painted.sharding.is_equivalent_to(decomposition.sharding, 3)
