"""Memory and disk: what a run needs, and what is available."""

from __future__ import annotations

import math
import os
import resource
import sys
from typing import Any

import jax

from pmwd_dist._jax.native import native_available
from pmwd_dist._memory import available_memory, size
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import FORMATS
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.run.settings import Settings
from pmwd_dist.run.settings.light_cone import LightCone

# Fitted to runs of 64^3 to 256^3 particles, with meshes as fine and twice as fine, on a CPU.
_RUNTIME = 0.68e9  # Python, JAX, the compiled programs and the figures of one process [bytes]
_LPT = {1: 42, 2: 74, 3: 148}  # bytes a particle, by order; of the third, by the compiler's plan
_STEP_PARTICLE, _STEP_CELL = 38, 20  # bytes a particle and a mesh cell
_MAPS = 4  # arrays of all shells at a time: before and after a step, its own, and what a device adds to others' parts
_WITHOUT_NATIVE = 2.5  # factor of a step's memory: the JAX references keep the eight weights of a cloud


def expected_memory(config: Config) -> int:
    """Peak memory of the arrays of one device [bytes], to about 20 %, without halos."""
    particles = math.prod(config.particle_shape) / config.decomposition.size
    cells = math.prod(config.mesh_shape) / config.decomposition.size
    step = particles * _STEP_PARTICLE + cells * _STEP_CELL
    if not native_available():
        step *= _WITHOUT_NATIVE
    return int(max(particles * _LPT[config.lpt_order], step))


def light_cone_memory(cone: LightCone | None) -> int:
    """Memory of a light cone on one device [bytes]: shells, what a step adds, and the particles before the step."""
    if cone is None:
        return 0
    pixels = math.prod(cone.pixels) if isinstance(cone, FlatSkyLightCone) else pixel_count(cone.nside)
    values = _MAPS * (len(cone.edges) - 1) * pixels + 6 * math.prod(cone.config.particle_shape)
    return int(4 * values / cone.config.decomposition.size)


def process_memory(config: Config, cone: LightCone | None = None) -> int:
    """Expected peak of host memory of one process [bytes]; on GPUs, of the memory of each device."""
    arrays = expected_memory(config) + light_cone_memory(cone)
    if device_limit() is not None:
        return arrays
    mine = sum(device.process_index == jax.process_index() for device in config.decomposition.mesh.devices.flat)
    return int(_RUNTIME + arrays * mine)


def device_limit() -> int | None:
    """Memory of a device [bytes]; None for devices that use the memory of the host."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def memory_problem(config: Config, cone: LightCone | None = None) -> tuple[str | None, str | None]:
    """Reason why the run can't fit into memory, with the key, and warning that it may not; either may be None."""
    need, alone, limit = process_memory(config, cone), process_memory(config), device_limit()
    if limit is not None:
        free, total, where, how = limit, limit, "a device", "more devices"
    else:
        free, total = available_memory()
        here = processes_on_host()
        need, alone = need * here, alone * here
        where, how = "this machine", "more machines"
        where += f" for {here} processes" if here > 1 else ""
    if need > total:
        lack = f"the run needs about {size(need)} of memory and {where} has {size(total)}"
        if alone <= total:
            lack += f", {size(need - alone)} of it for {_maps(cone)}"
            return f"observe.light_cone: {lack}; use fewer shells (edges) or pixels, or {how}", None
        return f"box.mesh: {lack}; use a smaller mesh, or {how}", None
    if need > free:
        return None, f"the run needs about {size(need)} of memory and {where} has {size(free)} free: it may be killed"
    return None, None


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
