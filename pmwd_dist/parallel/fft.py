"""Distributed Fourier transforms, with the spectrum in the layout of the last transform.

A real field, shape (nx, ny, nz), is split along x over pdims[0] and along y over pdims[1] devices. Its spectrum
has the index order (kx, ky, kz) and is split along ky over pdims[0] and along kz over pdims[1]: one transpose
for slabs, two for pencils, none back. Where nz // 2 + 1 values of kz don't divide over pdims[1] devices, the kz
axis is padded with zeros (`spectrum_shape`); the inverse ignores them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Complex, Float, Num, Real

from pmwd_dist._checks import check_flag
from pmwd_dist._jax.order import barrier
from pmwd_dist._jax.program import jit
from pmwd_dist.parallel import inputs
from pmwd_dist.parallel.decomposition import Decomposition, as_decomposition, over_blocks
from pmwd_dist.parallel.division import Names, Shape3
from pmwd_dist.parallel.inputs import decomposition_of

Modes = TypeVar("Modes")  # an array or a pytree of them

Norm = Literal["backward", "ortho", "forward"]


def prfft3d(
    field: Real[Array, "nx ny nz"], decomposition: Decomposition | None = None, *, norm: Norm = "backward"
) -> Complex[Array, "kx ky kz"]:
    """Transform a real field. Its spectrum, indexed (kx, ky, kz), is split along ky and kz.

    Args:
      field: whole real field, shape (nx, ny, nz), or its block inside the user's own shard_map.
      decomposition: decomposition of the field; default: from its sharding, where that is known.
      norm: normalisation as in NumPy.

    Returns:
      The spectrum, shape (nx, ny, nz // 2 + 1); kz is padded with zeros to a multiple of pdims[1].

    Raises:
      ValueError: the shape doesn't divide over the devices, or the values are complex.

    Examples:
      >>> modes = pmd.prfft3d(field, decomposition)
      >>> kx, ky, kz = pmd.fftfreq3d(field.shape, decomposition, box_size=256.0)  # [h/Mpc]
      >>> smooth = pmd.pirfft3d(modes * jnp.exp(-8 * (kx**2 + ky**2 + kz**2)), field.shape, decomposition)
    """
    decomposition, shape = decomposition_of(field, decomposition, "field")
    decomposition.check(shape, "field.shape")
    field = inputs.real(field, "field", "use pfft3d")
    return _over_blocks(field, "rfft", (), decomposition, _factor(shape, norm))


def pirfft3d(
    spectrum: Num[Array, "kx ky kz"],
    shape: Shape3,
    decomposition: Decomposition | None = None,
    *,
    norm: Norm = "backward",
) -> Float[Array, "nx ny nz"]:
    """Transform a spectrum of `prfft3d` back to the real field of the given (whole) shape.

    Raises:
      ValueError: the shape doesn't divide over the devices, or does not match the spectrum.

    Examples:
      >>> field = pmd.pirfft3d(pmd.prfft3d(field, decomposition), field.shape, decomposition)
    """
    decomposition, whole = decomposition_of(spectrum, decomposition, "spectrum", spectrum=True)
    shape = inputs.cells(shape, "shape")
    decomposition.check(shape, "shape")
    if whole != (expected := spectrum_shape(shape, decomposition)):
        raise ValueError(f"spectrum.shape={whole} must be {expected} for a field of shape {shape}")
    factor = _factor(shape, norm, inverse=True)
    spectrum = inputs.complex_(spectrum, "spectrum")
    return _over_blocks(spectrum, "irfft", (shape[2],), decomposition, factor, inverse=True)


def pfft3d(
    field: Num[Array, "nx ny nz"], decomposition: Decomposition | None = None, *, norm: Norm = "backward"
) -> Complex[Array, "kx ky kz"]:
    """Transform a complex field, shape (nx, ny, nz), to a spectrum of the same shape, with arguments as of `prfft3d`.

    Raises:
      ValueError: the shape doesn't divide over the devices; the third axis must divide over pdims[1], too.

    Examples:
      >>> spectrum = pmd.pfft3d(field, decomposition)  # complex field
    """
    decomposition, shape = decomposition_of(field, decomposition, "field")
    decomposition.check(shape, "field.shape")
    decomposition.check_axis(shape, 2, decomposition.pdims[1], "field.shape")
    field = inputs.complex_(field, "field")
    return _over_blocks(field, "fft", (), decomposition, _factor(shape, norm))


def pifft3d(
    spectrum: Num[Array, "kx ky kz"], decomposition: Decomposition | None = None, *, norm: Norm = "backward"
) -> Complex[Array, "nx ny nz"]:
    """Transform a spectrum of `pfft3d` back to the complex field.

    Raises:
      ValueError: the shape doesn't divide over the devices.

    Examples:
      >>> field = pmd.pifft3d(pmd.pfft3d(field, decomposition), decomposition)
    """
    decomposition, shape = decomposition_of(spectrum, decomposition, "spectrum", spectrum=True)
    decomposition.check(shape, "spectrum.shape")
    decomposition.check_axis(shape, 2, decomposition.pdims[1], "spectrum.shape")
    spectrum = inputs.complex_(spectrum, "spectrum")
    return _over_blocks(spectrum, "ifft", (), decomposition, _factor(shape, norm, inverse=True), inverse=True)


def _over_blocks(
    x: Array,
    transform: str,
    arguments: tuple[int, ...],
    decomposition: Decomposition,
    factor: float,
    *,
    inverse: bool = False,
) -> Array:
    """Apply a transform of the backend to a whole array, and a factor."""
    real, spectrum = decomposition.spec, decomposition.spectrum_spec
    out = over_blocks(x, transform, arguments, decomposition, (spectrum, real) if inverse else (real, spectrum))
    return out if factor == 1 else out * factor


def _factor(shape: Shape3, norm: Norm, *, inverse: bool = False) -> float:
    """Factor of a norm relative to numpy's "backward"."""
    count = math.prod(shape)
    factors = {"backward": 1.0, "ortho": count**0.5, "forward": float(count)}
    if norm not in factors:
        raise ValueError(f"norm={norm!r} is not known; use 'backward', 'ortho' or 'forward'")
    return factors[norm] if inverse else 1 / factors[norm]


def spectrum_shape(shape: Shape3, decomposition: Decomposition) -> Shape3:
    """Shape of the spectrum of a real field, padding along kz included."""
    py = decomposition.pdims[1]
    return shape[0], shape[1], -(-(shape[2] // 2 + 1) // py) * py


def get_fft_output_sharding(x: Any, *, inverse: bool = False) -> NamedSharding:
    """NamedSharding of the results of the transforms.

    Args:
      x: decomposition, or input of the transform: an array, tracer with Explicit axes or NamedSharding.
      inverse: whether the transform is an inverse one, from a spectrum.

    Raises:
      ValueError: the sharding of the input is not known, or neither slabs nor pencils.

    Examples:
      >>> pmd.get_fft_output_sharding(field)
    """
    check_flag(inverse, "inverse")
    decomposition = x if isinstance(x, Decomposition) else Decomposition.of(x, spectrum=inverse)
    return decomposition.sharding if inverse else decomposition.spectrum_sharding


def fftfreq3d(
    shape: Shape3,
    decomposition: Decomposition,
    box_size: float | Sequence[float] | None = None,
    *,
    real: bool = True,
    dtype: Any = None,
) -> tuple[Array, Array, Array]:
    """Wavevectors in the layout of a spectrum, ready to broadcast.

    Args:
      shape: shape of the whole field.
      decomposition: decomposition of the field.
      box_size: side of the box, or three sides, for wavevectors in the inverse unit; default: radians per cell.
      real: whether the field is real (`prfft3d`) or complex (`pfft3d`).
      dtype: real type of the wavevectors; default: JAX's default.

    Returns:
      kx (nx, 1, 1), ky (1, ny, 1), kz (1, 1, nk), or blocks of them inside the user's own shard_map; kz is the Nyquist
      frequency in the padding.

    Raises:
      ValueError: the shape doesn't divide over the devices, or an argument is not a shape or a decomposition.

    Examples:
      >>> kx, ky, kz = pmd.fftfreq3d(field.shape, decomposition, box_size=100.0)  # [h/Mpc]
    """
    shape, decomposition = inputs.cells(shape, "shape"), as_decomposition(decomposition)
    decomposition.check(shape, "shape")
    check_flag(real, "real")
    if not real:
        decomposition.check_axis(shape, 2, decomposition.pdims[1], "shape")
    sides = shape if box_size is None else box_size
    lengths = (sides,) * 3 if isinstance(sides, int | float | np.number) else tuple(sides)
    dtype = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    compiled = not decomposition.manual and all(type(length) in {int, float} for length in lengths)
    return (_compiled_wavevectors if compiled else _wavevectors)(shape, decomposition, lengths, real, dtype)()


def _wavevectors(
    shape: Shape3, decomposition: Decomposition, lengths: Sequence[Any], real: bool, dtype: np.dtype
) -> Callable[[], tuple[Array, Array, Array]]:
    numbers = _wavenumbers(shape, spectrum_shape(shape, decomposition)[2] if real else None)
    k = [n * (2 * math.pi / length) for n, length in zip(numbers, lengths, strict=True)]
    _, y, z = decomposition.spectrum_spec
    specs = jax.P(), jax.P(None, y), jax.P(None, None, z)
    return decomposition.shard_map(lambda: local_factors(k, decomposition, dtype), (), specs)


@lru_cache(maxsize=64)
def _compiled_wavevectors(*arguments: Any) -> Callable[[], tuple[Array, Array, Array]]:
    def run() -> tuple[Array, Array, Array]:  # mapped at each trace, with the current mesh
        return _wavevectors(*arguments)()

    return jit(run)


def _wavenumbers(shape: Shape3, nk: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integer wavenumbers along each axis, for nk values along kz, or for a complex field (None)."""
    nx, ny, nz = shape
    kz = np.fft.fftfreq(nz, 1 / nz) if nk is None else np.minimum(np.arange(nk), nz // 2).astype(float)
    return np.fft.fftfreq(nx, 1 / nx), np.fft.fftfreq(ny, 1 / ny), kz


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


def _own_part(values: Array, names: Names, parts: int) -> Array:
    if parts == 1:
        return values
    width = values.shape[0] // parts
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(names) * width, width)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def rfft_block(block: Array, decomposition: Decomposition) -> Array:
    """`prfft3d` of the local block."""
    return decomposition.backend.rfft(block, decomposition)


def irfft_block(block: Array, nz: int, decomposition: Decomposition) -> Array:
    """`pirfft3d` of the local block."""
    return decomposition.backend.irfft(block, nz, decomposition)


def filtered_block(block: Array, response: Callable[[], Array], decomposition: Decomposition) -> Array:
    """The local block of a real field after a real filter of its spectrum, even along kx and along ky."""
    return decomposition.backend.filtered(block, response, decomposition)


def sequence_after(modes: Modes, done: Any) -> tuple[Modes, Any]:
    """Make the modes for the next transform available only after earlier results are done.

    Transforms in parallel would each allocate their own fields. XLA's compiler for CPUs drops the barrier and runs
    transforms in sequence anyway.
    """
    return barrier((modes, done))
