"""Run by `test_programs.py`: kernels write all of their results, and nothing beside them, whatever was there before.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/canaries_on_gpu.py [first and last seed]

Each operand and result lies between two arrays of its own size, which XLA's allocator puts right beside it. These, the
memory of the results and what the allocator hands out as scratch are filled with NaNs, with huge numbers or with zeros:
the canaries and operands must not change, and the results must have the same bits each time. Without a GPU this tries
the program itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cic_on_gpu
import jax
import jax.numpy as jnp
import numpy as np
from steps_on_gpu import GPU, Q, coefficients, random_block

import pmwd_dist as pmd
from pmwd_dist.ops import cic, stencil
from pmwd_dist.ops import step as step_ops
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.parallel.fft import filtered_block

FILLS = 0xFF, 0x7F, 0x00  # NaN, 3e38 and 0, in both precisions
COUNTS = "pairs", "adjacent", "results", "in place"  # of arrays, and results in the memory that was filled
SCRATCH = 2**26  # bytes that are filled and given back before a run


def filled(like: Any, byte: int) -> jax.Array:
    """An array of this shape and type, made of one byte."""
    count = int(np.prod(like.shape)) * like.dtype.itemsize
    return jnp.array(np.full(count, byte, np.uint8).view(like.dtype).reshape(like.shape))


def bits(x: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(x)).reshape(-1).view(np.uint8)


class Cage:
    """Arrays between canaries.

    Args:
      byte: of which the canaries are made.
    """

    def __init__(self, byte: int):
        self.byte, self.canaries, self.pairs, self.adjacent = byte, list[jax.Array](), 0, 0

    def put(self, x: Any, *, fill: bool = False) -> jax.Array:
        """A copy of an array, or one that is filled, between two canaries."""
        before = filled(x, self.byte)
        own = filled(x, self.byte) if fill else jnp.array(x)
        after = filled(x, self.byte)
        self.canaries += before, after
        places = [a.unsafe_buffer_pointer() for a in (before, own, after)]
        self.pairs += 2
        self.adjacent += sum(0 <= b - a - own.nbytes < 512 for a, b in zip(places, places[1:], strict=False))
        return own

    def check(self, what: str) -> None:
        for canary in self.canaries:
            assert np.all(bits(canary) == self.byte), f"{what}: a canary of {canary.shape} was written"


def check(seed: int, program: Callable[..., Any], operands: Any, count: dict[str, int]) -> None:
    """Run a program of several ops with each fill."""
    shapes, first = jax.eval_shape(program, operands), None
    run = jax.jit(lambda there, operands: program(operands), donate_argnums=0, keep_unused=True)
    for byte in (*FILLS, FILLS[0]):
        cage = Cage(byte)
        placed = jax.tree.map(cage.put, operands)
        there = jax.tree.map(lambda x, cage=cage: cage.put(x, fill=True), shapes)
        places = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(there)}
        filled(jax.ShapeDtypeStruct((SCRATCH,), np.dtype(np.uint8)), byte).block_until_ready().delete()
        out = jax.block_until_ready(run(there, placed))
        cage.check(f"seed {seed}, fill {byte:x}")
        for before, after in zip(jax.tree.leaves(operands), jax.tree.leaves(placed), strict=True):
            np.testing.assert_array_equal(bits(before), bits(after), err_msg=f"seed {seed}: an operand was written")
        count["pairs"] += cage.pairs
        count["adjacent"] += cage.adjacent
        count["results"] += len(places)
        count["in place"] += sum(x.unsafe_buffer_pointer() in places for x in jax.tree.leaves(out))
        first = out if first is None else first
        for (path, one), two in zip(jax.tree.leaves_with_path(first), jax.tree.leaves(out), strict=True):
            what = f"seed {seed}, fill {byte:x}, {jax.tree_util.keystr(path)}"
            np.testing.assert_array_equal(bits(one), bits(two), err_msg=what)


def paints_and_reads(seed: int) -> tuple[Callable[..., Any], Any]:
    """The program of `cic_on_gpu.py` on a random case."""
    geometry, operands, masks = cic_on_gpu.random_case(np.random.default_rng(seed))
    program = cic_on_gpu.operations(geometry, masks)
    return (lambda operands: program(**operands)), operands


def steps(seed: int) -> tuple[Callable[..., Any], Any]:
    """What moves particles and pulls cotangents back, gradients and filters, in blocks of any shape."""
    rng, dtype = np.random.default_rng(seed), [np.float32, np.float64][seed % 2]
    g, x = random_block(rng, dtype)
    x |= dict(zip(("step", "kick", "drift"), coefficients(dtype), strict=True))
    x["potential"] = rng.normal(size=[n if p else n + 4 for n, p in zip(g.mesh, g.periodic, strict=True)]).astype(dtype)
    mesh = int(rng.choice([16, 48, 105, 11])), int(rng.integers(2, 20)), int(rng.integers(2, 40))
    x["mesh"] = rng.normal(size=mesh).astype(dtype)
    backend = pmd.Decomposition((1, 1), [GPU], backend="auto" if GPU.platform == "cpu" else "peer")
    cell: Any = (1.0, 1.5, 0.8)

    def respond() -> Any:
        k = [jnp.minimum(jnp.arange(n), n - jnp.arange(n)).astype(dtype) for n in mesh]
        response = jnp.exp(-k[0] / 100).reshape(-1, 1, 1) * (2 + jnp.cos(k[1])).reshape(1, -1, 1)
        return response * jnp.ones((1, 1, mesh[2] // 2 + 1), dtype)

    def program(x: dict[str, Any]) -> dict[str, Any]:
        four = x["disp"], x["held"], x["ct_disp"], x["ct_vel"]
        out = {
            "step": step_ops.kick_drift(*four[:2], x["fields"], x["step"], g, resolution=Q),
            "kick undone": step_ops.undo_kick(*four, x["fields"], x["kick"], g),
            "drift undone": step_ops.undo_drift(*four, x["field"], x["drift"], g, resolution=Q),
            "both undone": step_ops.undo_drift_and_kick(
                four, x["field"], x["fields"], x["drift"], x["kick"], g, resolution=Q
            ),
            "transpose of the force": force_transpose(x["disp"], x["ct_vel"], g, cell),
            "gradient": stencil.gradient(x["potential"], cell, g.periodic),
            "divergence": stencil.divergence(x["fields"], cell, g.periodic),
            "filter": backend.shard_map(lambda f: filtered_block(f, respond, backend), backend.spec, backend.spec)(
                x["mesh"]
            ),
        }
        if all(g.periodic):
            kept = jax.lax.bitcast_convert_type(x["potential"], f"i{x['potential'].dtype.itemsize}")
            out["kept gradient"] = stencil.gradient_at(jnp.stack([kept, -kept]), jnp.asarray(1), cell)
        return out

    return program, x


def main() -> None:
    on_gpu = GPU.platform == "gpu"
    assert not on_gpu or cic.cuda_unavailable_reason() is None, cic.cuda_unavailable_reason()
    seeds = range(*map(int, sys.argv[1:3])) if len(sys.argv) > 1 else range(10)
    count = dict.fromkeys(COUNTS, 0)
    with jax.default_device(GPU):
        for seed in seeds:
            check(seed, *paints_and_reads(seed), count)
            check(seed, *steps(seed), count)
    if on_gpu:  # else they would guard nothing
        assert count["adjacent"] > count["pairs"] / 10, count
        assert count["in place"] > count["results"] / 2, count
    print(f"canaries on {GPU.device_kind} are fine, in {len(seeds)} random cases: {count}", flush=True)


if __name__ == "__main__":
    main()
