"""Clocks and counters: time, memory, bandwidth, and what the machine is."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_DISTRIBUTIONS = ("pmwd-dist", "jaxdecomp-ops", "jax", "jaxlib", "diffrax", "jaxpm", "pmpp", "jaxdecomp", "numpy")
_AT_LEAST = 0.3  # seconds that one round of runs takes: short ones are repeated
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the result is there, and the result."""
    start = time.perf_counter()
    out = jax.block_until_ready(function())
    return time.perf_counter() - start, out


def round_of(function: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each of a few runs; `seconds` is what one is known to take."""
    return [timed(function)[0] for _ in range(max(1, min(100, round(_AT_LEAST / seconds))))]


class Memory:
    """Peak bytes since `start`; see the package for how they are counted."""

    def start(self) -> None:
        """Before the inputs are loaded."""
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._before = _resident("VmRSS")

    def loaded(self) -> None:
        """After the inputs are loaded, just before the run."""
        gc.collect()
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5", encoding="ascii")  # resets the high-water mark

    def peak(self) -> int:
        """After the run."""
        stats = jax.devices()[0].memory_stats() or {}
        return int(stats.get("peak_bytes_in_use") or _resident("VmHWM") - self._before)


def _resident(field: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def copy_bandwidth() -> float:
    """Bytes a second, read plus written, of a copy of 512 MB: by numpy on all cores, on a GPU by XLA."""
    count = 2**27
    if jax.default_backend() != "cpu":
        x = jnp.arange(count, dtype=jnp.float32)
        copy = jax.jit(lambda x: x + 1)
        run: Callable[[], Any] = partial(copy, x)
    else:
        parts = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        source = np.array_split(np.arange(count, dtype=np.float32), parts)
        target = np.array_split(np.ones(count, np.float32), parts)
        pool = ThreadPoolExecutor(parts)

        def run() -> Any:
            return list(pool.map(np.copyto, target, source))

    run()
    return 2 * 4 * count / statistics.median(timed(run)[0] for _ in range(7))


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    versions = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_before": load,
        "bandwidth": copy_bandwidth(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
