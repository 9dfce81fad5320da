"""Transforms and halos of slabs on GPUs of one host, which write into each other's memory, without collectives.

cuFFT transforms the slabs plane by plane, strided where necessary. The GPUs' copy engines write finished planes to
their destination while the next ones are transformed, without packing, unpacking, collectives of XLA, or a copy of the
input of a complex-to-real transform. The native ops use NVIDIA's driver and the cuFFT of jax; XLA transforms along x
for lengths that cuFFT transforms slowly with strides. One process drives all GPUs, or each GPU has a process of its own
and a mailbox beside XLA's memory, as large as two slabs of the spectrum, to which the other processes write.

A field is divided along x, its spectrum along ky. One device sends nothing, but gains from the rest. Programs that are
compiled for a mesh with unknown devices, or other ones than such GPUs, use XLA's collectives instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.sharding import Mesh
from jaxtyping import Array

from pmwd_dist._jax import native
from pmwd_dist._jax.ops import Target, define_linear, define_op, result_aval, vary
from pmwd_dist.ops.local_fft import irfft as local_irfft
from pmwd_dist.ops.local_fft import multiplicity
from pmwd_dist.parallel.backends import peer_filter
from pmwd_dist.parallel.backends.base import PLAIN, Addition, Backend
from pmwd_dist.parallel.backends.peer_group import group_attributes, unavailable_reason
from pmwd_dist.parallel.backends.xla import XLA, add_pieces
from pmwd_dist.parallel.division import Division, Names

_DTYPES = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128", "int32", "int64")))


@final
@dataclass(frozen=True)
class Peer(Backend):
    """Copies of finished planes into the memory of the other GPUs of this host."""

    name: ClassVar[str] = "peer"
    needs_mesh: ClassVar[bool] = True

    def unavailable_reason(self, division: Division) -> str | None:
        """Reason why these devices can't write into each other's memory, or None."""
        if division.is_abstract:
            return "needs a mesh of devices, not an abstract mesh"
        if division.pdims[1] > 1:
            return f"needs slabs along x, pdims=({division.size}, 1), not pdims={division.pdims}"
        devices = list(division.mesh.devices.flat)
        if any(device.platform != "gpu" or "rocm" in device.client.platform_version for device in devices):
            return "needs NVIDIA GPUs"
        return unavailable_reason(devices, division.size)

    def rfft(self, block: Array, division: Division) -> Array:
        """Transform a real field."""
        return _transform(block, division, nz=block.shape[2], inverse=False, sign=-1)

    def irfft(self, block: Array, nz: int, division: Division) -> Array:
        """Invert `rfft`."""
        # Divided before, not after: programs multiply spectra by filters in the same pass.
        count = float(block.shape[0] * block.shape[1] * division.size * nz)
        return _transform(_complex(block) / count, division, nz=nz, inverse=True, sign=1)

    def filtered(self, block: Array, response: Callable[[], Array], division: Division) -> Array:
        """Multiply the spectrum of a real field by a filter, in the pass that transforms along x."""
        if peer_filter.unavailable_reason(block, division.size):
            return super().filtered(block, response, division)
        return peer_filter.filtered(vary(block, division.names), response, division)

    def fft(self, block: Array, division: Division) -> Array:
        """Transform a complex field."""
        return _transform(_complex(block), division, nz=None, inverse=False, sign=-1)

    def ifft(self, block: Array, division: Division) -> Array:
        """Invert `fft`."""
        count = float(math.prod(block.shape) * division.size)
        return _transform(_complex(block) / count, division, nz=None, inverse=True, sign=1)

    def halo_pad(self, block: Array, halo: int, division: Division) -> Array:
        """Add halos, by XLA's collectives where they reach beyond the next neighbours."""
        if not _next_neighbours(block.shape[0], halo, block, division):
            return XLA().halo_pad(block, halo, division)
        return _pad_p.bind(_batched(block, division), **_shards(division), halo=halo)[0]

    def halo_reduce(self, block: Array, halo: int, division: Division, addition: Addition = PLAIN) -> Array:
        """Add halos back onto the cells of the neighbours."""
        if not _next_neighbours(block.shape[0] - 2 * halo, halo, block, division):
            return XLA().halo_reduce(block, halo, division, addition)
        return _reduce(_batched(block, division), **_shards(division), halo=halo, addition=addition)[0]


def _next_neighbours(planes: int, halo: int, block: Array, division: Division) -> bool:
    """Whether halos come from the next neighbours only, in a type of the native op."""
    return 0 < halo <= planes and division.size > 1 and np.dtype(block.dtype) in _DTYPES


