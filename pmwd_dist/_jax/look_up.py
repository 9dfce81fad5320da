"""Look-up of rows, whose transpose adds up in a fixed order.

JAX's own is a scatter: where several look-ups are of one row, GPUs add to it by atomic operations, in any order, and a
gradient has other bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax.linear_map import linear_map
from pmwd_dist._jax.varying import unify_varying


def rows(table: Array, index: Array) -> Array:
    """Rows of a table, table[index]; the transpose is a product with a matrix of ones and zeros.

    Args:
      table: differentiated, shape (n, ...).
      index: in range.
    """
    if not index.ndim:
        return table[index]
    table, index, like = unify_varying(table, index, jnp.zeros(table.shape, table.dtype))

    def apply(*args: Array) -> Sequence[Array]:
        return [args[-1][args[0]]]

    def transpose(*args: Array) -> Sequence[Array]:
        index, like, cotangent = args[0], args[1], args[-1]
        each = cotangent.reshape(index.size, like[0].size)
        here = index.reshape(1, -1) == jnp.arange(len(like))[:, None]
        total = jnp.matmul(here.astype(each.dtype), each, precision="highest")
        return [total.reshape(like.shape)]

    return linear_map(apply, transpose, [index, like, like[index]], [table], operands_like=[1], results_like=[2])[0]
