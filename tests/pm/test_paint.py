"""Paint and read on the distributed mesh against numpy, in every layout, with the JAX reference and natively."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm import paint as paint_module

# The mesh is 3/2, 1 and 1/2 times as fine as the lattice along the axes; cells of 1, 1.5 and 2 Mpc/h.
MESH, LATTICE, BOX = (12, 8, 4), (8, 8, 8), (12.0, 12.0, 8.0)


def configure(decomposition: pmd.Decomposition, halo: Any = 3) -> pmd.Config:
    return pmd.Config(box_size=BOX, mesh_shape=MESH, particle_shape=LATTICE, decomposition=decomposition, halo=halo)


def draw(config: pmd.Config) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "disp": problems.inside_cells(rng, config, 3.0),
        "weight": rng.standard_normal(LATTICE),
        "field": rng.standard_normal(MESH),
        "ddisp": rng.standard_normal((*LATTICE, 3)),
        "dweight": rng.standard_normal(LATTICE),
        "dfield": rng.standard_normal(MESH),
    }


def slopes(function: Any, config: pmd.Config) -> list[np.ndarray]:
    """Derivatives along the three components of a displacement [h/Mpc], from derivative masks."""
    return [function(problems.unit(i)) / config.cell_size[i] for i in range(3)]


def close(actual: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


DIVISIONS = [
    *((pdims, "native") for pdims in ((1, 1), (4, 1), (2, 2))),
    *((pdims, "jax") for pdims in ((4, 1), (2, 2))),
]
on_every_division = pytest.mark.parametrize(("decomposition", "native"), DIVISIONS, indirect=True, ids=str)


@on_every_division
def test_paint_and_its_derivatives_match_numpy(decomposition: pmd.Decomposition, native: bool) -> None:
    config = configure(decomposition)
    d = draw(config)

    @jax.jit
    def run(d: dict[str, jax.Array]) -> Any:
        function = lambda disp, weight: pmd.cic_paint(disp, config, weight)  # noqa: E731
        value, pull = jax.vjp(function, d["disp"], d["weight"])
        tangent = jax.jvp(function, (d["disp"], d["weight"]), (d["ddisp"], d["dweight"]))[1]
        return value, tangent, pull(d["field"]), pmd.cic_paint(d["disp"], config, 0.5)

    assert ("jaxdecomp_ops_cic_paint" in run.lower(d).as_text()) == native
    value, tangent, cotangents, shared = run(d)
    x = problems.cells(d["disp"], config)
    close(value, problems.paint(x, d["weight"], MESH))
    close(shared, problems.paint(x, 0.5, MESH))
    moved = [
        problems.paint(x, d["weight"] * d["ddisp"][..., i], MESH, problems.unit(i)) / config.cell_size[i]
        for i in range(3)
    ]
    close(tangent, problems.paint(x, d["dweight"], MESH) + sum(moved))
    gradient = slopes(lambda mask: d["weight"] * problems.read(x, d["field"], mask), config)
    close(cotangents[0], np.stack(gradient, -1))
    close(cotangents[1], problems.read(x, d["field"]))
    left = np.vdot(tangent, d["field"])
    right = np.vdot(cotangents[0], d["ddisp"]) + np.vdot(cotangents[1], d["dweight"])
    assert abs(left - right) < 1e-13 * np.linalg.norm(tangent) * np.linalg.norm(d["field"])
    assert problems.has_sharding(value, decomposition.sharding)
    assert all(problems.has_sharding(cotangent, decomposition.sharding) for cotangent in cotangents)


@pytest.mark.parametrize(("dtype", "every"), [(np.float32, [(4, 1), (2, 2)]), (np.float64, [(2, 2)])], ids=str)
def test_every_division_paints_the_same_bits(dtype: Any, every: list[tuple[int, int]]) -> None:
    if not pmd.native_available():
        pytest.skip("without the native ops, halos are added as floats")
    d = {name: value.astype(dtype) for name, value in draw(configure(pmd.Decomposition((1, 1)))).items()}
    d["weight"] *= (10.0 ** np.random.default_rng(1).uniform(-6, 6, LATTICE)).astype(dtype)
    d["weight"][:2] /= 1000  # the largest of a device differ
    d["weight"][:, :2] /= 1000

    def painted(pdims: tuple[int, int]) -> list[np.ndarray]:
        config = configure(pmd.Decomposition(pdims, jax.devices()[: math.prod(pdims)]))

        def run(disp: Any, weight: Any, ddisp: Any) -> Any:
            alike = pmd.cic_paint(disp, config)
            return alike, *jax.jvp(lambda x: pmd.cic_paint(x, config, weight), (disp,), (ddisp,))

        arrays = (jax.device_put(d[name], config.decomposition.sharding) for name in ("disp", "weight", "ddisp"))
        return [np.asarray(mesh) for mesh in jax.jit(run)(*arrays)]

    expected = painted((1, 1))
    for pdims in every:
        for mesh, own in zip(painted(pdims), expected, strict=True):
            np.testing.assert_array_equal(mesh, own)


@on_every_division
def test_read_and_its_derivatives_match_numpy(decomposition: pmd.Decomposition, native: bool) -> None:
    config = configure(decomposition)
    d = draw(config)

    @jax.jit
    def run(d: dict[str, jax.Array]) -> Any:
        function = lambda field, disp: pmd.cic_read(field, disp, config)  # noqa: E731
        value, pull = jax.vjp(function, d["field"], d["disp"])
        tangent = jax.jvp(function, (d["field"], d["disp"]), (d["dfield"], d["ddisp"]))[1]
        return value, tangent, pull(d["weight"])

    assert ("jaxdecomp_ops_cic_read" in run.lower(d).as_text()) == native
    value, tangent, cotangents = run(d)
    x = problems.cells(d["disp"], config)
    gradient = np.stack(slopes(lambda mask: problems.read(x, d["field"], mask), config), -1)
    close(value, problems.read(x, d["field"]))
    close(tangent, problems.read(x, d["dfield"]) + np.sum(gradient * d["ddisp"], -1))
    close(cotangents[0], problems.paint(x, d["weight"], MESH))
    close(cotangents[1], d["weight"][..., None] * gradient)
    left = np.vdot(tangent, d["weight"])
    right = np.vdot(cotangents[0], d["dfield"]) + np.vdot(cotangents[1], d["ddisp"])
    assert abs(left - right) < 1e-13 * np.linalg.norm(tangent) * np.linalg.norm(d["weight"])
    assert problems.has_sharding(value, decomposition.sharding)
    assert all(problems.has_sharding(cotangent, decomposition.sharding) for cotangent in cotangents)


@pytest.mark.parametrize(
    ("parallel", "ratio"),
    [((4, 1), (1, 2)), ((2, 2), (3, 2))],
    indirect=["parallel"],
    ids=str,
)
def test_mass_is_conserved_at_any_displacement(parallel: pmd.Decomposition, ratio: tuple[int, int]) -> None:
    """halo="auto" holds displacements of a whole box; the total is exact but for the rounding of its own sum."""
    shape = (8, 8, 4)
    mesh = tuple(n * ratio[0] // ratio[1] for n in shape)
    config = pmd.Config(box_size=(8.0, 8.0, 4.0), mesh_shape=mesh, particle_shape=shape, decomposition=parallel)
    max_displacement = paint_module.halo_limit(config) * min(config.cell_size)
    assert max_displacement >= 8.0
    weight = np.random.default_rng(1).standard_normal(shape)
    for size in (0.0, 0.99 * max_displacement):
        disp = np.random.default_rng(2).uniform(-size, size, (*shape, 3))
        density = pmd.density(pmd.Particles(disp, disp), config)
        assert abs(np.sum(density) / density.size - 1) < 1e-14
        painted = pmd.cic_paint(disp, config, weight)
        close(painted, problems.paint(problems.cells(disp, config), weight, mesh))
        assert abs(np.sum(painted) - weight.sum()) < 1e-14 * np.abs(weight).sum()


def test_one_device_holds_any_displacement(single: pmd.Decomposition, native: bool) -> None:
    config = configure(single, halo=0)
    disp = np.random.default_rng(3).uniform(-1000, 1000, (*LATTICE, 3))
    painted = pmd.cic_paint(disp, config)
    # Positions of up to 1000 cells have a rounding error of 1e-13 of a cell.
    np.testing.assert_allclose(painted, problems.paint(problems.cells(disp, config), 1.0, MESH), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("parallel", "native"),
    [((4, 1), "native"), ((2, 2), "native"), ((2, 2), "jax")],
    indirect=True,
    ids=str,
)
def test_beyond_a_fixed_halo_nothing_is_lost_silently(parallel: pmd.Decomposition, native: bool) -> None:
    config = configure(parallel, halo=1)
    rng = np.random.default_rng(4)
    # Blocks of lattice sites begin at cell edges: within the halo of one cell all is fine, to the last bit.
    disp = rng.uniform(-1, 1, (*LATTICE, 3))
    field = rng.standard_normal(MESH)
    x = problems.cells(disp, config)
    close(pmd.cic_paint(disp, config), problems.paint(x, 1.0, MESH))
    close(pmd.cic_read(field, disp, config), problems.read(x, field))
    disp[0, 0, 0] = (-2.5, -3.5, 0)
    assert np.isnan(pmd.cic_paint(disp, config)).all()
    lost = np.isnan(pmd.cic_read(field, disp, config))
    assert lost[0, 0, 0] and lost.sum() == 1
