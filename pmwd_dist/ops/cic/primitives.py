"""Cloud-in-cell paint and read on one block of particles and mesh: primitives closed under differentiation.

With the weight of axis i, W(u) = 1 - |u|, or its derivative W'(u) where a mask says so,

    paint:  mesh[c, f]   = sum_p sum_k weight[p, k, f] prod_i W_ki(x_pi - c_i)
    read:   out[p, k, f] = sum_c fields[c, f]          prod_i W_ki(x_pi - c_i)

Each is the other's transpose in the linear argument, and the derivative of either in the positions is the same op with
another mask. Hence any order of jvp and vjp stays within these two (Hockney & Eastwood 1988, ch. 5). A third op sums
values that are read over k or f, with weights of the particles: derivatives need these sums, and not the nine slopes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array, Float

from pmwd_dist._jax.ops import (
    add_batch_axis,
    define_derivatives,
    define_op,
    drop_batch_axis,
    result_aval,
    unify_varying,
)
from pmwd_dist.ops.cic.geometry import VALUE, Geometry, Mask, attributes, derivative_terms
from pmwd_dist.ops.cic.reference import paint_reference, read_reference
from pmwd_dist.ops.kernels import native_targets


def paint(
    disp: Float[Array, "px py pz 3"],
    weight: Float[Array, "wx wy wz K F"],
    geometry: Geometry,
    masks: tuple[Mask, ...] = (VALUE,),
) -> Float[Array, "mx my mz F"]:
    """Paint particles onto a block; all particles share a weight of shape (1, 1, 1, K, F).

    All cells are NaN if a position or weight is not finite or a particle lies beyond the block.
    """
    disp, weight = unify_varying(disp, weight)
    out = _paint_p.bind(*map(add_batch_axis, (disp, weight)), geometry=geometry, masks=masks)
    return drop_batch_axis(out)


def read(
    disp: Float[Array, "px py pz 3"],
    fields: Float[Array, "mx my mz F"],
    geometry: Geometry,
    masks: tuple[Mask, ...] = (VALUE,),
) -> Float[Array, "px py pz K F"]:
    """Read fields at the particles; NaN for a particle that is not finite or lies beyond the block."""
    disp, fields = unify_varying(disp, fields)
    out = _read_p.bind(*map(add_batch_axis, (disp, fields)), geometry=geometry, masks=masks)
    return drop_batch_axis(out)


# --- the primitives ----------------------------------------------------------------------------------------


def _paint_aval(disp: Any, weight: Any, *, geometry: Geometry, **_: Any) -> Any:
    return result_aval(disp, (disp.shape[0], *geometry.mesh, weight.shape[-1]), disp.dtype)


def _read_aval(disp: Any, fields: Any, *, masks: tuple[Mask, ...], **_: Any) -> Any:
    return result_aval(disp, (*disp.shape[:4], len(masks), fields.shape[-1]), disp.dtype)


def _read_sum_aval(disp: Any, fields: Any, _: Any, *, masks: tuple[Mask, ...], over_masks: bool, **__: Any) -> Any:
    rest = (1, fields.shape[-1]) if over_masks else (len(masks), 1)
    return result_aval(disp, (*disp.shape[:4], *rest), disp.dtype)


def _read_sum_reference(disp: Array, fields: Array, weight: Array, *, over_masks: bool, **params: Any) -> Array:
    values = _read_p.bind(disp, fields, **params)
    axis = 4 if over_masks else 5
    parts = jnp.split(values * weight, values.shape[axis], axis=axis)
    return functools.reduce(jnp.add, parts)  # jnp.sum over a short axis is slow on CPUs


def _read_sum_attributes(*, geometry: Geometry, masks: tuple[Mask, ...], over_masks: bool) -> dict[str, Any]:
    return attributes(geometry, masks) | {"over_masks": np.array([over_masks], np.int64)}


def _cuda_scratch(disp: Any, *_: Any, geometry: Geometry, **__: Any) -> ShapedArray:
    """A head of 4 KiB and an integer sum for each cell: 64 bits for float32, 128 for float64."""
    return ShapedArray((1024 + math.prod(geometry.mesh) * disp.dtype.itemsize // 2,), np.dtype(np.int32))


_paint_targets = native_targets("cic_paint", attributes, cuda_scratch=_cuda_scratch)
_paint_p = define_op("cic_paint", _paint_aval, paint_reference, **_paint_targets)
_read_p = define_op("cic_read", _read_aval, read_reference, **native_targets("cic_read", attributes))
_read_sum_targets = native_targets("cic_read_sum", _read_sum_attributes)
_read_sum_p = define_op("cic_read_sum", _read_sum_aval, _read_sum_reference, **_read_sum_targets)


# --- derivatives -------------------------------------------------------------------------------------------


def _paint_jvp(ddisp: Array, disp: Array, weight: Array, *, geometry: Geometry, masks: tuple[Mask, ...]) -> Array:
    """d paint(x) = sum_i paint(w dx_i) with W -> W' along axis i."""
    slopes, masks = jvp_weights(ddisp, weight, geometry, masks)
    return _paint_p.bind(*unify_varying(disp, slopes), geometry=geometry, masks=masks)


