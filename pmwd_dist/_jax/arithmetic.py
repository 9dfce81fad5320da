"""Arithmetic that is slow or not deterministic in XLA.

- `scaled`, `scaled_by_i`: JAX promotes a real factor of complex numbers to a complex one. Their product treats
  infinities, and takes far longer to compile on a CPU. To be deleted when JAX multiplies the two parts.
- `rows`: the transpose of a look-up is a scatter. GPUs compute its sums by atomic operations in any order, so that the
  bits of a gradient differ between calls (jax-ml/jax#4824). To be deleted when a single scatter can be deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.ops import unify_varying


def scaled(x: Array, factor: ArrayLike) -> Array:
    """Complex numbers times a real factor."""
    return jax.lax.complex(x.real * factor, x.imag * factor)


def scaled_by_i(x: Array, factor: ArrayLike) -> Array:
    """Complex numbers times i and a real factor."""
    return jax.lax.complex(-x.imag * factor, x.real * factor)


_MOST = 2**24  # elements of a matrix of ones and zeros


def rows(table: Array, index: Array) -> Array:
    """Rows of a table, table[index]; the transpose is a product with a matrix of ones and zeros.

    Args:
      table: table of shape (n, ...), differentiated.
      index: indices in range.
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
    """Sums of the elements of each row, of shape (count, m)."""
    here = index[None] == jnp.arange(count, dtype=index.dtype)[:, None]
    return jnp.matmul(here.astype(each.dtype), each, precision="highest")
