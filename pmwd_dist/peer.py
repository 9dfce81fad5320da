"""Transforms and halos over the GPUs of one process, which write into each other's memory; inside shard_map.

cuFFT transforms the slabs plane by plane, strided where need be, and the GPUs' copy engines send finished planes right
to where they belong while the next ones are transformed: no packing, no unpacking, no collective of XLA's, and no copy
of the input of a complex-to-real transform. The native ops, NVIDIA's driver and the cuFFT that came with jax do it.

A field is divided along x; its spectrum along ky. One device has nothing to send, and gains from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad
from jaxtyping import Array

from pmwd_dist import _native
from pmwd_dist.decomposition import Decomposition
from pmwd_dist.real_fft import multiplicity

Rows = tuple[tuple[int, ...], ...]


def rfft(block: Array, decomposition: Decomposition) -> Array:
    """`fft.prfft3d` of the local block."""
    return _transform(block, decomposition, nz=block.shape[2], inverse=False, sign=-1)


def irfft(block: Array, nz: int, decomposition: Decomposition) -> Array:
    """`fft.pirfft3d` of the local block of a field with nz cells along z."""
    # Divided before, not after: a program multiplies spectra by filters anyhow, in the same pass.
    count = float(block.shape[0] * block.shape[1] * decomposition.pdims[0] * nz)
    return _transform(block / count, decomposition, nz=nz, inverse=True, sign=1)


def fft(block: Array, decomposition: Decomposition) -> Array:
    """`fft.pfft3d` of the local block."""
    return _transform(block, decomposition, nz=None, inverse=False, sign=-1)


def ifft(block: Array, decomposition: Decomposition) -> Array:
    """`fft.pifft3d` of the local block."""
    count = float(math.prod(block.shape) * decomposition.pdims[0])
    return _transform(block / count, decomposition, nz=None, inverse=True, sign=1)


def can_pad(block: Sequence[int], halo: int, decomposition: Decomposition) -> bool:
    """Whether halos of blocks of this shape, without halos, come from the next neighbours."""
    return 0 < halo <= block[0] and decomposition.size > 1


def pad_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo.halo_pad` of the local block, where `can_pad`."""
    block = _native.vary(block, decomposition.names)
    return _pad_p.bind(block[None], rows=_rows(decomposition), halo=halo)[0]


def reduce_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo.halo_reduce` of the local padded block, where `can_pad`."""
    block = _native.vary(block, decomposition.names)
    return _reduce(block[None], rows=_rows(decomposition), halo=halo)[0]


def _transform(block: Array, decomposition: Decomposition, *, nz: int | None, inverse: bool, sign: int) -> Array:
    block = _native.vary(block, decomposition.names)
    rows = _rows(decomposition)
    return _transform_p.bind(block[None], rows=rows, nz=nz, inverse=inverse, sign=sign)[0]


def _rows(decomposition: Decomposition) -> Rows:
    """Ordinals of the GPUs that exchange with each other, in the order of their blocks."""
    return tuple(tuple(device.local_hardware_id for device in row) for row in decomposition.device_rows)


# --- unscaled transforms between the two layouts, of either sign ----------------------------------------------


def _aval(x: Any, *, rows: Rows, nz: int | None, inverse: bool, sign: int) -> Any:
    del sign
    parts = len(rows[0])
    batch, nx, ny, last = x.shape
    if inverse:
        shape = batch, nx // parts, ny * parts, last if nz is None else nz
        dtype = x.dtype if nz is None else np.zeros((), x.dtype).real.dtype
    else:
        shape = batch, nx * parts, ny // parts, last if nz is None else nz // 2 + 1
        dtype = np.result_type(x.dtype, np.complex64)
    return _native.result_aval(x, shape, dtype)


def _attributes(*, rows: Rows, nz: int | None, inverse: bool, sign: int) -> dict[str, Any]:
    return {
        "rows": np.array(rows).ravel(),
        "parts": np.array([len(rows[0])]),
        "nz": np.array([nz or 0]),
        "inverse": np.array([int(inverse)]),
        "sign": np.array([sign]),
    }


def _scratch(x: Any, *, rows: Rows, nz: int | None, inverse: bool, sign: int) -> ShapedArray:
    """One slab of the spectrum to send from, and one to receive where the result can't."""
    out = _aval(x, rows=rows, nz=nz, inverse=inverse, sign=sign)
    spectrum = x if inverse else out
    buffers = (len(rows[0]) > 1) + (inverse and nz is not None)
    return ShapedArray((buffers * math.prod(spectrum.shape[1:]),), spectrum.dtype)


_transform_p = _native.define_gpu_op(
    "peer_transform", _aval, target="jaxdecomp_ops_peer_transform", attributes=_attributes, scratch=_scratch
)


def _transpose(ct: Any, x: Any, *, nz: int | None, inverse: bool, **params: Any) -> tuple[Any]:
    if type(ct) is ad.Zero:
        return (ad.Zero(x.aval),)
    if nz is None:  # a Fourier transform is symmetric
        return (_transform_p.bind(ct, nz=nz, inverse=not inverse, **params),)
    params["sign"] = -params["sign"]
    if inverse:
        weight = multiplicity(nz, ct.dtype)
        return (jnp.conj(_transform_p.bind(ct, nz=nz, inverse=False, **params)) * weight,)
    weight = 1 / multiplicity(nz, x.aval.dtype)
    return (_transform_p.bind(jnp.conj(ct) * weight, nz=nz, inverse=True, **params),)


ad.deflinear2(_transform_p, _transpose)


# --- halos, and the exchange of edges: its own inverse and its own transpose --------------------------------------


def _exchange_attributes(*, rows: Rows, halo: int) -> dict[str, Any]:
    return {"rows": np.array(rows).ravel(), "parts": np.array([len(rows[0])]), "halo": np.array([halo])}


def _pad_aval(x: Any, *, rows: Rows, halo: int) -> Any:
    del rows
    return _native.result_aval(x, (x.shape[0], x.shape[1] + 2 * halo, *x.shape[2:]), x.dtype)


_pad_p = _native.define_gpu_op("peer_pad", _pad_aval, target="jaxdecomp_ops_peer_pad", attributes=_exchange_attributes)
_swap_p = _native.define_gpu_op(
    "peer_swap",
    lambda x, **_: _native.result_aval(x, x.shape, x.dtype),
    target="jaxdecomp_ops_peer_swap",
    attributes=_exchange_attributes,
)


def _reduce(x: Array, *, rows: Rows, halo: int) -> Array:
    """Add halos onto what they stand for, the transpose of `_pad_p`."""
    count = x.shape[1] - 2 * halo
    edges = _swap_p.bind(jnp.concatenate([x[:, :halo], x[:, halo + count :]], axis=1), rows=rows, halo=halo)
    rest, whole = (0, count - halo), (0, 0)
    first = jnp.pad(edges[:, :halo], (whole, rest, whole, whole))
    last = jnp.pad(edges[:, halo:], (whole, rest[::-1], whole, whole))
    return x[:, halo : halo + count] + first + last


def _pad_transpose(ct: Any, x: Any, **params: Any) -> tuple[Any]:
    return (ad.Zero(x.aval) if type(ct) is ad.Zero else _reduce(ct, **params),)


def _swap_transpose(ct: Any, x: Any, **params: Any) -> tuple[Any]:
    return (ad.Zero(x.aval) if type(ct) is ad.Zero else _swap_p.bind(ct, **params),)


ad.deflinear2(_pad_p, _pad_transpose)
ad.deflinear2(_swap_p, _swap_transpose)