def jvp_weights(
    ddisp: Array, weight: Array, geometry: Geometry, masks: tuple[Mask, ...]
) -> tuple[Array, tuple[Mask, ...]]:
    """Weights w dx_i [cells], and masks with W -> W' along axis i, of the paint that is the JVP in the positions."""
    terms = derivative_terms(masks)
    if len(terms) == 3 and weight.shape[-2:] == (1, 1):  # as vectors: the transpose stacks no components
        scale = np.asarray(geometry.scale, ddisp.dtype).reshape((1,) * (ddisp.ndim - 1) + (3,))
        return weight * (ddisp * scale)[..., None], tuple(mask for *_, mask in terms)
    pieces = [_scaled(weight[..., k, :], ddisp[..., i] * geometry.scale[i]) for k, i, _ in terms]
    slopes = jnp.stack(pieces, -2) if pieces else jnp.zeros_like(weight)
    return slopes, tuple(mask for *_, mask in terms) or masks


def _read_jvp(ddisp: Array, disp: Array, fields: Array, *, masks: tuple[Mask, ...], **params: Any) -> Array:
    """d read(x) = sum_i dx_i read(x) with W -> W' along axis i."""
    return jnp.concatenate([_read_mask_jvp(mask, disp, fields, ddisp, params) for mask in masks], axis=-2)


def _read_mask_jvp(mask: Mask, disp: Array, fields: Array, ddisp: Array, params: dict[str, Any]) -> Array:
    terms = derivative_terms((mask,))
    if not terms:
        zeros = jnp.zeros((*disp.shape[:4], 1, fields.shape[-1]), disp.dtype)
        return unify_varying(disp, fields, zeros)[2]
    scale = params["geometry"].scale
    steps = jnp.stack([ddisp[..., axis] * scale[axis] for _, axis, _ in terms], -1)[..., None]
    masks = tuple(up for *_, up in terms)
    return _read_sum_p.bind(*unify_varying(disp, fields, steps), masks=masks, over_masks=True, **params)


def _read_sum_jvp(ddisp: Array, disp: Array, fields: Array, weight: Array, **params: Any) -> Array:
    """JVP in the positions of a sum of reads, through its reads."""

    def composed(disp: Array) -> Array:
        return _read_sum_reference(disp, fields, weight, **params)

    return jax.jvp(composed, (disp,), (ddisp,))[1]


def _scaled(values: Array, factor: Array) -> Array:
    """values * factor[..., None], field by field: otherwise the transpose is a slow sum over a short last axis."""
    return jnp.stack([values[..., f] * factor for f in range(values.shape[-1])], -1)


def _paint_transpose(ct: Array, disp: Array, weight: Any, **params: Any) -> Array:
    out = _read_p.bind(*unify_varying(disp, ct), **params)
    return out if weight.aval.shape == out.shape else jnp.sum(out, axis=(1, 2, 3), keepdims=True)


def _read_sum_transpose_weight(
    ct: Array, disp: Array, fields: Array, _: Any, *, over_masks: bool, **params: Any
) -> Array:
    return _read_sum_p.bind(*unify_varying(disp, fields, ct), over_masks=not over_masks, **params)


def _read_sum_transpose_fields(
    ct: Array, disp: Array, fields: Any, weight: Array, *, over_masks: bool, **params: Any
) -> Array:
    del fields, over_masks
    return _painted((disp, ct * weight), **params)


def _painted(operands: Sequence[Array], **params: Any) -> Array:
    return _paint_p.bind(*unify_varying(*operands), **params)


define_derivatives(
    _paint_p,
    (_paint_jvp, lambda dweight, disp, _, **params: _paint_p.bind(disp, dweight, **params)),
    {1: _paint_transpose},
)
define_derivatives(
    _read_p,
    (_read_jvp, lambda dfields, disp, _, **params: _read_p.bind(disp, dfields, **params)),
    {1: lambda ct, disp, _, **params: _painted((disp, ct), **params)},
)
define_derivatives(
    _read_sum_p,
    (
        _read_sum_jvp,
        lambda dfields, disp, _, weight, **params: _read_sum_p.bind(disp, dfields, weight, **params),
        lambda dweight, disp, fields, _, **params: _read_sum_p.bind(disp, fields, dweight, **params),
    ),
    {1: _read_sum_transpose_fields, 2: _read_sum_transpose_weight},
)
