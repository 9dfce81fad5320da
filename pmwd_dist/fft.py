"""Distributed Fourier transforms. The spectrum stays in the layout in which it was computed.

A real field, shape (nx, ny, nz), is split along x over pdims[0] and along y over pdims[1] devices. Its spectrum
has the index order (kx, ky, kz) and is split along ky over pdims[0] and along kz over pdims[1]: one transpose
for slabs, two for pencils, none back. Where nz // 2 + 1 values of kz don't divide over pdims[1] devices, the kz
axis is filled up with zeros (`spectrum_shape`); the inverse ignores them. Norm: numpy's "backward".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad
from jax.sharding import NamedSharding
from jaxtyping import Array, Complex, Float

from pmwd_dist import _native
from pmwd_dist.decomposition import Decomposition, Names, Shape3


def prfft3d(field: Float[Array, "nx ny nz"], decomposition: Decomposition) -> Complex[Array, "nx ny nk"]:
    """Transform a real field; see the module for the layout of the spectrum.

    Raises:
      ValueError: a shape that doesn't divide over the devices.
    """
    decomposition.check(_shape3(field), "field.shape")
    run = decomposition.shard_map(
        lambda block: rfft_block(block, decomposition), decomposition.spec, decomposition.spectrum_spec
    )
    return run(field)


def pirfft3d(
    spectrum: Complex[Array, "nx ny nk"], shape: Shape3, decomposition: Decomposition
) -> Float[Array, "nx ny nz"]:
    """Transform a spectrum back to the real field of the given shape.

    Raises:
      ValueError: a shape that doesn't divide over the devices, or is not that of the spectrum.
    """
    decomposition.check(shape, "shape")
    if spectrum.shape != (expected := spectrum_shape(shape, decomposition)):
        raise ValueError(f"spectrum.shape={spectrum.shape} must be {expected} for a field of shape {shape}")
    run = decomposition.shard_map(
        lambda block: irfft_block(block, shape[2], decomposition), decomposition.spectrum_spec, decomposition.spec
    )
    return run(spectrum)


def pfft3d(field: Complex[Array, "nx ny nz"], decomposition: Decomposition) -> Complex[Array, "nx ny nz"]:
    """Transform a complex field; its third axis must divide over pdims[1] too.

    Raises:
      ValueError: a shape that doesn't divide over the devices.
    """
    _check_complex(field, decomposition)
    run = decomposition.shard_map(
        lambda block: _transpose_forward(jnp.fft.fft(block, axis=2), decomposition),
        decomposition.spec,
        decomposition.spectrum_spec,
    )
    return run(field)


def pifft3d(spectrum: Complex[Array, "nx ny nz"], decomposition: Decomposition) -> Complex[Array, "nx ny nz"]:
    """Transform a complex spectrum back.

    Raises:
      ValueError: a shape that doesn't divide over the devices.
    """
    _check_complex(spectrum, decomposition)
    run = decomposition.shard_map(
        lambda block: jnp.fft.ifft(_transpose_back(block, decomposition), axis=2),
        decomposition.spectrum_spec,
        decomposition.spec,
    )
    return run(spectrum)


def spectrum_shape(shape: Shape3, decomposition: Decomposition) -> Shape3:
    """Shape of the spectrum of a real field, padding along kz included."""
    py = decomposition.pdims[1]
    return shape[0], shape[1], -(-(shape[2] // 2 + 1) // py) * py


def get_fft_output_sharding(decomposition: Decomposition) -> NamedSharding:
    """NamedSharding of the spectrum that `prfft3d` and `pfft3d` return."""
    return decomposition.spectrum_sharding


def fftfreq3d(
    shape: Shape3, decomposition: Decomposition, box_size: Sequence[float] | None = None
) -> tuple[Array, Array, Array]:
    """Wavevectors in the layout of the spectrum of a real field, ready to broadcast.

    Args:
      shape: of the real field.
      decomposition: that of the transform.
      box_size: sides of the box; the wavevectors then are in [1 / its unit], else in radians per cell.

    Returns:
      kx (nx, 1, 1), ky (1, ny, 1), kz (1, 1, nk); kz of the padding is that of the Nyquist frequency.
    """
    lengths = shape if box_size is None else box_size
    mesh, specs = decomposition.mesh, decomposition.spectrum_spec
    out = []
    for axis, n in enumerate(_wavenumbers(shape, spectrum_shape(shape, decomposition)[2])):
        k = jnp.asarray((2 * math.pi / lengths[axis]) * n, jnp.result_type(float))
        along = [a == axis for a in range(3)]
        sharding = NamedSharding(mesh, jax.P(*(specs[a] if own else None for a, own in enumerate(along))))
        out.append(jax.lax.with_sharding_constraint(k.reshape([-1 if own else 1 for own in along]), sharding))
    return out[0], out[1], out[2]


def _wavenumbers(shape: Shape3, nk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nx, ny, nz = shape
    kz = np.minimum(np.arange(nk), nz // 2)
    return np.fft.fftfreq(nx, 1 / nx), np.fft.fftfreq(ny, 1 / ny), kz.astype(float)


def wavenumbers(shape: Shape3, decomposition: Decomposition) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integer wavenumbers along each axis of the spectrum of a real field; -1 along kz marks the padding."""
    nk = spectrum_shape(shape, decomposition)[2]
    x, y, z = _wavenumbers(shape, nk)
    return x.astype(int), y.astype(int), np.where(np.arange(nk) <= shape[2] // 2, z, -1).astype(int)


def local_factors(values: Sequence[np.ndarray], decomposition: Decomposition, dtype: Any) -> tuple[Array, Array, Array]:
    """The local part of one factor along each axis of the spectrum, ready to broadcast; inside shard_map."""
    px, py = decomposition.pdims
    x, y, z = (jnp.asarray(v, dtype) for v in values)
    y, z = _own_part(y, decomposition.x_names, px), _own_part(z, decomposition.y_names, py)
    return x[:, None, None], y[None, :, None], z[None, None, :]


def local_wavenumbers(shape: Shape3, decomposition: Decomposition) -> tuple[Array, Array, Array]:
    """`wavenumbers` of the local block of the spectrum, ready to broadcast; inside shard_map."""
    return local_factors(wavenumbers(shape, decomposition), decomposition, jnp.int32)


def _own_part(values: Array, names: Names, parts: int) -> Array:
    if parts == 1:
        return values
    width = values.shape[0] // parts
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(names) * width, width)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def rfft_block(block: Array, decomposition: Decomposition) -> Array:
    """`prfft3d` of the local block."""
    px, py = decomposition.pdims
    if px == py == 1:
        return _rfft(block, 3)
    if py == 1:
        return _fft_x(_to_x(_rfft(block, 2), decomposition))
    spectrum = _rfft(block, 1)
    fill = -spectrum.shape[2] % py
    return _transpose_forward(jnp.pad(spectrum, ((0, 0), (0, 0), (0, fill))), decomposition)


