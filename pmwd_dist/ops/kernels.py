"""Whether the CUDA kernels of the ops can run, compiled at their first use and kept in the cache folder."""

from __future__ import annotations

from pmwd_dist._files import cache_folder
from pmwd_dist._jax import native


def cuda_unavailable_reason() -> str | None:
    """Why the CUDA kernels can't run on the GPUs of this process, or None."""
    return native.kernels_unavailable_reason(cache_folder() / "kernels")
