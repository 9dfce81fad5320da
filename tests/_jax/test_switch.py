"""`switch` and `barrier`: derivatives to third order against JAX's own, alone and under vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist._jax.order import after, barrier
from pmwd_dist._jax.select import batch_max, switch

BRANCHES = (lambda x, y: jnp.sin(x * y), lambda x, y: x**3 * y, lambda x, y: jnp.exp(y) + 0 * x)


def ours(index: Any, x: Any, y: Any) -> Any:
    x, y = barrier((x, y))
    return jnp.sum(switch(index, BRANCHES, x, y))


def theirs(index: Any, x: Any, y: Any) -> Any:
    return jnp.sum(jax.lax.switch(index, BRANCHES, x, y))


def derivatives(function: Callable[..., Any], index: Any, x: Any, y: Any) -> Any:
    """Value, gradient, Hessian forward over reverse and reverse over reverse, and a third derivative."""
    gradient = jax.grad(function, argnums=(1, 2))
    hessian = [jacobian(gradient, argnums=(1, 2)) for jacobian in (jax.jacfwd, jax.jacrev)]
    third = jax.jacfwd(jax.grad(lambda *args: jnp.sum(hessian[0](*args)[0][1]), argnums=1), argnums=2)
    return [f(index, x, y) for f in (function, gradient, *hessian, third)]


@pytest.mark.parametrize("axes", [None, pytest.param((0, None), marks=pytest.mark.slow)], ids=str)
def test_derivatives_are_those_of_lax(axes: Any) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 3, 2))
    x, y = (x[0], y[0]) if axes is None else (x if axes[0] == 0 else x[0], y if axes[1] == 0 else y[0])

    def run(function: Callable[..., Any]) -> Any:
        one = lambda i, x, y: derivatives(function, i, x, y)  # noqa: E731
        return jax.jit(one if axes is None else jax.vmap(one, in_axes=(None, *axes)))

    programs = run(ours), run(theirs)
    for index in range(3):
        results = [jax.tree.leaves(program(index, x, y)) for program in programs]
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14)


def test_the_index_of_a_batch_is_one_for_all() -> None:
    x = np.array([0.5, np.nan, 7.0, np.inf])
    text = str(jax.make_jaxpr(jax.vmap(lambda x: switch(batch_max(x).astype(int), BRANCHES, x, x)))(x))
    assert " switch[" in text
    np.testing.assert_array_equal(jax.vmap(batch_max, out_axes=None)(x), 7)
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: batch_max(x) * x))(x[:1]), 0.5)


def test_a_failed_element_of_a_batch_is_waited_for_by_itself() -> None:
    """Numbers, complex ones and integers wait, under one vmap and two; NaN stays where it is."""
    waiting = {"x": jnp.ones((2, 3, 4)), "z": jnp.full((2, 3, 4), 1 + 2j), "n": jnp.arange(24).reshape(2, 3, 4)}
    done = jnp.ones((2, 3, 5)).at[0, 1, 0].set(jnp.nan)
    out, passed = jax.jit(jax.vmap(jax.vmap(after)))(waiting, done)
    np.testing.assert_array_equal(passed, done)
    np.testing.assert_array_equal(out["n"], waiting["n"])
    for name in ("x", "z"):
        expected = np.array(waiting[name])
        np.testing.assert_array_equal(np.delete(out[name].reshape(6, 4), 1, 0), np.delete(expected.reshape(6, 4), 1, 0))
        assert np.isnan(out[name][0, 1]).all()
