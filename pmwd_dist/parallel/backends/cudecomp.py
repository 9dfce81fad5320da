"""Transposes and halos by NVIDIA's cuDecomp, on local blocks: one process a GPU, under mpirun or srun.

cuDecomp is loaded at run time: from the path in the environment variable PMWD_CUDECOMP_LIBRARY, else from where the
loader looks for libcudecomp.so.0 (LD_LIBRARY_PATH, the system's paths). It moves the same data to the same places as
XLA's collectives. `open_backend` and `close_backend` are collective: every process calls them, in the same order, and
nothing else ever starts or ends cuDecomp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad
from jaxtyping import Array

from pmwd_dist._jax import native
from pmwd_dist._jax.define import define_gpu_op
from pmwd_dist._jax.varying import result_aval
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.decomposition import Decomposition, Shape3
from pmwd_dist.parallel.defaults import HaloComm, TransposeComm
from pmwd_dist.parallel.device_mesh import device_groups

Step = Literal["x_to_y", "y_to_z", "z_to_y", "y_to_x"]

# In the order of cuDecomp's numbers: steps from 0, backends from 1.
_STEPS: tuple[str, ...] = get_args(Step)
_INVERSE = (3, 2, 1, 0)
_AXES = ((0, 1), (1, 2), (2, 1), (1, 0))  # whole along x, y, z (0, 1, 2) before and after a step

# Decompositions that were opened; the communicator that cuDecomp was started with, and the processes of its ranks.
_opened: set[Decomposition] = set()
_communicator: Any = None
_order: list[int] = []


def library() -> str:
    """Name or path from which cuDecomp is loaded."""
    return os.environ.get("PMWD_CUDECOMP_LIBRARY", "libcudecomp.so.0")


def available(decomposition: Decomposition) -> bool:
    """Whether `open_backend` would find what it needs in this process."""
    return unavailable_reason(decomposition) is None


def unavailable_reason(decomposition: Decomposition) -> str | None:
    """What this process lacks for cuDecomp and what to do about it, or None."""
    ops = native.cudecomp_ops()
    if ops is None:
        return "the native ops are not installed; `pip install jaxdecomp-ops`"
    platforms = {device.platform for device in decomposition.mesh.devices.flat}
    if platforms != {"gpu"}:
        return f"it needs NVIDIA GPUs, but the devices are {', '.join(sorted(platforms))}; use backend='xla'"
    if (count := jax.local_device_count()) != 1:
        return f"it needs one process a GPU, but this one has {count}; start {jax.device_count()} with mpirun or srun"
    try:
        from mpi4py import MPI  # noqa: F401  only whether it loads
    except (ImportError, RuntimeError) as error:
        return f"it needs mpi4py, which does not load ({error}); install it against the MPI that cuDecomp uses"
    try:
        ops.cudecomp_probe(library())
    except OSError as error:
        return f"{library()} does not load ({error}); set PMWD_CUDECOMP_LIBRARY to the path of libcudecomp.so"
    return None


def open_backend(decomposition: Decomposition, shapes: Sequence[Shape3], *, halo: int = 0) -> None:
    """Start cuDecomp if need be, and prepare it for arrays of some shapes. Collective, before any tracing.

    Later calls add shapes and decompositions.

    Args:
      decomposition: over all devices of the program, with backend="cudecomp".
      shapes: whole shapes of the arrays: of spectra to be transposed, of real fields to be given halos.
      halo: widest halo, in cells; matters where NVSHMEM moves halos.

    Raises:
      ValueError: a decomposition with another backend, one that this build of cuDecomp or this MPI does not support,
        or a shape that does not divide.
      RuntimeError: a process lacks something, see `unavailable_reason`.
    """
    if decomposition.backend != "cudecomp":
        raise ValueError(f"{decomposition} is not served by cuDecomp; make it with backend='cudecomp'")
    comms = _chosen(decomposition)
    place = _start(decomposition)
    ops = native.cudecomp_ops()
    assert ops is not None
    item_bytes = jnp.result_type(complex).itemsize
    try:
        device = jax.local_devices()[0].local_hardware_id
        ops.cudecomp_open(library(), device, _communicator.py2f(), place, decomposition.size)
        for shape in shapes:
            ops.cudecomp_open_grid(shape, decomposition.pdims, comms, item_bytes, halo)
    except RuntimeError as error:
        _end_job(f"cuDecomp did not start: {error}")
    _opened.add(decomposition)


@contextmanager
def opened(decomposition: Decomposition, shapes: Sequence[Shape3], *, halo: int = 0) -> Iterator[None]:
    """`open_backend` and, if all goes well, `close_backend`; nothing for other backends. Collective."""
    if decomposition.backend != "cudecomp":
        yield
        return
    open_backend(decomposition, shapes, halo=halo)
    yield
    close_backend()  # not after a failure, which other processes may not share


def close_backend() -> None:
    """End cuDecomp and forget what was opened, once the devices are done. Collective; nothing to do when not open."""
    global _communicator
    if _communicator is None:
        return
    ops = native.cudecomp_ops()
    assert ops is not None
    try:
        ops.cudecomp_close()
    except RuntimeError as error:
        _end_job(f"cuDecomp did not end: {error}")
    _opened.clear()
    _communicator.Free()
    _communicator = None


def started() -> bool:
    """Whether cuDecomp was started and not ended."""
    return _communicator is not None


def is_open(decomposition: Decomposition) -> bool:
    """Whether `open_backend` was called for this decomposition."""
    return decomposition in _opened


def transpose(block: Array, decomposition: Decomposition, step: Step) -> Array:
    """Exchange the axis along which the local blocks are whole, as `all_to_all` does; inside shard_map.

    "z_to_y" takes (nx / px, ny / py, nz) to (nx / px, ny, nz / py), "y_to_x" that to (nx, ny / px, nz / py), and
    "x_to_y" and "y_to_z" go back.

    Raises:
      ValueError: an unknown step, a shape that was not opened, or one that does not divide.
    """
    if step not in _STEPS:
        raise ValueError(f"step={step!r} is not known; use one of {', '.join(_STEPS)}")
    number, pdims = _STEPS.index(step), decomposition.pdims
    if pdims[1 if "z" in step else 0] == 1:  # nothing is divided along the two axes
        return block
    x, y, z = (n * p for n, p in zip(block.shape, _parts(_AXES[number][0], pdims), strict=True))
    return _transpose_p.bind(block[None], shape=(x, y, z), pdims=pdims, comms=_comms(decomposition), step=number)[0]


def collect(block: Array, split: int, along: int, decomposition: Decomposition) -> Array:
    """The exchanges of `fft`, which leave the axis that they make whole last: (x, y, z) to (x, z, y), or to (y, z, x).

    Args:
      block: (x, y, z) with split=2, along=1; (x, y, z) with split=1, along=0; or (x, z, y) with split=2, along=0.
      split: the axis that is split.
      along: the axis that becomes whole.
      decomposition: with this backend.
    """
    if along == 1:
        return jnp.moveaxis(transpose(block, decomposition, "z_to_y"), 1, 2)
    ordered = block if split == 1 else jnp.moveaxis(block, 2, 1)
    whole = transpose(ordered, decomposition, "y_to_x")
    return jnp.transpose(whole, (1, 2, 0) if split == 1 else (2, 1, 0))


def spread(block: Array, split: int, along: int, decomposition: Decomposition) -> Array:
    """The inverse of `collect`."""
    if along == 1:
        return transpose(jnp.moveaxis(block, 2, 1), decomposition, "y_to_z")
    whole = jnp.transpose(block, (2, 0, 1) if split == 1 else (2, 1, 0))
    ordered = transpose(whole, decomposition, "x_to_y")
    return ordered if split == 1 else jnp.moveaxis(ordered, 1, 2)


def can_pad(block: Shape3, halo: int, decomposition: Decomposition) -> bool:
    """Whether cuDecomp can give such blocks halos: it asks the next neighbours only."""
    return all(parts == 1 or halo <= width for width, parts in zip(block, decomposition.pdims, strict=False))


def pad_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo.halo_pad` of the local block, inside shard_map.

    Raises:
      ValueError: a halo wider than the block, or a shape that was not opened.
    """
    px, py = decomposition.pdims
    if halo == 0 or px == py == 1:
        return block
    if not can_pad((block.shape[0], block.shape[1], block.shape[2]), halo, decomposition):
        raise ValueError(f"halo={halo} must not be wider than a block, here {block.shape}; use backend='xla'")
    shape = block.shape[0] * px, block.shape[1] * py, block.shape[2]
    widths = _halo_widths(halo, decomposition)
    filled = _halo_p.bind(
        jnp.pad(block, widths)[None],
        shape=shape,
        pdims=(px, py),
        comms=_comms(decomposition),
        halo=halo,
        decomposition=decomposition,
    )
    return filled[0]


