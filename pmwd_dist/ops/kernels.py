"""Native implementations of the ops: on CPUs if installed, on GPUs by CUDA kernels that are compiled at first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax.core import ShapedArray
from jax.export import DisabledSafetyCheck

from pmwd_dist._files import cache_folder
from pmwd_dist._jax import native
from pmwd_dist._jax.ops import Target


def cuda_unavailable_reason() -> str | None:
    """Why the CUDA kernels can't run on the GPUs of this process, or None."""
    return native.kernels_unavailable_reason(cache_folder() / "kernels")


def export_safety_checks() -> list[DisabledSafetyCheck]:
    """The checks for `jax.export.export(..., disabled_checks=)` that allow the custom calls of the native ops.

    The native ops are made ready in this process, too: call this once before an exported program is called.
    """
    cuda_unavailable_reason()  # loads the compiler of the CUDA kernels
    return [DisabledSafetyCheck.custom_call(name) for name in sorted(native.native_targets())]


def native_targets(
    name: str,
    attributes: Callable[..., dict[str, Any]],
    in_place: Mapping[int, int] | None = None,
    cuda_scratch: Callable[..., ShapedArray] | None = None,
    cpu_scratch: Callable[..., ShapedArray] | None = None,
    *,
    cuda_dtypes: tuple[Any, ...] = (),
) -> Any:
    """The targets of an op on CPUs and GPUs, keyword arguments of `define_op`.

    Args:
      name: name of the op.
      attributes: function from the parameters of the op to the attributes of the call.
      in_place: index of the result that reuses the memory of an operand, by index of the operand.
      cuda_scratch: scratch memory of the CUDA kernels, see `Target.scratch`.
      cpu_scratch: scratch memory on CPUs.
      cuda_dtypes: types for which there are CUDA kernels; empty: all.
    """
    target = f"jaxdecomp_ops_{name}"

    def on_cpu(x: Any, mesh: Any, **params: Any) -> dict[str, Any] | None:
        del x, mesh
        return attributes(**params) if native.native_available() else None

    def on_gpu(x: Any, mesh: Any, **params: Any) -> dict[str, Any] | None:
        del mesh
        missing = cuda_unavailable_reason() or (cuda_dtypes and x.dtype not in cuda_dtypes)
        return None if missing else attributes(**params)

    return {
        "cpu": Target(target, on_cpu, cpu_scratch, in_place or {}, single=bool(in_place)),
        "cuda": Target(target, on_gpu, cuda_scratch, in_place or {}),
    }
