"""Paint to integer sums, which have the same bits in any order of particles and of blocks.

A sum has twice as many bits as the values, 64 for float32 and 128 for float64. It is stored as two integers as wide as
the values, the lower half first, adjacent along z: a mesh of shape (mx, my, 2 mz). JAX has 64-bit integers only with
`jax_enable_x64`, and none of 128 bits. Only native ops paint; JAX adds and converts, 64 bits as one integer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.lax import bitcast_convert_type, clz, shift_left, shift_right_logical
from jaxtyping import Array, Float, Int

from pmwd_dist._jax.ops import define_op, result_aval, unify_varying
from pmwd_dist.ops.cic.geometry import Geometry, Mask, attributes
from pmwd_dist.ops.kernels import native_targets


def contribution_bits(particles: int, masks: int, dtype: Any) -> int:
    """Bits of the largest contribution of a mask to a cell, such that no sum over all particles overflows.

    A contribution of one of K masks is at most 2^bits, and K of them at most 2^62 over the number of particles. If all
    particles of all blocks are in one cell, their sum is at most 2^62 (2^100 for 2^39 particles in float64). The bits
    depend only on the size of the problem, as in the native paint on one block, so that all divisions over devices
    paint in the same units. They are 2^-31 of a particle for 1024^3 particles, 2^-22 for 8192^3.
    """
    bits = 61 if np.dtype(dtype) == np.float64 else min(62 - _ceil_log2(particles), 50)
    return bits - _ceil_log2(masks)


def _ceil_log2(n: int) -> int:
    return max(n - 1, 0).bit_length()


def paint_sums(
    disp: Float[Array, "batch px py pz 3"],
    weight: Float[Array, "batch wx wy wz K 1"],
    bound: Float[Array, " batch"],
    geometry: Geometry,
    masks: tuple[Mask, ...],
    bits: int,
) -> Int[Array, "batch mx my zz"]:
    """Paint particles onto a block, as `paint` does, to integer sums.

    `bound` is an upper bound of all weights, which fixes the unit of the sums, and `bits` those of a contribution, from
    `contribution_bits`.

    Returns:
      The sums; all invalid if a position is not finite, a particle lies beyond the block, or the bound is not finite.
    """
    out = _paint_sums_p.bind(*unify_varying(disp, weight, bound), geometry=geometry, masks=masks, bits=bits)
    return out.reshape(*out.shape[:3], 2 * out.shape[3])


def joined(sums: Int[Array, "*n zz"]) -> Int[Array, "*n z"]:
    """Sums of 64 bits as one integer each, with `jax_enable_x64`; XLA fuses no slice before it. Others stay halves."""
    if sums.dtype != jnp.int32:
        return sums
    return bitcast_convert_type(sums.reshape(*sums.shape[:-1], sums.shape[-1] // 2, 2), np.dtype(np.int64))


def add_sums(a: Int[Array, "*n z"], b: Int[Array, "*n z"], *, halves: bool) -> Int[Array, "*n z"]:
    """a + b, `joined` or halves; invalid where one of them is."""
    if not halves:
        return jax.lax.select(_is_invalid(a) | _is_invalid(b), jnp.full_like(a, _invalid(a)), a + b)
    (a_low, a_high), (b_low, b_high) = _halves(a), _halves(b)
    low = a_low + b_low
    high = a_high + b_high + (low < a_low).astype(low.dtype)
    invalid = _is_invalid(a_high) | _is_invalid(b_high)
    low, high = jnp.where(invalid, 0, low), jnp.where(invalid, _invalid(high), high)
    return jnp.stack([low, high], -1).reshape(a.shape).astype(a.dtype)


def values_of_sums(sums: Int[Array, "*n z"], bound: Float[Array, ""], bits: int) -> Float[Array, "*n mz"]:
    """Values of `joined` sums, rounded as in native paints; NaN where the sums are invalid."""
    exponent = _exponent_above(bound) - bits
    if bound.dtype == jnp.float32:
        values = (sums.astype(np.float64) * _power_of_two(exponent)).astype(np.float32)
        return jax.lax.select(_is_invalid(sums), jnp.full_like(values, np.nan), values)
    low, high = _halves(sums)
    invalid, negative = _is_invalid(high), shift_right_logical(high, _like(high, 63)) != 0
    high = jnp.where(negative, ~high + (low == 0).astype(high.dtype), high)
    low = jnp.where(negative, ~low + 1, low)
    wide = high != 0
    high, low = jnp.where(wide, high, low), jnp.where(wide, low, 0)
    zeros = clz(high)  # 64 where high is 0: shifts then give 0
    first = shift_left(high, zeros) | shift_right_logical(low, _like(low, 64) - zeros)
    further = shift_left(low, zeros) != 0  # as the last bit, it lets the others round correctly
    magnitude = (first | further.astype(first.dtype)).astype(np.float64)
    magnitude = magnitude * _power_of_two(jnp.where(wide, 64, 0) - zeros.astype(jnp.int32))
    for part in (exponent // 2, exponent - exponent // 2):  # each is in the range of normal numbers
        magnitude = magnitude * _power_of_two(part)
    return jnp.where(invalid, jnp.nan, jnp.where(negative, -magnitude, magnitude))


def _halves(sums: Array) -> tuple[Array, Array]:
    pairs = sums.astype(np.uint64).reshape(*sums.shape[:-1], sums.shape[-1] // 2, 2)
    return pairs[..., 0], pairs[..., 1]


def _like(x: Array, value: int) -> np.ndarray:
    return np.array(value, x.dtype)


def _invalid(x: Array) -> np.ndarray:
    """An invalid sum, or its upper half: the smallest integer, which no sum reaches."""
    return np.array(np.iinfo(np.int64).min).astype(x.dtype)


def _is_invalid(x: Array) -> Array:
    return x == _invalid(x)


def _exponent_above(x: Array) -> Array:
    """Least n with x < 2^n, for x of 2^-960 or more in float64; any n for 0."""
    mantissa_bits, bias = (23, 126) if x.dtype == jnp.float32 else (52, 1022)
    bits = bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))
    normal = shift_right_logical(bits, _like(bits, mantissa_bits)).astype(jnp.int32) - bias
    subnormal = 8 * x.dtype.itemsize - clz(bits).astype(jnp.int32) - bias - mantissa_bits
    return jnp.maximum(jnp.where(normal > -bias, normal, subnormal), -961)


def _power_of_two(n: Array) -> Array:
    """2^n in double precision, for normal results."""
    exponent = (n + 1023).astype(np.int64)
    return bitcast_convert_type(shift_left(exponent, jnp.asarray(52, np.int64)), np.float64)


# --- the primitive -----------------------------------------------------------------------------------------


def _aval(disp: Any, *_: Any, geometry: Geometry, **__: Any) -> Any:
    half = np.dtype(f"int{8 * disp.dtype.itemsize}")
    return result_aval(disp, (disp.shape[0], *geometry.mesh, 2), half)


def _attributes(*, geometry: Geometry, masks: tuple[Mask, ...], bits: int) -> dict[str, Any]:
    return attributes(geometry, masks) | {"bits": np.array([bits], np.int64)}


def _cuda_scratch(*_: Any, **__: Any) -> ShapedArray:
    """A head of 4 KiB."""
    return ShapedArray((1024,), np.dtype(np.int32))


_targets = native_targets("cic_paint_sums", _attributes, cuda_scratch=_cuda_scratch)
_paint_sums_p = define_op("cic_paint_sums", _aval, None, **_targets)
