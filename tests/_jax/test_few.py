"""Derivatives that are taken forwards in all modes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist._jax.derivatives import forward_derivatives

X, K = np.array([0.3, 0.7]), np.linspace(1.0, 2.0, 5)


def plain(x: Any, k: Any) -> Any:
    return jnp.sin(x[0] * k) * k ** x[1]


def observed(function: Any, x: Any, k: Any) -> Any:
    return jnp.sum(function(x, k) ** 2)


@pytest.mark.parametrize("argnums", [0, 1])
def test_derivatives_of_all_modes_and_orders_are_those_of_the_function(argnums: int) -> None:
    def all_of(function: Any) -> Any:
        f = lambda x, k: observed(function, x, k)  # noqa: E731
        modes = {
            "grad": jax.grad(f, argnums),
            "forward of reverse": jax.jacfwd(jax.grad(f, 1 - argnums), argnums),
            "reverse of reverse": jax.jacrev(jax.grad(f, 0), argnums),
            "third": jax.jacfwd(jax.jacrev(jax.grad(f, 0), 0), argnums),
        }
        batch = jax.vmap(jax.grad(f, argnums), (None, 0))
        return jax.jit(lambda x, k: ({name: mode(x, k) for name, mode in modes.items()}, batch(x, k[:, None])))(X, K)

    ours, expected = all_of(forward_derivatives(plain)), all_of(plain)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)


def test_reverse_mode_sums_once() -> None:
    """One contraction with the Jacobian, not a sum over the results for each use of a number."""

    def sums(function: Any) -> int:
        return str(jax.make_jaxpr(jax.grad(lambda x: observed(function, x, K)))(X)).count("reduce_sum")

    assert sums(forward_derivatives(plain)) == 1 < sums(plain)
