"""Run by `test_cic_on_gpu.py`: the kernels that move particles and those of the gradient against their references.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/steps_on_gpu.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist.ops import cic, kick_drift, pull_back, stencil
from pmwd_dist.ops.cic import Geometry

jax.config.update("jax_enable_x64", True)
Q = 2.0**-18


def random_block(rng: np.random.Generator, dtype: Any) -> tuple[Geometry, dict[str, Any]]:
    """Particles on their grids in a block that is periodic along some axes."""
    periodic = tuple(bool(b) for b in rng.integers(0, 2, 3))
    sites = tuple(int(n) for n in rng.integers(1, 40, 3))
    mesh = tuple(n if p else n + 10 for n, p in zip(sites, periodic, strict=True))
    origin = tuple(0 if p else 5 for p in periodic)
    geometry = Geometry(mesh, ((1, 1),) * 3, origin, periodic, (1.0, 1.3, 0.7))  # type: ignore[arg-type]
    vectors = {
        "disp": np.rint(rng.uniform(-3, 3, (*sites, 3)) / Q) * Q,
        "vel": np.rint(rng.normal(size=(*sites, 3)) / (4 * Q)) * 4 * Q,
        "ct_disp": rng.normal(size=(*sites, 3)),
        "ct_vel": rng.normal(size=(*sites, 3)),
        "fields": rng.normal(size=(*mesh, 3)),
        "field": rng.normal(size=mesh),
    }
    return geometry, {name: jnp.asarray(x, dtype) for name, x in vectors.items()}


def close(got: Any, expected: Any, what: str) -> None:
    """Equal to rounding, relative to the largest value."""
    got, expected = np.asarray(got), np.asarray(expected)
    atol = 200 * np.finfo(expected.dtype).eps * max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=what)


def compare_steps(seed: int) -> None:
    """Particles have the bits of the reference, cotangents and sums its values; repeated calls and batches agree."""
    rng, dtype = np.random.default_rng(seed), [np.float32, np.float64][seed % 2]
    g, x = random_block(rng, dtype)
    good = float(seed % 5 != 0)
    if not good:
        x["fields"], x["field"] = jnp.full_like(x["fields"], jnp.nan), jnp.full_like(x["field"], jnp.nan)

    def numbers(*values: float) -> list[Any]:
        return [jnp.asarray(value, dtype) for value in values]

    step = kick_drift.KickDrift(*numbers(0.3 / (4 * Q), 1 / (4 * Q), 4 * Q, 0.1 / Q, 0.2 / Q, good))
    kick = pull_back.UndoKick(*numbers(0.3 / (4 * Q), 1 / (4 * Q), 4 * Q, 0.1, 0.3, good))
    drift = pull_back.UndoDrift(*numbers(0.3, 1.1, 0.2, -0.2 / Q, -0.3 / Q, good))
    four = x["disp"], x["vel"], x["ct_disp"], x["ct_vel"]
    cases = [
        (
            lambda d, v, f: kick_drift.kick_drift(d, v, f, step, g, Q),
            lambda d, v, f: kick_drift._reference(d, v, f, jnp.stack(step), geometry=g, resolution=Q),
            (*four[:2], x["fields"]),
            (0, 1, 2),
        ),
        (
            lambda *xs: pull_back.undo_kick(*xs, kick, g),
            lambda *xs: pull_back._undo_kick_reference(*xs, jnp.stack(kick), geometry=g),
            (*four, x["fields"]),
            (0,),
        ),
        (
            lambda *xs: pull_back.undo_drift(*xs, drift, g, resolution=Q),
            lambda *xs: pull_back._undo_drift_reference(
                *xs[:4], xs[4][..., None], jnp.stack(drift), geometry=g, resolution=Q
            ),
            (*four, x["field"]),
            (0,),
        ),
    ]
    for number, (op, reference, operands, exact) in enumerate(cases):
        what = f"seed {seed}, op {number}, {g}, {dtype}"
        got, again, expected = jax.jit(op)(*operands), jax.jit(op)(*operands), jax.jit(reference)(*operands)
        batch = jax.jit(jax.vmap(op))(*(jnp.stack([x, x]) for x in operands))
        for i, (a, b, c, d) in enumerate(zip(got, again, batch, expected, strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=what)
            np.testing.assert_array_equal(a, c[1], err_msg=what)
            (np.testing.assert_array_equal if i in exact else close)(a, d, what)


def compare_gradient(seed: int) -> None:
    """The gradient and its transpose."""
    rng, dtype = np.random.default_rng(seed), [np.float32, np.float64][seed % 2]
    geometry, _ = random_block(rng, dtype)
    params: Any = {"cell_size": (1.0, 1.5, 0.8), "periodic": geometry.periodic}
    shape = tuple(n if p else n + 4 for n, p in zip(geometry.mesh, geometry.periodic, strict=True))
    field = jnp.asarray(rng.normal(size=shape), dtype)
    ct = jnp.asarray(rng.normal(size=(*geometry.mesh, 3)), dtype)
    got, pull = jax.vjp(lambda x: stencil.gradient(x, **params), field)
    close(got, stencil._gradient_reference(field[None], **params)[0], f"seed {seed}, gradient")
    close(pull(ct)[0], stencil._divergence_reference(ct[None], **params)[0], f"seed {seed}, transpose")


def main() -> None:
    reason = cic.cuda_unavailable_reason()
    assert reason is None, reason
    for seed in range(20):
        compare_steps(seed)
        compare_gradient(seed)
    print("steps and gradients are fine, in 20 random cases", flush=True)


if __name__ == "__main__":
    main()
