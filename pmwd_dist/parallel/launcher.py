"""Processes as mpirun or srun started them: their number, their nodes, and the GPU of each."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from typing import Any

# Open MPI; Hydra (MPICH, Intel MPI, PALS); MVAPICH; Slurm, last, since it counts the tasks of a shell of srun in which
# mpirun was called. SLURM_NTASKS is also set in batch scripts and interactive shells, which are one process.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_size() -> int:
    """Number of processes that mpirun or srun started, from the environment; 1 without either.

    It is 1 also with PMWD_ALONE=1 in the environment, and in the shell of `srun --pty`.
    """
    if os.environ.get("PMWD_ALONE") == "1" or in_shell_of_srun():
        return 1
    return next((int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit()), 1)


def in_shell_of_srun() -> bool:
    """Whether this process was started by hand in the shell of `srun --pty`, which has the environment of a task.

    Launchers give their processes no terminal as standard input, except `srun --pty` to its first task, which leads
    its session.
    """
    return "SLURM_PTY_PORT" in os.environ and not _by_mpirun() and os.isatty(0) and os.getsid(0) != os.getpid()


def under_srun() -> bool:
    """Whether srun started this process."""
    return "SLURM_STEP_ID" in os.environ and not _by_mpirun()


def _by_mpirun() -> bool:
    """Whether mpirun of Open MPI or Hydra started this process, perhaps in a shell of srun."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ or "MPI_LOCALNRANKS" in os.environ


def coordinator(comm: Any) -> tuple[str, int, str | None]:
    """Address of JAX's coordinator, the local rank of this process on its node, and the key of a single node."""
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank, alone = node.Get_rank(), node.Get_size() == comm.Get_size()
    bound = node.allgather(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]())
    node.Free()
    address = key = None
    if comm.Get_rank() == 0:
        address = f"{'127.0.0.1' if alone else _own_host()}:{_free_port()}"
        key = secrets.token_hex(8) if alone else None
        if text := narrow_binding(bound, os.cpu_count() or 1):
            note(text)
    address, key = comm.bcast((address, key), root=0)
    return address, local_rank, key


def narrow_binding(bound: list[set[int]], cores: int) -> str | None:
    """A note where the launcher binds the processes of a node to few of its cores: XLA compiles on all it may use."""
    fewest, used = min(len(each) for each in bound), len(set[int]().union(*bound))
    if not 0 < fewest < 4 or 2 * used > cores:
        return None
    count = f"{fewest} core{'s' * (fewest > 1)} of {cores}"
    return (
        f"each process may use {count}, and compiles slowly: use `mpirun --bind-to none`, or `srun --cpus-per-task=8`"
    )


def _own_host() -> str:
    """Address of this node for other nodes, or its name where the address can't be found."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return name
    return name if address.startswith("127.") else address  # /etc/hosts often maps a host's own name to 127.x


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def local_device(local_rank: int) -> int:
    """Index of this process's GPU among the visible ones; launchers often make only one visible to each process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if 1 < len(visible) <= local_rank:
        raise RuntimeError(
            f"process {local_rank} of this node finds {len(visible)} GPUs in CUDA_VISIBLE_DEVICES; "
            "start as many processes a node"
        )
    return 0 if len(visible) == 1 and visible != [""] else local_rank


def note(text: str) -> None:
    """Print a line on the standard error."""
    sys.stderr.write(f"pmwd-dist: {text}\n")
    sys.stderr.flush()
