"""How much a gradient keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from simulations import COSMO, configure, initial, moved

import pmwd_dist as pmd
from pmwd_dist.pm.lpt_fields import stores_second_derivatives
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import stored_potentials


def of_size(cells: int, particles: int | None = None, **options: Any) -> pmd.Config:
    return pmd.Config(2.0 * cells, cells, particles or cells, decomposition=(1, 1), **options)


CACHES = [
    (of_size(64), (1, 1), jnp.float64, "cpu", 10),
    (of_size(128), (1, 1), jnp.float32, "cpu", 6),
    (of_size(512), (1, 1), jnp.float32, "cpu", 6),
    (of_size(512), (4, 1), jnp.float32, "cpu", 3),
    (of_size(512, gradient="spectral"), (1, 1), jnp.float32, "cpu", 2),
    (of_size(768, 512), (1, 1), jnp.float32, "cpu", 1),
    (of_size(1024, 512), (1, 1), jnp.float32, "cpu", 0),
    (of_size(256, 512), (1, 1), jnp.float32, "cpu", 10),
    (of_size(128), (1, 1), jnp.float32, "gpu", 10),
    (of_size(512), (1, 1), jnp.float32, "gpu", 9),
    (of_size(768, 512), (1, 1), jnp.float32, "gpu", 1),
    (of_size(512), (2, 1), jnp.float32, "gpu", 7),
    (of_size(512), (2, 2), jnp.float32, "gpu", 4),
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
    small = 10 * max(config.mesh_shape) ** 3 <= (2**23 if platform == "cpu" else 2**26)
    assert stored_potentials("auto", 10, config, dtype, platform, sums=True) == (10 if small else 0)


def test_potentials_are_fewer_where_the_memory_of_a_gpu_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """1024^3 particles on 75 % of an H200, and on less than a gradient takes without potentials."""
    for room, expected in ((1.1e11, 6), (1e12, 9), (6e10, 0)):
        monkeypatch.setattr(potential_cache, "_memory", lambda config, room=room: room)
        assert stored_potentials("auto", 10, of_size(1024), jnp.float32, "gpu") == expected


def test_small_meshes_keep_second_derivatives() -> None:
    assert stores_second_derivatives(of_size(64), jnp.float64)
    assert not stores_second_derivatives(of_size(128), jnp.float32)
    assert stores_second_derivatives(of_size(128), jnp.float64, "gpu")
    assert not stores_second_derivatives(of_size(256), jnp.float32, "gpu")


@pytest.mark.parametrize("gradient", ["finite-difference", pytest.param("spectral", marks=pytest.mark.slow)])
def test_stored_potentials_do_not_change_a_bit(gradient: str) -> None:
    """Of gradients and, from three fields of the force, of a Hessian-vector product, of which they have tangents."""
    config = configure((1, 1) if gradient == "spectral" else (4, 1), steps=3, gradient=gradient)
    table, particles = pmd.growth_table(COSMO), initial(config)
    direction = jax.random.normal(jax.random.key(3), particles.disp.shape)

    def derivatives(stored: Any) -> Any:
        def loss(disp: Any) -> Any:
            adjoint = pmd.ReversibleAdjoint(stored_potentials=stored)
            end = pmd.nbody(moved(particles, disp), table, config, adjoint=adjoint).particles
            return jnp.mean(pmd.density(end, config) ** 2)

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
        config, table = configure(steps=steps, lpt_order=2), pmd.growth_table(COSMO)
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), COSMO, config)

        def loss(scale: Any) -> Any:
            return jnp.mean(pmd.lpt(modes * scale, table, config).disp ** 4)

        scale = jnp.linspace(0.5, 1.5, modes.size).reshape(modes.shape)
        return jax.jit(partial(jax.jvp, jax.grad(loss)))((scale,), (scale**2,))

    expected = derivatives(1)
    monkeypatch.setattr("pmwd_dist.pm.lpt_fields.stores_second_derivatives", lambda *_: False)
    for x, y in zip(derivatives(2), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5 * np.abs(y).max())