# --- starting ------------------------------------------------------------------------------------------------


def _start(decomposition: Decomposition) -> int:
    """Agree that every process can start; then the place of this one among the blocks."""
    global _communicator, _order
    problem = unavailable_reason(decomposition)
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
    rows = device_groups(decomposition.mesh, decomposition.names)
    order = [device.process_index for row in rows for device in row]
    if problem is None and sorted(order) != list(range(jax.process_count())):
        problem = f"the decomposition has {len(order)} of the {jax.device_count()} devices; use all of them"
    world = MPI.COMM_WORLD.Dup()  # the user's own communicator may have messages under way
    problems = world.allgather(problem)
    for process, what in enumerate(problems):
        if what is not None:
            world.Free()
            raise RuntimeError(f"cuDecomp cannot be used: on process {process}, {what}")
    place = order.index(jax.process_index())
    if _communicator is None:
        # A communicator of cuDecomp's own, its ranks in the order of the blocks.
        _communicator, _order = world.Split(0, place), order
    world.Free()
    if order != _order:
        raise ValueError(f"cuDecomp is open for processes in the order {_order}, not {order}; close_backend() first")
    return place


def _end_job(message: str) -> None:
    """The other processes may be waiting inside cuDecomp for this one, where no exception would reach them."""
    from mpi4py import MPI

    os.write(2, f"{message}; the job ends here, since other processes would wait for ever\n".encode())
    MPI.COMM_WORLD.Abort(1)


