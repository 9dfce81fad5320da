"""Cloud-in-cell paint and read on one block of particles and mesh: primitives closed under differentiation.

With the weight of axis i, W(u) = 1 - |u|, or its derivative W'(u) where a mask says so,

    paint:  mesh[c, f]   = sum_p sum_k weight[p, k, f] prod_i W_ki(x_pi - c_i)
    read:   out[p, k, f] = sum_c fields[c, f]          prod_i W_ki(x_pi - c_i)

Each is the other's transpose in the linear argument, and the derivative of either in the positions is the same
op under another mask. Hence any order of jvp and vjp stays within these two (Hockney & Eastwood 1988, ch. 5). A third
op sums what is read over k or f with weights of the particles, as derivatives do: it never writes the nine slopes.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad
from jaxtyping import Array, Float

from pmwd_dist._jax import native as library
from pmwd_dist._jax.define import define_op
from pmwd_dist._jax.varying import result_aval, unify_varying

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
) -> Float[Array, "mx my mz F"]:
    """Paint particles onto a block; a weight of shape (1, 1, 1, K, F) is shared by all particles.

    The whole result is NaN if a position or weight is not finite or a particle is out of reach.
    `native` forces (True) or forbids (False) the native op; by default it runs where it is installed.
    """
    disp, weight = unify_varying(disp, weight)
    out = _paint_p.bind(disp[None], weight[None], geometry=geometry, masks=masks, native=_choose(native))
    return out[0]


def read(
    disp: Float[Array, "px py pz 3"],
    fields: Float[Array, "mx my mz F"],
    geometry: Geometry,
    masks: tuple[Mask, ...] = (VALUE,),
    *,
    native: bool | None = None,
) -> Float[Array, "px py pz K F"]:
    """Read fields at the particles; NaN for a particle that is not finite or out of reach."""
    disp, fields = unify_varying(disp, fields)
    out = _read_p.bind(disp[None], fields[None], geometry=geometry, masks=masks, native=_choose(native))
    return out[0]


def _choose(native: bool | None) -> bool:
    there = library.native_available()
    if native and not there:
        raise ValueError("native=True needs the native ops; `pip install jaxdecomp-ops`")
    return there if native is None else native


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
        mesh = mesh.reshape(*geometry.mesh, n_fields)
        return jnp.where(jnp.all(reachable) & jnp.all(jnp.isfinite(weight)), mesh, jnp.nan)

    return jax.vmap(one)(disp, weight)


def _read_reference(disp: Array, fields: Array, *, geometry: Geometry, masks: Any, native: bool) -> Array:
    del native

    def one(disp: Array, fields: Array) -> Array:
        cell, offset, reachable = _locate(disp, geometry)
        flat = fields.reshape(-1, fields.shape[-1])
        out = jnp.zeros((), disp.dtype)
        for index, w in _corners(cell, offset, geometry, masks):
            out = out + w[..., None] * flat[index][..., None, :]
        return jnp.where(reachable[..., None, None], out, jnp.nan)

    return jax.vmap(one)(disp, fields)


def _read_sum_reference(disp: Array, fields: Array, weight: Array, *, over_masks: bool, **params: Any) -> Array:
    values = _read_p.bind(disp, fields, **params)
    axis = 4 if over_masks else 5
    parts = jnp.split(values * weight, values.shape[axis], axis=axis)
    return functools.reduce(jnp.add, parts)  # a sum over a short axis takes 15 times as long on a CPU


# --- the primitives ----------------------------------------------------------------------------------------


def _paint_aval(disp: Any, weight: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    del masks, native
    return result_aval(disp, (disp.shape[0], *geometry.mesh, weight.shape[-1]), disp.dtype)


def _read_aval(disp: Any, fields: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    del geometry, native
    return result_aval(disp, (*disp.shape[:4], len(masks), fields.shape[-1]), disp.dtype)


def _read_sum_aval(
    disp: Any, fields: Any, weight: Any, *, geometry: Any, masks: Any, over_masks: bool, native: Any
) -> Any:
    del weight, geometry, native
    kept = (1, fields.shape[-1]) if over_masks else (len(masks), 1)
    return result_aval(disp, (*disp.shape[:4], *kept), disp.dtype)


def _attributes(
    geometry: Geometry, masks: tuple[Mask, ...], native: bool, over_masks: bool | None = None
) -> dict[str, Any]:
    del native
    summed = {} if over_masks is None else {"over_masks": np.array([over_masks], np.int64)}
    return summed | {
        "spacing_num": np.array([s[0] for s in geometry.spacing], np.int64),
        "spacing_den": np.array([s[1] for s in geometry.spacing], np.int64),
        "origin": np.array(geometry.origin, np.int64),
        "periodic": np.array(geometry.periodic, np.int64),
        "scale": np.array(geometry.scale, np.float64),
        "masks": np.array(masks, np.int64).ravel(),
    }


_paint_p = define_op(
    "cic_paint", _paint_aval, _paint_reference, target="jaxdecomp_ops_cic_paint", attributes=_attributes
)
_read_p = define_op("cic_read", _read_aval, _read_reference, target="jaxdecomp_ops_cic_read", attributes=_attributes)
_read_sum_p = define_op(
    "cic_read_sum", _read_sum_aval, _read_sum_reference, target="jaxdecomp_ops_cic_read_sum", attributes=_attributes
)


# --- derivatives -------------------------------------------------------------------------------------------


def _raised(mask: Mask, axis: int) -> Mask | None:
    """The mask differentiated once more along an axis; W'' is zero almost everywhere."""
    if mask[axis]:
        return None
    x, y, z = (1 if i == axis else m for i, m in enumerate(mask))
    return x, y, z


def _derivative_terms(masks: tuple[Mask, ...]) -> list[tuple[int, int, Mask]]:
    """(k, axis, raised mask) of every non-zero first derivative."""
    return [(k, i, up) for k, mask in enumerate(masks) for i in range(3) if (up := _raised(mask, i))]


def _total(parts: list[Array], like: Array) -> Array:
    return functools.reduce(jnp.add, parts) if parts else jnp.zeros_like(like)


def _paint_jvp(primals: Any, tangents: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    (disp, weight), (ddisp, dweight) = primals, tangents
    params = {"geometry": geometry, "native": native}
    out = _paint_p.bind(disp, weight, masks=masks, **params)
    parts = []
    if type(dweight) is not ad.Zero:
        parts.append(_paint_p.bind(disp, dweight, masks=masks, **params))
    terms = _derivative_terms(masks)
    if type(ddisp) is not ad.Zero and terms:
        pieces = [_scaled(weight[..., k, :], ddisp[..., i] * geometry.scale[i]) for k, i, _ in terms]
        parts.append(_paint_p.bind(disp, jnp.stack(pieces, -2), masks=tuple(up for *_, up in terms), **params))
    return out, _total(parts, out)


def _read_jvp(primals: Any, tangents: Any, *, geometry: Geometry, masks: Any, native: bool) -> Any:
    (disp, fields), (ddisp, dfields) = primals, tangents
    params = {"geometry": geometry, "native": native}
    out = _read_p.bind(disp, fields, masks=masks, **params)
    parts = []
    if type(dfields) is not ad.Zero:
        parts.append(_read_p.bind(disp, dfields, masks=masks, **params))
    if type(ddisp) is not ad.Zero and _derivative_terms(masks):
        moved = [_moved(mask, disp, fields, ddisp, out, params) for mask in masks]
        parts.append(jnp.concatenate(moved, axis=-2))
    return out, _total(parts, out)


def _moved(mask: Mask, disp: Array, fields: Array, ddisp: Array, out: Array, params: Any) -> Array:
    """Change of what is read under one mask when the particles move."""
    ups = [(i, up) for _, i, up in _derivative_terms((mask,))]
    if not ups:
        return jnp.zeros_like(out[..., :1, :])
    scale = params["geometry"].scale
    steps = jnp.stack([ddisp[..., i] * scale[i] for i, _ in ups], -1)[..., None]
    masks = tuple(up for _, up in ups)
    return _read_sum_p.bind(*unify_varying(disp, fields, steps), masks=masks, over_masks=True, **params)


def _read_sum_jvp(primals: Any, tangents: Any, *, over_masks: bool, **params: Any) -> Any:
    (disp, fields, weight), (ddisp, dfields, dweight) = primals, tangents
    bind = functools.partial(_read_sum_p.bind, over_masks=over_masks, **params)
    out = bind(disp, fields, weight)
    parts = []
    if type(dfields) is not ad.Zero:
        parts.append(bind(disp, dfields, weight))
    if type(dweight) is not ad.Zero:
        parts.append(bind(disp, fields, dweight))
    if type(ddisp) is not ad.Zero:

        def composed(disp: Array) -> Array:
            return _read_sum_reference(disp, fields, weight, over_masks=over_masks, **params)

        parts.append(jax.jvp(composed, (disp,), (ddisp,))[1])
    return out, _total(parts, out)


def _scaled(values: Array, factor: Array) -> Array:
    """values * factor[..., None], field by field: else the transpose sums over a short last axis, 15 times slower."""
    return jnp.stack([values[..., f] * factor for f in range(values.shape[-1])], -1)


def _paint_transpose(ct: Any, disp: Any, weight: Any, **params: Any) -> Any:
    if type(ct) is ad.Zero:
        return None, ad.Zero(weight.aval)
    out = _read_p.bind(*unify_varying(disp, ct), **params)
    if weight.aval.shape != out.shape:
        out = jnp.sum(out, axis=(1, 2, 3), keepdims=True)
    return None, out


def _read_transpose(ct: Any, disp: Any, fields: Any, **params: Any) -> Any:
    if type(ct) is ad.Zero:
        return None, ad.Zero(fields.aval)
    return None, _paint_p.bind(*unify_varying(disp, ct), **params)


def _read_sum_transpose(ct: Any, disp: Any, fields: Any, weight: Any, *, over_masks: bool, **params: Any) -> Any:
    if type(ct) is ad.Zero:
        return None, *(ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in (fields, weight))
    if ad.is_undefined_primal(weight):
        out = _read_sum_p.bind(*unify_varying(disp, fields, ct), over_masks=not over_masks, **params)
        return None, None, out
    return None, _paint_p.bind(*unify_varying(disp, ct * weight), **params), None


ad.primitive_jvps[_paint_p] = _paint_jvp
ad.primitive_jvps[_read_p] = _read_jvp
ad.primitive_transposes[_paint_p] = _paint_transpose
ad.primitive_transposes[_read_p] = _read_transpose
ad.primitive_jvps[_read_sum_p] = _read_sum_jvp
ad.primitive_transposes[_read_sum_p] = _read_sum_transpose
