"""Massive neutrinos in simulations: growth of linear waves, and derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd


@pytest.mark.parametrize("order", [1, 2])
def test_steps_grow_linear_waves_as_linear_theory_does(order: int) -> None:
    """Where neutrinos stream, relative to the same waves without them, whose forces have the same mesh."""
    config = pmd.Config(1500.0, 8, steps=8, lpt_order=order, decomposition=(1, 1))
    wave = 1e-4 * problems.smooth_field(np.random.default_rng(0), (8, 8, 8))
    modes = jnp.fft.rfftn(wave)

    def grown(m_nu: float | None) -> tuple[Any, Any]:
        cosmo = pmd.with_neutrinos(problems.cosmology(), m_nu=m_nu)
        table = pmd.growth_table(cosmo)
        particles = pmd.nbody(pmd.lpt(modes, table, config), table, config).raise_if_failed().particles
        expected = pmd.lpt(modes, table, config, a=1.0)
        return tuple(
            np.vdot(a, b) / np.vdot(b, b) for a, b in ((particles.disp, expected.disp), (particles.vel, expected.vel))
        )  # type: ignore[return-value]

    np.testing.assert_allclose(grown(0.6), grown(None), rtol=1e-3)


def test_derivatives_by_masses_match_differences_on_all_devices() -> None:
    configs = [pmd.Config(200.0, 8, steps=2, lpt_order=1, decomposition=pdims) for pdims in ((2, 2), (1, 1))]

    def loss(m_nu: Any, config: pmd.Config) -> jax.Array:
        cosmo = pmd.with_neutrinos(problems.cosmology(), m_nu=m_nu)
        noise = pmd.white_noise(jax.random.key(1), config)
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        return jnp.mean(pmd.nbody(particles, cosmo, config).particles.disp ** 2)

    value = jax.jit(loss, static_argnums=1)
    slope = jax.jit(jax.grad(loss), static_argnums=1)(0.3, configs[0])
    difference = (value(0.3 + 1e-2, configs[0]) - value(0.3 - 1e-2, configs[0])) / 2e-2
    np.testing.assert_allclose(slope, difference, rtol=1e-3)
    np.testing.assert_allclose(value(0.3, configs[0]), value(0.3, configs[1]), rtol=1e-6)
