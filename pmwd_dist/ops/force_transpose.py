"""Transpose of reading the gradient of a potential on one block: the divergence of three painted fields.

Native ops for CPUs paint to three meshes, so that each particle is located once and differences vectorise. The CUDA
kernels paint three fields in one pass and take differences of the integer sums. On a mesh with four or more cells per
particle they paint one field after the other to the same sums, and subtract its differences before the next.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array, Float

from pmwd_dist._jax.ops import define_op, result_aval, with_derivatives_of
from pmwd_dist.ops.cic.geometry import VALUE, Geometry, attributes
from pmwd_dist.ops.cic.primitives import paint
from pmwd_dist.ops.kernels import native_targets
from pmwd_dist.ops.stencil import WIDTH, difference_weights, divergence

Vector3 = tuple[float, float, float]


def force_transpose(
    disp: Float[Array, "px py pz 3"], weight: Float[Array, "px py pz 3"], geometry: Geometry, cell_size: Vector3
) -> Float[Array, "ux uy uz"]:
    """Pull the cotangents of a force, the weights w_p of the particles where it acts, back to the potential.

    With the differences D_i of `stencil.gradient`, phi' = sum_i D_i^T sum_p w_pi W(x_p - c).

    Returns:
      The cotangent of the potential, with WIDTH cells more than the mesh on each side of an axis that isn't periodic.
      All cells within reach of a difference are NaN if a position or weight is not finite or a particle lies beyond the
      block.
    """
    params: Any = {"geometry": geometry, "cell_size": cell_size}
    return with_derivatives_of(partial(_reference, **params), _force_transpose_p, **params)(disp, weight)


def _reference(disp: Array, weight: Array, *, geometry: Geometry, cell_size: Vector3) -> Array:
    return divergence(paint(disp, weight[..., None, :], geometry), cell_size, geometry.periodic)


def _batched_reference(disp: Array, weight: Array, **params: Any) -> Array:
    return jax.vmap(partial(_reference, **params))(disp, weight)


def _outer(geometry: Geometry) -> tuple[int, ...]:
    """Extents of the potential."""
    return tuple(n if wraps else n + 2 * WIDTH for n, wraps in zip(geometry.mesh, geometry.periodic, strict=True))


def _aval(disp: Any, *_: Any, geometry: Geometry, **__: Any) -> Any:
    return result_aval(disp, (disp.shape[0], *_outer(geometry)), disp.dtype)


def _cuda_scratch(*_: Any, geometry: Geometry, **__: Any) -> ShapedArray:
    """A head of 4 KiB and a sum of 64 bits for each cell of the potential."""
    return ShapedArray((1024 + 2 * math.prod(_outer(geometry)),), np.dtype(np.int32))


def _attributes(*, geometry: Geometry, cell_size: Vector3) -> dict[str, Any]:
    return attributes(geometry, (VALUE,)) | difference_weights(cell_size)


def _cpu_scratch(disp: Any, *_: Any, geometry: Geometry, **__: Any) -> ShapedArray:
    """The three painted fields."""
    return ShapedArray((3 * math.prod(geometry.mesh),), disp.dtype)


_targets = native_targets(
    "force_transpose", _attributes, None, _cuda_scratch, _cpu_scratch, cuda_dtypes=(np.dtype(np.float32),)
)
_force_transpose_p = define_op("force_transpose", _aval, _batched_reference, **_targets)