def _chosen(decomposition: Decomposition) -> tuple[int, int]:
    """cuDecomp's numbers of the decomposition's backends."""
    transposes, halos = get_args(TransposeComm), get_args(HaloComm)
    return transposes.index(decomposition.transpose_comm) + 1, halos.index(decomposition.halo_comm) + 1


def _comms(decomposition: Decomposition) -> tuple[int, int]:
    if decomposition not in _opened:
        raise ValueError(f"{decomposition} is not open; call cudecomp.open_backend on every process first")
    return _chosen(decomposition)


# --- the primitives ------------------------------------------------------------------------------------------


def _parts(axis: int, pdims: tuple[int, int]) -> tuple[int, int, int]:
    """Into how many blocks each axis is divided where pencils are whole along x, y, z (0, 1, 2)."""
    px, py = pdims
    return ((1, px, py), (px, 1, py), (px, py, 1))[axis]


def _halo_widths(halo: int, decomposition: Decomposition) -> list[tuple[int, int]]:
    return [(halo, halo) if parts > 1 else (0, 0) for parts in (*decomposition.pdims, 1)]


def _grid(shape: Shape3, pdims: tuple[int, int], comms: tuple[int, int]) -> dict[str, Any]:
    return {"shape": np.array(shape), "pdims": np.array(pdims), "comms": np.array(comms)}


def _scratch(
    x: Any, *, shape: Shape3, pdims: tuple[int, int], comms: tuple[int, int], halo: int | None = None, **_: Any
) -> ShapedArray:
    ops = native.cudecomp_ops()
    assert ops is not None
    return ShapedArray((ops.cudecomp_scratch(shape, pdims, comms, halo),), x.dtype)


def _transpose_aval(x: Any, *, shape: Shape3, pdims: tuple[int, int], step: int, **_: Any) -> Any:
    after = _parts(_AXES[step][1], pdims)
    if any(n % parts for n, parts in zip(shape, after, strict=True)):
        raise ValueError(f"shape={shape} does not divide into {after} blocks, as step {_STEPS[step]!r} asks")
    return result_aval(x, (x.shape[0], *(n // p for n, p in zip(shape, after, strict=True))), x.dtype)


_transpose_p = define_gpu_op(
    "cudecomp_transpose",
    _transpose_aval,
    target="jaxdecomp_ops_cudecomp_transpose",
    attributes=lambda *_, step, **grid: _grid(**grid) | {"step": np.array([step])},
    scratch=_scratch,
)


def _transpose_transpose(ct: Any, x: Any, *, step: int, **params: Any) -> tuple[Any]:
    if type(ct) is ad.Zero:
        return (ad.Zero(x.aval),)
    return (_transpose_p.bind(ct, step=_INVERSE[step], **params),)


_halo_p = define_gpu_op(
    "cudecomp_halo",
    lambda x, **_: result_aval(x, x.shape, x.dtype),
    target="jaxdecomp_ops_cudecomp_halo",
    attributes=lambda *_, shape, pdims, comms, halo, **__: _grid(shape, pdims, comms) | {"halo": np.array([halo])},
    scratch=_scratch,
    in_place=True,
)


def _halo_transpose(ct: Any, x: Any, *, halo: int, decomposition: Decomposition, **_: Any) -> tuple[Any]:
    """What lies in the halos is replaced, so nothing flows back to it; cells that were sent get it from all copies."""
    if type(ct) is ad.Zero:
        return (ad.Zero(x.aval),)
    from pmwd_dist.parallel.halo import reduce_block  # which asks this module in turn

    widths = _halo_widths(halo, decomposition)

    def one(block: Array) -> Array:
        return jnp.pad(reduce_block(block, halo, decomposition), widths)

    return (jax.vmap(one)(ct),)


ad.deflinear2(_transpose_p, _transpose_transpose)
ad.deflinear2(_halo_p, _halo_transpose)
