"""Run by `test_programs.py`: the kernels that move particles, and those of the gradient, against the ops on the CPU.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/steps_on_gpu.py
"""

from __future__ import annotations

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

jax.config.update("jax_enable_x64", True)
CPU, GPU = jax.devices("cpu")[0], jax.devices()[0]  # "GPU" is a CPU where its programs are only tried
Q, UNIT = 2.0**-18, 2.0**-21  # the grid of displacements and the unit of momenta


def random_block(rng: np.random.Generator, dtype: Any) -> tuple[Geometry, dict[str, Any]]:
    """Particles on their grids in a block that is periodic along some axes, on a finer or coarser lattice."""
    periodic = tuple(bool(b) for b in rng.integers(0, 2, 3))
    spacing = tuple(((1, 1), (1, 1), (2, 1), (3, 2), (1, 2))[i] for i in rng.integers(0, 5, 3))
    sites = tuple(int(n) * den for n, (_, den) in zip(rng.integers(1, 30, 3), spacing, strict=True))
    cells = (n * num // den for n, (num, den) in zip(sites, spacing, strict=True))
    mesh = tuple(n if p else n + 10 for n, p in zip(cells, periodic, strict=True))
    origin = tuple(0 if p else 5 for p in periodic)
    geometry: Any = Geometry(mesh, spacing, origin, periodic, (1.0, 1.3, 0.7))  # type: ignore[arg-type]
    vectors = {
        "disp": np.rint(rng.uniform(-3, 3, (*sites, 3)) / Q) * Q,
        "vel": np.rint(rng.normal(size=(*sites, 3)) / UNIT) * UNIT,
        "ct_disp": rng.normal(size=(*sites, 3)),
        "ct_vel": rng.normal(size=(*sites, 3)),
        "fields": rng.normal(size=(*mesh, 3)),
        "field": rng.normal(size=mesh),
    }
    x = {name: x.astype(dtype) for name, x in vectors.items()}
    whole = np.rint(x["vel"] / UNIT).astype({4: np.int32, 8: np.int64}[x["vel"].itemsize])
    return geometry, x | {"held": np.asarray(momenta.pack(jnp.asarray(whole), jnp.asarray(x["vel"])))}


def coefficients(dtype: Any, good: float = 1.0) -> tuple[Any, Any, Any]:
    """Coefficients of a step, and of the reversals of its kick and of its drifts."""
    numbers = (
        step_ops.KickDrift(0.3 / UNIT, 1 / UNIT, UNIT, 0.1 / Q, 0.2 / Q, good),
        step_ops.UndoKick(0.3 / UNIT, UNIT, UNIT, 0.1, 0.3, good),
        step_ops.UndoDrift(0.3, 1.1, UNIT, -0.2 / Q, -0.3 / Q, good),
    )
    return jax.tree.map(lambda value: np.asarray(value, dtype), numbers)


def close(got: Any, expected: Any, what: str) -> None:
    """Equal to rounding, relative to the largest finite value."""
    got, expected = np.asarray(got), np.asarray(expected)
    atol = 200 * np.finfo(expected.dtype).eps * float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=what)


