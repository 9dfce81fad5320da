"""What `test_programs.py` runs in every process: cuDecomp against XLA's collectives, bit by bit.

    mpirun -n 4 python tests/gpu/cudecomp_processes.py [BACKEND ...]

Prints the difference of each result of the package on each process, and one line a backend on the main process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.backends import cudecomp
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.halo import pad_block
from pmwd_dist.pm.gravity import acceleration

# Axes of all_to_all: split, concatenated, and whether over the devices along y.
XLA_STEPS = {"z_to_y": (2, 1, True), "y_to_x": (1, 0, False), "x_to_y": (0, 1, False), "y_to_z": (1, 2, True)}
SPECS = {
    "z": jax.P("x", "y", None),
    "y": jax.P("x", None, "y"),
    "x": jax.P(None, "x", "y"),
}
HALO_COMMS = {
    "nccl": "nccl",
    "nccl_pl": "nccl",
    "nvshmem": "nvshmem",
    "nvshmem_pl": "nvshmem_blocking",
    "mpi_p2p": "mpi",
    "mpi_p2p_pl": "mpi_blocking",
    "mpi_a2a": "mpi",
}
SHAPE = (16, 24, 40)


def say(*words: Any) -> None:
    if distributed.is_main():
        print(*words, flush=True)


def layouts() -> Iterator[pmd.Decomposition]:
    count = jax.device_count()
    for px in range(count, 0, -1):
        if count % px == 0:
            yield pmd.Decomposition(pdims=(px, count // px))


def served(decomposition: pmd.Decomposition, name: str) -> pmd.Decomposition:
    """The same blocks, transposed by cuDecomp."""
    comms: Any = {"transpose_comm": name, "halo_comm": HALO_COMMS.get(name, "nccl")}
    return pmd.Decomposition(pdims=decomposition.pdims, backend="cudecomp", **comms)


def xla_transpose(block: jax.Array, decomposition: pmd.Decomposition, step: str) -> jax.Array:
    split, concat, along_y = XLA_STEPS[step]
    if decomposition.pdims[int(along_y)] == 1:
        return block
    names = decomposition.y_names if along_y else decomposition.x_names
    return jax.lax.all_to_all(block, names, split, concat, tiled=True)


def xla_pad_block(block: jax.Array, halo: int, decomposition: pmd.Decomposition) -> jax.Array:
    return XLA().halo_pad(block, halo, decomposition)


def own_transpose(block: jax.Array, decomposition: pmd.Decomposition, step: str) -> jax.Array:
    return decomposition.backend.transpose(block, decomposition, step)


BOTH: tuple[Callable[..., jax.Array], ...] = (own_transpose, xla_transpose)


def mapped(body: Callable[..., Any], decomposition: pmd.Decomposition, before: Any, after: Any) -> Callable[..., Any]:
    return jax.jit(decomposition.shard_map(body, before, after))


def steps(decomposition: pmd.Decomposition, step: str) -> tuple[Any, Any]:
    before, after = step.split("_to_")
    return SPECS[before], SPECS[after]


def values(shape: tuple[int, ...], dtype: str, spec: Any, decomposition: pmd.Decomposition, seed: int = 0) -> jax.Array:
    """The same random array on every process, sharded."""
    rng = np.random.default_rng(seed)
    host = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.startswith("complex") else 0)
    host = host.astype(dtype)
    return jax.make_array_from_callback(
        shape, jax.sharding.NamedSharding(decomposition.mesh, spec), lambda at: host[at]
    )


def difference(ours: jax.Array, theirs: jax.Array) -> tuple[float, str]:
    """Largest error of this process's values, relative to the largest value, and a phrase that tells it."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    pairs = list(zip(ours.addressable_shards, theirs.addressable_shards, strict=True))
    assert all(a.index == b.index for a, b in pairs)
    x, y = (np.concatenate([np.ravel(shard.data) for shard in shards]) for shards in zip(*pairs, strict=True))
    error = float(np.max(np.abs(x - y)) / np.max(np.abs(y)))
    return error, f"{np.count_nonzero(x != y)} of {x.size} differ, by {error:.1e}"


def same(ours: jax.Array, theirs: jax.Array, what: str) -> None:
    error, told = difference(ours, theirs)
    assert error == 0, f"{what}: {told}"


def check_transposes(decomposition: pmd.Decomposition, dtype: str) -> int:
    count = 0
    for step in XLA_STEPS:
        what = f"{decomposition} {step} {dtype}"
        before, after = steps(decomposition, step)
        ours, theirs = (
            mapped(partial(t, decomposition=decomposition, step=step), decomposition, before, after) for t in BOTH
        )
        x = values(SHAPE, dtype, before, decomposition)
        same(ours(x), theirs(x), what)
        ct = values(SHAPE, dtype, after, decomposition, seed=1)
        same(jax.vjp(ours, x)[1](ct)[0], jax.vjp(theirs, x)[1](ct)[0], f"vjp of {what}")
        same(jax.jvp(ours, (x,), (2 * x,))[1], theirs(2 * x), f"jvp of {what}")
        count += 3
    before, after = (jax.P(None, *spec) for spec in steps(decomposition, "z_to_y"))
    x = values((3, *SHAPE), dtype, before, decomposition)
    batched = (jax.vmap(partial(t, decomposition=decomposition, step="z_to_y")) for t in BOTH)
    ours, theirs = (mapped(run, decomposition, before, after) for run in batched)
    same(ours(x), theirs(x), f"vmap of {decomposition} z_to_y {dtype}")
    return count + 1


