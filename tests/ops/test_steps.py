"""A kick with its drifts, and their undoing with cotangents, on one block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist._jax.native import native_available
from pmwd_dist.ops import cic, momenta, stencil
from pmwd_dist.ops import force_transpose as transpose_module
from pmwd_dist.ops import step as step_ops
from pmwd_dist.ops.cic import Geometry
from pmwd_dist.ops.step import KickDrift, UndoDrift, UndoKick, kick_drift

Q, MOMENTUM = 2.0**-30, 2.0**-40  # the grid of displacements and the unit of momenta
force_transpose: Any = transpose_module.force_transpose  # of numpy's arrays, too
undo_kick: Any = step_ops.undo_kick
undo_drift: Any = step_ops.undo_drift
read: Any = cic.read

GEOMETRY = Geometry((6, 7, 16), ((1, 1), (1, 1), (1, 1)), (0, 0, 5), (True, True, False), (1.0, 1.3, 0.7))
KICK, FIRST, LAST, SCALE = 0.3, 0.2, 0.1, 1.25


@pytest.fixture(scope="module")
def block() -> dict[str, Any]:
    rng = np.random.default_rng(0)

    shape = (6, 7, 6, 3)
    return {
        "disp": np.rint(rng.uniform(-3, 3, shape) / Q) * Q,
        "vel": packed(rng.normal(size=shape)),
        "fields": rng.normal(size=(*GEOMETRY.mesh, 3)),
        "ct": rng.normal(size=(2, *shape)),
    }


def packed(vel: Any) -> Any:
    """Momenta as whole numbers."""
    return np.asarray(momenta.pack(jnp.asarray(np.rint(vel / MOMENTUM), jnp.int64), jnp.asarray(vel)))


def unpacked(vel: Any, unit: float = MOMENTUM) -> Any:
    return np.asarray(momenta.momentum(jnp.asarray(vel), jnp.asarray(unit)))


def arrays(*numbers: float) -> Iterator[Any]:
    return map(jnp.asarray, numbers)


def step(disp: Any, vel: Any, fields: Any, good: float = 1.0) -> tuple[Any, Any, Any]:
    """The rest of a step after its first drift; the following one has none."""
    after = MOMENTUM * SCALE
    coefficients = KickDrift(*arrays(KICK / after, 1 / MOMENTUM, after if good else MOMENTUM, LAST / Q, 0.0, good))
    return kick_drift(disp, vel, fields, coefficients, GEOMETRY, resolution=Q)


def undone(disp: Any, vel: Any, ct_disp: Any, ct_vel: Any, fields: Any, field: Any) -> tuple[Any, ...]:
    after = MOMENTUM * SCALE
    kick = UndoKick(*arrays(KICK / after, after, MOMENTUM, LAST, KICK, 1.0))
    vel, ct_disp, ct_vel, sums = undo_kick(disp, vel, ct_disp, ct_vel, fields, kick, GEOMETRY)
    drift = UndoDrift(*arrays(KICK, SCALE, MOMENTUM, -FIRST / Q, 0.0, 1.0))
    disp, ct_disp, ct_vel, last = undo_drift(disp, vel, ct_disp, ct_vel, field, drift, GEOMETRY, resolution=Q)
    return disp, vel, ct_disp, ct_vel, jnp.concatenate([sums, last])


def test_a_kick_and_its_drift_are_those_of_numpy(block: dict[str, Any]) -> None:
    before = unpacked(block["vel"])
    disp, vel, most = step(block["disp"], block["vel"], block["fields"])
    force = np.asarray(read(block["disp"], block["fields"], GEOMETRY))[..., 0, :]
    expected = SCALE * before + KICK * force
    vel = unpacked(vel, MOMENTUM * SCALE)
    np.testing.assert_allclose(vel, expected, rtol=0, atol=2 * MOMENTUM)
    np.testing.assert_allclose(disp, block["disp"] + LAST * expected, rtol=0, atol=2 * Q)
    assert most == np.abs(disp).max()


def test_a_failed_step_does_not_look_at_the_force(block: dict[str, Any]) -> None:
    """Of another, forces that are no numbers show in the displacements."""
    bad = np.full_like(block["fields"], np.nan)
    disp, vel, _ = step(block["disp"], block["vel"], bad, good=0.0)
    np.testing.assert_array_equal(vel, block["vel"])
    assert np.isfinite(disp).all()
    disp, _, most = step(block["disp"], block["vel"], bad)
    assert np.isnan(disp).all() and np.isnan(most)


def test_it_is_undone_to_the_bit_and_cotangents_are_those_of_autodiff(block: dict[str, Any]) -> None:
    """With a force that does not depend on the particles; what comes through the mesh is tested by whole runs."""

    def whole(disp: Any, vel: Any) -> Any:
        p = momenta.momentum(vel, MOMENTUM)
        disp = disp + Q * jnp.rint(FIRST / Q * p) + FIRST * (p - jax.lax.stop_gradient(p))
        return step(disp, vel, block["fields"])[:2], disp

    (end, pull, drifted) = jax.vjp(whole, block["disp"], block["vel"], has_aux=True)
    expected = pull(tuple(block["ct"]))
    no_field = np.zeros(GEOMETRY.mesh)
    disp, vel, ct_disp, ct_vel, sums = undone(
        drifted, end[1], block["ct"][0], block["ct"][1], block["fields"], no_field
    )
    np.testing.assert_array_equal(disp, block["disp"])
    np.testing.assert_array_equal(vel, block["vel"])
    np.testing.assert_allclose(ct_disp, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ct_vel, expected[1], rtol=1e-12, atol=1e-12)
    force = np.asarray(read(drifted, block["fields"], GEOMETRY))[..., 0, :]
    kicked = block["ct"][1] + LAST * block["ct"][0]
    vel, after = unpacked(vel), unpacked(end[1], MOMENTUM * SCALE)
    by_hand = [np.vdot(kicked, force), np.vdot(kicked, vel), np.vdot(block["ct"][0], after), np.vdot(ct_disp, vel)]
    np.testing.assert_allclose(sums, by_hand, rtol=1e-12)


@pytest.mark.skipif(not native_available(), reason="the native ops are not installed")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_ops_are_the_references(dtype: Any) -> None:
    """A kick with its drifts to the bit. Rows exceed a batch, a particle lies beyond the block, a step has failed."""
    rng, geometry = np.random.default_rng(5), replace(GEOMETRY, mesh=(4, 3, 50))
    shape, q = (4, 3, 40, 3), {"geometry": geometry, "resolution": 2.0**-16}
    fine = {np.float32: 3e-6, np.float64: 1e-13}[dtype]
    disp, vel, *ct = (np.rint(rng.normal(size=shape) / 2.0**-14) * 2.0**-14 for _ in range(4))
    disp[1, 2, 3, 2] = 90.0
    fields, field = rng.normal(size=(*geometry.mesh, 3)), rng.normal(size=(*geometry.mesh, 1))
    disp, vel, *ct, fields, field = (jnp.asarray(x, dtype) for x in (disp, vel, *ct, fields, field))
    held = momenta.pack(jnp.rint(vel * 2.0**14).astype({4: "int32", 8: "int64"}[vel.dtype.itemsize]), vel)

    @partial(jax.jit, static_argnums=0)
    def run(good: float) -> list[Any]:
        step, both = jnp.asarray([2e4, 2.0**14, 2.0**-14, 3e3, -2e3, good], dtype), []
        undo_step = jnp.asarray([2e4, 2.0**-14, 2.0**-14, 0.3, -0.2, good], dtype)
        drift_step = jnp.asarray([0.3, 1.25, 2.0**-14, 3e3, -2e3, good], dtype)
        for op, reference, operands in (
            (step_ops._kick_drift_p, step_ops._kick_drift_reference, (disp, held, fields, step)),
            (step_ops._undo_kick_p, step_ops._undo_kick_reference, (disp, held, *ct, fields, undo_step)),
            (step_ops._undo_drift_p, step_ops._undo_drift_reference, (disp, held, *ct, field, drift_step)),
            (
                step_ops._undo_drift_and_kick_p,
                step_ops._undo_drift_and_kick_reference,
                (disp, held, *ct, field, fields, jnp.concatenate([drift_step, undo_step])),
            ),
        ):
            native = op.bind(*(x[None] for x in operands), **q)
            both.append(([x[0] for x in native], reference(*operands, **q)))
        return both

    for good in (1.0, 0.0):
        kick, *undone = run(good)
        for native, reference in zip(*kick, strict=True):
            np.testing.assert_array_equal(native, reference)
        assert np.isnan(kick[0][0]).sum() == 3 * good
        np.testing.assert_array_equal(undone[0][0][0], undone[0][1][0])  # momenta, whole numbers
        np.testing.assert_array_equal(undone[2][0][1], undone[2][1][1])
        for native, reference in ((x, y) for op in undone for x, y in zip(*op, strict=True)):
            scale = np.nanmax(np.abs(reference)) if np.ndim(reference) > 1 else 1e3 * np.sqrt(np.prod(shape))
            np.testing.assert_allclose(native, reference, rtol=0, atol=fine * scale)


@pytest.mark.skipif(not native_available(), reason="the native ops are not installed")
def test_the_native_gradient_and_its_transpose_are_the_references() -> None:
    rng, cell_size = np.random.default_rng(6), (1.0, 1.3, 0.7)
    for inner, periodic in (
        ((5, 4, 19), (True, False, True)),
        ((3, 6, 7), (False, True, False)),
        ((2, 3, 3), (True,) * 3),
    ):
        outer = tuple(n if wraps else n + 4 for n, wraps in zip(inner, periodic, strict=True))
        params: Any = {"cell_size": cell_size, "periodic": periodic}
        ops = (stencil._gradient_p, stencil._gradient_reference), (stencil._divergence_p, stencil._divergence_reference)
        for (native, reference), shape in zip(ops, ((2, *outer), (2, *inner, 3)), strict=True):
            values = jnp.asarray(rng.normal(size=shape))
            np.testing.assert_allclose(
                native.bind(values, **params), jax.jit(partial(reference, **params))(values), rtol=0, atol=1e-14
            )


def test_the_gradient_of_one_of_several_fields_is_that_of_the_field() -> None:
    fields, cell_size = np.random.default_rng(7).normal(size=(3, 5, 4, 19)), (1.0, 1.3, 0.7)
    got = jax.jit(stencil.gradient_at, static_argnums=2)(jnp.asarray(fields.view(np.int64)), jnp.int32(1), cell_size)
    expected = jax.jit(stencil.gradient, static_argnums=(1, 2))(jnp.asarray(fields[1]), cell_size, (True,) * 3)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)


def test_the_mesh_part_is_the_slope_of_a_read(block: dict[str, Any]) -> None:
    field = np.random.default_rng(1).normal(size=GEOMETRY.mesh)
    disp, vel, (ct_disp, ct_vel) = block["disp"], block["vel"], block["ct"]
    drift = UndoDrift(*arrays(KICK, SCALE, MOMENTUM, -FIRST / Q, 0.0, 1.0))
    _, with_field, _, _ = undo_drift(disp, vel, ct_disp, ct_vel, field, drift, GEOMETRY, resolution=Q)

    def read_sum(disp: Any) -> Any:
        return read(disp, field[..., None], GEOMETRY).sum()

    slope = jax.grad(read_sum)(disp)
    np.testing.assert_allclose(with_field, ct_disp + KICK * slope, rtol=1e-12, atol=1e-12)


def test_the_transpose_of_reading_a_force(block: dict[str, Any]) -> None:
    """Dot products with forces of a potential, and of its own derivatives in positions and weights."""
    rng = np.random.default_rng(3)
    cell_size, periodic = (1.0, 1.5, 0.8), GEOMETRY.periodic
    potential = rng.normal(size=(6, 7, 20))

    def force(disp: Any) -> Any:
        return read(disp, stencil.gradient(jnp.asarray(potential), cell_size, periodic), GEOMETRY)[..., 0, :]

    def transpose(disp: Any, weight: Any) -> Any:
        return force_transpose(disp, weight, GEOMETRY, cell_size)

    disp, weight = block["disp"], block["ct"][0]
    (forces, change), tangent = jax.jvp(force, (disp,), (block["ct"][1],)), rng.normal(size=disp.shape)
    out, moved = jax.jvp(transpose, (disp, weight), (block["ct"][1], tangent))
    assert out.shape == potential.shape
    np.testing.assert_allclose(np.vdot(out, potential), np.vdot(forces, weight), rtol=1e-12)
    np.testing.assert_allclose(
        np.vdot(moved, potential), np.vdot(change, weight) + np.vdot(forces, tangent), rtol=1e-12
    )


def test_derivatives_of_the_ops_are_those_of_their_references(block: dict[str, Any]) -> None:
    """Dot products of tangents and cotangents, for one block and for a batch."""
    rng = np.random.default_rng(2)
    primals = (block["disp"], block["vel"], *block["ct"], block["fields"], rng.normal(size=GEOMETRY.mesh))
    tangents = tuple(rng.normal(size=x.shape) for x in primals)
    out, change = jax.jvp(undone, primals, tangents)
    _, pull = jax.vjp(undone, *primals)
    cotangents = tuple(rng.normal(size=x.shape) for x in out)
    forward = sum(np.vdot(c, t) for c, t in zip(cotangents, change, strict=True))
    backward = sum(np.vdot(c, t) for c, t in zip(pull(cotangents), tangents, strict=True))
    np.testing.assert_allclose(forward, backward, rtol=1e-11)
    twice = jax.vmap(undone)(*(np.stack([x, x]) for x in primals))
    for one, two in zip(out, twice, strict=True):
        np.testing.assert_allclose(two[1], one, rtol=1e-12, atol=1e-13)
