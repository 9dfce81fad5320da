"""The fastest division of a mesh over devices, by measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._memory import available_memory, size
from pmwd_dist.parallel import autotune_cache, distributed
from pmwd_dist.parallel.backends import BACKENDS
from pmwd_dist.parallel.decomposition import Decomposition, Shape3
from pmwd_dist.parallel.defaults import default
from pmwd_dist.parallel.fft import pirfft3d, prfft3d, spectrum_shape
from pmwd_dist.parallel.halo import halo_pad, halo_reduce
from pmwd_dist.parallel.inputs import cells, whole_number


def autotune(
    shape: Shape3,
    *,
    dtype: Any = jnp.float32,
    n_devices: int | None = None,
    halo: int = 16,
    repeats: int = 5,
    measure_again: bool = False,
    say: Callable[[str], Any] | None = print,
) -> Decomposition:
    """The fastest decomposition of a mesh over the devices of this program, by measurement. Collective.

    Each division into slabs or pencils that fits the mesh is timed with each available communication backend: the
    transforms of a real field forward and back, and `halo_pad` with `halo_reduce`. The smallest sum wins; a backend
    that needs opening is left open if it wins. The result is cached on disk by devices, driver, versions, shape, dtype
    and halo.

    Args:
      shape: cells of the mesh.
      dtype: precision of a real field, float32 or float64.
      n_devices: number of devices to use; default: all.
      halo: width of the halo [cells].
      repeats: number of timings of each, with the median as result.
      measure_again: whether to ignore a cached result.
      say: function that prints lines of the table on the first process; None prints nothing.

    Returns:
      The decomposition, an argument of `Config`. In config files, devices.backend = "auto" finds it.

    Raises:
      ValueError: no division of the devices fits the mesh, or another argument is out of its range.

    Examples:
      >>> config = pmd.Config(box_size=1000.0, mesh_shape=512, decomposition=pmd.autotune((512, 512, 512)))
    """
    devices, dtype = _devices(n_devices), _precision(dtype)
    shape, halo, repeats = cells(shape, "shape"), whole_number(halo, "halo"), whole_number(repeats, "repeats", least=1)
    _check_size(shape, dtype, len(devices))
    if halo > max(64, *shape):
        raise ArgumentError("halo", halo, f"is wider than the mesh, {shape}", "use a narrower one")
    candidates = _candidates(shape, devices)
    backends = {type(candidate.backend): candidate.backend for candidate in candidates}
    in_use = [kind for kind, backend in backends.items() if backend.is_open]
    say = say if say is not None and distributed.is_main() else lambda _: None
    key = autotune_cache.machine(devices) | {
        "shape": list(shape),
        "dtype": np.dtype(dtype).name,
        "halo": halo,
        "backends": sorted({_label(candidate) for candidate in candidates}),
    }
    found = _agreed(None if measure_again else autotune_cache.find(key), candidates)
    if found is not None:
        say(f"{found!r}, as measured before ({autotune_cache.path()})")
        _open(found, shape, halo)
        return found
    best, seconds = _fastest(candidates, shape, dtype, halo, repeats, say)
    for kind, backend in backends.items():
        if kind not in in_use and kind is not type(best.backend):
            backend.close()
    _keep({"key": key, "pdims": list(best.pdims), "backend": best.backend.name, **best.backend.options}, seconds, say)
    return best


def _keep(record: autotune_cache.Record, seconds: float, say: Callable[[str], Any]) -> None:
    """Write a record to disk on the main process, and report a failure."""
    if not distributed.is_main():
        return
    try:
        autotune_cache.store(record | {"seconds": seconds, "date": time.strftime("%F")})
    except (OSError, RuntimeError) as error:
        say(f"not kept: {error}")


def remembered(shapes: Sequence[Shape3]) -> Decomposition | None:
    """The best decomposition that `autotune` found for the first shape on all devices, if all shapes fit; else None.

    Reads the file of results without measuring. The result is None with several processes, which may not all see the
    file, and where the current default backend is another one or was not measured.
    """
    if jax.process_count() > 1 or jax.device_count() == 1:
        return None
    record = autotune_cache.find_shape(shapes[0], jax.devices())
    if record is None or _label(Decomposition()) not in record["key"].get("backends", ()):
        return None
    try:
        found = Decomposition(tuple(record["pdims"]), backend=record["backend"])
        for shape in shapes:
            found.check(shape, "shape")
    except ValueError:
        return None
    whole = found.size == jax.device_count()
    return found if whole and default("backend") in ("auto", found.backend.name) else None


def _fastest(
    candidates: list[Decomposition],
    shape: Shape3,
    dtype: Any,
    halo: int,
    repeats: int,
    say: Callable[[str], Any],
) -> tuple[Decomposition, float]:
    """The candidate with the smallest sum of times, and this sum [s]; prints the table."""
    say(f"{'pdims':>10} {'backend':>12} {'forward':>9} {'inverse':>9} {'halo':>9}   [ms]")
    times = []
    for candidate in candidates:
        row = _measure(candidate, shape, dtype, halo, repeats)
        text = row if isinstance(row, str) else " ".join(f"{1e3 * t:9.3f}" for t in row)
        say(f"{candidate.pdims!s:>10} {_label(candidate):>12} {text}")
        times.append(math.inf if isinstance(row, str) else sum(row))
    best = int(np.argmin(times))
    if not math.isfinite(times[best]):
        count = candidates[0].size
        raise ValueError(f"shape={shape} does not fit into the memory of these {count} devices; use more")
    return candidates[best], times[best]


def _label(decomposition: Decomposition) -> str:
    """Options of the backend, or its name if it has none."""
    return "/".join(decomposition.backend.options.values() or [decomposition.backend.name])


def _devices(count: int | None) -> list[Any]:
    devices = jax.devices()
    count = len(devices) if count is None else count
    if not 1 <= count <= len(devices):
        raise ValueError(f"n_devices={count} must be 1 to {len(devices)}, the devices of this program")
    if jax.process_count() > 1 and count < len(devices):
        raise ValueError(f"n_devices={count} leaves devices of other processes out; several processes must use all")
    return devices[:count]


def _precision(dtype: Any) -> np.dtype[Any]:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in {"float32", "float64"}:
        raise ValueError(f"dtype={dtype} must be float32 or float64, the precision of a real field")
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError("dtype=float64 needs jax.config.update('jax_enable_x64', True), or JAX_ENABLE_X64=1")
    return np.dtype(name)


def _check_size(shape: Shape3, dtype: np.dtype[Any], count: int) -> None:
    """Raise ValueError unless a field and its spectrum, evenly divided, fit into the memory of `count` devices."""
    limits = jax.local_devices()[0].memory_stats()
    each = limits["bytes_limit"] if limits else available_memory()[1] / jax.local_device_count()
    need = 2 * dtype.itemsize * math.prod(shape) / count
    if need > each:
        constraint = f"needs {size(need)} on each of {count} devices, which have {size(each)}"
        raise ArgumentError("shape", shape, constraint, "use a smaller mesh, or more devices")


def _candidates(shape: Shape3, devices: list[Any]) -> list[Decomposition]:
    """All divisions that fit, slabs along x first."""
    fitting, problem = [], None
    for py in (p for p in range(1, len(devices) + 1) if len(devices) % p == 0):
        candidate = Decomposition((len(devices) // py, py), devices, backend="xla")
        try:
            candidate.check(shape, "shape")
        except ValueError as error:
            problem = problem or error
            continue
        for kind in BACKENDS:
            fitting += [Decomposition(candidate.pdims, devices, backend=b) for b in kind.candidates(candidate)]
    if not fitting:
        raise ValueError(f"no division over {len(devices)} devices fits: {problem}")
    return fitting


def _agreed(record: autotune_cache.Record | None, candidates: list[Decomposition]) -> Decomposition | None:
    """The candidate of the first process's record, on all processes."""
    known = [(list(c.pdims), c.backend.name, c.backend.options) for c in candidates]
    index = -1
    if record is not None:
        options = {name: record[name] for name in ("transpose_comm", "halo_comm") if name in record}
        wanted = record["pdims"], record["backend"], options
        index = known.index(wanted) if wanted in known else -1
    index = int(distributed.from_main(np.int32(index)))
    return None if index < 0 else candidates[index]


