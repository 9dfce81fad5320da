"""Time, memory and bandwidth of compiled functions."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist.run.common.fingerprint import versions
from pmwd_dist.run.common.resources import peak_memory, planned

T = TypeVar("T")

_ROUND_SECONDS = 0.3  # duration of a round of runs: short runs are repeated
_COPY = 2**27  # floats that are copied to measure the bandwidth: 512 MB
_NOISE = 2**22  # bytes by which the resident memory of a process changes by itself
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Cost:
    """Cost of compiling a function and of its first call.

    Args:
      compile_s, first_s: seconds of compilation and of the first call.
      peak_bytes: peak of the first call, arguments and results included: on a GPU of the allocator, on a CPU of the
        resident memory above that before the arguments were loaded. None if an earlier peak or noise hides it.
      planned_bytes: arguments, results and temporaries by the compiler's plan.
    """

    compile_s: float
    first_s: float
    peak_bytes: int | None
    planned_bytes: int


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """Seconds until the result is complete, and the result."""
    start = time.perf_counter()
    out = jax.block_until_ready(function())
    return time.perf_counter() - start, out


def warm_up(
    function: Callable[..., T],
    example: tuple[Any, ...],
    load: Callable[[], tuple[Any, ...]],
    *,
    donated: bool = False,
) -> tuple[Cost, Callable[[], tuple[float, T]], T]:
    """Compile a function, load its arguments and call it once.

    `example` are its arguments as jax.ShapeDtypeStruct. `load` returns them, new ones each time if their memory is
    donated to the results.

    Returns:
      The cost; a function that repeats the call and returns its seconds, without those in which arguments are loaded,
      and its result; and the result of the first call.
    """
    donate = tuple(range(len(example))) if donated else ()
    compile_s, compiled = timed(lambda: jax.jit(function, donate_argnums=donate).lower(*example).compile())
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    earlier, resident = _device_peak(), _resident("VmRSS")
    kept: tuple[Any, ...] | None = jax.block_until_ready(load())
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")  # reset the high-water mark
    first_s, out = timed(partial(compiled, *kept))
    if peak := _device_peak():
        peak = peak if peak > earlier else None
    elif (peak := _resident("VmHWM") - resident) <= _NOISE:
        peak = None
    if donated:
        kept = None

    def call() -> tuple[float, T]:
        arguments = jax.block_until_ready(load()) if kept is None else kept
        return timed(partial(compiled, *arguments))

    return Cost(compile_s, first_s, peak, planned(compiled)), call, out


def round_of(call: Callable[[], tuple[float, Any]], seconds: float) -> list[float]:
    """Seconds of each of a few calls, given the expected seconds of one."""
    return [call()[0] for _ in range(max(1, min(100, round(_ROUND_SECONDS / seconds))))]


def _device_peak() -> int:
    return int((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def _resident(field: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        return peak_memory()


def copy_bandwidth() -> float:
    """Bytes a second, read plus written, of a copy of 512 MB: by numpy on all cores, on a GPU by XLA.

    On a GPU calls follow each other without a wait: to start one takes longer there than the copy.
    """
    copies = 1
    if jax.default_backend() != "cpu":
        copies, x, copy = 20, jnp.arange(_COPY, dtype=jnp.float32), jax.jit(lambda x: x + 1, donate_argnums=0)

        def run() -> Any:
            nonlocal x
            for _ in range(copies):
                x = copy(x)
            return x
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        source = np.array_split(np.arange(_COPY, dtype=np.float32), cores)
        target = np.array_split(np.ones(_COPY, np.float32), cores)
        pool = ThreadPoolExecutor(cores)

        def run() -> Any:
            return list(pool.map(np.copyto, target, source))

    timed(run)
    return copies * 2 * 4 * _COPY / statistics.median(timed(run)[0] for _ in range(7))


def machine(*packages: str) -> dict[str, Any]:
    """Description of the machine, with the versions of these packages too, as JSON holds it."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "bandwidth": copy_bandwidth(),
        "versions": {name: number for name, number in versions(*packages).items() if number},
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
