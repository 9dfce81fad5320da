"""The leading batch axis of the operands and results of ops, where it has one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def add_batch_axis(x: Any) -> jax.Array:
    """An array as a batch of one element."""
    return jax.lax.expand_dims(x, (0,))


def drop_batch_axis(x: Any) -> jax.Array:
    """The element of a batch of one; unlike x[0] a reshape, which is traced and lowered faster than a slice."""
    return jax.lax.squeeze(x, (0,))


def over_batch(function: Callable[..., Any], *operands: Any) -> Any:
    """vmap over the leading axis; a batch of one element, as most are, is traced and lowered faster without the axis.

    For functions that give the same bits either way: XLA may contract products and sums of floats in one of the two.
    """
    if any(x.shape[0] != 1 for x in operands):
        return jax.vmap(function)(*operands)
    return jax.tree.map(add_batch_axis, function(*map(drop_batch_axis, operands)))
