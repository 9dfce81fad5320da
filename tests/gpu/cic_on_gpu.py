"""Run by `test_programs.py`: CUDA paint and read against the CPU's, case by case.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/cic_on_gpu.py [first and last seed, for random cases only]
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist.ops import cic
from pmwd_dist.ops.cic import Geometry, Mask

jax.config.update("jax_enable_x64", True)
CPU, GPU = jax.devices("cpu")[0], jax.devices()[0]  # "GPU" is a CPU where its programs are only tried


def random_case(rng: np.random.Generator) -> tuple[Geometry, dict[str, Any], tuple[Mask, ...]]:
    """A lattice and a mesh of any shape, spacing and periodicity, with displacements that stay inside."""
    dtype = rng.choice([np.float32, np.float64])
    longest = [(7, 7, 7), (3, 5, 90), (20, 18, 33)][rng.integers(3)]
    sites = [int(rng.integers(1, n + 1)) for n in longest]
    num, den = rng.integers(1, 4, 3), rng.integers(1, 4, 3)
    max_displacement, periodic = int(rng.integers(1, 6)), rng.integers(0, 2, 3).astype(bool)
    padded = [(n - 1) * int(a) // int(b) + 2 * max_displacement + 3 for n, a, b in zip(sites, num, den, strict=True)]
    mesh = [int(rng.integers(1, 40)) if p else n for p, n in zip(periodic, padded, strict=True)]
    scale = 1.25 + 0.75 * rng.uniform(-1, 1, 3)
    origin = [int(rng.integers(-3, 4)) if p else max_displacement + 1 for p in periodic]
    spacing = tuple((int(a), int(b)) for a, b in zip(num, den, strict=True))
    geometry = Geometry(tuple(mesh), spacing, tuple(origin), tuple(map(bool, periodic)), tuple(scale.tolist()))  # type: ignore[arg-type]
    far = rng.choice([1.0, 20.0]) if all(periodic) else 1.0
    disp = far * max_displacement * rng.uniform(-1, 1, (*sites, 3)) / scale
    masks = tuple(tuple(int(m) for m in rng.integers(0, 2, 3)) for _ in range(rng.integers(1, 5)))
    masks = masks if rng.integers(2) else (cic.VALUE,)
    fields = int(rng.integers(1, 6))
    weights = sites if rng.integers(2) else (1, 1, 1)
    wide = 10.0 ** rng.uniform(-6, 6, (*weights, 1, 1)) if rng.integers(2) else 1.0  # as cotangents may be
    operands = {
        "disp": disp.astype(dtype),
        "weight": (wide * rng.normal(size=(*weights, len(masks), fields))).astype(dtype),
        "fields": rng.normal(size=(*mesh, fields)).astype(dtype),
        "ddisp": rng.normal(size=disp.shape).astype(dtype),
        "cotangent": rng.normal(size=(*sites, len(masks), fields)).astype(dtype),
    }
    return geometry, operands, masks  # type: ignore[return-value]


def operations(geometry: Geometry, masks: tuple[Mask, ...]) -> Any:
    """Both ops, and those that derivatives are made of."""

    def run(disp: Any, weight: Any, fields: Any, ddisp: Any, cotangent: Any) -> dict[str, Any]:
        def read(x: Any, y: Any) -> Any:
            return cic.read(x, y, geometry, masks)

        _, pull = jax.vjp(read, disp, fields)
        back = pull(cotangent)
        batch = jnp.stack([disp, disp + ddisp / 64])
        return {
            "paint": cic.paint(disp, weight, geometry, masks),
            "paint of a batch": jax.vmap(lambda x: cic.paint(x, weight, geometry, masks))(batch),
            "read": read(disp, fields),
            "slope of read": jax.jvp(read, (disp, fields), (ddisp, fields))[1],
            "gradient by positions": back[0],
            "gradient by fields": back[1],
        }

    return jax.jit(run)


def compare(seed: int) -> None:
    """Painted values and values read without sums have the CPU's bits; sums differ by rounding."""
    geometry, operands, masks = random_case(np.random.default_rng(seed))
    program = operations(geometry, masks)
    expected = program(**jax.device_put(operands, CPU))
    got = [program(**jax.device_put(operands, GPU)) for _ in range(2)]
    for name, value in expected.items():
        first, second, cpu = (np.asarray(x) for x in (got[0][name], got[1][name], value))
        what = f"seed {seed}, {name}: {geometry}, {masks}, {cpu.dtype}"
        np.testing.assert_array_equal(first, second, err_msg=what)
        if name in ("paint", "read", "gradient by fields"):
            np.testing.assert_array_equal(first, cpu, err_msg=what)
        else:
            scale = np.nanmax(np.abs(cpu), initial=1e-30)
            np.testing.assert_allclose(first, cpu, rtol=0, atol=30 * np.finfo(cpu.dtype).eps * scale, err_msg=what)