def irfft_block(block: Array, nz: int, decomposition: Decomposition) -> Array:
    """`pirfft3d` of the local block."""
    px, py = decomposition.pdims
    if px == py == 1:
        return _irfft(block, nz, 3)
    if py == 1:
        return _irfft(_from_x(jnp.fft.ifft(block, axis=0), decomposition), nz, 2)
    return _irfft(_transpose_back(block, decomposition)[:, :, : nz // 2 + 1], nz, 1)


def in_turn(modes: Array, done: Any) -> tuple[Array, Any]:
    """The modes for the next transform, available only once what came before is done.

    Transforms side by side would each hold their own fields. On GPUs their transposes over different rows and columns
    of devices may also start in different orders and then wait for each other for ever.
    """
    return jax.lax.optimization_barrier((modes, done))


def _fft_x(block: Array) -> Array:
    return jnp.fft.fft(block, axis=0)


def _transpose_forward(block: Array, decomposition: Decomposition) -> Array:
    """From (x, y split, kz whole) to the spectrum's layout, with the transforms along y and x."""
    if decomposition.pdims[1] > 1:
        block = jax.lax.all_to_all(block, decomposition.y_names, 2, 1, tiled=True)
    block = jnp.fft.fft(block, axis=1)
    return _fft_x(_to_x(block, decomposition))


def _transpose_back(block: Array, decomposition: Decomposition) -> Array:
    block = _from_x(jnp.fft.ifft(block, axis=0), decomposition)
    block = jnp.fft.ifft(block, axis=1)
    if decomposition.pdims[1] > 1:
        block = jax.lax.all_to_all(block, decomposition.y_names, 1, 2, tiled=True)
    return block


def _to_x(block: Array, decomposition: Decomposition) -> Array:
    if decomposition.pdims[0] == 1:
        return block
    return jax.lax.all_to_all(block, decomposition.x_names, 1, 0, tiled=True)


def _from_x(block: Array, decomposition: Decomposition) -> Array:
    if decomposition.pdims[0] == 1:
        return block
    return jax.lax.all_to_all(block, decomposition.x_names, 0, 1, tiled=True)


# --- the local real transforms, with transposes that stay real ----------------------------------------------
# JAX transposes a real transform through a full complex one: twice the work and memory. The transpose of R2C is
# a C2R with the doubled planes of kz weighted, and the other way round.


def _rfft(block: Array, rank: int) -> Array:
    return _rfft_p.bind(block[None], rank=rank)[0]


def _irfft(block: Array, nz: int, rank: int) -> Array:
    return _irfft_p.bind(block[None], nz=nz, rank=rank)[0]


def _axes(rank: int) -> tuple[int, ...]:
    return tuple(range(4 - rank, 4))


def _rfft_aval(x: Any, *, rank: int) -> Any:
    del rank
    return _native.result_aval(x, (*x.shape[:3], x.shape[3] // 2 + 1), np.result_type(x.dtype, np.complex64))


def _irfft_aval(x: Any, *, nz: int, rank: int) -> Any:
    del rank
    return _native.result_aval(x, (*x.shape[:3], nz), np.zeros((), x.dtype).real.dtype)


_rfft_p = _native.define_op("rfft", _rfft_aval, lambda x, *, rank: jnp.fft.rfftn(x, axes=_axes(rank)))
_irfft_p = _native.define_op(
    "irfft",
    _irfft_aval,
    lambda x, *, nz, rank: jnp.fft.irfftn(x, s=(*x.shape[4 - rank : 3], nz), axes=_axes(rank)),
)


def _multiplicity(nz: int, dtype: Any) -> np.ndarray:
    """How often a value at kz stands for itself and its conjugate."""
    weight = np.full(nz // 2 + 1, 2, dtype)
    weight[0] = 1
    if nz % 2 == 0:
        weight[-1] = 1
    return weight


def _rfft_transpose(ct: Any, x: Any, *, rank: int) -> tuple[Any]:
    if type(ct) is ad.Zero:
        return (ad.Zero(x.aval),)
    nz = x.aval.shape[3]
    count = math.prod(x.aval.shape[4 - rank :])
    weight = count / _multiplicity(nz, x.aval.dtype)
    return (_irfft_p.bind(jnp.conj(ct) * weight, nz=nz, rank=rank),)


def _irfft_transpose(ct: Any, x: Any, *, nz: int, rank: int) -> tuple[Any]:
    if type(ct) is ad.Zero:
        return (ad.Zero(x.aval),)
    weight = _multiplicity(nz, ct.dtype) / math.prod(ct.shape[4 - rank :])
    return (jnp.conj(_rfft_p.bind(ct, rank=rank)) * weight,)


ad.deflinear2(_rfft_p, _rfft_transpose)
ad.deflinear2(_irfft_p, _irfft_transpose)


def _shape3(field: Array) -> Shape3:
    nx, ny, nz = field.shape
    return nx, ny, nz


def _check_complex(field: Array, decomposition: Decomposition) -> None:
    decomposition.check(_shape3(field), "field.shape")
    py = decomposition.pdims[1]
    if field.shape[2] % py:
        raise ValueError(f"field.shape[2]={field.shape[2]} is not divisible by the {py} devices along y")