def _complex(block: Array) -> Array:
    return block.astype(np.result_type(block.dtype, np.complex64))


class _Kind(NamedTuple):
    """A transform of slabs between the two layouts.

    Args:
      names: device axes that divide the field.
      shards: number of slabs.
      nz: cells of a real field along z; None: the field is complex.
      inverse: whether a spectrum is transformed.
      sign: sign of the exponent.
    """

    names: Names
    shards: int
    nz: int | None
    inverse: bool
    sign: int


def _transform(block: Array, division: Division, *, nz: int | None, inverse: bool, sign: int) -> Array:
    kind = _Kind(division.names, division.size, nz, inverse, sign)
    return _transform_p.bind(_batched(block, division), kind=kind)[0]


def _batched(block: Array, division: Division) -> Array:
    return vary(block, division.names)[None]


def _shards(division: Division) -> dict[str, Any]:
    """Parameters of the primitives."""
    return {"names": division.names, "shards": division.size}


# --- unscaled transforms between the two layouts, of either sign ----------------------------------------------


def _transform_aval(x: Any, *, kind: _Kind) -> Any:
    batch, nx, ny, last = x.shape
    nz, shards = kind.nz, kind.shards
    if kind.inverse:
        shape = batch, nx // shards, ny * shards, last if nz is None else nz
        return result_aval(x, shape, x.dtype if nz is None else np.zeros((), x.dtype).real.dtype)
    shape = batch, nx * shards, ny // shards, last if nz is None else nz // 2 + 1
    return result_aval(x, shape, np.result_type(x.dtype, np.complex64))


def _transform_attributes(x: Any, mesh: Mesh | None, *, kind: _Kind) -> dict[str, Any] | None:
    given = _slab_attributes(x, mesh, kind)
    if given is None:
        return None
    spectrum = _spectrum(x, kind)
    _, nx, ny, nk = spectrum.shape
    # With large strides, cuFFT is slower for some lengths than XLA, which makes the values contiguous.
    fast = native.fast_along_x(_own_gpu(mesh), kind.shards, (nx, ny * kind.shards, nk), spectrum.dtype.itemsize == 16)
    return given | {"along_x": np.array([1])} if fast else None


def _own_gpu(mesh: Mesh | None) -> int:
    assert mesh is not None
    return next(d.local_hardware_id for d in mesh.devices.flat if d.process_index == jax.process_index())


def _planes_attributes(x: Any, mesh: Mesh | None, *, kind: _Kind) -> dict[str, Any] | None:
    given = _slab_attributes(x, mesh, kind)
    return None if given is None or kind.shards == 1 else given | {"along_x": np.array([0])}


def _slab_attributes(x: Any, mesh: Mesh | None, kind: _Kind) -> dict[str, Any] | None:
    batch, nx, ny, _ = x.shape
    if kind.nz is not None and batch > 1 and nx * ny * kind.nz % 2:
        return None  # cuFFT needs real values aligned like complex ones, as those of a second mesh are not here
    rows = group_attributes(mesh, kind.names, kind.shards)
    own = {"nz": np.array([kind.nz or 0]), "inverse": np.array([int(kind.inverse)]), "sign": np.array([kind.sign])}
    return None if rows is None else rows | own


def _spectrum(x: Any, kind: _Kind) -> Any:
    return x if kind.inverse else _transform_aval(x, kind=kind)


def _scratch(sends: bool, x: Any, kind: _Kind) -> ShapedArray:
    """A send buffer of one slab of the spectrum, and a receive buffer where the result can't be one."""
    spectrum = _spectrum(x, kind)
    buffers = sends + (kind.inverse and kind.nz is not None)
    return ShapedArray((buffers * math.prod(spectrum.shape[1:]),), spectrum.dtype)


def _lends(x: Any, *, kind: _Kind) -> bool:
    """Whether a spectrum is transformed along x in place; XLA copies a spectrum that is used again."""
    return kind.inverse and kind.nz is not None and kind.shards == 1 and x.shape[0] == 1


def _transform_reference(x: Array, *, kind: _Kind) -> Array:
    if kind.inverse:
        return _planes_p.bind(_along(x, kind.sign, (1,)), kind=kind)
    return _along(_planes_p.bind(x, kind=kind), kind.sign, (1,))


def _planes_reference(x: Array, *, kind: _Kind) -> Array:
    names, shards, nz, inverse, sign = kind
    if not inverse:
        planes = _along(x, sign, (2, 3)) if nz is None else jnp.fft.rfftn(x, axes=(2, 3))
        return jax.lax.all_to_all(planes, names, 2, 1, tiled=True) if shards > 1 else planes
    planes = jax.lax.all_to_all(x, names, 1, 2, tiled=True) if shards > 1 else x
    if nz is None:
        return _along(planes, sign, (2, 3))
    return jax.vmap(lambda block: local_irfft(block, nz, 2))(planes) * float(planes.shape[2] * nz)


