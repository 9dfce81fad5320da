"""Native implementations of the ops that move particles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from jax.core import ShapedArray

from pmwd_dist._jax import native
from pmwd_dist._jax.define import Target
from pmwd_dist.ops.cic.geometry import VALUE, Geometry, attributes
from pmwd_dist.ops.kernels import cuda_unavailable_reason


def step_targets(
    name: str, in_place: Mapping[int, int], cuda_scratch: Callable[..., ShapedArray] | None = None
) -> dict[str, Target]:
    """The targets of an op on CPUs and GPUs.

    Args:
      name: of the op.
      in_place: by the number of an operand, that of the result which takes its memory.
      cuda_scratch: see `Target.scratch`, of the CUDA kernels.
    """
    target = f"jaxdecomp_ops_{name}"
    return {
        "cpu": Target(target, partial(_cpu_attributes, target), in_place=in_place),
        "CUDA": Target(target, _cuda_attributes, cuda_scratch, in_place),
    }


def _cpu_attributes(target: str, disp: Any, mesh: Any, **params: Any) -> dict[str, Any] | None:
    """Attributes of a native op, or None where it is not installed."""
    del disp, mesh
    return _attributes(**params) if native.has_target(target) else None


def _cuda_attributes(disp: Any, mesh: Any, **params: Any) -> dict[str, Any] | None:
    """Attributes of the CUDA kernels, or None where they can't run."""
    del disp, mesh
    return None if cuda_unavailable_reason() else _attributes(**params)


def _attributes(*, geometry: Geometry, resolution: float) -> dict[str, Any]:
    return attributes(geometry, (VALUE,)) | {"resolution": np.array([resolution], np.float64)}
