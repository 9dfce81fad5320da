"""Memory and disk: what a run needs, and what is available."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax.native import native_available
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import FORMATS
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.ops.kernels import cuda_unavailable_reason
from pmwd_dist.run.memory import RUN, Stage, stages
from pmwd_dist.run.settings import Settings
from pmwd_dist.run.settings.light_cone import LightCone

_RUNTIME = 0.68e9  # Python, JAX, the compiled programs and the figures of one process [bytes]
_MAPS = 4  # arrays of all shells at a time: before and after a step, its own, and what a device adds to others' parts
_WITHOUT_NATIVE = 2.5  # factor of the memory of a step: the JAX references keep the eight weights of a cloud
_WITH_PARTICLES: tuple[Stage, ...] = ("step", "density", "gradient")


@dataclass(frozen=True)
class Memory:
    """Memory that a run is expected to need.

    Args:
      run: peak of the arrays of one device [bytes].
      stage: at which that is reached.
      gradient: peak of a gradient with respect to the white noise [bytes].
    """

    run: int
    stage: Stage
    gradient: int


@dataclass(frozen=True)
class Room:
    """Memory that there is [bytes].

    Args:
      free, total: now, and at most.
      where: what has it, for messages.
      processes: that share it; 0 for the memory of a device, which arrays alone take.
    """

    free: int
    total: int
    where: str
    processes: int

    @property
    def several(self) -> bool:
        """Whether it is that of one of several devices."""
        return self.processes == 0

    def needed(self, arrays: float, config: Config, runtime: float = _RUNTIME) -> int:
        """What is needed where arrays take so much of each device, and programs so much of each process."""
        return int(arrays) if self.several else self.processes * _of_process(arrays, config, runtime)

    def for_arrays(self, config: Config, runtime: float = _RUNTIME) -> float:
        """What arrays of each device may take at most."""
        return self.total if self.several else (self.total / self.processes - runtime) / _own_devices(config)


def expected_memory(config: Config, halo: int | None = None) -> Memory:
    """Memory that one of the current devices needs, with a halo of so many cells; default: the configuration's."""
    gpu = config.decomposition.platform == "gpu"
    native = not cuda_unavailable_reason() if gpu else native_available()
    bits = 8 * np.dtype(jnp.result_type(float)).itemsize
    peaks = stages(config, "gpu" if gpu else "cpu", halo=halo, bits=bits)
    if not native:
        peaks |= {stage: int(peaks[stage] * _WITHOUT_NATIVE) for stage in _WITH_PARTICLES}
    stage = max(RUN, key=lambda stage: peaks[stage])
    return Memory(peaks[stage], stage, peaks["gradient"])


def light_cone_memory(cone: LightCone | None) -> int:
    """Memory of a light cone on one device [bytes]: shells, what a step adds, and the particles before the step."""
    if cone is None:
        return 0
    pixels = math.prod(cone.pixels) if isinstance(cone, FlatSkyLightCone) else pixel_count(cone.nside)
    values = _MAPS * (len(cone.edges) - 1) * pixels + 6 * math.prod(cone.config.particle_shape)
    sharing = (*cone.config.decomposition.pdims, 1)[cone.along] if isinstance(cone, FlatSkyLightCone) else 1
    values += 2 * (sharing - 1) * (len(cone.edges) - 1) * pixels  # of whole lines of sight, before their sum
    return int(4 * values / cone.config.decomposition.size)


def process_memory(config: Config, cone: LightCone | None = None, halo: int | None = None) -> int:
    """Expected peak of host memory of one process [bytes]; on GPUs, of the memory of each device."""
    arrays = _arrays(config, cone, halo)
    return arrays if device_limit() is not None else _of_process(arrays, config)


def _arrays(config: Config, cone: LightCone | None, halo: int | None) -> int:
    return expected_memory(config, halo).run + light_cone_memory(cone)


def _of_process(arrays: float, config: Config, runtime: float = _RUNTIME) -> int:
    """Host memory of a process whose devices have arrays of this size each [bytes]."""
    return int(runtime + arrays * _own_devices(config))


def _own_devices(config: Config) -> int:
    """Number of devices of this process."""
    return sum(device.process_index == jax.process_index() for device in config.decomposition.mesh.devices.flat)


def device_limit() -> int | None:
    """Memory of a device [bytes]; None for devices that use the memory of the host."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def available_for_arrays(config: Config) -> float:
    """Memory that arrays of one of the current devices may take [bytes]; CPU devices share that of the machine."""
    return max(0.0, room().for_arrays(config))


def bispectrum_problem(config: Config, shells: int) -> str | None:
    """Reason why the fields of a bispectrum, one for each shell, can't fit into memory beside the particles."""
    values = 6 * math.prod(config.particle_shape) + (shells + 6) * math.prod(config.mesh_shape)
    need, there = 4 * values / config.decomposition.size, available_for_arrays(config)
    if need <= there:
        return None
    return (
        f"observe.bispectrum.shells = {shells}: their fields and the particles take {size(int(need))} of a device, "
        f"which has {size(int(there))}; use fewer shells, or more devices"
    )


def memory_problem(
    config: Config,
    cone: LightCone | None = None,
    halo: int | None = None,
    enough: Callable[[float], int | None] | None = None,
) -> tuple[str | None, str | None]:
    """Reason why the run can't fit into memory, with the key, and warning that it may not; either may be None.

    Args:
      config: the simulation.
      cone: the light cone that it fills.
      halo: width [cells]; default: that of the configuration.
      enough: number of devices with so much memory that would do, or None; default: not named.
    """
    there = room()
    need, alone = (there.needed(_arrays(config, of_maps, halo), config) for of_maps in (cone, None))
    if need > there.total:
        lack = f"the run needs about {size(need)} of memory and {there.where} has {size(there.total)}"
        if alone <= there.total:
            lack += f", {size(need - alone)} of it for {_maps(cone)}"
            return f"observe.light_cone: {lack}; use fewer shells (edges) or pixels, or more devices", None
        count = None if enough is None else enough(there.total if there.several else there.total - _RUNTIME)
        units = "devices" if there.several else "machines"
        return f"box.mesh: {lack}; use a smaller mesh, or {f'{count} such' if count else 'more'} {units}", None
    if need > there.free:
        text = f"the run needs about {size(need)} of memory and {there.where} has {size(there.free)} free"
        return None, f"{text}: it may be killed"
    return None, None


def room() -> Room:
    """Memory of a device, or of this machine where devices use that."""
    limit = device_limit()
    if limit is not None:
        return Room(limit, limit, "a device", 0)
    here = processes_on_host()
    return Room(*available_memory(), "this machine" + (f" for {here} processes" if here > 1 else ""), here)


def _maps(cone: Any) -> str:
    pixels = math.prod(cone.pixels) if isinstance(cone, FlatSkyLightCone) else pixel_count(cone.nside)
    return f"{len(cone.edges) - 1} shells of {pixels} pixels"


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


def expected_disk(settings: Settings) -> int:
    """Bytes that a run writes: snapshots, and two checkpoints, one of them unfinished."""
    count = settings.particle_count
    kind = settings.output.snapshot
    each = 0 if kind == "none" else FORMATS[kind].bytes_per_particle
    return count * (each * len(settings.scale_factors) + 2 * 24) + 10_000_000
