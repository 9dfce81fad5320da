"""The native library jaxdecomp_ops: installation, targets, and features of the GPUs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import jax

# Interface of the jaxdecomp-ops that this version calls; another would misread operands.
_INTERFACE = 6


def _native_ops() -> Any | None:
    """The library; None if it is not installed or has another interface, so that the JAX references run."""
    try:
        ops: Any = importlib.import_module("jaxdecomp_ops")
    except ImportError:
        return None
    found = getattr(ops, "INTERFACE", 0)
    if found == _INTERFACE:
        return ops
    older = "./rust/jaxdecomp-ops" if found < _INTERFACE else "."
    warnings.warn(
        f"jaxdecomp-ops {ops.__version__} has interface {found}, but pmwd_dist needs {_INTERFACE}; the slower JAX ops "
        f"run instead of the native ones; `pip install {older}` in the source tree",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


_ops: Any = _native_ops()
_NOT_INSTALLED = "the native ops are not installed, or have another interface; `pip install ./rust/jaxdecomp-ops`"


@functools.cache
def _registered(platform: str) -> bool:
    """Whether the native ops are installed; registers the targets of the platform with XLA."""
    if _ops is None:
        return False
    for name, capsule in _ops.targets(platform).items():
        jax.ffi.register_ffi_target(name, capsule, platform=platform)
    return True


def native_available() -> bool:
    """Whether the native CPU ops of jaxdecomp-ops are installed."""
    return _registered("cpu")


def function(name: str) -> Any | None:
    """The native function of this name; None without native ops, or with a build that lacks it."""
    return getattr(_ops, name, None) if native_available() else None


def native_targets() -> set[str]:
    """Names of the custom calls of the native ops on CPUs and GPUs, registered with XLA; empty without them."""
    return {name for platform in ("cpu", "CUDA") if _registered(platform) for name in _ops.targets(platform)}


def native_version() -> str | None:
    """Version of jaxdecomp-ops, or None where it is not installed."""
    return None if _ops is None else _ops.__version__


def cudecomp_ops() -> Any:
    """The native side of `cudecomp`, with its targets registered with XLA; None without native ops."""
    return _ops if _registered("CUDA") else None


@functools.cache
def peer_unavailable_reason(ordinals: tuple[int, ...]) -> str | None:
    """Reason why GPUs of this process, given by ordinals, can't write into each other's memory, or None."""
    if not _registered("CUDA"):
        return _NOT_INSTALLED
    if not hasattr(_ops, "peer_probe"):
        return "jaxdecomp-ops was built without its feature `peer`"
    try:
        _ops.peer_probe(list(ordinals), _cuda_libraries("cufft", older=11))
    except OSError as error:
        return str(error)
    return None


@functools.cache
def processes_unavailable_reason(key: str, processes: tuple[int, ...], process: int, ordinal: int) -> str | None:
    """Reason why the GPUs of processes of one host can't write into each other's memory, or None. Collective.

    Args:
      key: name that the processes have in common.
      processes: numbers of the processes, each with one GPU.
      process: number of this process.
      ordinal: ordinal of its GPU.
    """
    reason = peer_unavailable_reason((ordinal,))
    if reason is not None:
        return reason
    try:
        _ops.peer_join(key, list(processes), process, ordinal)
    except OSError as error:
        return str(error)
    threading.Thread(target=_end_when_stuck, daemon=True).start()
    return None


def _end_when_stuck() -> None:
    """End this process where its GPU waits for a process that has ended: no exception can reach it."""
    _ops.peer_watch()
    sys.stderr.write("pmwd_dist: another process has ended, and this one waits for its data; it ends, too\n")
    sys.stderr.flush()
    os._exit(1)


@functools.cache
def fast_along_x(ordinal: int, parts: int, shape: tuple[int, int, int], double: bool) -> bool:
    """Whether a GPU transforms slabs of a spectrum along x without a work area; requires peer access."""
    return _ops.peer_is_fast_along_x(ordinal, parts, shape, double)


@functools.cache
def filters(length: int, double: bool) -> bool:
    """Whether the CUDA kernels can filter meshes of this length along x; requires that they run."""
    return _ops.peer_filters(length, double)


@functools.cache
def kernels_unavailable_reason(folder: Path) -> str | None:
    """Reason why CUDA kernels can't run on the GPUs of this process, or None; compiles them into the folder."""
    if not _registered("CUDA"):
        return _NOT_INSTALLED
    try:
        ordinals = [device.local_hardware_id for device in jax.local_devices(backend="cuda")]
        _ops.cic_probe(ordinals, _cuda_libraries("nvrtc", older=12), folder)
    except (OSError, RuntimeError) as error:  # no library; no GPU
        return f"{error}{_remedy(str(error))}"
    return None


def _remedy(error: str) -> str:
    """Remedy for an error of the kernels' compiler, for the CUDA release of jax's plugin."""
    if not error.startswith("NVRTC does not load"):
        return ""
    wheel, release = ("nvidia-cuda-nvrtc", 13) if _is_newest() else ("nvidia-cuda-nvrtc-cu12", 12)
    return f"; `pip install {wheel}`, which comes with `jax[cuda{release}]` too"


def _cuda_libraries(name: str, *, older: int) -> list[str]:
    """Candidate paths of a library, in the wheels of jax's CUDA plugin before the loader's path.

    Args:
      name: name of the library.
      older: release of the library in CUDA 12; CUDA 13 has the next one.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else map(Path, spec.submodule_search_locations or ())
    wheels = [path for folder in folders for path in folder.glob(f"*/lib/lib{name}.so.[0-9]*")]
    releases = {path: int(path.suffix[1:]) for path in wheels if path.suffix[1:].isdigit()}
    newest_first = _is_newest()
    ordered = sorted(releases, key=lambda path: releases[path], reverse=newest_first)
    names = [f"lib{name}.so.{release}" for release in sorted((older, older + 1), reverse=newest_first)]
    return [*map(str, ordered), *names]


def _is_newest() -> bool:
    """Whether CUDA 13 is preferred: jax's plugin for CUDA 12 is missing, or the one for CUDA 13 is installed."""
    return not _has("jax_plugins.xla_cuda12") or _has("jax_plugins.xla_cuda13")


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # no parent package
        return False
