from typing import Any

__all__ = ["__version__", "targets"]

__version__: str

def targets(platform: str) -> dict[str, Any]:
    """FFI targets of a platform ("cpu"), each a capsule for `jax.ffi.register_ffi_target`; none if it has none."""
