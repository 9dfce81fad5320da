"""Native particle-mesh operators for JAX, as FFI targets."""

from jaxdecomp_ops._jaxdecomp_ops import (
    INTERFACE,
    __version__,
    cic_probe,
    cudecomp_close,
    cudecomp_open,
    cudecomp_open_grid,
    cudecomp_probe,
    cudecomp_scratch,
    peer_filters,
    peer_is_fast_along_x,
    peer_probe,
    targets,
)

__all__ = [
    "INTERFACE",
    "__version__",
    "cic_probe",
    "cudecomp_close",
    "cudecomp_open",
    "cudecomp_open_grid",
    "cudecomp_probe",
    "cudecomp_scratch",
    "peer_filters",
    "peer_is_fast_along_x",
    "peer_probe",
    "targets",
]
