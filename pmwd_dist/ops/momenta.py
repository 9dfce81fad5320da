"""Momenta as integers in a unit, in the bits of floating-point arrays.

Integer sums are exact over 31 or 63 bits, floating-point sums over 24 or 53. JAX does not differentiate integers, hence
the floating-point arrays: their tangents and cotangents belong to the momenta [Mpc/h]. The bits are the integer plus
the bits of 1.0, a positive, normal, finite float up to 0.98 of half the range, so that no operation takes it for NaN or
flushes it to zero. The range is more than 2000 Mpc/h at the start of a run, and more than 120 Mpc/h, 12,000 km/s
today, where the unit shrinks.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_ONE = {4: np.int32(0x3F800000), 8: np.int64(0x3FF0000000000000)}


def bits(dtype: Any) -> int:
    """Bits of the integers in arrays of this type, without the sign."""
    return 8 * np.dtype(dtype).itemsize - 1


def to_integers(packed: Any) -> Array:
    """The integers m of momenta p = m * unit."""
    one = _ONE[packed.dtype.itemsize]
    return jax.lax.bitcast_convert_type(packed, one.dtype) - one


def in_range(packed: Array) -> Array:
    """Whether each integer is within 63/64 of half the range, beyond which its bits may be a NaN's."""
    number = to_integers(packed)
    limit = number.dtype.type(63) << (bits(packed.dtype) - 7)
    return (number < limit) & (number > -limit)


@jax.custom_jvp
def pack(integers: Array, momentum: Any) -> Array:
    """An array that holds integers, with the derivatives of `momentum`."""
    del momentum
    dtype = {np.dtype(np.int32): np.float32, np.dtype(np.int64): np.float64}[integers.dtype]
    return jax.lax.bitcast_convert_type(integers + _ONE[integers.dtype.itemsize], dtype)


@pack.defjvp
def _pack_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    return pack(*primals), tangents[1]


@jax.custom_jvp
def momentum(packed: Any, unit: Any) -> Array:
    """The momenta, for their unit [Mpc/h]; the array's tangents include the change of the unit."""
    return to_integers(packed).astype(packed.dtype) * unit


@momentum.defjvp
def _momentum_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    return momentum(*primals), tangents[0]


def rounded(x: Array) -> tuple[Array, Array]:
    """The nearest integers, and 0, or NaN where x isn't in the range of `to_integers` or isn't finite."""
    one = _ONE[x.dtype.itemsize]
    x = jax.lax.stop_gradient(x)
    inside = jnp.abs(x) < 2.0 ** (bits(x.dtype) - 1)
    return jnp.rint(jnp.where(inside, x, 0)).astype(one.dtype), jnp.where(inside, 0, jnp.nan).astype(x.dtype)
