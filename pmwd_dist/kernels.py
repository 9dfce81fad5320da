"""Cloud-in-cell paint and read on one block of particles and mesh: two primitives closed under differentiation.

With the weight of axis i, W(u) = 1 - |u|, or its derivative W'(u) where a mask says so,

    paint:  mesh[f, c]   = sum_p sum_k weight[p, k, f] prod_i W_ki(x_pi - c_i)
    read:   out[p, k, f] = sum_c fields[f, c]          prod_i W_ki(x_pi - c_i)

Each is the other's transpose in the linear argument, and the derivative of either in the positions is the same
op under another mask. Hence any order of jvp and vjp stays within these two (Hockney & Eastwood 1988, ch. 5).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad
from jaxtyping import Array, Float

from pmwd_dist import _native

Mask = tuple[int, int, int]
VALUE: Mask = (0, 0, 0)


@dataclass(frozen=True)
class Geometry:
    """Where a block of lattice sites lies in a block of mesh cells.

    Args:
      mesh: cells of the mesh block along each axis, pads included.
      spacing: (num, den) per axis: lattice site i sits at i * num / den cells.
      origin: cell of lattice site 0: the pad width, or 0 on a periodic axis.
      periodic: whether the axis wraps around; else a particle beyond the block is out of reach.
      scale: cells per unit of displacement along each axis.
    """

    mesh: tuple[int, int, int]
    spacing: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    origin: tuple[int, int, int]
    periodic: tuple[bool, bool, bool]
    scale: tuple[float, float, float]


def paint(
    disp: Float[Array, "px py pz 3"],
    weight: Float[Array, "wx wy wz K F"],
    geometry: Geometry,
    masks: tuple[Mask, ...] = (VALUE,),
    *,
    native: bool | None = None,
) -> Float[Array, "F mx my mz"]:
    """Paint particles onto a block; a weight of shape (1, 1, 1, K, F) is shared by all particles.

    The whole result is NaN if a position or weight is not finite or a particle is out of reach.
    `native` forces (True) or forbids (False) the native op; by default it runs where it is installed.
    """
    disp, weight = _native.unify_varying(disp, weight)
    out = _paint_p.bind(disp[None], weight[None], geometry=geometry, masks=masks, native=_choose(native))
    return out[0]


def read(
    disp: Float[Array, "px py pz 3"],
    fields: Float[Array, "F mx my mz"],
    geometry: Geometry,
    masks: tuple[Mask, ...] = (VALUE,),
    *,
    native: bool | None = None,
) -> Float[Array, "px py pz K F"]:
    """Read fields at the particles; NaN for a particle that is not finite or out of reach."""
    disp, fields = _native.unify_varying(disp, fields)
    out = _read_p.bind(disp[None], fields[None], geometry=geometry, masks=masks, native=_choose(native))
    return out[0]


def _choose(native: bool | None) -> bool:
    return _native.native_available() if native is None else native


# --- the JAX reference -------------------------------------------------------------------------------------


def _locate(disp: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
    """Lower cell, offset within it, and whether the particle is in reach."""
    shape, dtype = disp.shape[:-1], disp.dtype
    cell, offset = [], []
    reachable = jnp.ones(shape, bool)
    for axis in range(3):
        num, den = geometry.spacing[axis]
        site = np.arange(shape[axis]) * num
        along = tuple(-1 if a == axis else 1 for a in range(3))
        frac = jnp.asarray((site % den) / den, dtype).reshape(along)
        base = jnp.asarray(site // den + geometry.origin[axis], jnp.int32).reshape(along)
        u = disp[..., axis] * jnp.asarray(geometry.scale[axis], dtype) + frac
        fine = jnp.abs(u) < 2.0**30  # also False for NaN
        u = jnp.where(fine, u, 0)
        lower = jnp.floor(u)
        c = base + lower.astype(jnp.int32)
        size = geometry.mesh[axis]
        if geometry.periodic[axis]:
            reachable &= fine
            c = c % size
        else:
            reachable &= fine & (c >= 0) & (c + 1 < size)
            c = jnp.clip(c, 0, size - 2)
        cell.append(c)
        offset.append(u - lower)
    return jnp.stack(cell, -1), jnp.stack(offset, -1), reachable


def _corners(cell: Array, offset: Array, geometry: Geometry, masks: tuple[Mask, ...]) -> Any:
    """Flat cell index and weights (..., K) of each of the eight corners."""
    _, my, mz = geometry.mesh
    for corner in itertools.product((0, 1), repeat=3):
        c = [(cell[..., i] + corner[i]) % geometry.mesh[i] for i in range(3)]
        weights = []
        for mask in masks:
            w = jnp.ones((), offset.dtype)
            for i in range(3):
                t = offset[..., i]
                w = w * ((2 * corner[i] - 1) if mask[i] else (t if corner[i] else 1 - t))
            weights.append(jnp.broadcast_to(w, cell.shape[:-1]))
        yield (c[0] * my + c[1]) * mz + c[2], jnp.stack(weights, -1)


def _paint_reference(disp: Array, weight: Array, *, geometry: Geometry, masks: Any, native: bool) -> Array:
    del native

    def one(disp: Array, weight: Array) -> Array:
        cell, offset, reachable = _locate(disp, geometry)
        n_fields = weight.shape[-1]
        mesh = jnp.zeros((int(np.prod(geometry.mesh)), n_fields), disp.dtype)
        for index, w in _corners(cell, offset, geometry, masks):
            value = jnp.sum(weight * w[..., None], axis=-2)
            mesh = mesh.at[index.ravel()].add(value.reshape(-1, n_fields))
        mesh = mesh.T.reshape(n_fields, *geometry.mesh)
        return jnp.where(jnp.all(reachable) & jnp.all(jnp.isfinite(weight)), mesh, jnp.nan)

    return jax.vmap(one)(disp, weight)


def _read_reference(disp: Array, fields: Array, *, geometry: Geometry, masks: Any, native: bool) -> Array:
    del native

    def one(disp: Array, fields: Array) -> Array:
        cell, offset, reachable = _locate(disp, geometry)
        flat = fields.reshape(fields.shape[0], -1).T
        out = jnp.zeros((), disp.dtype)
        for index, w in _corners(cell, offset, geometry, masks):
            out = out + w[..., None] * flat[index][..., None, :]
        return jnp.where(reachable[..., None, None], out, jnp.nan)

    return jax.vmap(one)(disp, fields)


# --- the primitives ----------------------------------------------------------------------------------------


def _paint_aval(disp: Any, weight: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    del masks, native
    return _native.result_aval(disp, (disp.shape[0], weight.shape[-1], *geometry.mesh), disp.dtype)


def _read_aval(disp: Any, fields: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    del geometry, native
    return _native.result_aval(disp, (*disp.shape[:4], len(masks), fields.shape[1]), disp.dtype)


def _attributes(geometry: Geometry, masks: tuple[Mask, ...], native: bool) -> dict[str, Any]:
    del native
    return {
        "spacing_num": np.array([s[0] for s in geometry.spacing], np.int64),
        "spacing_den": np.array([s[1] for s in geometry.spacing], np.int64),
        "origin": np.array(geometry.origin, np.int64),
        "periodic": np.array(geometry.periodic, np.int64),
        "scale": np.array(geometry.scale, np.float64),
        "masks": np.array(masks, np.int64).ravel(),
    }


_paint_p = _native.define_op(
    "cic_paint", _paint_aval, _paint_reference, target="jaxdecomp_ops_cic_paint", attributes=_attributes
)
_read_p = _native.define_op(
    "cic_read", _read_aval, _read_reference, target="jaxdecomp_ops_cic_read", attributes=_attributes
)


# --- derivatives -------------------------------------------------------------------------------------------


def _raised(mask: Mask, axis: int) -> Mask | None:
    """The mask differentiated once more along an axis; W'' is zero almost everywhere."""
    return None if mask[axis] else tuple(1 if i == axis else m for i, m in enumerate(mask))  # type: ignore[return-value]


def _derivative_terms(masks: tuple[Mask, ...]) -> list[tuple[int, int, Mask]]:
    """(k, axis, raised mask) of every non-zero first derivative."""
    return [(k, i, up) for k, mask in enumerate(masks) for i in range(3) if (up := _raised(mask, i))]


def _paint_jvp(primals: Any, tangents: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    (disp, weight), (ddisp, dweight) = primals, tangents
    params = {"geometry": geometry, "native": native}
    out = _paint_p.bind(disp, weight, masks=masks, **params)
    tangent = None
    if type(dweight) is not ad.Zero:
        tangent = _paint_p.bind(disp, dweight, masks=masks, **params)
    terms = _derivative_terms(masks)
    if type(ddisp) is not ad.Zero and terms:
        pieces = [_scaled(weight[..., k, :], ddisp[..., i] * geometry.scale[i]) for k, i, _ in terms]
        moved = _paint_p.bind(disp, jnp.stack(pieces, -2), masks=tuple(up for *_, up in terms), **params)
        tangent = moved if tangent is None else tangent + moved
    return out, jnp.zeros_like(out) if tangent is None else tangent


def _read_jvp(primals: Any, tangents: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    (disp, fields), (ddisp, dfields) = primals, tangents
    params = {"geometry": geometry, "native": native}
    out = _read_p.bind(disp, fields, masks=masks, **params)
    tangent = None
    if type(dfields) is not ad.Zero:
        tangent = _read_p.bind(disp, dfields, masks=masks, **params)
    terms = _derivative_terms(masks)
    if type(ddisp) is not ad.Zero and terms:
        unique = tuple(dict.fromkeys(up for *_, up in terms))
        slopes = _read_p.bind(disp, fields, masks=unique, **params)
        by_mask: list[Array | None] = [None] * len(masks)
        for k, i, up in terms:
            piece = _scaled(slopes[..., unique.index(up), :], ddisp[..., i] * geometry.scale[i])
            previous = by_mask[k]
            by_mask[k] = piece if previous is None else previous + piece
        zero = jnp.zeros_like(slopes[..., 0, :])
        moved = jnp.stack([zero if piece is None else piece for piece in by_mask], -2)
        tangent = moved if tangent is None else tangent + moved
    return out, jnp.zeros_like(out) if tangent is None else tangent


def _scaled(values: Array, factor: Array) -> Array:
    """values * factor[..., None], field by field: else the transpose sums over a short last axis, 15 times slower."""
    return jnp.stack([values[..., f] * factor for f in range(values.shape[-1])], -1)


def _paint_transpose(ct: Any, disp: Any, weight: Any, **params: Any) -> Any:
    if type(ct) is ad.Zero:
        return None, ad.Zero(weight.aval)
    out = _read_p.bind(*_native.unify_varying(disp, ct), **params)
    if weight.aval.shape != out.shape:
        out = jnp.sum(out, axis=(1, 2, 3), keepdims=True)
    return None, out


def _read_transpose(ct: Any, disp: Any, fields: Any, **params: Any) -> Any:
    if type(ct) is ad.Zero:
        return None, ad.Zero(fields.aval)
    return None, _paint_p.bind(*_native.unify_varying(disp, ct), **params)


ad.primitive_jvps[_paint_p] = _paint_jvp
ad.primitive_jvps[_read_p] = _read_jvp
ad.primitive_transposes[_paint_p] = _paint_transpose
ad.primitive_transposes[_read_p] = _read_transpose
