"""Transforms and halos over the GPUs of one process, which write into each other's memory; inside shard_map.

cuFFT transforms the slabs plane by plane, strided where need be, and the GPUs' copy engines send finished planes right
to where they belong while the next ones are transformed: no packing, no unpacking, no collective of XLA's, and no copy
of the input of a complex-to-real transform. The native ops, NVIDIA's driver and the cuFFT that came with jax do it; for
lengths that cuFFT transforms slowly along x, where values lie far apart, XLA does that axis.

A field is divided along x; its spectrum along ky. One device has nothing to send, and gains from the rest. Where a
program is compiled for a mesh whose devices are not known, or are not such GPUs, XLA serves: slower, never wrong.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad
from jax.sharding import Mesh
from jaxtyping import Array

from pmwd_dist._jax import native
from pmwd_dist._jax.define import define_gpu_op
from pmwd_dist._jax.varying import result_aval, vary
from pmwd_dist.ops.local_fft import irfft as local_irfft
from pmwd_dist.ops.local_fft import multiplicity
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.device_mesh import Names, device_groups


def rfft(block: Array, decomposition: Decomposition) -> Array:
    """`fft.prfft3d` of the local block."""
    return _transform(block, decomposition, nz=block.shape[2], inverse=False, sign=-1)


def irfft(block: Array, nz: int, decomposition: Decomposition) -> Array:
    """`fft.pirfft3d` of the local block of a field with nz cells along z."""
    # Divided before, not after: a program multiplies spectra by filters anyhow, in the same pass.
    count = float(block.shape[0] * block.shape[1] * decomposition.size * nz)
    return _transform(_complex(block) / count, decomposition, nz=nz, inverse=True, sign=1)


def fft(block: Array, decomposition: Decomposition) -> Array:
    """`fft.pfft3d` of the local block."""
    return _transform(_complex(block), decomposition, nz=None, inverse=False, sign=-1)


def ifft(block: Array, decomposition: Decomposition) -> Array:
    """`fft.pifft3d` of the local block."""
    count = float(math.prod(block.shape) * decomposition.size)
    return _transform(_complex(block) / count, decomposition, nz=None, inverse=True, sign=1)


def can_pad(count: int, dtype: Any, halo: int, decomposition: Decomposition) -> bool:
    """Whether halos of blocks with so many planes of values of a type come from the next neighbours."""
    return 0 < halo <= count and decomposition.size > 1 and np.dtype(dtype) in _DTYPES


def pad_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo.halo_pad` of the local block, where `can_pad`."""
    return _pad_p.bind(_batched(block, decomposition), **_blocks(decomposition), halo=halo)[0]


