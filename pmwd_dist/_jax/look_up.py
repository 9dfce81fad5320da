"""Look-up of rows, whose transpose adds up in a fixed order.

JAX's own is a scatter: where several look-ups are of one row, GPUs add to it by atomic operations, in any order, and a
gradient has other bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax.linear_map import linear_map
from pmwd_dist._jax.varying import unify_varying

_MOST = 2**24  # elements of a matrix of ones and zeros


def rows(table: Array, index: Array) -> Array:
    """Rows of a table, table[index]; the transpose is a product with a matrix of ones and zeros.

    Args:
      table: differentiated, shape (n, ...).
      index: in range.
    """
    if not index.ndim:
        return rows(table, index[None])[0]
    table, index, like = unify_varying(table, index, jnp.zeros(table.shape, table.dtype))

    def apply(*args: Array) -> Sequence[Array]:
        return [args[-1][args[0]]]

    def transpose(*args: Array) -> Sequence[Array]:
        index, like, cotangent = args[0], args[1], args[-1]
        block = max(1, _MOST // len(like))
        each = (index.reshape(-1), cotangent.reshape(index.size, like[0].size))
        total = like.reshape(len(like), -1)
        if whole := index.size // block:
            blocks = [x[: whole * block].reshape(whole, block, *x.shape[1:]) for x in each]
            total, _ = jax.lax.scan(lambda sums, x: (sums + _sums_of_rows(x[0], x[1], len(like)), None), total, blocks)
        total += _sums_of_rows(each[0][whole * block :], each[1][whole * block :], len(like))
        return [total.reshape(like.shape)]

    return linear_map(apply, transpose, [index, like, like[index]], [table], operands_like=[1], results_like=[2])[0]


def _sums_of_rows(index: Array, each: Array, count: int) -> Array:
    """Sums of what belongs to each of so many rows, of shape (count, m)."""
    here = index[None] == jnp.arange(count)[:, None]
    return jnp.matmul(here.astype(each.dtype), each, precision="highest")
