"""What `test_programs.py` runs, in one process or under mpirun: operations and derivatives against one GPU.

python tests/gpu/transform_processes.py
mpirun -n 4 python tests/gpu/transform_processes.py
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist._jax import native
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.fft import filtered_block

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))
from test_transforms import NAMES, TRANSFORMS, operations, weights

DERIVATIVES = ("grad", "jvp", "hessian-vector product", "vmap")  # a Jacobian takes long to compile there


def say(line: str) -> None:
    if distributed.is_main():
        print(line, flush=True)


def layouts() -> list[pmd.Decomposition]:
    """Slabs and pencils served by XLA, slabs that serve themselves and, in one process, a single GPU that does."""
    count = jax.device_count()
    found = [pmd.Decomposition((count // py, py), backend="xla") for py in (1, 2, count) if count % py == 0]
    alone = [1] if jax.process_count() == 1 else []
    return found + [pmd.Decomposition((n, 1), jax.devices()[:n], backend="peer") for n in (count, *alone)]


def transformed(decomposition: pmd.Decomposition, name: str, x: jax.Array) -> dict[str, Any]:
    function = operations(decomposition)[name]
    return jax.jit(lambda x: {"value": function(x)} | {d: TRANSFORMS[d](function)(x) for d in DERIVATIVES})(x)


def close(got: Any, expected: np.ndarray, what: str, error: float = 1e-11) -> None:
    got = np.asarray(got if got.is_fully_addressable else process_allgather(got, tiled=True))
    np.testing.assert_allclose(got, expected, rtol=0, atol=error * np.abs(expected).max(), err_msg=what)


def check_peers(decomposition: pmd.Decomposition) -> int:
    """Lengths that cuFFT takes otherwise, batches, transposes of any cotangent, other meshes; against numpy."""
    rng = np.random.default_rng(1)
    n = decomposition.size
    shapes = ((2 * n, 127 * n, 509), (3 * n, 5 * n, 7), (1920, n, 6), (n, 3 * n, 8))
    ordinal = jax.local_devices()[0].local_hardware_id
    slow = [nx for nx, ny, nz in shapes if not native.fast_along_x(ordinal, n, (nx, ny, nz // 2 + 1), True)]
    say(f"XLA transforms along x for the lengths {slow}")
    for shape in shapes:
        x = rng.standard_normal((2, *shape))
        z = x[0] + 1j * x[1]
        expected = np.fft.rfftn(x, axes=(1, 2, 3))
        there, back = (
            partial(pmd.prfft3d, decomposition=decomposition),
            partial(pmd.pirfft3d, shape=shape, decomposition=decomposition),
        )
        close(there(x[0]), expected[0], f"R2C {shape}")
        close(jax.jit(jax.vmap(there))(x), expected, f"batch of R2C {shape}")
        close(back(expected[0]), x[0], f"C2R {shape}")
        close(jax.jit(jax.vmap(back))(expected), x, f"batch of C2R {shape}")
        close(pmd.pfft3d(z, decomposition), np.fft.fftn(z), f"C2C {shape}")
        close(pmd.pifft3d(z, decomposition), np.fft.ifftn(z), f"inverse C2C {shape}")
        w = rng.standard_normal(expected[0].shape) + 1j * rng.standard_normal(expected[0].shape)
        whole = np.zeros(shape, complex)
        whole[..., : w.shape[2]] = w
        (back_there,) = jax.linear_transpose(there, x[0])(w)
        close(back_there, np.fft.fftn(whole).real, f"transpose of R2C {shape}")
    shape = shapes[-1]
    x = rng.standard_normal(shape)
    turned = Mesh(decomposition.mesh.devices[::-1], ("x", "y"))
    there = jax.shard_map(
        partial(pmd.prfft3d, decomposition=decomposition),
        mesh=turned,
        in_specs=P("x", "y"),
        out_specs=P(None, "x", "y"),
    )
    close(jax.jit(there)(x), np.fft.rfftn(x), "another mesh in force")
    return 7 * len(shapes) + 1


def check_filters(decomposition: pmd.Decomposition) -> int:
    """Filtered meshes, their batches and transposes against numpy; repeated calls agree to the bit."""
    rng, n = np.random.default_rng(3), decomposition.size
    shapes = ((16 * n, 3 * n, 9), (105 * n, 5 * n, 8), (512, 16 * n, 65), (512, 128, 512), (11 * n, n, 4))
    for shape, dtype in product(shapes, (np.float32, np.float64)):
        k = np.meshgrid(*(np.minimum(np.arange(m), m - np.arange(m)) for m in shape), indexing="ij")
        half = (np.exp(-0.01 * k[0]) * (2 + np.cos(k[1] + 0.3 * k[2])))[..., : shape[2] // 2 + 1]

        def op(block: jax.Array, half: np.ndarray = half, dtype: Any = dtype) -> jax.Array:
            width = half.shape[1] // n
            first = jax.lax.axis_index(decomposition.x_names) * width if n > 1 else 0
            response = lambda: jax.lax.dynamic_slice_in_dim(jax.numpy.asarray(half, dtype), first, width, 1)  # noqa: E731
            return filtered_block(block, response, decomposition)

        run = jax.jit(decomposition.shard_map(op, decomposition.spec, decomposition.spec))
        x = rng.standard_normal((2, *shape)).astype(dtype)
        expected = np.fft.irfftn(np.fft.rfftn(x.astype(float), axes=(1, 2, 3)) * half, s=shape, axes=(1, 2, 3))
        error, what = (1e-6 if dtype == np.float32 else 1e-14), f"{shape}, {dtype}"
        got = run(x[0])
        close(got, expected[0], f"filter {what}", error)
        assert bool(jax.numpy.array_equal(got, run(x[0]))), f"filter {what} differs"
        close(jax.jit(jax.vmap(run))(x), expected, f"batch of filters {what}", error)
        close(jax.linear_transpose(run, x[0])(x[1])[0], expected[1], f"transpose of filter {what}", error)
    return 4 * 2 * len(shapes)


def check_pieces(decomposition: pmd.Decomposition) -> int:
    """Meshes so large that they are exchanged in pieces and bands, against XLA's collectives."""
    shape = (640, 512, 500)
    plain = pmd.Decomposition(decomposition.pdims, list(decomposition.mesh.devices.flat), backend="xla")
    make = jax.jit(lambda: jax.random.normal(jax.random.key(0), shape), out_shardings=plain.sharding)
    x = make()
    z = x * (1 + 2j)
    for name, there, back in (
        ("R2C", partial(pmd.prfft3d, x), lambda w, own: pmd.pirfft3d(w, shape, own)),
        ("C2C", partial(pmd.pfft3d, z), pmd.pifft3d),
    ):
        spectrum = there(plain)
        for what, got, expected in (
            (name, there(decomposition), spectrum),
            (f"inverse {name}", back(spectrum, decomposition), back(spectrum, plain)),
        ):
            error = float(jax.numpy.abs(got - expected).max() / jax.numpy.abs(expected).max())
            assert error < 1e-13, f"{what} {shape}: {error}"
    return 4


