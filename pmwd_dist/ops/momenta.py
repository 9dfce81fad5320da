"""Momenta as whole numbers of a unit, in the bits of floating-point arrays.

Sums of whole numbers are exact over 31 or 63 bits, where those of floating-point numbers of the same size are over 24
or 53. JAX doesn't differentiate integers, hence their place in an array of another type: its tangents and cotangents
are those of the momenta themselves [Mpc/h]. Bits are those of 1 plus the number, a positive, normal, finite value for
any number to 0.98 of half the range: nothing on the way takes it for a NaN, or for too small a value. That is more than
500 Mpc/h at the start of a run; where the unit shrinks it remains more than 50 Mpc/h, 5000 km/s today.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_ONE = {4: np.int32(0x3F800000), 8: np.int64(0x3FF0000000000000)}


def bits(dtype: Any) -> int:
    """Binary digits of the whole numbers in arrays of this type, without the sign."""
    return 8 * np.dtype(dtype).itemsize - 1


def count(packed: Any) -> Array:
    """The whole numbers."""
    one = _ONE[packed.dtype.itemsize]
    return jax.lax.bitcast_convert_type(packed, one.dtype) - one


def in_range(packed: Array) -> Array:
    """Whether each of the whole numbers is within 63/64 of half the range, beyond which its bits may be of a NaN."""
    number = count(packed)
    limit = number.dtype.type(63) << (bits(packed.dtype) - 7)
    return (number < limit) & (number > -limit)


@jax.custom_jvp
def pack(count: Array, momentum: Any) -> Array:
    """An array that holds whole numbers, with the derivatives of the momenta that they stand for."""
    del momentum
    dtype = {np.dtype(np.int32): np.float32, np.dtype(np.int64): np.float64}[count.dtype]
    return jax.lax.bitcast_convert_type(count + _ONE[count.dtype.itemsize], dtype)


@pack.defjvp
def _pack_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    return pack(*primals), tangents[1]


@jax.custom_jvp
def momentum(packed: Any, unit: Any) -> Array:
    """The momenta, for their unit [Mpc/h]; what they owe to the unit is in the derivatives of the array."""
    return count(packed).astype(packed.dtype) * unit


@momentum.defjvp
def _momentum_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    return momentum(*primals), tangents[0]


def rounded(x: Array) -> tuple[Array, Array]:
    """The nearest whole numbers, and 0, or NaN where x isn't in the range of `count` or isn't finite."""
    one = _ONE[x.dtype.itemsize]
    x = jax.lax.stop_gradient(x)
    inside = jnp.abs(x) < 2.0 ** (bits(x.dtype) - 1)
    return jnp.rint(jnp.where(inside, x, 0)).astype(one.dtype), jnp.where(inside, 0, jnp.nan).astype(x.dtype)
