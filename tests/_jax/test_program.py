"""Programs that end before their call returns, on several CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pmwd_dist._jax.program import ended, filter_jit, jit

CALLS: list[Callable[[Any], Any]] = [lambda f: f, jax.vmap, lambda f: lambda x: jax.jvp(f, (x,), (x,))]


def long(x: jax.Array) -> jax.Array:
    """A program with collectives that runs for a tenth of a second."""
    return jax.lax.fori_loop(0, 300, lambda _, y: jnp.sin(y) + 1e-9 * jnp.sum(y), x)


@pytest.fixture(scope="module")
def divided() -> jax.Array:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(np.ones((2, 2**14)), NamedSharding(mesh, PartitionSpec(None, "x")))


@pytest.mark.parametrize("call", CALLS, ids=["call", "vmap", "jvp"])
def test_a_call_returns_when_its_program_has_ended(divided: jax.Array, call: Any) -> None:
    assert all(x.is_ready() for x in jax.tree.leaves(call(jit(long))(divided)))


def test_a_program_keeps_what_jit_offers(divided: jax.Array) -> None:
    @eqx.filter_jit
    def outer(f: Any, x: Any) -> Any:
        return f(x, 2)

    class Scaled(eqx.Module):
        factor: jax.Array

        @filter_jit
        def times(self, x: jax.Array) -> jax.Array:
            return self.factor * x

    power = jit(lambda x, n: x**n, static_argnames="n", static_argnums=1)
    assert outer(power, 3.0) == power(3.0, n=2) == 9 == jax.grad(power)(4.5, 2)
    assert "stablehlo.multiply" in power.lower(divided, 2).as_text()
    power.clear_cache()
    assert Scaled(jnp.float32(2)).times(jnp.float32(3)) == 6
    donated = jnp.ones(3)
    jit(lambda x: x + 1, donate_argnums=0)(donated)
    assert donated.is_deleted()
    assert ended({"text": "a", "none": None, "number": 1.0}) == {"text": "a", "none": None, "number": 1.0}
