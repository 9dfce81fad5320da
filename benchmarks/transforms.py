"""Time distributed transforms and halos: GPUs that write into each other's memory, XLA, cuDecomp, jaxdecomp from PyPI.

    python benchmarks/transforms.py 512 1024                 one process, all its devices: with the first of them
    mpirun -n 4 python benchmarks/transforms.py 512 1024     one process a GPU: with cuDecomp's backends

With --real, complex transforms are left out. Prints a table in ms: the median of 10 calls that are waited for, and the
time of each of 10 that follow each other; in brackets the GB/s that a device sends in the whole transform, against
NVLink's 450. The largest error of a round trip is checked first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.backends import cudecomp
from pmwd_dist.parallel.defaults import HaloComm, TransposeComm
from pmwd_dist.parallel.fft import spectrum_shape

REPEATS = 10
HALO = 32
COMMS: dict[TransposeComm, HaloComm] = {
    "nccl": "nccl",
    "nccl_pl": "nccl",
    "nvshmem": "nccl",
    "nvshmem_pl": "nccl",
    "mpi_p2p": "mpi",
    "mpi_p2p_pl": "mpi",
    "mpi_a2a": "mpi",
}


def say(line: str) -> None:
    if distributed.is_main():
        print(line, flush=True)


def seconds(function: Callable[[Any], Any], argument: Any) -> tuple[float, float]:
    """Seconds of a call that is waited for, and of one among several that follow each other, as in a program."""
    compiled = jax.jit(function).lower(argument).compile()
    jax.block_until_ready(compiled(argument))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(argument))
        times.append(time.perf_counter() - start)
    queued = []
    for _ in range(2):  # the first time, memory is still being asked for
        start = time.perf_counter()
        out = None
        for _ in range(REPEATS):
            out = compiled(argument)
        jax.block_until_ready(out)
        queued.append((time.perf_counter() - start) / REPEATS)
    return float(np.median(times)), min(queued)


def cells(times: list[tuple[float, float]]) -> list[str]:
    return [f"{1e3 * alone:.2f} / {1e3 * queued:.2f}" for alone, queued in times]


def decompositions() -> list[pmd.Decomposition]:
    """Slabs by the default backend; slabs and pencils by XLA."""
    count, default = jax.device_count(), pmd.Decomposition()
    by_xla = [pmd.Decomposition((count // py, py), backend="xla") for py in (1, 2) if count % py == 0]
    return by_xla if default.backend.name == "xla" else [default, *by_xla]


def sent(shape: Any, decomposition: pmd.Decomposition, item: int) -> float:
    """Bytes that a device sends in one transform."""
    whole = np.prod(shape) * item / decomposition.size
    return float(sum(whole * (parts - 1) / parts for parts in decomposition.pdims))


def random_field(n: int, decomposition: pmd.Decomposition, dtype: Any) -> jax.Array:
    make = jax.jit(lambda: jax.random.normal(jax.random.key(0), (n, n, n), dtype), out_shardings=decomposition.sharding)
    return jax.block_until_ready(make())


def there_and_back(decomposition: pmd.Decomposition, field: jax.Array) -> jax.Array:
    padded = jax.lax.optimization_barrier(
        pmd.halo_pad(field, HALO, decomposition)
    )  # which there would be no need to make
    return pmd.halo_reduce(padded, HALO, decomposition)


def measure(n: int, decomposition: pmd.Decomposition, name: str, with_halo: bool) -> None:
    shape = (n, n, n)
    forward, inverse = (
        partial(pmd.prfft3d, decomposition=decomposition),
        partial(pmd.pirfft3d, shape=shape, decomposition=decomposition),
    )
    field = random_field(n, decomposition, jnp.float32)
    modes = jax.jit(forward)(field)
    error = float(jax.jit(lambda m, f: jnp.max(jnp.abs(inverse(m) - f)))(modes, field))
    if not error < 1e-4:
        say(f"| {n}^3 | {decomposition.pdims} | {name} | WRONG by {error:g} |")
        return
    moved = sent(spectrum_shape(shape, decomposition), decomposition, 8)
    times = [seconds(forward, field), seconds(inverse, modes)]
    del modes
    times.append(seconds(lambda x: inverse(0.5 * forward(x)), field))
    if with_halo:
        times.append(seconds(partial(there_and_back, decomposition), field))
    texts = cells(times) + [""] * (4 - len(times))
    for column, (_, queued) in enumerate(times[:2]):
        texts[column] += f" ({moved / queued / 1e9:.0f})"
    say(f"| {n}^3 | {decomposition.pdims} | {name} | " + " | ".join(texts) + f" | {error:.0e} |")


def measure_complex(n: int, decomposition: pmd.Decomposition, name: str) -> None:
    """Complex transforms, which are all that jaxdecomp has. At most one field and one spectrum are held."""
    ours = partial(pmd.pfft3d, decomposition=decomposition), partial(pmd.pifft3d, decomposition=decomposition)
    codes: dict[str, tuple[Any, Any]] = {name: ours}
    # One process with several GPUs hangs in jaxdecomp's pencils (0.3.1 on jaxlib 0.11.2).
    hangs = min(decomposition.pdims) > 1 and decomposition.shared_process and decomposition.platform == "gpu"
    if decomposition.backend.name == "xla" and not hangs and find_spec("jaxdecomp"):
        import jaxdecomp

        codes["jaxdecomp"] = jaxdecomp.pfft3d, jaxdecomp.pifft3d
    for code, (forward, inverse) in codes.items():
        field = random_field(n, decomposition, jnp.complex64)
        times = [seconds(forward, field), seconds(lambda x, f=forward, b=inverse: b(0.5 * f(x)), field)]
        modes = jax.block_until_ready(jax.jit(forward)(field))
        del field
        times.insert(1, seconds(inverse, modes))
        del modes
        say(f"| {n}^3 complex | {decomposition.pdims} | {code} | " + " | ".join(cells(times)) + " |  |  |")


def measure_all(n: int, decomposition: pmd.Decomposition, name: str, fields: bool = True) -> None:
    """Of cuDecomp, which has offsets of 31 bits, there may be real transforms where halos and complex ones are not."""
    kinds: dict[str, Callable[[], None]] = {"": partial(measure, n, decomposition, name, fields)}
    if fields and "--real" not in sys.argv:
        kinds[" complex"] = partial(measure_complex, n, decomposition, name)
    for kind, run in kinds.items():
        try:
            run()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            say(f"| {n}^3{kind} | {decomposition.pdims} | {name} | out of memory |")


def measure_cudecomp(n: int, pdims: tuple[int, int]) -> None:
    for comm, halo_comm in COMMS.items():
        served = pmd.Decomposition(pdims, backend="cudecomp", transpose_comm=comm, halo_comm=halo_comm)
        name, shapes = f"cuDecomp, {comm}", {"": spectrum_shape((n, n, n), served), " halo and complex": (n, n, n)}
        opened = 0
        for kind, shape in shapes.items():
            try:
                cudecomp.open_backend(served, [shape], halo=opened * HALO)
            except ValueError as error:
                say(f"| {n}^3{kind} | {pdims} | {name} | {error} |")
                break
            opened += 1
        if opened:
            measure_all(n, served, name, fields=opened == 2)


def main() -> None:
    distributed.initialize()
    devices = jax.devices()
    say(f"{len(devices)} x {devices[0].device_kind}, {jax.process_count()} processes, jax {jax.__version__}")
    columns = f"forward (GB/s) | inverse (GB/s) | both in one program | halo {HALO} there and back"
    say(f"\n| mesh | pdims | backend | {columns} | error |")
    say("|---|---|---|---|---|---|---|---|")
    for n in [int(word) for word in sys.argv[1:] if word != "--real"] or [512]:
        for decomposition in decompositions():
            measure_all(n, decomposition, decomposition.backend.name)
            if cudecomp.unavailable_reason(decomposition) is None:
                measure_cudecomp(n, decomposition.pdims)
    cudecomp.close_backend()


if __name__ == "__main__":
    main()
