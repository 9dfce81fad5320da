"""The package against the equations in plain JAX: values and gradients in double precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.pm import reference


def power(k: Any) -> Any:
    """A power law, which tables that are linear in ln k hold exactly."""
    return 300 * k**-1.5


def test_nbody_and_its_gradient_agree_with_plain_jax(cosmo: Any) -> None:
    """On pencils, which test_gradients.py compares with one device."""
    config = pmd.Config((32.0, 40.0, 32.0), (8, 10, 8), steps=5, halo=4, decomposition=pmd.Decomposition((2, 2)))
    table, noise = pmd.growth_table(cosmo), pmd.white_noise(jax.random.key(0), config)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal(config.mesh_shape))

    def ours(noise: Any) -> Any:
        modes = pmd.linear_modes(noise, table, config, linear_power=power)
        solution = pmd.nbody(pmd.lpt(modes, table, config), table, config)
        loss = jnp.sum(weight * pmd.density(solution.particles, config) ** 2) + jnp.sum(solution.particles.vel**3)
        return loss, solution.particles

    def loss(particles: pmd.Particles) -> Any:
        return jnp.sum(weight * reference.density(particles.disp, config) ** 2) + jnp.sum(particles.vel**3)

    def plain(noise: Any) -> Any:
        particles = reference.lpt(reference.linear_modes(noise, power, config), table, config)
        return reference.simulate(particles, table, config)[0]

    (value, particles), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(noise)
    noise = jax.device_put(np.asarray(noise), jax.devices()[0])
    final = jax.jit(plain)(noise)
    expected = jax.jit(lambda noise: reference.value_and_gradient(loss, noise, power, table, config))(noise)
    direct = jax.jit(jax.grad(lambda noise: loss(plain(noise))))(noise)
    assert np.abs(final.disp).max() > config.cell_size[0]  # it is no linear problem
    np.testing.assert_allclose(particles.disp, final.disp, rtol=0, atol=1e-11)
    np.testing.assert_allclose(particles.vel, final.vel, rtol=0, atol=1e-11)
    np.testing.assert_allclose(value, expected[0], rtol=1e-11)
    for other in (gradient, direct):
        np.testing.assert_allclose(other, expected[1], rtol=0, atol=1e-10 * np.abs(direct).max())
