"""Straight-through rounding, and the largest magnitude of an array and over devices."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array


def max_abs(x: Array) -> Array:
    """max |x|, and NaN if any x is NaN; not differentiable."""
    return _max_of_bits(lambda bits: jnp.max(bits, initial=0), x)


def max_over_devices(x: Array, names: tuple[str, ...]) -> Array:
    """max |x| over the devices along some axes, and NaN if it is NaN on one of them; not differentiable."""
    return _max_of_bits(lambda bits: jax.lax.pmax(bits, names), x) if names else jax.lax.stop_gradient(x)


def _max_of_bits(maximum: Callable[[Array], Array], x: Array) -> Array:
    """A maximum of |x| by the bits of floats: XLA's own on CPUs, and over devices, loses NaNs.

    The bits of positive floats are ordered like the floats, with NaN beyond infinity.
    """
    x = jnp.abs(jax.lax.stop_gradient(x))
    bits = jax.lax.bitcast_convert_type(x, {4: jnp.int32, 8: jnp.int64}[x.dtype.itemsize])
    return jax.lax.bitcast_convert_type(maximum(bits), x.dtype)


@jax.custom_jvp
def round_straight_through(x: Array) -> Array:
    """Round to the nearest integer; derivatives pass straight through."""
    return jnp.rint(x)


@round_straight_through.defjvp
def _round_straight_through_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The primal by the same function, for straight-through derivatives of this rule.
    return round_straight_through(primals[0]), tangents[0]
