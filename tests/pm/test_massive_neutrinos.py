"""Massive neutrinos in simulations: growth of linear waves, and derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_derivatives_by_masses_match_differences_on_all_devices() -> None:
    configs = [pmd.Config(200.0, 8, steps=2, lpt_order=1, decomposition=pdims) for pdims in ((2, 2), (1, 1))]

    def loss(m_nu: Any, config: pmd.Config) -> jax.Array:
        cosmo = pmd.with_neutrinos(problems.cosmology(), m_nu=m_nu)
        noise = pmd.white_noise(jax.random.key(1), config)
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        return jnp.mean(pmd.nbody(particles, cosmo, config).particles.disp ** 2)

    both = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    (value, slope), (above, _), (below, _) = (both(m_nu, configs[0]) for m_nu in (0.3, 0.3 + 1e-2, 0.3 - 1e-2))
    np.testing.assert_allclose(slope, (above - below) / 2e-2, rtol=1e-3)
    np.testing.assert_allclose(value, jax.jit(loss, static_argnums=1)(0.3, configs[1]), rtol=1e-6)


@pytest.mark.slow
def test_linear_theory_of_observables_grows_by_wavenumber() -> None:
    """As the particles of first-order LPT do: displacements are linear, and momenta are the shift by velocities."""
    n, box = 8, 1500.0
    config = pmd.Config(box, n, a_stop=0.5, lpt_order=1, decomposition=(1, 1))
    table = pmd.growth_table(pmd.with_neutrinos(problems.cosmology(), m_nu=0.6))
    noise = problems.smooth_field(np.random.default_rng(1), (n, n, n))
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config, a=0.5)
    k = problems.wavevectors((n, n, n), (box, box, box))
    shift = np.asarray(particles.vel[..., 2]) / (0.25 * float(table.E(0.5)))
    psi = [*np.moveaxis(np.asarray(particles.disp), -1, 0), shift]
    fields = [np.fft.ifftn(-1j * q * np.fft.fftn(x)).real for q, x in zip([*k, k[2]], psi, strict=True)]
    density, moved = sum(fields[:3]), sum(fields)

    modes, rtol = pmd.linear_modes(noise, table, config), 1e-3 * np.abs(moved).max()
    weights = pmd.observe.bias_weights(modes, pmd.observe.LagrangianBias(b1=1.0), table, config)
    np.testing.assert_allclose(weights - 1, density, atol=rtol)
    linear = infer.LinearField(config, table.cosmo, line_of_sight="z")
    np.testing.assert_allclose(linear(noise, {}) - 1, moved, atol=rtol)

    def power(k: Any) -> jax.Array:
        return pmd.linear_power(k, table)

    real, shifted = (
        pmd.observe.kaiser_multipoles(power, table, config, line_of_sight=line, poles=(0,)) for line in (None, "z")
    )
    some, D, f = np.asarray(real.modes) > 0, *table.linear(real.k, 0.5)
    # Bins are means over shells of wavenumbers.
    np.testing.assert_allclose(real.power[0][some] / power(real.k[some]) / D[some] ** 2, 1, rtol=0.05)
    ratio = shifted.power[0][some] / real.power[0][some]
    np.testing.assert_allclose(ratio[-1], 1 + 2 / 3 * f[some][-1] + f[some][-1] ** 2 / 5, rtol=0.02)
