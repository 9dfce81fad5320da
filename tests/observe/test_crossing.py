"""When a light cone passes particles, and derivatives of that to third order, where both are known in closed form."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist.observe.crossing import LightCone, Path, crosses, crossing, inverse_series, series, series_slope


def cone(far: Any, near: Any) -> LightCone:
    """A light cone that comes nearer at a constant rate."""
    distance = jnp.stack([(far + near) / 2, (near - far) / 2, 0 * far])
    return LightCone(jnp.stack([far, near]), distance, jnp.zeros(2), inverse_series(distance))


def solved(x: Any, far: Any, near: Any) -> Any:
    """Fractions at which the cone passes particles whose distance is start + (end - start) s^2."""
    light = cone(far, near)
    path = Path(x[0], x[0], x[1])
    return crossing(lambda path, s: path.at(s), path, *crosses(*x, light), light)


def closed(x: Any, far: Any, near: Any) -> Any:
    a, b, c = x[1] - x[0], far - near, x[0] - far
    return (-b + jnp.sqrt(b**2 - 4 * a * c)) / (2 * a)


def test_fractions_and_their_derivatives() -> None:
    x, far, near = np.array([[3.2, 4.1, 5.4], [3.6, 3.7, 5.9]]), 6.0, 2.0

    def derivatives(function: Any) -> Any:
        weighted = lambda *args: jnp.sum(jnp.arange(1.0, 4) * function(*args))  # noqa: E731
        gradient = jax.grad(weighted, argnums=(0, 1, 2))
        third = jax.jacfwd(jax.jacrev(jax.grad(weighted, argnums=1), argnums=2), argnums=0)
        every = (function, gradient, jax.jacfwd(gradient, argnums=(0, 1)), third)
        return jax.jit(lambda *args: [f(*args) for f in every])(x, far, near)

    for a, b in zip(*(jax.tree.leaves(derivatives(f)) for f in (solved, closed)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


def test_slope_of_the_distance_is_its_derivative() -> None:
    coefficients, s = jnp.asarray(np.random.default_rng(0).standard_normal(10)), np.linspace(0, 1, 7)
    slopes = jax.vmap(jax.grad(partial(series, coefficients)))(s)
    np.testing.assert_allclose(series_slope(coefficients, s), slopes, rtol=1e-12)


def test_guesses_are_fractions_of_particles_at_rest() -> None:
    distance = jnp.asarray([700.0, -600.0, 80.0, -10.0])
    ends, s = series(distance, jnp.arange(2.0)), jnp.linspace(0.1, 1, 9)
    light = LightCone(ends, distance, jnp.zeros(2), inverse_series(distance))
    passed, guess = crosses(series(distance, s), series(distance, s), light)
    assert passed.all()
    np.testing.assert_allclose(guess, s, rtol=0, atol=5e-4)