def check_threads(decomposition: pmd.Decomposition) -> int:
    """Python threads, each with a program of its own, on the same GPUs."""
    x = jax.device_put(np.random.default_rng(2).standard_normal((64, 64, 64)), decomposition.sharding)
    programs = [
        jax.jit(lambda x, k=k: pmd.pirfft3d(pmd.prfft3d(k * x, decomposition), x.shape, decomposition))
        for k in (1.0, 2.0, 3.0)
    ]
    compiled = [program.lower(x).compile() for program in programs]

    def work(k: int) -> float:
        return max(float(jax.numpy.abs(compiled[k](x) - (k + 1) * x).max()) for _ in range(50))

    with ThreadPoolExecutor(len(programs)) as threads:
        errors = list(threads.map(work, range(len(programs))))
    assert max(errors) < 1e-11, errors
    return len(programs)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    distributed.initialize()
    say(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {jax.process_count()} processes")
    here = pmd.Decomposition((1, 1), devices=jax.local_devices()[:1], backend="xla")
    count = 0
    for name in NAMES:
        expected = jax.device_get(transformed(here, name, jax.device_put(weights(0), jax.local_devices()[0])))
        for decomposition in layouts():
            field = weights(0)
            x = jax.make_array_from_callback(field.shape, decomposition.sharding, lambda at: field[at])  # noqa: B023
            for what, value in transformed(decomposition, name, x).items():
                atol = 1e-11 * np.abs(expected[what]).max()
                for shard in value.addressable_shards:
                    message = f"{what} of {name}, {decomposition}"
                    np.testing.assert_allclose(shard.data, expected[what][shard.index], 0, atol, err_msg=message)
                count += 1
        say(f"{name}: fine")
    for decomposition in layouts():
        if decomposition.backend.name == "peer":
            count += check_peers(decomposition) + check_filters(decomposition) + check_pieces(decomposition)
            if jax.process_count() == 1:
                count += check_threads(decomposition)
    if jax.process_count() > 1:  # a process may use its own GPU alone
        alone = pmd.Decomposition((1, 1), jax.local_devices())
        field = weights(0)
        close(pmd.prfft3d(field, alone), np.fft.rfftn(field), f"{alone}")
        count += 1
    distributed.barrier()
    say(f"{count} comparisons with one GPU are fine")


if __name__ == "__main__":
    main()
