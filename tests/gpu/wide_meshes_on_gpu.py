"""Run by `test_programs.py`: meshes beyond 2^31 cells, of which each part is a copy of a small one.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/wide_meshes_on_gpu.py [copies along x, y and z: 25 128 128]

Needs 69 GB of memory, nearly all of an H100 80GB (XLA_PYTHON_CLIENT_MEM_FRACTION=0.95); with less nothing is checked.
Without a GPU this tries the program itself, with few copies.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.ops import cic, momenta, stencil
from pmwd_dist.ops import step as step_ops
from pmwd_dist.ops.cic import Geometry
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.parallel.fft import filtered_block

GPU = jax.devices()[0]
SMALL = (21, 16, 16)  # 525 x 2048 x 2048 with the copies above: 2^31.04 cells, and 2^32.6 values of three fields
SITES = (2, 15, 15)
NEED = 69e9  # bytes that the allocator may hand out
CELL = (1.0, 1.5, 0.8)
ALONG = (True, True, True)
Q, UNIT = 2.0**-18, 2.0**-21


def geometry_of(mesh: tuple[int, ...]) -> Geometry:
    """A few sites in the last corner of a mesh; their particles reach the first one."""
    near = tuple(n - 5 for n in mesh)
    return Geometry(mesh, ((1, 1),) * 3, near, ALONG, (1.0, 1.0, 1.0))  # type: ignore[arg-type]


def copies(x: Any, times: tuple[int, ...]) -> jax.Array:
    """The array beside itself along the first three axes."""
    return jax.jit(lambda x: jnp.tile(x, (*times, *[1] * (x.ndim - 3))))(x)


def largest_difference(wide: jax.Array, small: Any, times: tuple[int, ...]) -> float:
    """From the copies of a small mesh, on the device, with no array of them."""

    def compare(wide: Any, small: Any) -> Any:
        n, rest = small.shape[:3], small.shape[3:]
        parts = wide.reshape(times[0], n[0], times[1], n[1], times[2], n[2], *rest)
        return jnp.max(jnp.abs(parts - small[None, :, None, :, None, :]))

    return float(jax.jit(compare)(wide, small))


def check_gradient(times: tuple[int, ...]) -> jax.Array:
    """The gradient of a potential; returns it."""
    field = np.random.default_rng(0).normal(size=SMALL).astype(np.float32)
    run = jax.jit(lambda x: stencil.gradient(x, CELL, ALONG))
    wide = jax.block_until_ready(run(copies(field, times)))
    assert largest_difference(wide, run(jnp.array(field)), times) == 0
    return wide


def check_steps(fields: jax.Array) -> None:
    """A kick with its drifts, and its reversal, by the force on a wide mesh."""
    small = fields[: SMALL[0], : SMALL[1], : SMALL[2]]
    rng = np.random.default_rng(1)
    disp = np.rint(rng.uniform(-3, 3, (*SITES, 3)) / Q).astype(np.float32) * np.float32(Q)
    whole = jnp.array(np.rint(rng.normal(size=disp.shape) / UNIT).astype(np.int32))
    vel = momenta.pack(whole, jnp.array(disp))
    cotangents = jnp.array(rng.normal(size=(2, *disp.shape)).astype(np.float32))
    numbers = [jnp.asarray(x, jnp.float32) for x in (0.3 / UNIT, 1 / UNIT, UNIT, 0.1 / Q, 0.2 / Q, 1.0)]
    step, kick = step_ops.KickDrift(*numbers), step_ops.UndoKick(numbers[0], *[numbers[2]] * 2, *[numbers[5]] * 3)

    def run(geometry: Geometry) -> Any:
        def both(fields: Any) -> Any:
            moved = step_ops.kick_drift(jnp.array(disp), vel, fields, step, geometry, resolution=Q)
            return moved, step_ops.undo_kick(jnp.array(disp), vel, *cotangents, fields, kick, geometry)

        return jax.jit(both)

    got, expected = (jax.tree.leaves(run(geometry_of(f.shape[:3]))(f)) for f in (fields, small))
    for one, two in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, two)


def check_filter(times: tuple[int, ...]) -> None:
    """A mesh filtered in Fourier space: only harmonics of the copies are there."""
    field = np.random.default_rng(2).normal(size=SMALL).astype(np.float32)
    backend = pmd.Decomposition((1, 1), [GPU], backend="auto" if GPU.platform == "cpu" else "peer")

    def run(mesh: tuple[int, ...]) -> Any:
        def respond() -> Any:
            angle = [2 * np.pi / n * np.minimum(np.arange(n), n - np.arange(n)) for n in mesh]
            x, y, z = (jnp.asarray(np.cos(a), jnp.float32) for a in angle)
            return (2 + x[:, None, None]) * (2 + y[None, :, None]) * (2 + z[None, None, : mesh[2] // 2 + 1])

        return jax.jit(backend.shard_map(lambda x: filtered_block(x, respond, backend), backend.spec, backend.spec))

    expected = run(SMALL)(jnp.array(field))
    wide = copies(field, times)
    got = run(wide.shape)(wide)
    assert largest_difference(got, expected, times) < 1e-5 * float(jnp.abs(expected).max())


def check_force_transpose(times: tuple[int, ...]) -> None:
    """Cotangents of a few particles, on a mesh of twice as many cells: around them as on a small one, 0 elsewhere."""
    mesh = tuple(n * t for n, t in zip(SMALL, (2 * times[0], *times[1:]), strict=True))
    small = (32, 32, 32)
    rng = np.random.default_rng(3)
    disp, weight = (jnp.array(rng.uniform(-3, 3, (*SITES, 3)).astype(np.float32)) for _ in range(2))

    def run(mesh: tuple[int, ...]) -> Any:
        return jax.jit(lambda *xs: force_transpose(*xs, geometry_of(mesh), CELL))(disp, weight)

    expected, wide = np.asarray(run(small)), run(mesh)
    index = [(np.arange(n) - 16) % m for n, m in zip(small, mesh, strict=True)]
    inside = [(np.arange(n) - 16) % n for n in small]
    np.testing.assert_array_equal(wide[tuple(jnp.asarray(i) for i in np.ix_(*index))], expected[np.ix_(*inside)])
    assert int(jax.jit(jnp.count_nonzero)(wide)) == np.count_nonzero(expected)


def main() -> None:
    on_gpu = GPU.platform == "gpu"
    assert not on_gpu or cic.cuda_unavailable_reason() is None, cic.cuda_unavailable_reason()
    if on_gpu and (GPU.memory_stats() or {}).get("bytes_limit", 0) < NEED:
        print(f"meshes on {GPU.device_kind} are fine as far as its memory goes: none was wide", flush=True)
        return
    x, y, z = map(int, sys.argv[1:4]) if len(sys.argv) > 1 else (25, 128, 128)
    check_force_transpose((x, y, z))  # first: what takes most finds memory in one piece
    fields = check_gradient((x, y, z))
    check_steps(fields)
    del fields
    check_filter((x, y, z))
    cells = np.prod(SMALL, dtype=float) * x * y * z
    print(f"wide meshes on {GPU.device_kind} are fine, with 2^{np.log2(cells):.2f} cells", flush=True)


if __name__ == "__main__":
    main()
