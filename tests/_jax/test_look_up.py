"""Look-up of rows: derivatives of all modes and orders are those of indexing, of no rows too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax.look_up import rows

TABLE, INDEX = np.random.default_rng(0).standard_normal((5, 2)), np.array([[0, 3, 3], [3, 4, 0]])


def test_derivatives_are_those_of_indexing() -> None:
    def all_of(look_up: Any) -> Any:
        def observed(table: Any) -> Any:
            return jnp.sum(jnp.sin(look_up(table, INDEX)) ** 3)

        batch = jax.vmap(jax.vmap(jax.grad(lambda t, i: jnp.sum(look_up(t, i) ** 3)), (None, 0)), (0, None))
        several = jnp.stack([TABLE, 2 * TABLE])
        return jax.jit(lambda t: (jax.grad(observed)(t), jax.hessian(observed)(t), batch(several, INDEX)))(TABLE)

    ours, expected = all_of(rows), all_of(lambda table, index: table[index])
    for x, y in zip(ours, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-14)


def test_no_rows_have_a_derivative_of_zero() -> None:
    none = jax.jit(jax.grad(lambda table: jnp.sum(rows(table, INDEX[:0]))))(TABLE)
    np.testing.assert_array_equal(none, np.zeros_like(TABLE))
