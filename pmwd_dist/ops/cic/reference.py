"""Cloud-in-cell paint and read in plain JAX, with a leading batch axis."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.ops.cic.geometry import Geometry, Mask


def _locate(disp: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
    """Lower cell, offset within it, and whether the particle lies within the block."""
    shape, dtype = disp.shape[:-1], disp.dtype
    cell, offset = [], []
    inside = jnp.ones(shape, bool)
    for axis in range(3):
        num, den = geometry.spacing[axis]
        site = np.arange(shape[axis]) * num
        along = tuple(-1 if a == axis else 1 for a in range(3))
        frac = jnp.asarray((site % den) / den, dtype).reshape(along)
        base = jnp.asarray(site // den + geometry.origin[axis], jnp.int32).reshape(along)
        u = disp[..., axis] * jnp.asarray(geometry.scale[axis], dtype) + frac
        moderate = jnp.abs(u) < 2.0**30  # also False for NaN
        u = jnp.where(moderate, u, 0)
        lower = jnp.floor(u)
        c = base + lower.astype(jnp.int32)
        size = geometry.mesh[axis]
        if geometry.periodic[axis]:
            inside &= moderate
            c = c % size
        else:
            inside &= moderate & (c >= 0) & (c + 1 < size)
            c = jnp.clip(c, 0, size - 2)
        cell.append(c)
        offset.append(u - lower)
    return jnp.stack(cell, -1), jnp.stack(offset, -1), inside


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


def paint_reference(disp: Array, weight: Array, *, geometry: Geometry, masks: Any) -> Array:
    """Mesh (batch, mx, my, mz, F) of weights (batch, px, py, pz, K, F) or (batch, 1, 1, 1, K, F)."""

    def one(disp: Array, weight: Array) -> Array:
        cell, offset, inside = _locate(disp, geometry)
        n_fields = weight.shape[-1]
        mesh = jnp.zeros((int(np.prod(geometry.mesh)), n_fields), disp.dtype)
        for index, w in _corners(cell, offset, geometry, masks):
            value = jnp.sum(weight * w[..., None], axis=-2)
            mesh = mesh.at[index.ravel()].add(value.reshape(-1, n_fields))
        mesh = mesh.reshape(*geometry.mesh, n_fields)
        return jnp.where(jnp.all(inside) & jnp.all(jnp.isfinite(weight)), mesh, jnp.nan)

    return jax.vmap(one)(disp, weight)


def read_reference(disp: Array, fields: Array, *, geometry: Geometry, masks: Any) -> Array:
    """Values (batch, px, py, pz, K, F) of fields (batch, mx, my, mz, F)."""

    def one(disp: Array, fields: Array) -> Array:
        cell, offset, inside = _locate(disp, geometry)
        flat = fields.reshape(-1, fields.shape[-1])
        out = jnp.zeros((), disp.dtype)
        for index, w in _corners(cell, offset, geometry, masks):
            out = out + w[..., None] * flat[index][..., None, :]
        return jnp.where(inside[..., None, None], out, jnp.nan)

    return jax.vmap(one)(disp, fields)
