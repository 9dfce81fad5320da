"""NVIDIA's cuDecomp: transposes and halos with one process a GPU, under mpirun or srun.

cuDecomp is loaded at run time: from the path in the environment variable PMWD_CUDECOMP_LIBRARY, else as
libcudecomp.so.0 from the paths of the loader (LD_LIBRARY_PATH, the system's). Its results have the layout of XLA's
collectives. `open_backend` and `close_backend` are collective: every process calls them, in the same order, and nothing
else starts or ends cuDecomp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax import native
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.backends import _cudecomp_ops as ops
from pmwd_dist.parallel.backends.base import PLAIN, Addition, Backend
from pmwd_dist.parallel.backends.transposing import TransposingBackend, X
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.defaults import HaloComm, TransposeComm, checked, default
from pmwd_dist.parallel.division import Division, Shape3, device_groups

_MEASURED: tuple[TransposeComm, ...] = ("nccl", "nccl_pl", "nvshmem", "nvshmem_pl", "mpi_p2p", "mpi_p2p_pl", "mpi_a2a")


@final
@dataclass(frozen=True)
class CuDecomp(TransposingBackend):
    """Transposes and halos of cuDecomp."""

    name: ClassVar[str] = "cudecomp"
    needs_mesh: ClassVar[bool] = True
    option_names: ClassVar[tuple[str, ...]] = ("transpose_comm", "halo_comm")
    needs_opening: ClassVar[bool] = True
    transpose_comm: TransposeComm = "nccl"
    halo_comm: HaloComm = "nccl"

    @classmethod
    def create(cls, options: Mapping[str, str]) -> Self:
        """The backend with given communication backends, else the defaults of `config.update`.

        Raises:
          ValueError: a communication backend is unknown.
        """
        chosen: dict[str, Any] = {}
        for name in cls.option_names:
            default_name = f"{name}_backend"
            chosen[name] = checked(options[name], default_name, name) if name in options else default(default_name)
        return cls(**chosen)

    @classmethod
    def candidates(cls, division: Division) -> Sequence[Backend]:
        """A backend for each communication backend of transposes, on all devices of the program. Collective."""
        whole = division.size == jax.device_count()
        if not distributed.all_processes(whole and cls().unavailable_reason(division) is None):
            return []
        return [cls(transpose, "nccl") for transpose in _MEASURED]

    @property
    def options(self) -> dict[str, str]:
        """The options of this backend, as `create` takes them."""
        return {"transpose_comm": self.transpose_comm, "halo_comm": self.halo_comm}

    @property
    def is_open(self) -> bool:
        """Whether cuDecomp was started and not ended."""
        return _communicator is not None

    @property
    def comms(self) -> tuple[int, int]:
        """cuDecomp's numbers of the communication backends."""
        transposes, halos = get_args(TransposeComm), get_args(HaloComm)
        return transposes.index(self.transpose_comm) + 1, halos.index(self.halo_comm) + 1

    def unavailable_reason(self, division: Division) -> str | None:
        """Reason why this process can't use cuDecomp, with a remedy, or None."""
        library_ops = native.cudecomp_ops()
        if library_ops is None:
            return "the native ops are not installed; `pip install ./rust/jaxdecomp-ops`"
        platforms = {device.platform for device in division.mesh.devices.flat}
        if platforms != {"gpu"}:
            return f"it needs NVIDIA GPUs, but the devices are {', '.join(sorted(platforms))}; use backend='xla'"
        if (count := jax.local_device_count()) != 1:
            start = f"start {jax.device_count()} with mpirun or srun"
            return f"it needs one process a GPU, but this one has {count}; {start}"
        try:
            from mpi4py import MPI  # noqa: F401  # pyright: ignore[reportUnusedImport]  only whether it loads
        except (ImportError, RuntimeError) as error:
            return f"it needs mpi4py, which does not load ({error}); install it against the MPI that cuDecomp uses"
        try:
            library_ops.cudecomp_probe(library())
        except OSError as error:
            return f"{library()} does not load ({error}); set PMWD_CUDECOMP_LIBRARY to the path of libcudecomp.so"
        return None

    def open(self, division: Division, shapes: Sequence[Shape3], *, halo: int = 0) -> None:
        """Start cuDecomp if necessary, and prepare it for arrays of some shapes. Collective, before any tracing."""
        rank, library_ops = _start(division), native.cudecomp_ops()
        item_bytes = jnp.result_type(complex).itemsize
        try:
            device = jax.local_devices()[0].local_hardware_id
            library_ops.cudecomp_open(library(), device, _communicator.py2f(), rank, division.size)
            for shape in shapes:
                library_ops.cudecomp_open_grid(shape, division.pdims, self.comms, item_bytes, halo)
        except RuntimeError as error:
            _end_job(f"cuDecomp did not start: {error}")
        _opened.add((division, self))

    def close(self) -> None:
        """End cuDecomp. Collective."""
        close_backend()

    def transpose(self, block: Array, division: Division, step: ops.Step) -> Array:
        """Exchange the whole axis of the local blocks; see `_cudecomp_ops.transpose`."""
        return ops.transpose(block, division, self._opened_comms(division), step)

    def gather_axis(self, block: Array, axis: int, split: int, division: Division) -> Array:
        """Make an axis whole and last; see the base class."""
        if axis != X:
            return jnp.moveaxis(self.transpose(block, division, "z_to_y"), 1, 2)
        ordered = block if split == 1 else jnp.moveaxis(block, 2, 1)
        whole = self.transpose(ordered, division, "y_to_x")
        return jnp.transpose(whole, (1, 2, 0) if split == 1 else (2, 1, 0))

    def split_axis(self, block: Array, axis: int, gather: int, division: Division) -> Array:
        """Invert `gather_axis`."""
        if axis != X:
            return self.transpose(jnp.moveaxis(block, 2, 1), division, "y_to_z")
        whole = jnp.transpose(block, (2, 0, 1) if gather == 1 else (2, 1, 0))
        ordered = self.transpose(whole, division, "x_to_y")
        return ordered if gather == 1 else jnp.moveaxis(ordered, 1, 2)

    def halo_pad(self, block: Array, halo: int, division: Division) -> Array:
        """Add halos: from the next neighbours by cuDecomp, from farther ones by XLA's collectives."""
        divided = [width for width, shards in zip(block.shape, division.pdims, strict=False) if shards > 1]
        if halo == 0 or halo > min(divided, default=0):
            return XLA().halo_pad(block, halo, division)
        return ops.halo_pad(block, halo, division, self._opened_comms(division))

    def halo_reduce(self, block: Array, halo: int, division: Division, addition: Addition = PLAIN) -> Array:
        """Add halos back by XLA's collectives: cuDecomp has no such operation."""
        return XLA().halo_reduce(block, halo, division, addition)

    def _opened_comms(self, division: Division) -> tuple[int, int]:
        if (division, self) not in _opened:
            raise ValueError(f"{division} is not open; call cudecomp.open_backend on every process first")
        return self.comms


