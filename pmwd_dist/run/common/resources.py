"""Memory of this machine, of its devices, and of compiled programs."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config

_LARGEST_FRACTION = 0.95  # of a GPU's memory for arrays; libraries and programs need the rest
RUNTIME = 0.7e9  # Python, JAX, the compiled programs and the figures of one process [bytes]


@dataclass(frozen=True)
class Room:
    """Available memory."""

    free: int  # now [bytes]
    total: int  # at most [bytes]
    where: str  # holder of the memory, for messages
    processes: int  # that share it; 0 for the memory of a device, which only arrays take

    def needed(self, arrays: float, config: Config, runtime: float = RUNTIME) -> int:
        """Memory that arrays of this size on each device take, with the programs of each process [bytes]."""
        return int(arrays if self.processes == 0 else self.processes * (runtime + arrays * _own_devices(config)))

    def problem(self, need: int, text: str, remedies: Sequence[str], fewer: str) -> tuple[str | None, str | None]:
        """Message that a job can't have the memory it needs, and warning that it may not; either may be None.

        The text is the job and its need of memory, `fewer` the last remedy, after a smaller mesh.
        """
        text = f"{text} and {self.where} has "
        if need <= self.total:
            return None, None if need <= self.free else f"{text}{size(self.free)} free: it may be killed"
        share = need / self.total * allowed_fraction()
        if not (self.processes or share > _LARGEST_FRACTION):  # JAX may allocate more of a device
            remedies = [*remedies, f"set XLA_PYTHON_CLIENT_MEM_FRACTION={math.ceil(100 * share) / 100:g}"]
        advice = ", ".join([*remedies, "use a smaller mesh"])
        return f"box.mesh: {text}{size(self.total)}; {advice}, or {fewer}", None

    def for_arrays(self, config: Config, runtime: float = RUNTIME) -> float:
        """Memory of each device that arrays may take at most [bytes]."""
        if self.processes == 0:
            return self.total
        return max(0.0, (self.total / self.processes - runtime) / _own_devices(config))


def room() -> Room:
    """Memory of a device, or of this machine where devices use that."""
    limit = device_limit()
    if limit is not None:
        return Room(limit, limit, "a device", 0)
    here = processes_on_host()
    return Room(*available_memory(), "this machine" + (f" for {here} processes" if here > 1 else ""), here)


def allowed_fraction() -> float:
    """The part of a GPU's memory that JAX takes."""
    try:
        return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", ""))
    except ValueError:
        return 0.75


def larger_fraction() -> list[str]:
    """Remedy where JAX could take more of a GPU's memory."""
    if device_limit() is None or allowed_fraction() >= _LARGEST_FRACTION:
        return []
    return [f"set XLA_PYTHON_CLIENT_MEM_FRACTION={_LARGEST_FRACTION:g}"]


def device_limit() -> int | None:
    """Memory of a device that arrays may take [bytes]; None for devices that use the memory of the host."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def _own_devices(config: Config) -> int:
    return sum(device.process_index == jax.process_index() for device in config.decomposition.mesh.devices.flat)


def processes_on_host() -> int:
    """Number of processes of this program on this machine, from the variables of mpirun or srun."""
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
    counts = [int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()]
    return min(max(counts, default=1), jax.process_count())


def peak_memory() -> int:
    """Largest memory so far [bytes]: of the devices, where they count it, else of this process."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
    if max(peaks):
        return int(max(peaks))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def planned(program: Any) -> int:
    """Memory of a compiled program on each device, with its arguments and results [bytes]."""
    plan = program.memory_analysis()
    total = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return int(total - plan.alias_size_in_bytes)
