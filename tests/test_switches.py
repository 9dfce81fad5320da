"""Whole simulations and their gradients under JAX's own switches that look for mistakes."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest

import pmwd_dist as pmd

SWITCHES: dict[str, dict[str, Any]] = {
    "leaks": {"jax_check_tracer_leaks": True},
    "numbers": {"jax_debug_infs": True, "jax_debug_nans": True, "jax_numpy_dtype_promotion": "strict"},
}


def simulate(noise: jax.Array, cosmo: Any, config: pmd.Config, **options: Any) -> pmd.PowerSpectrum:
    modes = pmd.linear_modes(noise, cosmo, config)
    particles = pmd.lpt(modes, cosmo, config)
    solution = pmd.nbody(particles, cosmo, config, **options)
    return pmd.power_spectrum(pmd.density(solution.particles, config), config)


def run(config: pmd.Config, gradient: bool) -> Any:
    """P(k), and its gradient, in single precision beside the double one of the tests."""
    noise = pmd.white_noise(jax.random.key(1), config, jnp.float32)

    def power_of(noise: jax.Array, matter: jax.Array) -> jax.Array:
        return simulate(noise, jax_cosmo.Planck15(Omega_c=matter), config).power

    if not gradient:
        return jax.device_get(power_of(noise, jnp.asarray(0.26)))
    power, pull = jax.vjp(power_of, noise, jnp.asarray(0.26))
    return jax.device_get((power, *pull(jnp.ones_like(power))))


def configured(pdims: tuple[int, int], gradient: bool) -> tuple[pmd.Config, Any]:
    """A small simulation, and its results without switches."""
    config = pmd.Config(64.0, 8, 4, steps=2, a_stop=0.5, lpt_order=3, decomposition=pdims)
    return config, run(config, gradient)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pdims"), [("leaks", (1, 1)), ("leaks", (2, 2)), ("numbers", (2, 2))])
def test_switches_find_nothing_and_change_no_bit(kind: str, pdims: tuple[int, int]) -> None:
    before = {switch: getattr(jax.config, switch) for switch in SWITCHES[kind]}
    # JAX 0.10 itself leaks where the gradient of a shard_map with a psum or an all_to_all is taken.
    gradient = kind != "leaks" or pdims == (1, 1)
    config, expected = configured(pdims, gradient)
    jax.clear_caches()
    gc.collect()
    gc.freeze()  # the search for leaks calls the garbage collector after each trace
    try:
        for switch, value in SWITCHES[kind].items():
            jax.config.update(switch, value)
        found = run(config, gradient)
    finally:
        for switch, value in before.items():
            jax.config.update(switch, value)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_eager_calls_transfer_nothing_implicitly(single: pmd.Decomposition) -> None:
    config, cosmo = pmd.Config(64.0, 8, 4, steps=2, a_stop=0.5, decomposition=single), jax_cosmo.Planck15()
    key = jax.random.key(1)

    def values() -> Any:
        solved = [
            simulate(pmd.white_noise(key, config), cosmo, config, **options) for options in ({}, {"saveat": [0.3]})
        ]
        return solved, [f(0.5, cosmo) for f in (pmd.growth, pmd.growth_rate, pmd.linear_power, pmd.comoving_distance)]

    with jax.transfer_guard("disallow"):
        found = values()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(values()))


@pytest.mark.parametrize("pdims", [(1, 1), (2, 2)])
def test_a_compiled_gradient_transfers_nothing_implicitly(pdims: tuple[int, int]) -> None:
    """On several devices eager calls mix arrays of one device with divided ones, which JAX itself transfers."""
    config, cosmo = pmd.Config(64.0, 8, 4, steps=2, a_stop=0.5, decomposition=pdims), jax_cosmo.Planck15()
    noise = pmd.white_noise(jax.random.key(1), config)
    gradient = jax.jit(jax.grad(lambda noise: simulate(noise, cosmo, config).power.sum()))
    with jax.transfer_guard("disallow"):
        found = gradient(noise)
    np.testing.assert_array_equal(jax.device_get(found), jax.device_get(gradient(noise)))
