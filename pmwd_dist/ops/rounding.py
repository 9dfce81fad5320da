"""Straight-through rounding, and the largest magnitude of an array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array


def max_abs(x: Array) -> Array:
    """max |x|, and NaN if any x is NaN: XLA's own maximum on CPUs loses NaNs.

    The bits of positive floats are ordered like the floats, with NaN beyond infinity.
    """
    x = jax.lax.stop_gradient(x)
    integer = {4: jnp.int32, 8: jnp.int64}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), integer)
    return jax.lax.bitcast_convert_type(jnp.max(bits, initial=0), x.dtype)


@jax.custom_jvp
def round_straight_through(x: Array) -> Array:
    """Round to the nearest integer; derivatives pass straight through."""
    return jnp.rint(x)


@round_straight_through.defjvp
def _round_straight_through_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The primal by the same function, for straight-through derivatives of this rule.
    return round_straight_through(primals[0]), tangents[0]
