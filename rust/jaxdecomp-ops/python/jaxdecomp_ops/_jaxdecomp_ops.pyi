from collections.abc import Sequence
from typing import Any

__all__ = [
    "__version__",
    "cudecomp_close",
    "cudecomp_open",
    "cudecomp_open_grid",
    "cudecomp_probe",
    "cudecomp_scratch",
    "peer_is_fast_along_x",
    "peer_probe",
    "targets",
]

__version__: str

def targets(platform: str) -> dict[str, Any]:
    """FFI targets of a platform ("cpu" or "CUDA"), each a capsule for `jax.ffi.register_ffi_target`."""

def cudecomp_probe(library: str) -> None:
    """Fail with `OSError` unless cuDecomp and CUDA's driver load."""

def cudecomp_open(library: str, device: int, communicator: int, place: int, processes: int) -> None:
    """Start cuDecomp. Collective over the communicator, given by its Fortran integer."""

def cudecomp_open_grid(
    shape: Sequence[int], pdims: Sequence[int], comms: Sequence[int], item_bytes: int, halo: int
) -> None:
    """Create the descriptor of a grid, unless there is one. Collective."""

def cudecomp_scratch(shape: Sequence[int], pdims: Sequence[int], comms: Sequence[int], halo: int | None = None) -> int:
    """Elements of scratch memory that a transpose needs, or that halos of a width need, from a grid that is open."""

def cudecomp_close() -> None:
    """End cuDecomp, if it was started. Collective."""

def peer_probe(devices: Sequence[int], cufft: Sequence[str]) -> None:
    """Fail with `OSError` unless CUDA's driver and cuFFT load, and these GPUs can write into each other's memory."""

def peer_is_fast_along_x(device: int, parts: int, shape: Sequence[int], double: bool) -> bool:
    """Whether a GPU, which was probed, transforms slabs of a complex mesh along x without a work area."""