def reduce_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo.halo_reduce` of the local padded block, where `can_pad`."""
    return _reduce(_batched(block, decomposition), **_blocks(decomposition), halo=halo)[0]


_DTYPES = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))


def _complex(block: Array) -> Array:
    return block.astype(np.result_type(block.dtype, np.complex64))


def _transform(block: Array, decomposition: Decomposition, *, nz: int | None, inverse: bool, sign: int) -> Array:
    x = _batched(block, decomposition)
    return _transform_p.bind(x, **_blocks(decomposition), nz=nz, inverse=inverse, sign=sign)[0]


def _batched(block: Array, decomposition: Decomposition) -> Array:
    return vary(block, decomposition.names)[None]


def _blocks(decomposition: Decomposition) -> dict[str, Any]:
    return {"names": decomposition.names, "parts": decomposition.size}


def _row_attributes(mesh: Mesh | None, names: Names, parts: int) -> dict[str, Any] | None:
    """For the native ops: which GPUs exchange with each other, in the order of their blocks; None where they can't."""
    if mesh is None or any(device.process_index != jax.process_index() for device in mesh.devices.flat):
        return None
    rows = np.array([[device.local_hardware_id for device in row] for row in device_groups(mesh, names)])
    if native.peer_unavailable_reason(tuple(sorted(rows.ravel().tolist()))) is not None:
        return None
    return {"rows": rows.ravel(), "parts": np.array([parts])}


# --- unscaled transforms between the two layouts, of either sign ----------------------------------------------


def _transform_aval(x: Any, *, names: Names, parts: int, nz: int | None, inverse: bool, sign: int) -> Any:
    del names, sign
    batch, nx, ny, last = x.shape
    if inverse:
        shape = batch, nx // parts, ny * parts, last if nz is None else nz
        dtype = x.dtype if nz is None else np.zeros((), x.dtype).real.dtype
    else:
        shape = batch, nx * parts, ny // parts, last if nz is None else nz // 2 + 1
        dtype = np.result_type(x.dtype, np.complex64)
    return result_aval(x, shape, dtype)


def _transform_attributes(
    x: Any, mesh: Mesh | None, *, names: Names, parts: int, nz: int | None, inverse: bool, sign: int
) -> dict[str, Any] | None:
    given = _slab_attributes(x, mesh, names=names, parts=parts, nz=nz, inverse=inverse, sign=sign)
    if given is None:
        return None
    spectrum = _spectrum(x, names=names, parts=parts, nz=nz, inverse=inverse, sign=sign)
    _, nx, ny, nk = spectrum.shape
    # Over values that lie far apart, cuFFT has a tenth of its speed for some lengths. XLA moves them together: a third.
    fast = native.fast_along_x(int(given["rows"][0]), parts, (nx, ny * parts, nk), spectrum.dtype.itemsize == 16)
    return given | {"along_x": np.array([1])} if fast else None


def _planes_attributes(x: Any, mesh: Mesh | None, *, parts: int, **params: Any) -> dict[str, Any] | None:
    given = _slab_attributes(x, mesh, parts=parts, **params)
    return None if given is None or parts == 1 else given | {"along_x": np.array([0])}


def _slab_attributes(
    x: Any, mesh: Mesh | None, *, names: Names, parts: int, nz: int | None, inverse: bool, sign: int
) -> dict[str, Any] | None:
    batch, nx, ny, _ = x.shape
    if nz is not None and batch > 1 and nx * ny * nz % 2:
        return None  # cuFFT wants real values where complex ones could lie, as those of a second mesh here do not
    rows = _row_attributes(mesh, names, parts)
    own = {"nz": np.array([nz or 0]), "inverse": np.array([int(inverse)]), "sign": np.array([sign])}
    return None if rows is None else rows | own


def _spectrum(x: Any, *, inverse: bool, **params: Any) -> Any:
    return x if inverse else _transform_aval(x, inverse=False, **params)


def _scratch(sends: bool, x: Any, *, nz: int | None, inverse: bool, **params: Any) -> ShapedArray:
    """One slab of the spectrum to send from, and one to receive where the result can't."""
    spectrum = _spectrum(x, nz=nz, inverse=inverse, **params)
    buffers = sends + (inverse and nz is not None)
    return ShapedArray((buffers * math.prod(spectrum.shape[1:]),), spectrum.dtype)


def _transform_reference(x: Array, *, inverse: bool, sign: int, **params: Any) -> Array:
    if inverse:
        return _planes_p.bind(_along(x, sign, (1,)), inverse=True, sign=sign, **params)
    return _along(_planes_p.bind(x, inverse=False, sign=sign, **params), sign, (1,))


def _planes_reference(x: Array, *, names: Names, parts: int, nz: int | None, inverse: bool, sign: int) -> Array:
    if not inverse:
        planes = _along(x, sign, (2, 3)) if nz is None else jnp.fft.rfftn(x, axes=(2, 3))
        return jax.lax.all_to_all(planes, names, 2, 1, tiled=True) if parts > 1 else planes
    planes = jax.lax.all_to_all(x, names, 1, 2, tiled=True) if parts > 1 else x
    if nz is None:
        return _along(planes, sign, (2, 3))
    return jax.vmap(lambda block: local_irfft(block, nz, 2))(planes) * float(planes.shape[2] * nz)


def _along(x: Array, sign: int, axes: tuple[int, ...]) -> Array:
    # Not by ifftn, which divides on GPUs in a pass of its own.
    return jnp.fft.fftn(x, axes=axes) if sign < 0 else jnp.conj(jnp.fft.fftn(jnp.conj(x), axes=axes))


# All axes but x, and the exchange.
_planes_p = define_gpu_op(
    "peer_planes",
    _transform_aval,
    target="jaxdecomp_ops_peer_transform",
    attributes=_planes_attributes,
    scratch=lambda x, *, inverse, **params: _scratch(not inverse, x, inverse=inverse, **params),
    reference=_planes_reference,
)
_transform_p = define_gpu_op(
    "peer_transform",
    _transform_aval,
    target="jaxdecomp_ops_peer_transform",
    attributes=_transform_attributes,
    scratch=lambda x, *, parts, **params: _scratch(parts > 1, x, parts=parts, **params),
    reference=_transform_reference,
)


def _transform_transpose(ct: Any, x: Any, *, nz: int | None, inverse: bool, sign: int, **params: Any) -> tuple[Any]:
    if type(ct) is ad.Zero:
        return (ad.Zero(x.aval),)
    if nz is None:  # a Fourier transform is symmetric
        return (_transform_p.bind(ct, nz=nz, inverse=not inverse, sign=sign, **params),)
    if inverse:
        weight = multiplicity(nz, ct.dtype)
        return (jnp.conj(_transform_p.bind(ct, nz=nz, inverse=False, sign=-sign, **params)) * weight,)
    weight = 1 / multiplicity(nz, x.aval.dtype)
    return (_transform_p.bind(jnp.conj(ct) * weight, nz=nz, inverse=True, sign=-sign, **params),)


ad.deflinear2(_transform_p, _transform_transpose)


# --- halos, and the exchange of edges: its own inverse and its own transpose ----------------------------------


def _exchange_attributes(x: Any, mesh: Mesh | None, *, names: Names, parts: int, halo: int) -> dict[str, Any] | None:
    del x
    rows = _row_attributes(mesh, names, parts)
    return None if rows is None else rows | {"halo": np.array([halo])}


def _pad_aval(x: Any, *, names: Names, parts: int, halo: int) -> Any:
    del names, parts
    return result_aval(x, (x.shape[0], x.shape[1] + 2 * halo, *x.shape[2:]), x.dtype)


def _pad_reference(x: Array, *, names: Names, parts: int, halo: int) -> Array:
    edges = jnp.concatenate([x[:, :halo], x[:, x.shape[1] - halo :]], axis=1)
    edges = _swap_reference(edges, names=names, parts=parts, halo=halo)
    return jnp.concatenate([edges[:, :halo], x, edges[:, halo:]], axis=1)


def _swap_reference(x: Array, *, names: Names, parts: int, halo: int) -> Array:
    up = [(i, (i + 1) % parts) for i in range(parts)]
    down = [(to, start) for start, to in up]
    below, above = jax.lax.ppermute(x[:, halo:], names, up), jax.lax.ppermute(x[:, :halo], names, down)
    return jnp.concatenate([below, above], axis=1)


_pad_p = define_gpu_op(
    "peer_pad",
    _pad_aval,
    target="jaxdecomp_ops_peer_pad",
    attributes=_exchange_attributes,
    reference=_pad_reference,
)
_swap_p = define_gpu_op(
    "peer_swap",
    lambda x, **_: result_aval(x, x.shape, x.dtype),
    target="jaxdecomp_ops_peer_swap",
    attributes=_exchange_attributes,
    reference=_swap_reference,
)


def _reduce(x: Array, *, halo: int, **params: Any) -> Array:
    """Add halos onto what they stand for, the transpose of `_pad_p`."""
    count = x.shape[1] - 2 * halo
    edges = _swap_p.bind(jnp.concatenate([x[:, :halo], x[:, halo + count :]], axis=1), halo=halo, **params)
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