def check_invalid_values() -> None:
    """NaN in the painted batch element, and in what the particle itself reads."""
    geometry = Geometry((9, 8, 8), ((1, 1),) * 3, (1, 0, 0), (False, True, True), (1.0,) * 3)
    rng = np.random.default_rng(0)
    disp, weight = rng.uniform(-0.9, 0.9, (2, 6, 8, 8, 3)).astype(np.float32), np.ones((6, 8, 8, 1, 2), np.float32)
    fields = rng.normal(size=(9, 8, 8, 2)).astype(np.float32)
    paint = jax.jit(jax.vmap(lambda x, w: cic.paint(x, w, geometry), in_axes=(0, None)))
    read = jax.jit(lambda x: cic.read(x, jax.device_put(fields, GPU), geometry))
    for bad in (np.nan, np.inf, -np.inf, 2e9, -1e30, 7.0, -7.0):
        worse = disp.copy()
        worse[1, 3, 4, 5, 0] = bad
        painted = np.asarray(paint(jax.device_put(worse, GPU), jax.device_put(weight, GPU)))
        assert np.isfinite(painted[0]).all(), bad
        assert np.isnan(painted[1]).all(), bad
        values = np.asarray(read(jax.device_put(worse[1], GPU)))
        assert np.isnan(values[3, 4, 5]).all(), bad
        assert np.isfinite(np.delete(values.reshape(-1, 2), (3 * 8 + 4) * 8 + 5, 0)).all(), bad
    for bad in (np.nan, np.inf, -np.inf):
        heavier = weight.copy()
        heavier[0, 0, 1, 0, 1] = bad
        assert np.isnan(np.asarray(paint(jax.device_put(disp, GPU), jax.device_put(heavier, GPU)))).all(), bad


def check_large_mesh() -> None:
    """A mesh of more than 2^32 cells: offsets of 64 bits."""
    geometry = Geometry((1030, 2048, 2048), ((1, 1),) * 3, (1029, 2040, 2040), (True,) * 3, (1.0,) * 3)
    disp = jax.device_put(np.random.default_rng(0).uniform(-3, 3, (2, 20, 20, 3)).astype(np.float32), GPU)
    weight = jax.device_put(np.ones((1, 1, 1, 1, 1), np.float32), GPU)
    mesh = jax.jit(lambda x, w: cic.paint(x, w, geometry))(disp, weight)
    small = Geometry((16, 64, 64), ((1, 1),) * 3, (8, 16, 16), (True,) * 3, (1.0,) * 3)
    expected = np.asarray(cic.paint(disp, weight, small))[..., 0]
    shifts = [far - near for far, near in zip(geometry.origin, small.origin, strict=True)]
    index = [(np.arange(n) + s) % size for n, s, size in zip(small.mesh, shifts, geometry.mesh, strict=True)]
    at = tuple(jnp.asarray(i) for i in np.ix_(*index))
    np.testing.assert_array_equal(np.asarray(mesh[..., 0][at]), expected)
    assert float(mesh.sum(dtype=jnp.float64)) == expected.sum(dtype=np.float64)
    values = jax.jit(lambda x, m: cic.read(x, m, geometry))(disp, mesh)
    np.testing.assert_array_equal(np.asarray(values), np.asarray(cic.read(disp, expected[..., None], small)))


def check_replays() -> None:
    """A loop in one program, which XLA records as a CUDA graph, equals the same steps one by one."""
    geometry = Geometry((16,) * 3, ((1, 1),) * 3, (0,) * 3, (True,) * 3, (1.0,) * 3)
    start = jax.device_put(np.random.default_rng(0).uniform(-2, 2, (16, 16, 16, 3)).astype(np.float32), GPU)

    def step(disp: Any) -> Any:
        mesh = cic.paint(disp, jnp.ones((1, 1, 1, 1, 1), disp.dtype), geometry)
        return disp + cic.read(disp, jnp.tile(mesh - 1, (1, 1, 1, 3)), geometry)[..., 0, :] / 8

    one, expected = jax.jit(step), start
    for _ in range(20):
        expected = one(expected)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: step(x), x))
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(loop(start)), np.asarray(expected))


def main() -> None:
    reason = cic.cuda_unavailable_reason()
    assert reason is None, reason
    seeds = range(*map(int, sys.argv[1:3])) if len(sys.argv) > 1 else range(20)
    for seed in seeds:
        compare(seed)
    if len(sys.argv) == 1:
        check_invalid_values()
        check_replays()
        if (GPU.memory_stats() or {}).get("bytes_limit", 0) > 70e9:
            check_large_mesh()
    print(f"paint and read on {GPU.device_kind} are fine, in {len(seeds)} random cases", flush=True)


if __name__ == "__main__":
    main()
