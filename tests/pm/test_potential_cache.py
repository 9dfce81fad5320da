"""How much a gradient keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.sharding import AbstractMesh

import pmwd_dist as pmd
from pmwd_dist.pm.lpt_fields import stores_second_derivatives
from pmwd_dist.pm.stepping.potential_cache import stored_potentials


def configure(cells: int, particles: int | None = None, **options: Any) -> pmd.Config:
    return pmd.Config(2.0 * cells, cells, particles or cells, decomposition=(1, 1), **options)


CACHES = [
    (configure(64), (1, 1), jnp.float64, "cpu", 10),
    (configure(128), (1, 1), jnp.float32, "cpu", 6),
    (configure(512), (1, 1), jnp.float32, "cpu", 6),
    (configure(512), (4, 1), jnp.float32, "cpu", 3),
    (configure(512, gradient="spectral"), (1, 1), jnp.float32, "cpu", 2),
    (configure(768, 512), (1, 1), jnp.float32, "cpu", 1),
    (configure(1024, 512), (1, 1), jnp.float32, "cpu", 0),
    (configure(256, 512), (1, 1), jnp.float32, "cpu", 10),
    (configure(128), (1, 1), jnp.float32, "gpu", 10),
    (configure(512), (1, 1), jnp.float32, "gpu", 9),
    (configure(768, 512), (1, 1), jnp.float32, "gpu", 1),
    (configure(512), (2, 1), jnp.float32, "gpu", 7),
    (configure(512), (2, 2), jnp.float32, "gpu", 4),
]


@pytest.mark.parametrize(("config", "pdims", "dtype", "platform", "expected"), CACHES)
def test_few_potentials_are_cached_and_never_more_for_more_steps(
    config: pmd.Config, pdims: tuple[int, int], dtype: Any, platform: str, expected: int
) -> None:
    mesh = AbstractMesh(pdims, ("x", "y"))
    config = replace(config, decomposition=pmd.Decomposition(mesh=mesh, spec=jax.P("x", "y")))
    for steps in (10, 1000):
        assert stored_potentials("auto", steps, config, dtype, platform) == expected
    assert stored_potentials("auto", 4, config, dtype, platform) == min(4, expected)
    assert stored_potentials(7, 5, config, dtype) == 5


def test_small_meshes_keep_second_derivatives() -> None:
    assert stores_second_derivatives(configure(64), jnp.float64)
    assert not stores_second_derivatives(configure(128), jnp.float32)
    assert stores_second_derivatives(configure(128), jnp.float64, "gpu")
    assert not stores_second_derivatives(configure(256), jnp.float32, "gpu")


@pytest.mark.parametrize("gradient", ["finite-difference", pytest.param("spectral", marks=pytest.mark.slow)])
def test_stored_potentials_do_not_change_a_bit(gradient: str) -> None:
    """Of gradients and, from three fields of the force, of a Hessian-vector product, of which they have tangents."""
    decomposition = pmd.Decomposition(pdims=(1, 1) if gradient == "spectral" else (4, 1))
    config = pmd.Config(24.0, 8, steps=3, halo=4, lpt_order=1, gradient=gradient, decomposition=decomposition)
    table = pmd.growth_table(problems.cosmology())
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), problems.cosmology(), config)
    particles = pmd.lpt(modes, table, config)
    direction = jax.random.normal(jax.random.key(3), particles.disp.shape)

    def derivatives(stored: Any) -> Any:
        def loss(disp: Any) -> Any:
            moved = pmd.Particles(particles.disp + disp, particles.vel)
            adjoint = pmd.ReversibleAdjoint(stored_potentials=stored)
            return jnp.mean(pmd.density(pmd.nbody(moved, table, config, adjoint=adjoint).particles, config) ** 2)

        zero = jnp.zeros_like(direction)
        if gradient == "spectral":
            return jax.jit(partial(jax.jvp, jax.grad(loss)))((zero,), (direction,))
        return (jax.jit(jax.grad(loss))(zero),)

    for x, y in zip(derivatives(2), derivatives(0), strict=True):
        assert np.abs(x).max() > 0
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_second_derivatives_computed_again_give_the_same_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def derivatives(steps: int) -> Any:
        """Gradient and Hessian-vector product of the initial conditions; the number of steps makes a new program."""
        decomposition = pmd.Decomposition(pdims=(1, 1))
        config = pmd.Config(16.0, 8, steps=steps, halo=4, decomposition=decomposition)
        table = pmd.growth_table(problems.cosmology())
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), problems.cosmology(), config)

        def loss(scale: Any) -> Any:
            return jnp.mean(pmd.lpt(modes * scale, table, config).disp ** 4)

        scale = jnp.linspace(0.5, 1.5, modes.size).reshape(modes.shape)
        return jax.jit(partial(jax.jvp, jax.grad(loss)))((scale,), (scale**2,))

    expected = derivatives(1)
    monkeypatch.setattr("pmwd_dist.pm.lpt_fields.stores_second_derivatives", lambda *_: False)
    for x, y in zip(derivatives(2), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5 * np.abs(y).max())