def compare_steps(seed: int) -> None:
    """Particles have the bits of the reference, cotangents and sums its values; repeated calls and batches agree."""
    rng, dtype = np.random.default_rng(seed), [np.float32, np.float64][seed % 2]
    g, x = random_block(rng, dtype)
    good = float(seed % 5 != 0)
    if not good:
        x["fields"], x["field"] = np.full_like(x["fields"], np.nan), np.full_like(x["field"], np.nan)

    step, kick, drift = coefficients(dtype, good)
    four = x["disp"], x["held"], x["ct_disp"], x["ct_vel"]
    grids = {"geometry": g, "resolution": Q}
    ops: Any = step_ops.kick_drift, step_ops.undo_kick, step_ops.undo_drift
    cases = [
        (lambda *xs: ops[0](*xs, step, **grids), (*four[:2], x["fields"]), (0, 1, 2)),
        (lambda *xs: ops[1](*xs, kick, g), (*four, x["fields"]), (0,)),
        (lambda *xs: ops[2](*xs, drift, g, resolution=Q), (*four, x["field"]), (0,)),
        (
            lambda *xs: step_ops.undo_drift_and_kick(xs[:4], *xs[4:], drift, kick, g, resolution=Q),
            (*four, x["field"], x["fields"]),
            (0, 1),
        ),
    ]
    for number, (op, operands, exact) in enumerate(cases):
        what = f"seed {seed}, op {number}, {g}, {dtype}"
        program, on_gpu = jax.jit(op), jax.device_put(operands, GPU)
        expected = program(*jax.device_put(operands, CPU))
        got, again = program(*on_gpu), program(*on_gpu)
        batch = jax.jit(jax.vmap(op))(*(jnp.stack([x, x]) for x in on_gpu))
        for i, (a, b, c, d) in enumerate(zip(got, again, batch, expected, strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=what)
            np.testing.assert_array_equal(a, c[1], err_msg=what)
            (np.testing.assert_array_equal if i in exact else close)(np.asarray(a), np.asarray(d), what)


def compare_gradient(seed: int) -> None:
    """The gradient and its transpose."""
    rng, dtype = np.random.default_rng(seed), [np.float32, np.float64][seed % 2]
    geometry, _ = random_block(rng, dtype)
    params: Any = {"cell_size": (1.0, 1.5, 0.8), "periodic": geometry.periodic}
    shape = tuple(n if p else n + 4 for n, p in zip(geometry.mesh, geometry.periodic, strict=True))
    field = rng.normal(size=shape).astype(dtype)
    ct = rng.normal(size=(*geometry.mesh, 3)).astype(dtype)

    def both(device: Any) -> tuple[Any, Any]:
        out, pull = jax.vjp(lambda x: stencil.gradient(x, **params), jax.device_put(field, device))
        return out, pull(jax.device_put(ct, device))[0]

    for got, expected, what in zip(both(GPU), both(CPU), ("gradient", "transpose"), strict=True):
        close(got, expected, f"seed {seed}, {what}")
    if all(geometry.periodic):
        several = rng.normal(size=(2, 3, *shape)).astype(dtype)
        bits, place = jax.device_put((several.view(f"i{several.itemsize}"), np.array([2, 0], np.int32)), GPU)
        got = jax.vmap(lambda bits, place: stencil.gradient_at(bits, place, params["cell_size"]))(bits, place)
        for one, field in zip(got, (several[0, 2], several[1, 0]), strict=True):
            np.testing.assert_array_equal(one, stencil.gradient(jax.device_put(field, GPU), **params))


def compare_filter(seed: int) -> None:
    """A mesh filtered in Fourier space, its batches and derivatives, against numpy; repeated calls agree to the bit."""
    rng, dtype = np.random.default_rng(seed), [np.float32, np.float64][seed % 2]
    lengths = (16, 48, 512, 105, 100, 1024, 896, 11, 2560)
    shape = lengths[seed % len(lengths)], int(rng.integers(2, 20)), int(rng.integers(2, 40))
    k = np.meshgrid(*(np.minimum(np.arange(n), n - np.arange(n)) for n in shape), indexing="ij")
    response = np.exp(-0.01 * k[0]) * (2 + np.cos(k[1] + 0.3 * k[2]))
    half = response[..., : shape[2] // 2 + 1]
    x, ct = rng.normal(size=(2, 2, *shape)).astype(dtype)
    backend = pmd.Decomposition((1, 1), [GPU], backend="peer")

    def op(x: Any) -> Any:
        return filtered_block(x, lambda: jnp.asarray(half, dtype), backend)

    run = jax.jit(backend.shard_map(op, backend.spec, backend.spec))
    expected = np.fft.irfftn(np.fft.rfftn(x.astype(float), axes=(1, 2, 3)) * half, s=shape, axes=(1, 2, 3))
    pulled = np.fft.irfftn(np.fft.rfftn(ct.astype(float), axes=(1, 2, 3)) * half, s=shape, axes=(1, 2, 3))
    what = f"filter, seed {seed}, {shape}, {dtype}"
    one, two = (jax.device_put(block, GPU) for block in x)
    got, again = run(one), run(one)
    np.testing.assert_array_equal(got, again, err_msg=what)
    close(got, expected[0].astype(dtype), what)
    np.testing.assert_array_equal(one, x[0], err_msg=f"{what}: the operand is kept")
    close(jax.jit(jax.vmap(run))(jnp.stack([one, two])), expected.astype(dtype), f"{what}, batch")
    tangent, pull = jax.jvp(run, (one,), (two,))[1], jax.vjp(run, one)[1]
    close(tangent, expected[1].astype(dtype), f"{what}, tangent")
    close(pull(jax.device_put(ct[0], GPU))[0], pulled[0].astype(dtype), f"{what}, cotangent")


def compare_force_transpose(seed: int) -> None:
    """Weights of a wide range, particles that leave their tile; repeated calls and batches agree to the bit."""
    rng = np.random.default_rng(seed)
    geometry, vectors = random_block(rng, np.float32)
    sites = vectors["disp"].shape[:3]
    far = [3.5, 30.0][all(geometry.periodic)]
    disp = (rng.uniform(-far, far, (*sites, 3)) * rng.random((*sites, 1)) ** 4).astype(np.float32)
    weight = (rng.normal(size=disp.shape) * 10.0 ** rng.uniform(-3, 3, (*sites, 1))).astype(np.float32)
    op = jax.jit(lambda *xs: force_transpose(*xs, geometry, (1.0, 1.5, 0.8)))
    expected = np.asarray(op(*jax.device_put((disp.astype(float), weight.astype(float)), CPU)))
    on_gpu = jax.device_put((disp, weight), GPU)
    got, again = op(*on_gpu), op(*on_gpu)
    batch = jax.jit(jax.vmap(op))(*(jnp.stack([x, x]) for x in on_gpu))
    np.testing.assert_array_equal(got, again)
    np.testing.assert_array_equal(got, batch[1])
    if np.prod([num / den for num, den in geometry.spacing]) >= 4:  # painted field by field
        painted = jax.jit(lambda x, w: cic.paint(x, w[..., None, :], geometry))(*on_gpu)
        np.testing.assert_array_equal(got, stencil.divergence(painted, (1.0, 1.5, 0.8), geometry.periodic))
    # Positions are rounded where they are scaled to cells: 2e-6 cells for the largest displacements.
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=f"seed {seed}")
    close(got, np.asarray(op(*jax.device_put((disp, weight), CPU))), f"seed {seed}, {geometry}")
    for axis, bad in [(0, np.nan), *((i, 1e6) for i, wraps in enumerate(geometry.periodic) if not wraps)]:
        broken = disp.copy()
        broken[0, -1, 0, axis] = bad
        assert np.isnan(op(*jax.device_put((broken, weight), GPU))).all(), f"seed {seed}, {bad}"
    for bad in (np.nan, np.inf, -np.inf):
        broken = weight.copy()
        broken[-1, 0, -1, rng.integers(3)] = bad
        assert np.isnan(op(*jax.device_put((disp, broken), GPU))).all(), f"seed {seed}, weight {bad}"


def main() -> None:
    reason = cic.cuda_unavailable_reason()
    assert reason is None, reason
    for seed in range(20):
        compare_steps(seed)
        compare_gradient(seed)
        compare_filter(seed)
        compare_force_transpose(seed)
    print("steps, gradients and filters are fine, in 20 random cases", flush=True)


if __name__ == "__main__":
    main()