def widest(decomposition: pmd.Decomposition, shape: tuple[int, int, int] = SHAPE) -> int:
    """Width of a block: the widest halo that cuDecomp can fill."""
    return min(n // p for n, p in zip(shape, decomposition.pdims, strict=False) if p > 1)


def check_halos(decomposition: pmd.Decomposition, dtype: str) -> int:
    count, spec = 0, decomposition.spec
    for halo in (1, 3, widest(decomposition)):
        what = f"{decomposition} halo {halo} {dtype}"
        pads = (partial(pad, halo=halo, decomposition=decomposition) for pad in (pad_block, xla_pad_block))
        ours, theirs = (mapped(pad, decomposition, spec, spec) for pad in pads)
        x = values(SHAPE, dtype, spec, decomposition)
        out = theirs(x)
        same(ours(x), out, what)
        ct = jnp.round(8 * values(out.shape, dtype, spec, decomposition, seed=1))  # sums in any order are exact
        same(jax.vjp(ours, x)[1](ct)[0], jax.vjp(theirs, x)[1](ct)[0], f"vjp of {what}")
        count += 2
    return count


REAL = (16, 16, 24)
RESULTS = ("spectrum", "filtered field", "its gradient", "halo_pad", "halo_reduce", "force", "its vjp")
SPECTRA = {py: (16, 16, -(-13 // py) * py) for py in (1, 2, 4, 8)}


def check_package(decomposition: pmd.Decomposition) -> int:
    """The public transforms, halos and a force with its gradient, as with XLA.

    Halos are compared bit by bit. Transforms of other layouts round otherwise, and painting on a GPU adds in any order.
    """
    plain = pmd.Decomposition(pdims=decomposition.pdims)
    x = values(REAL, "float64", decomposition.spec, decomposition)
    settings = {"box_size": (16.0, 16.0, 24.0), "mesh_shape": REAL, "a_start": 0.1, "a_stop": 1.0, "halo": 2}

    def results(own: pmd.Decomposition, x: jax.Array) -> list[jax.Array]:
        config = pmd.Config(**settings, decomposition=own)  # type: ignore[arg-type]
        disp = 0.4 * jnp.tanh(jnp.stack([x, 2 * x, -x], -1))
        filtered = lambda x: pmd.pirfft3d(pmd.prfft3d(x, own) ** 2, REAL, own)  # noqa: E731
        padded = pmd.halo_pad(x, 2, own)
        force = lambda d: acceleration(d, config)[0]  # noqa: E731
        return [
            pmd.prfft3d(x, own),
            filtered(x),
            jax.grad(lambda x: jnp.sum(filtered(x) ** 2))(x),
            padded,
            pmd.halo_reduce(padded, 2, own),
            force(disp),
            jax.vjp(force, disp)[1](jnp.cos(disp))[0],
        ]

    ours, theirs = (jax.jit(partial(results, own))(x) for own in (decomposition, plain))
    wrong = []
    for name, a, b in zip(RESULTS, ours, theirs, strict=True):
        error, told = difference(a, b)
        print(f"process {jax.process_index()}, {decomposition}, {name}: {told}", flush=True)
        if not error <= (0 if "halo" in name else 1e-12):
            wrong.append(name)
    assert not wrong, f"{wrong} differ with {decomposition}"
    return len(ours)


def fails(expected: type[Exception], text: str, body: Callable[[], Any]) -> None:
    with pytest.raises(expected, match=text):
        body()


def check_refusals(decomposition: pmd.Decomposition, names: list[str]) -> None:
    block = mapped(lambda b: own_transpose(b, decomposition, "y_to_x"), decomposition, *steps(decomposition, "y_to_x"))
    fails(ValueError, "is not open", lambda: block(values((8, 8, 8), "float32", SPECS["y"], decomposition)))
    if not any(name.startswith("mpi") for name in names):
        fails(ValueError, "CUDA-aware", lambda: cudecomp.open_backend(served(decomposition, "mpi_p2p"), [SHAPE]))
    fails(ValueError, "doesn't divide", lambda: cudecomp.open_backend(decomposition, [(7, 7, 7)]))


def check_closing(decomposition: pmd.Decomposition, name: str) -> None:
    """A compiled program finds cuDecomp closed, and open again."""
    run = mapped(
        partial(own_transpose, decomposition=decomposition, step="y_to_x"),
        decomposition,
        *steps(decomposition, "y_to_x"),
    )
    x = values(SHAPE, "float32", SPECS["y"], decomposition)
    before = run(x)
    cudecomp.close_backend()
    cudecomp.close_backend()  # a second call does nothing
    assert not decomposition.backend.is_open
    fails(jax.errors.JaxRuntimeError, "is not open", lambda: jax.block_until_ready(run(x)))
    if name.startswith("nccl"):
        cudecomp.open_backend(decomposition, [SHAPE])
        same(run(x), before, "after opening again")
        cudecomp.close_backend()


def compare(names: list[str]) -> None:
    for name in names:
        count = 0
        for decomposition in (served(decomposition, name) for decomposition in layouts()):
            try:
                cudecomp.open_backend(decomposition, [SHAPE], halo=widest(decomposition))
                cudecomp.open_backend(
                    decomposition, [REAL, SPECTRA[decomposition.pdims[1]]], halo=widest(decomposition, REAL)
                )
            except ValueError as error:
                say(f"{name}: refused: {error}")
                break
            for dtype in ("float32", "float64", "complex64", "complex128"):
                count += check_transposes(decomposition, dtype)
                count += check_halos(decomposition, dtype)
            count += check_package(decomposition)
        say(f"{name}: {count} comparisons agree")
    last = served(next(layouts()), names[-1])
    check_refusals(last, names)
    check_closing(last, names[-1])


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    distributed.initialize()
    names = sys.argv[1:] or ["nccl", "nccl_pl"]
    say(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {cudecomp.library()}")
    compare(names)
    distributed.barrier()
    say("done")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
