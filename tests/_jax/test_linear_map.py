"""Linear maps that know their transposes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax.derivatives import linear_map

X = np.linspace(0.1, 0.9, 3)


def scaled(x: Any, change: Any) -> Any:
    """cos(x) times a change, as the tangent of sin(x)."""
    both = lambda x, t: [jnp.cos(x) * t]  # noqa: E731
    return linear_map(both, both, [x], [change], operands_like=[0], results_like=[0])[0]


@jax.custom_jvp
def sine(x: Any) -> Any:
    return jnp.sin(x)


sine.defjvp(lambda primals, tangents: (sine(*primals), scaled(*primals, *tangents)))


def test_a_jacobian_shares_what_has_no_batch_axis() -> None:
    jacobian = jax.jit(jax.jacrev(sine))
    np.testing.assert_allclose(jacobian(X), np.diag(np.cos(X)), rtol=1e-14)
    cosines = [line for line in jacobian.lower(X).as_text().splitlines() if "stablehlo.cosine" in line]
    assert cosines
    assert all("tensor<3xf64>" in line for line in cosines)


def test_batches_of_batches_and_their_derivatives() -> None:
    batch = np.stack([X, 2 * X])
    expected = np.stack([np.diag(np.cos(x)) for x in batch])
    np.testing.assert_allclose(jax.vmap(jax.jacrev(sine))(batch), expected, rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(jax.jacfwd(sine))(batch), expected, rtol=1e-14)
    second = jax.jacrev(jax.jacrev(lambda x: jnp.sum(sine(x))))(X)
    np.testing.assert_allclose(second, np.diag(-np.sin(X)), rtol=1e-14)
