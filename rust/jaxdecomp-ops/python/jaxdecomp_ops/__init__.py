"""Native particle-mesh operators for JAX, as FFI targets."""

from jaxdecomp_ops._jaxdecomp_ops import __version__, targets

__all__ = ["__version__", "targets"]
