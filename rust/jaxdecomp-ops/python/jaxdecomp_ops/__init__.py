"""Native particle-mesh operators for JAX, as FFI targets."""

from ._jaxdecomp_ops import *  # noqa: F403 - the functions depend on the features of the build
from ._jaxdecomp_ops import INTERFACE, __version__, targets

__all__ = ["INTERFACE", "__version__", "targets"]
