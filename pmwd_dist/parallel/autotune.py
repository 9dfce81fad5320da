"""The fastest division of a mesh over devices, by measurement, and a file of the results in the user's cache folder."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._checks import check_flag
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import cache_folder, read_text, write_text
from pmwd_dist._jax.program import jit
from pmwd_dist._memory import available_memory, size
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.backends import BACKENDS
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, divisions
from pmwd_dist.parallel.defaults import default
from pmwd_dist.parallel.fft import pirfft3d, prfft3d, spectrum_shape
from pmwd_dist.parallel.halo import halo_pad, halo_reduce
from pmwd_dist.parallel.inputs import cells, whole_number

_FILE = "autotune.jsonl"
_HEAD = f"{'pdims':>10} {'backend':>12} {'forward':>9} {'inverse':>9} {'halo':>9}   [ms]"


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
    check_flag(measure_again, "measure_again")
    if halo > max(64, *shape):
        raise ArgumentError("halo", halo, f"is wider than the mesh, {shape}", "use a narrower one")
    candidates = [
        Decomposition(division.pdims, devices, backend=backend)
        for division in divisions([shape], len(devices), "xla")
        for kind in BACKENDS
        for backend in kind.candidates(division)
    ]
    backends = {type(candidate.backend): candidate.backend for candidate in candidates}
    in_use = [kind for kind, backend in backends.items() if backend.is_open]
    say = say if say is not None and distributed.is_main() else lambda _: None
    labels = sorted({_label(candidate) for candidate in candidates})
    key = _machine(devices) | {"shape": list(shape), "dtype": dtype.name, "halo": halo, "backends": labels}
    record = None if measure_again else _find(key)
    index = next((i for i, c in enumerate(candidates) if record and _choice(c).items() <= record.items()), -1)
    if (index := int(distributed.from_main(np.int32(index)))) >= 0:
        say(f"{candidates[index]!r}, as measured before ({cache_folder() / _FILE})")
        _open(candidates[index], shape, halo)
        return candidates[index]
    say(_HEAD)
    times = [_measure(candidate, shape, dtype, halo, repeats, say) for candidate in candidates]
    seconds, best = min(times), candidates[int(np.argmin(times))]
    if not math.isfinite(seconds):
        raise ValueError(f"shape={shape} does not fit into the memory of these {best.size} devices; use more")
    for kind, backend in backends.items():
        if kind not in in_use and kind is not type(best.backend):
            backend.close()
    if distributed.is_main():
        _keep({"key": key, **_choice(best), "seconds": seconds, "date": time.strftime("%F")}, say)
    return best


def remembered(shapes: Sequence[Shape3]) -> Decomposition | None:
    """The best decomposition that `autotune` found for the first shape on all devices, if all shapes fit; else None.

    Reads the file of results without measuring. The result is None with several processes, which may not all see the
    file, and where the current default backend is another one or was not measured.
    """
    if jax.process_count() > 1 or jax.device_count() == 1:
        return None
    record = _find(_machine(jax.devices()) | {"shape": list(shapes[0])})
    if record is None or _label(Decomposition()) not in record["key"].get("backends", ()):
        return None
    try:
        found = Decomposition(tuple(record["pdims"]), backend=record["backend"])
        for shape in shapes:
            found.check(shape, "shape")
    except ValueError:
        return None
    usable = found.size == jax.device_count() and default("backend") in ("auto", found.backend.name)
    return found if usable else None


def _machine(devices: Sequence[Any]) -> dict[str, Any]:
    """Properties of the machine and the software that times depend on."""
    first, packages = devices[0], {"jax": "jax", "jaxlib": "jaxlib", "pmwd_dist": "pmwd-dist"}
    return {name: version(package) for name, package in packages.items()} | {
        "platform": first.platform,
        "device": first.device_kind,
        "driver": first.client.platform_version,
        "count": len(devices),
        "processes": len({device.process_index for device in devices}),
        **({"cores": os.cpu_count()} if first.platform == "cpu" else {}),
    }


def _records() -> list[dict[str, Any]]:
    """All records of the file; none if it can't be read."""
    try:
        records = [json.loads(line) for line in read_text(cache_folder() / _FILE).splitlines()]
        return [record for record in records if isinstance(record["key"], dict)]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # the last where there is no home
        return []


def _find(key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The latest record whose key has these items."""
    return next((record for record in reversed(_records()) if key.items() <= record["key"].items()), None)


def _keep(record: dict[str, Any], say: Callable[[str], Any]) -> None:
    """Write a record, in place of an older one of the same key, and report a failure."""
    try:
        records = [old for old in _records() if old["key"] != record["key"]] + [record]
        path = cache_folder() / _FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(json.dumps(record) + "\n" for record in records))
    except (OSError, RuntimeError) as error:
        say(f"not kept: {error}")


def _label(decomposition: Decomposition) -> str:
    """Options of the backend, or its name if it has none."""
    return "/".join(decomposition.backend.options.values() or [decomposition.backend.name])


def _choice(decomposition: Decomposition) -> dict[str, Any]:
    """The fields of a record that say which candidate it is."""
    backend = decomposition.backend
    return {"pdims": list(decomposition.pdims), "backend": backend.name, **backend.options}


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


def _open(decomposition: Decomposition, shape: Shape3, halo: int) -> None:
    widths = [n for n, shards in zip(decomposition.block(shape), decomposition.pdims, strict=False) if shards > 1]
    shapes = [shape, spectrum_shape(shape, decomposition)]
    decomposition.backend.open(decomposition, shapes, halo=min([halo, *widths]))


def _measure(
    decomposition: Decomposition, shape: Shape3, dtype: Any, halo: int, repeats: int, say: Callable[[str], Any]
) -> float:
    """Sum of the times of transform, inverse and halo exchange [s], infinite where they can't be measured."""

    def exchanged(field: jax.Array) -> jax.Array:
        # XLA would not compute the padded field without the barrier.
        return halo_reduce(jax.lax.optimization_barrier(halo_pad(field, halo, decomposition)), halo, decomposition)

    transform = partial(prfft3d, decomposition=decomposition)
    back = partial(pirfft3d, shape=shape, decomposition=decomposition)
    start = f"{decomposition.pdims!s:>10} {_label(decomposition):>12}"
    try:
        _open(decomposition, shape, halo)
        field = _attempt(jit(lambda: jnp.ones(shape, dtype), out_shardings=decomposition.sharding))
        forward = _seconds(transform, field, repeats)
        inverse = _seconds(back, _attempt(partial(jit(transform), field)), repeats)
        times = [forward, inverse, _seconds(exchanged, field, repeats)]
    except (ValueError, MemoryError) as error:
        say(f"{start} {error}")
        return math.inf
    say(f"{start} {' '.join(f'{1e3 * seconds:9.3f}' for seconds in times)}")
    return sum(times)


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
    compiled = _attempt(jit(function).lower(argument).compile)
    _attempt(partial(compiled, argument))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(argument))
        times.append(time.perf_counter() - start)
    return 1e-6 * distributed.largest(round(1e6 * float(np.median(times))))
