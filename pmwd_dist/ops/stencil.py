"""Fourth-order finite-difference gradient on one block of the mesh, and its transpose: a pair of linear primitives.

Along an axis, a block either wraps around or has `WIDTH` cells of its neighbours on each side, which the result lacks.
The transpose has a rule of its own: JAX's, derived from slices and concatenations, is slow on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from pmwd_dist._jax.ops import (
    add_batch_axis,
    define_linear,
    define_op,
    drop_batch_axis,
    over_batch,
    result_aval,
    unify_varying,
)
from pmwd_dist.ops.kernels import native_targets

WIDTH = 2  # cells on each side that the stencil reaches
_NEAR, _FAR = 2 / 3, -1 / 12  # weights of the differences over one and two cells


def gradient(
    field: Float[Array, "ux uy uz"], cell_size: tuple[float, float, float], periodic: tuple[bool, ...]
) -> Float[Array, "mx my mz 3"]:
    """Gradient of a field, (8 (f(x + h) - f(x - h)) - (f(x + 2 h) - f(x - 2 h))) / 12 h along each axis.

    Args:
      field: block of the field, with WIDTH cells more on each side of an axis that isn't periodic.
      cell_size: sides of a cell.
      periodic: whether the block wraps around along each axis.

    Returns:
      The differences (Hockney & Eastwood 1988, sec. 5-4) of the inner cells.
    """
    return drop_batch_axis(_gradient_p.bind(add_batch_axis(field), cell_size=cell_size, periodic=periodic))


def gradient_at(
    fields: Integer[Array, "count mx my mz"], place: Array, cell_size: tuple[float, float, float]
) -> Float[Array, "mx my mz 3"]:
    """`gradient` of one of several fields that wrap around along all axes; not differentiable.

    Args:
      fields: bits of the fields, as integers.
      place: index of the field.
      cell_size: sides of a cell.
    """
    operands = map(add_batch_axis, unify_varying(fields, place.astype(jnp.int32)))
    return drop_batch_axis(_gradient_at_p.bind(*operands, cell_size=cell_size, periodic=(True,) * 3))


def divergence(
    fields: Float[Array, "mx my mz 3"], cell_size: tuple[float, float, float], periodic: tuple[bool, ...]
) -> Float[Array, "ux uy uz"]:
    """Transpose of `gradient`: minus the divergence, with WIDTH cells more on each side of an axis not periodic."""
    return drop_batch_axis(_divergence_p.bind(add_batch_axis(fields), cell_size=cell_size, periodic=periodic))


def _gradient_aval(x: Any, *, periodic: Any, **_: Any) -> Any:
    inner = tuple(n if wraps else n - 2 * WIDTH for n, wraps in zip(x.shape[1:], periodic, strict=True))
    return result_aval(x, (x.shape[0], *inner, 3), x.dtype)


def _gradient_at_aval(fields: Any, *_: Any, **__: Any) -> Any:
    return result_aval(fields, (fields.shape[0], *fields.shape[2:], 3), np.dtype(f"float{8 * fields.dtype.itemsize}"))


def _divergence_aval(x: Any, *, periodic: Any, **_: Any) -> Any:
    outer = tuple(n if wraps else n + 2 * WIDTH for n, wraps in zip(x.shape[1:-1], periodic, strict=True))
    return result_aval(x, (x.shape[0], *outer), x.dtype)


def _gradient_reference(field: Array, *, cell_size: Any, periodic: Any) -> Array:
    for axis, wraps in enumerate(periodic, start=1):
        if wraps:
            field = _wrap(field, axis)
    # Without the barrier XLA's CPU backend repeats the wrapping for every shift.
    field = jax.lax.optimization_barrier(field)
    parts = [_difference(_inner(field, keep=axis), axis, cell_size[axis - 1]) for axis in (1, 2, 3)]
    return jnp.stack(parts, -1)


def _gradient_at_reference(fields: Array, place: Array, **params: Any) -> Array:
    bits = over_batch(partial(jax.lax.dynamic_index_in_dim, keepdims=False), fields, place)
    field = jax.lax.bitcast_convert_type(bits, np.dtype(f"float{8 * fields.dtype.itemsize}"))
    return _gradient_reference(field, **params)


def _divergence_reference(fields: Array, *, cell_size: Any, periodic: Any) -> Array:
    out = None
    for axis, wraps in enumerate(periodic, start=1):
        field = fields[..., axis - 1]
        # The gradient reads cells beyond the block, so the transpose writes to them.
        field = _wrap(field, axis) if wraps else _zero_pad(field, axis, 2 * WIDTH)
        field = -_difference(jax.lax.optimization_barrier(field), axis, cell_size[axis - 1])
        for other, other_wraps in enumerate(periodic, start=1):
            if other != axis and not other_wraps:
                field = _zero_pad(field, other, WIDTH)
        out = field if out is None else out + field
    assert out is not None
    return out


def _difference(field: Array, axis: int, cell: float) -> Array:
    """Central difference along an axis, without WIDTH cells on each side."""
    size = field.shape[axis] - 2 * WIDTH

    def shifted(offset: int) -> Array:
        return jax.lax.slice_in_dim(field, WIDTH + offset, WIDTH + offset + size, axis=axis)

    return (shifted(1) - shifted(-1)) * (_NEAR / cell) + (shifted(2) - shifted(-2)) * (_FAR / cell)


def _inner(field: Array, keep: int) -> Array:
    """The field without its pads along all axes but one."""
    for axis in (1, 2, 3):
        if axis != keep:
            field = jax.lax.slice_in_dim(field, WIDTH, field.shape[axis] - WIDTH, axis=axis)
    return field


def _wrap(field: Array, axis: int) -> Array:
    size = field.shape[axis]
    last = jax.lax.slice_in_dim(field, size - WIDTH, size, axis=axis)
    first = jax.lax.slice_in_dim(field, 0, WIDTH, axis=axis)
    return jnp.concatenate([last, field, first], axis=axis)


def _zero_pad(field: Array, axis: int, width: int) -> Array:
    return jnp.pad(field, [(width, width) if a == axis else (0, 0) for a in range(field.ndim)])


def difference_weights(cell_size: Any) -> dict[str, Any]:
    """Weights of the differences over one and over two cells along each axis, as attributes of native ops."""
    cells = np.array(cell_size, np.float64)
    return {"near": _NEAR / cells, "far": _FAR / cells}


def _attributes(*, cell_size: Any, periodic: Any) -> dict[str, Any]:
    return difference_weights(cell_size) | {"periodic": np.array(periodic, np.int64)}


def _define(name: str, abstract: Callable[..., Any], reference: Callable[..., Any]) -> Any:
    return define_op(name, abstract, reference, **native_targets(name, _attributes))


_gradient_p = _define("gradient", _gradient_aval, _gradient_reference)
_gradient_at_p = _define("gradient_at", _gradient_at_aval, _gradient_at_reference)
_divergence_p = _define("gradient_transpose", _divergence_aval, _divergence_reference)

define_linear(_gradient_p, lambda ct, _, **params: _divergence_p.bind(ct, **params))
define_linear(_divergence_p, lambda ct, _, **params: _gradient_p.bind(ct, **params))
