"""`sum_where`: values and derivatives to third order against a plain sum, alone and under vmap; what is left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist._jax.select import sum_where

ARGUMENTS = np.linspace(0.2, 1.0, 5)


def each(a: Any, x: Any, y: Any) -> list[Any]:
    return [jnp.sin(a * x * y), jnp.sum(x**3) * jnp.exp(a * y)]


def ours(wanted: Any, x: Any, y: Any) -> Any:
    one, two = sum_where(wanted, each, jnp.asarray(ARGUMENTS), x, y)
    return jnp.sum(one) + jnp.sum(two**2)


def plain(wanted: Any, x: Any, y: Any) -> Any:
    both = [each(a, x, y) for a in ARGUMENTS]
    one, two = (sum(jnp.where(wanted[i], value[k], 0) for i, value in enumerate(both)) for k in range(2))
    return jnp.sum(one) + jnp.sum(two**2)


def derivatives(function: Callable[..., Any], wanted: Any, x: Any, y: Any) -> Any:
    """Value, gradient, Hessian forward over reverse and reverse over reverse, and a third derivative."""
    gradient = jax.grad(function, argnums=(1, 2))
    hessian = [jacobian(gradient, argnums=(1, 2)) for jacobian in (jax.jacfwd, jax.jacrev)]
    third = jax.jacfwd(jax.grad(lambda *args: jnp.sum(hessian[0](*args)[0][1]), argnums=1), argnums=2)
    return [f(wanted, x, y) for f in (function, gradient, *hessian, third)]


@pytest.mark.parametrize("batched", [pytest.param(False, marks=pytest.mark.slow), True])
def test_derivatives_are_those_of_a_plain_sum(batched: bool) -> None:
    """To third order; of a batch, with the sum's own y, to first order in each mode."""
    x, y = np.random.default_rng(0).standard_normal((2, 3, 2))
    x, y = x if batched else x[0], y[0]

    def run(function: Callable[..., Any]) -> Any:
        def first(wanted: Any, x: Any, y: Any) -> Any:
            at = lambda x, y: function(wanted, x, y)  # noqa: E731
            return jax.value_and_grad(at, (0, 1))(x, y), jax.jvp(at, (x, y), (y, x))[1]

        return jax.jit(jax.vmap(first, (None, 0, None)) if batched else partial(derivatives, function))

    programs = run(ours), run(plain)
    for wanted in ([False] * 5, [True, False, False, True, True], [True] * 5):
        results = [jax.tree.leaves(program(np.array(wanted), x, y)) for program in programs]
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_what_is_not_wanted_is_not_computed() -> None:
    seen = list[float]()

    def told(a: Any, x: Any) -> list[Any]:
        jax.debug.callback(lambda a: seen.append(float(a)), a)
        return [a * x]

    wanted = np.array([False, True, False, True, False])
    jax.block_until_ready(jax.jit(lambda x: sum_where(wanted, told, jnp.asarray(ARGUMENTS), x))(1.0))
    jax.effects_barrier()
    np.testing.assert_allclose(sorted(seen), ARGUMENTS[wanted])