def _open(decomposition: Decomposition, shape: Shape3, halo: int) -> None:
    widths = [n for n, shards in zip(decomposition.block(shape), decomposition.pdims, strict=False) if shards > 1]
    shapes = [shape, spectrum_shape(shape, decomposition)]
    decomposition.backend.open(decomposition, shapes, halo=min([halo, *widths]))


def _measure(
    decomposition: Decomposition, shape: Shape3, dtype: Any, halo: int, repeats: int
) -> tuple[float, float, float] | str:
    """Seconds of transform, inverse and halo exchange, or the reason why they can't be measured."""
    try:
        _open(decomposition, shape, halo)
    except ValueError as error:
        return str(error)
    transform = partial(prfft3d, decomposition=decomposition)
    back = partial(pirfft3d, shape=shape, decomposition=decomposition)
    try:
        field = _attempt(jax.jit(lambda: jnp.ones(shape, dtype), out_shardings=decomposition.sharding))
        forward = _seconds(transform, field, repeats)
        inverse = _seconds(back, _attempt(partial(jax.jit(transform), field)), repeats)
        exchange = _seconds(partial(_exchanged, decomposition, halo), field, repeats)
    except MemoryError as error:
        return str(error)
    return forward, inverse, exchange


def _exchanged(decomposition: Decomposition, halo: int, field: jax.Array) -> jax.Array:
    # XLA would not compute the padded field without the barrier.
    return halo_reduce(jax.lax.optimization_barrier(halo_pad(field, halo, decomposition)), halo, decomposition)


def _attempt(call: Callable[[], Any]) -> Any:
    """The result of a call.

    Raises:
      MemoryError: some process lacks the memory; raised on all of them.
    """
    out = None
    try:
        out = jax.block_until_ready(call())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
    if not distributed.all_processes(out is not None):
        raise MemoryError("does not fit into memory")
    return out


def _seconds(function: Callable[[Any], Any], argument: Any, repeats: int) -> float:
    """Median time of a call on the slowest process [s]."""
    compiled = _attempt(jax.jit(function).lower(argument).compile)
    _attempt(partial(compiled, argument))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(argument))
        times.append(time.perf_counter() - start)
    own = float(np.median(times))
    if jax.process_count() == 1:
        return own
    from jax.experimental import multihost_utils

    return float(np.max(multihost_utils.process_allgather(np.float32(own))))