def _along(x: Array, sign: int, axes: tuple[int, ...]) -> Array:
    # Not by ifftn, which divides in a separate pass on GPUs.
    return jnp.fft.fftn(x, axes=axes) if sign < 0 else jnp.conj(jnp.fft.fftn(jnp.conj(x), axes=axes))


# All axes but x, and the exchange.
_planes_p = define_op(
    "peer_planes",
    _transform_aval,
    _planes_reference,
    cuda=Target(
        "jaxdecomp_ops_peer_transform", _planes_attributes, lambda x, *, kind: _scratch(not kind.inverse, x, kind)
    ),
)
_transform_p = define_op(
    "peer_transform",
    _transform_aval,
    _transform_reference,
    cuda=Target(
        "jaxdecomp_ops_peer_transform",
        _transform_attributes,
        lambda x, *, kind: _scratch(kind.shards > 1, x, kind),
        lends=_lends,
    ),
)


def _transform_transpose(ct: Array, x: Any, *, kind: _Kind) -> Array:
    back = kind._replace(inverse=not kind.inverse)
    if kind.nz is None:  # a Fourier transform is symmetric
        return _transform_p.bind(ct, kind=back)
    back, number = back._replace(sign=-kind.sign), multiplicity(kind.nz, (ct if kind.inverse else x).dtype)
    if kind.inverse:
        return jnp.conj(_transform_p.bind(ct, kind=back)) * number[None, None, None]
    return _transform_p.bind(jnp.conj(ct) * (1 / number)[None, None, None], kind=back)


define_linear(_transform_p, _transform_transpose)


# --- halos, and the exchange of edges ------------------------------------------------------------------------


def _exchange_attributes(_: Any, mesh: Mesh | None, *, names: Names, shards: int, halo: int) -> dict[str, Any] | None:
    rows = group_attributes(mesh, names, shards)
    return None if rows is None else rows | {"halo": np.array([halo])}


def _pad_aval(x: Any, *, halo: int, **_: Any) -> Any:
    return result_aval(x, (x.shape[0], x.shape[1] + 2 * halo, *x.shape[2:]), x.dtype)


def _pad_reference(x: Array, *, names: Names, shards: int, halo: int) -> Array:
    edges = _swap_reference(x, names=names, shards=shards, halo=halo)
    return jnp.concatenate([edges[:, :halo], x, edges[:, halo:]], axis=1)


def _swap_reference(x: Array, *, names: Names, shards: int, halo: int) -> Array:
    up = [(i, (i + 1) % shards) for i in range(shards)]
    down = [(to, start) for start, to in up]
    last = x[:, x.shape[1] - halo :]
    below, above = jax.lax.ppermute(last, names, up), jax.lax.ppermute(x[:, :halo], names, down)
    return jnp.concatenate([below, above], axis=1)


_pad_on_gpu = Target("jaxdecomp_ops_peer_pad", _exchange_attributes)
_pad_p = define_op("peer_pad", _pad_aval, _pad_reference, cuda=_pad_on_gpu)
_swap_p = define_op(
    "peer_swap",
    lambda x, *, halo, **_: result_aval(x, (x.shape[0], 2 * halo, *x.shape[2:]), x.dtype),
    _swap_reference,
    cuda=Target("jaxdecomp_ops_peer_swap", _exchange_attributes),
)


def _reduce(x: Array, *, halo: int, addition: Addition = PLAIN, **params: Any) -> Array:
    """Add halos onto the cells of the neighbours, the transpose of `_pad_p`."""
    count = x.shape[1] - 2 * halo
    edges = _swap_p.bind(x, halo=halo, **params)
    pieces = [(0, edges[:, :halo]), (count - halo, edges[:, halo:])]
    return add_pieces(x[:, halo : halo + count], pieces, 1, addition)


def _swap_transpose(ct: Array, x: Any, *, halo: int, **params: Any) -> Array:
    edges = _swap_p.bind(ct, halo=halo, **params)
    between = jnp.zeros_like(edges, shape=(x.shape[0], x.shape[1] - 2 * halo, *x.shape[2:]))
    return jnp.concatenate([edges[:, :halo], vary(between, params["names"]), edges[:, halo:]], axis=1)


define_linear(_pad_p, lambda ct, _, **params: _reduce(ct, **params))
define_linear(_swap_p, _swap_transpose)
