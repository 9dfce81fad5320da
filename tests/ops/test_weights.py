"""Paints of weights that span six decades, against sums in double precision."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.ops import cic
from pmwd_dist.ops.cic import VALUE, Geometry, sums
from pmwd_dist.ops.cic.reference import paint_reference

N, SMALL = 12, 1e-6
GEOMETRY = Geometry((N,) * 3, ((1, 1),) * 3, (0,) * 3, (True,) * 3, (1.0,) * 3)
HALF_ULP = 2.0**-24


def draw() -> tuple[np.ndarray, np.ndarray]:
    """Positions that single precision holds exactly, and weights: large, of any size and sign, small."""
    rng = np.random.default_rng(0)
    disp = np.rint(rng.uniform(-1, 1, (N, N, N, 3)) * 2**12) / 2**12
    x = np.arange(N)[:, None, None]
    any_size = 10 ** rng.uniform(np.log10(SMALL), 0, (N,) * 3) * rng.choice([-1, 1], (N,) * 3)
    sizes = rng.uniform(0.5, 1, (N,) * 3) * np.where(x < N // 2, 1, SMALL)
    weight = np.where(abs(x - N // 2) <= 1, any_size, sizes)
    return disp.astype(np.float32), (37 * weight).astype(np.float32)


def cells_of(disp: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Of each cell, in double precision: sum, sum of magnitudes, number of contributions, least and largest weight."""
    position = np.stack(np.meshgrid(*[np.arange(N)] * 3, indexing="ij"), -1) + disp.astype(float)
    lower, weight = np.floor(position), weight.astype(float)
    out = {name: np.zeros((N,) * 3) for name in ("sum", "magnitude", "count", "largest")}
    out["least"] = np.full((N,) * 3, np.inf)
    for corner in itertools.product((0, 1), repeat=3):
        at = tuple(np.moveaxis((lower + corner).astype(int) % N, -1, 0))
        part = weight * np.prod(1 - abs(position - lower - corner), -1)
        for name, value in (("sum", part), ("magnitude", abs(part)), ("count", 1)):
            np.add.at(out[name], at, value)
        np.maximum.at(out["largest"], at, abs(weight))
        np.minimum.at(out["least"], at, abs(weight))
    return out


def relative(mesh: np.ndarray, cells: dict[str, np.ndarray], chosen: np.ndarray) -> float:
    """Largest relative error among some cells."""
    assert chosen.sum() > 100
    return float((abs(mesh - cells["sum"])[chosen] / abs(cells["sum"][chosen])).max())


@pytest.mark.parametrize("particles", [N**3, 512**3], ids=str)
def test_integers_are_multiples_of_a_unit_of_the_largest_weight(particles: int) -> None:
    if not pmd.native_available():
        pytest.skip("the native ops (jaxdecomp_ops) are not installed")
    disp, weight = draw()
    bound, bits = np.abs(weight).max(), sums.contribution_bits(particles, 1, np.float32)
    unit = 2.0 ** (np.frexp(float(bound))[1] - bits)
    assert 2.0**-bits * bound < unit <= 2.0 ** (1 - bits) * bound

    @jax.jit
    def paint(disp: Any, weight: Any) -> Any:  # as blocks with so many particles in all do
        weight, bounds = weight[None, ..., None, None], bound[None]
        painted = sums.paint_sums(disp[None], weight, bounds, GEOMETRY, (VALUE,), bits)
        with jax.enable_x64(True):
            return sums.values_of_sums(sums.joined(painted[0]), jnp.asarray(bound), bits)

    mesh, cells = np.asarray(paint(disp, weight), float), cells_of(disp, weight)
    if particles == N**3:
        native = jax.jit(partial(cic.paint, geometry=GEOMETRY))(disp, weight[..., None, None])
        np.testing.assert_array_equal(native[..., 0], mesh)
    # Each contribution is rounded to the unit, their sum is exact, and rounded once to single precision.
    assert np.all(abs(mesh - cells["sum"]) <= cells["count"] * unit / 2 + HALF_ULP * abs(cells["sum"]))
    large, small = cells["least"] > 0.4 * bound, cells["largest"] <= SMALL * 37
    assert relative(mesh, cells, large) <= 1.01 * HALF_ULP
    assert relative(mesh, cells, small & (cells["count"] > 3)) <= (1.01 * HALF_ULP if particles < 2**12 else 1e-3)


def test_the_reference_adds_in_floats() -> None:
    disp, weight = draw()
    paint = jax.jit(partial(paint_reference, geometry=GEOMETRY, masks=(VALUE,)))
    mesh = np.asarray(paint(disp[None], weight[None, ..., None, None])[0, ..., 0], float)
    cells = cells_of(disp, weight)
    # Four roundings of a contribution, and one for each that is added, relative to what is in the cell by then.
    assert np.all(abs(mesh - cells["sum"]) <= (cells["count"] + 4) * HALF_ULP * cells["magnitude"])
    assert relative(mesh, cells, cells["largest"] <= SMALL * 37) < 1e-6
