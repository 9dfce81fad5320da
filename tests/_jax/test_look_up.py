"""Look-up of rows: derivatives of all modes and orders are those of indexing, of no rows too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist._jax import arithmetic
from pmwd_dist._jax.arithmetic import rows

TABLE, INDEX = np.random.default_rng(0).standard_normal((5, 2)), np.array([[0, 3, 3], [3, 4, 0]])


def test_derivatives_are_those_of_indexing() -> None:
    def all_of(of: Any) -> Any:
        def observed(table: Any) -> Any:
            return jnp.sum(jnp.sin(of(table, INDEX)) ** 3)

        batch = jax.vmap(jax.vmap(jax.grad(lambda t, i: jnp.sum(of(t, i) ** 3)), (None, 0)), (0, None))
        several = jnp.stack([TABLE, 2 * TABLE])
        return jax.jit(lambda t: (jax.grad(observed)(t), jax.hessian(observed)(t), batch(several, INDEX)))(TABLE)

    ours, expected = all_of(rows), all_of(lambda table, index: table[index])
    for x, y in zip(ours, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-14)


def test_no_rows_have_a_derivative_of_zero() -> None:
    none = jax.jit(jax.grad(lambda table: jnp.sum(rows(table, INDEX[:0]))))(TABLE)
    np.testing.assert_array_equal(none, np.zeros_like(TABLE))


@pytest.mark.parametrize("most", [5, 20])
def test_many_rows_are_added_block_by_block(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row, and of four of which the last has two."""
    monkeypatch.setattr(arithmetic, "_MOST", most)
    weights = np.arange(12.0).reshape(2, 3, 2)
    total = jax.jit(jax.grad(lambda table: jnp.sum(weights * rows(table, INDEX))))(TABLE)
    expected = np.zeros_like(TABLE)
    np.add.at(expected, INDEX, weights)
    np.testing.assert_allclose(total, expected, rtol=1e-14)


def test_one_row_has_the_derivatives_of_indexing() -> None:
    batch = jax.jit(jax.vmap(jax.grad(lambda table, i: jnp.sum(rows(table, i) ** 3)), (None, 0)))
    found = batch(TABLE, np.array([3, 0]))
    for i, slope in zip((3, 0), found, strict=True):
        expected = np.zeros_like(TABLE)
        expected[i] = 3 * TABLE[i] ** 2
        np.testing.assert_allclose(slope, expected, rtol=1e-14)
