"""Paint and read on one block: values, every derivative and failures, with the JAX reference and natively."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

from pmwd_dist.ops import cic
from pmwd_dist.ops.cic import Geometry

MASKS = ((0, 0, 0), (1, 0, 1))
FIELDS = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """A block of particles in a block of mesh, and how far particles may go [cells]."""

    geometry: Geometry
    particles: tuple[int, int, int]
    max_displacement: float

    def positions(self, disp: Any) -> np.ndarray:
        g = self.geometry
        sites = [np.arange(n) * (num / den) for n, (num, den) in zip(self.particles, g.spacing, strict=True)]
        grid = np.stack(np.meshgrid(*sites, indexing="ij"), -1)
        return grid + np.asarray(g.origin) + np.asarray(disp) * np.asarray(g.scale)


CASES = {
    "periodic": Case(
        Geometry((5, 4, 6), ((1, 1), (1, 1), (2, 1)), (0, 0, 0), (True,) * 3, (1.0, 0.5, 2.0)), (5, 4, 3), 20.0
    ),
    "mixed": Case(
        Geometry((9, 6, 7), ((3, 2), (2, 3), (1, 2)), (3, 0, 3), (False, True, False), (1.0, 1.5, 2.0)), (2, 9, 2), 1.9
    ),
    "tiny": Case(
        Geometry((1, 2, 3), ((1, 2), (1, 1), (3, 4)), (0, 0, 0), (True,) * 3, (1.0, 1.0, 1.0)), (2, 2, 4), 2.0
    ),
}


# The reference in JAX takes long to compile.
PAIRS = [
    *((name, "native") for name in CASES),
    ("mixed", "jax"),
    *(pytest.param(name, "jax", marks=pytest.mark.slow) for name in ("periodic", "tiny")),
]
every_case = pytest.mark.parametrize(("name", "native"), PAIRS, indirect=["native"])


def draw(case: Case, seed: int = 0) -> dict[str, Any]:
    """Random particles (no one within 0.04 of a cell's edge), weights, fields and tangents."""
    rng = np.random.default_rng(seed)
    shape, scale = case.particles, np.asarray(case.geometry.scale)
    disp = rng.uniform(-case.max_displacement, case.max_displacement, (*shape, 3)) / scale
    position = case.positions(disp)
    fraction = position - np.floor(position)
    disp = disp + (0.04 + 0.92 * fraction - fraction) / scale
    return {
        "disp": disp,
        "weight": rng.standard_normal((*shape, len(MASKS), FIELDS)),
        "shared": rng.standard_normal((1, 1, 1, len(MASKS), FIELDS)),
        "fields": rng.standard_normal((*case.geometry.mesh, FIELDS)),
        "ddisp": rng.uniform(-1, 1, (*shape, 3)) / scale,
        "out": rng.standard_normal((*shape, len(MASKS), FIELDS)),
    }


def numpy_paint(case: Case, disp: Any, weight: Any, masks: Any = MASKS) -> np.ndarray:
    g, position = case.geometry, case.positions(disp)
    weight = np.broadcast_to(weight, (*case.particles, len(masks), FIELDS))
    return np.stack(
        [
            sum(problems.paint(position, weight[..., k, f], g.mesh, mask, g.periodic) for k, mask in enumerate(masks))
            for f in range(FIELDS)
        ],
        axis=-1,
    )


def numpy_read(case: Case, disp: Any, fields: Any, masks: Any = MASKS) -> np.ndarray:
    g, position = case.geometry, case.positions(disp)
    rows = [
        np.stack([problems.read(position, f, mask, g.periodic) for f in np.moveaxis(fields, -1, 0)], -1)
        for mask in masks
    ]
    return np.stack(rows, -2)


def ops(case: Case, native: bool, masks: Any = MASKS) -> tuple[Any, Any]:
    del native  # the fixture chooses
    settings = {"geometry": case.geometry, "masks": masks}
    return partial(cic.paint, **settings), partial(cic.read, **settings)


@functools.cache
def results(name: str, native: bool) -> dict[str, Any]:
    """Values and derivatives of both ops on the random numbers of a case, compiled as one."""
    paint, read = ops(CASES[name], native)

    def run(d: dict[str, Any]) -> dict[str, Any]:
        painted, pull_paint = jax.vjp(paint, d["disp"], d["weight"])
        shared, pull_shared = jax.vjp(lambda w: paint(d["disp"], w), d["shared"])
        out, pull_read = jax.vjp(read, d["disp"], d["fields"])
        return {
            "paint": painted,
            "paint shared": shared,
            "read": out,
            "paint jvp": jax.jvp(paint, (d["disp"], d["weight"]), (d["ddisp"], d["out"]))[1],
            "read jvp": jax.jvp(read, (d["disp"], d["fields"]), (d["ddisp"], d["fields"] ** 2))[1],
            "paint vjp": pull_paint(d["fields"]),
            "shared vjp": pull_shared(d["fields"])[0],
            "read vjp": pull_read(d["out"]),
        }

    return jax.device_get(jax.jit(run)(draw(CASES[name])))


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    """Equal to rounding, relative to the largest value: sums cancel."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max())


@every_case
def test_values_match_numpy(name: str, native: bool) -> None:
    case, d, r = CASES[name], draw(CASES[name]), results(name, native)
    close(r["paint"], numpy_paint(case, d["disp"], d["weight"]))
    close(r["paint shared"], numpy_paint(case, d["disp"], d["shared"]))
    close(r["read"], numpy_read(case, d["disp"], d["fields"]))


def test_values_match_numpy_in_float32(native: bool) -> None:
    case = CASES["periodic"]
    paint, read = map(jax.jit, ops(case, native))
    d = {key: np.asarray(x, np.float32) for key, x in draw(case).items()}
    painted, out = paint(d["disp"], d["weight"]), read(d["disp"], d["fields"])
    assert painted.dtype == out.dtype == np.float32
    # Positions up to 40 cells have a rounding error of 2e-6 cells.
    close(painted, numpy_paint(case, d["disp"], d["weight"]), 1e-5)
    close(out, numpy_read(case, d["disp"], d["fields"]), 1e-5)


def raised(mask: Any, axis: int) -> tuple[int, int, int]:
    return tuple(m + int(i == axis) for i, m in enumerate(mask))  # type: ignore[return-value]


@every_case
def test_vjp_matches_numpy(name: str, native: bool) -> None:
    """The cotangents in value: reads and paints under derivative masks, by the brute force."""
    case, d, r = CASES[name], draw(CASES[name]), results(name, native)
    scale = case.geometry.scale

    def slopes(weight: Any) -> np.ndarray:
        """sum_{k, f} weight[k, f] d/d disp_i of read_k(fields_f); W'' vanishes inside a cell."""
        out = np.zeros_like(d["disp"])
        for (k, mask), i in itertools.product(enumerate(MASKS), range(3)):
            if not mask[i]:
                values = numpy_read(case, d["disp"], d["fields"], (raised(mask, i),))[..., 0, :]
                out[..., i] += scale[i] * (weight[..., k, :] * values).sum(-1)
        return out

    read = numpy_read(case, d["disp"], d["fields"])
    close(r["paint vjp"][0], slopes(d["weight"]))
    close(r["paint vjp"][1], read)
    close(r["shared vjp"], read.sum((0, 1, 2), keepdims=True))
    close(r["read vjp"][0], slopes(d["out"]))
    close(r["read vjp"][1], numpy_paint(case, d["disp"], d["out"]))


@every_case
def test_paint_and_read_are_adjoint(name: str, native: bool) -> None:
    d, r = draw(CASES[name]), results(name, native)
    on_mesh, at_particles = np.vdot(r["paint"], d["fields"]), np.vdot(d["weight"], r["read"])
    assert abs(on_mesh - at_particles) < 1e-14 * np.linalg.norm(d["weight"]) * np.linalg.norm(r["read"])
    tangent = np.vdot(r["paint jvp"], d["fields"])
    cotangent = np.vdot(r["paint vjp"][0], d["ddisp"]) + np.vdot(r["paint vjp"][1], d["out"])
    assert abs(tangent - cotangent) < 1e-14 * np.linalg.norm(r["paint jvp"]) * np.linalg.norm(d["fields"])


@pytest.mark.parametrize("native", ["native", pytest.param("jax", marks=pytest.mark.slow)], indirect=True)
def test_second_derivatives_match_differences(native: bool) -> None:
    case = CASES["periodic"]
    paint, read = ops(case, native, ((0, 0, 0),))
    d = draw(case, seed=2)
    weight, target = d["weight"][..., :1, :], d["out"][..., :1, :]

    def loss(disp: Any) -> Any:
        return jnp.vdot(read(disp, paint(disp, weight) ** 2), target)

    product = jax.jit(lambda disp: jax.jvp(jax.grad(loss), (disp,), (d["ddisp"],)))
    _, tangent = product(d["disp"])
    step = 1e-5
    ahead, behind = (product(d["disp"] + sign * step * d["ddisp"])[0] for sign in (1, -1))
    # A polynomial inside a cell: rounding is 1e-16 / step, the difference's own error step^2.
    close(tangent, (ahead - behind) / (2 * step), 1e-9)


def test_vmap_matches_a_loop(native: bool) -> None:
    case = CASES["mixed"]
    paint, read = ops(case, native, MASKS[1:2])
    batch = [draw(case, seed) for seed in range(3)]
    stacked = {name: np.stack([d[name] for d in batch]) for name in batch[0]}
    weights = stacked["weight"][..., :1, :]
    out = jax.jit(jax.vmap(paint))(stacked["disp"], weights)
    np.testing.assert_array_equal(out, np.stack(list(map(jax.jit(paint), stacked["disp"], weights))))
    one = jax.jit(read)
    out = jax.jit(jax.vmap(read, in_axes=(0, None)))(stacked["disp"], batch[0]["fields"])
    np.testing.assert_array_equal(out, np.stack([one(d["disp"], batch[0]["fields"]) for d in batch]))


def test_a_particle_that_has_no_place_makes_nan(native: bool) -> None:
    """All of the painted mesh, so that no mass is lost silently; that particle alone when reading."""
    case = CASES["mixed"]
    paint, read = map(jax.jit, ops(case, native, MASKS[:1]))
    d = draw(case)
    weight = d["weight"][..., :1, :]
    # Cells needed: floor(x) and floor(x) + 1, with x = 3 + disp along the first axis of nine cells.
    for inside, outside in ((4.999, 5.0), (-3.0, -3.001), (0.0, np.nan), (0.0, np.inf), (0.0, -np.inf)):
        d["disp"][0, 0, 0, 0] = inside
        assert np.isfinite(paint(d["disp"], weight)).all()
        assert np.isfinite(read(d["disp"], d["fields"])).all()
        d["disp"][0, 0, 0, 0] = outside
        assert np.isnan(paint(d["disp"], weight)).all()
        lost = np.isnan(read(d["disp"], d["fields"])).all(axis=(-2, -1))
        assert lost[0, 0, 0] and lost.sum() == 1


def test_a_weight_that_is_not_finite_makes_nan(native: bool) -> None:
    case = CASES["periodic"]
    paint, _ = ops(case, native)
    d = draw(case)
    d["weight"][1, 2, 1, 0, 1] = np.inf
    assert np.isnan(paint(d["disp"], d["weight"])).all()