# Divisions that are open; the communicator of cuDecomp, and the processes of its ranks.
_opened: set[tuple[Division, CuDecomp]] = set()
_communicator: Any = None
_order: list[int] = []


def library() -> str:
    """Name or path of cuDecomp's library."""
    return os.environ.get("PMWD_CUDECOMP_LIBRARY", "libcudecomp.so.0")


def unavailable_reason(division: Division) -> str | None:
    """Reason why this process can't use cuDecomp, with a remedy, or None."""
    return CuDecomp().unavailable_reason(division)


def open_backend(decomposition: Any, shapes: Sequence[Shape3], *, halo: int = 0) -> None:
    """Start cuDecomp if necessary, and prepare it for arrays of some shapes. Collective, before any tracing.

    Later calls add shapes and decompositions.

    Args:
      decomposition: decomposition over all devices of the program, with backend="cudecomp".
      shapes: whole shapes of the spectra to transpose, and of the real fields to pad with halos.
      halo: widest halo [cells]; matters where NVSHMEM moves halos.

    Raises:
      ValueError: the decomposition has another backend, or one that this build of cuDecomp or this MPI does not
        support, or a shape does not divide.
      RuntimeError: a process can't use cuDecomp, see `unavailable_reason`.
    """
    if not isinstance(decomposition.backend, CuDecomp):
        raise ValueError(f"{decomposition} does not use cuDecomp; make it with backend='cudecomp'")  # noqa: TRY004
    decomposition.backend.open(decomposition, shapes, halo=halo)


def close_backend() -> None:
    """End cuDecomp and close all divisions, once the devices are done. Collective; does nothing when not open."""
    global _communicator
    if _communicator is None:
        return
    try:
        native.cudecomp_ops().cudecomp_close()
    except RuntimeError as error:
        _end_job(f"cuDecomp did not end: {error}")
    _opened.clear()
    _communicator.Free()
    _communicator = None


# --- starting ------------------------------------------------------------------------------------------------


def _start(division: Division) -> int:
    """Agree that every process can start, and return the rank of this one among the blocks."""
    global _communicator, _order
    problem = unavailable_reason(division)
    if not distributed.all_processes(problem is None) and problem is None:
        raise RuntimeError("cuDecomp cannot be used: another process lacks something, and says what")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        raise RuntimeError(f"cuDecomp cannot be used: {problem}") from None
    if jax.process_count() != MPI.COMM_WORLD.Get_size():
        raise RuntimeError(
            f"cuDecomp cannot be used: JAX counts {jax.process_count()} processes, MPI {MPI.COMM_WORLD.Get_size()}; "
            "call pmwd_dist.distributed.initialize() first, under mpirun or srun"
        )
    groups = device_groups(division.mesh, division.names)
    order = [device.process_index for group in groups for device in group]
    if problem is None and sorted(order) != list(range(jax.process_count())):
        problem = f"the decomposition has {len(order)} of the {jax.device_count()} devices; use all of them"
    world = MPI.COMM_WORLD.Dup()  # the user's communicator may have messages under way
    problems = world.allgather(problem)
    for process, what in enumerate(problems):
        if what is not None:
            world.Free()
            raise RuntimeError(f"cuDecomp cannot be used: on process {process}, {what}")
    rank = order.index(jax.process_index())
    if _communicator is None:
        # A separate communicator with ranks in the order of the blocks.
        _communicator, _order = world.Split(0, rank), order
    world.Free()
    if order != _order:
        raise ValueError(f"cuDecomp is open for processes in the order {_order}, not {order}; close_backend() first")
    return rank


def _end_job(message: str) -> None:
    """End the job: other processes may be waiting inside cuDecomp, where no exception would reach them."""
    from mpi4py import MPI

    os.write(2, f"{message}; the job ends here, since other processes would wait forever\n".encode())
    MPI.COMM_WORLD.Abort(1)
