from collections.abc import Sequence
from os import PathLike
from typing import Any

from typing_extensions import Buffer

__all__ = [
    "INTERFACE",
    "__version__",
    "cic_probe",
    "cudecomp_close",
    "cudecomp_open",
    "cudecomp_open_grid",
    "cudecomp_probe",
    "cudecomp_scratch",
    "friends_of_friends",
    "group_moments",
    "peer_filters",
    "peer_is_fast_along_x",
    "peer_join",
    "peer_probe",
    "peer_watch",
    "targets",
]

__version__: str

# Version of what targets and functions expect; both packages must have the same.
INTERFACE: int

def targets(platform: str) -> dict[str, Any]:
    """FFI targets of a platform ("cpu" or "CUDA") for `jax.ffi.register_ffi_target`: capsules, or dicts by stage."""

def cic_probe(devices: Sequence[int], nvrtc: Sequence[str], folder: str | PathLike[str] | None = None) -> None:
    """Fail with `OSError` unless CUDA's driver and NVRTC load and support the GPUs; keep kernels in a folder."""

def friends_of_friends(points: Buffer, sides: Sequence[float], length: float) -> bytes:
    """Friends-of-friends groups: the least index in the group of each point, as the bytes of 32-bit integers.

    Points are a buffer of coordinates in single or double precision, three a point, from 0 to below the sides.
    """

def group_moments(points: Buffer, velocities: Buffer, starts: Buffer, sides: Sequence[float]) -> bytes:
    """Centre, mean velocity and core of groups, as the bytes of nine numbers in double precision for each.

    Centre and core are those from the first point of the group on. Points are as in `friends_of_friends`, velocities
    in single precision, starts the first point of each group as 64-bit integers.
    """

def cudecomp_probe(library: str) -> None:
    """Fail with `OSError` unless cuDecomp and CUDA's driver load."""

def cudecomp_open(library: str, device: int, communicator: int, rank: int, num_processes: int) -> None:
    """Start cuDecomp. Collective over the communicator, given by its Fortran handle."""

def cudecomp_open_grid(
    shape: Sequence[int], pdims: Sequence[int], comms: Sequence[int], item_bytes: int, halo: int
) -> None:
    """Create the descriptor of a grid, unless it exists. Collective."""

def cudecomp_scratch(shape: Sequence[int], pdims: Sequence[int], comms: Sequence[int], halo: int | None = None) -> int:
    """Number of elements of scratch memory for a transpose, or for halos of a width, of an open grid."""

def cudecomp_close() -> None:
    """Close cuDecomp, if it is open. Collective."""

def peer_probe(devices: Sequence[int], cufft: Sequence[str]) -> None:
    """Fail with `OSError` unless CUDA's driver and cuFFT load and the GPUs can access each other's memory."""

def peer_join(key: str, processes: Sequence[int], process: int, device: int) -> None:
    """Join processes of one host, given by numbers, each with one GPU, that write into each other's memory.

    Fail with `OSError` unless they can. Collective; call `peer_probe` before.
    """

def peer_watch() -> None:
    """Return once this process has waited for one that has ended, which would go on forever."""

def peer_is_fast_along_x(device: int, num_shards: int, shape: Sequence[int], double: bool) -> bool:
    """Whether cuFFT transforms slabs of a complex mesh along x without a work area. Call `peer_probe` before."""

def peer_filters(length: int, double: bool) -> bool:
    """Whether a mesh of a length along x can be filtered by `jaxdecomp_ops_peer_filtered`. Call `cic_probe` before."""
