"""Whole simulations and their gradients under JAX's own switches that look for mistakes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest

import pmwd_dist as pmd


def configure(pdims: tuple[int, int], lpt_order: int = 2) -> pmd.Config:
    return pmd.Config(64.0, 8, 4, steps=2, a_stop=0.5, lpt_order=lpt_order, decomposition=pdims)


def simulate(noise: jax.Array, cosmo: Any, config: pmd.Config, **options: Any) -> pmd.PowerSpectrum:
    modes = pmd.linear_modes(noise, cosmo, config)
    particles = pmd.lpt(modes, cosmo, config)
    solution = pmd.nbody(particles, cosmo, config, **options)
    return pmd.power_spectrum(pmd.density(solution.particles, config), config)


def noise_of(config: pmd.Config) -> jax.Array:
    """In single precision beside the double one of the tests."""
    return pmd.white_noise(jax.random.key(1), config, jnp.float32)


def with_slopes(noise: jax.Array, matter: jax.Array, config: pmd.Config) -> Any:
    """P(k) and the gradient of its sum."""

    def loss(noise: jax.Array, matter: jax.Array) -> Any:
        power = simulate(noise, jax_cosmo.Planck15(Omega_c=matter), config).power
        return power.sum(), power

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(noise, matter)


@contextmanager
def guarded() -> Iterator[None]:
    """Nothing may be infinite, not a number, promoted or transferred implicitly."""
    checks = jax.debug_infs(True), jax.debug_nans(True), jax.numpy_dtype_promotion("strict")
    with checks[0], checks[1], checks[2], jax.transfer_guard("disallow"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("pdims", [(1, 1), (2, 2)])
def test_traces_leak_nothing(pdims: tuple[int, int]) -> None:
    config = configure(pdims, lpt_order=3)
    arguments = noise_of(config), jnp.asarray(0.26)
    # JAX 0.10 itself leaks where the gradient of a shard_map with a psum or an all_to_all is taken.
    run = with_slopes if pdims == (1, 1) else lambda x, m, config: simulate(x, jax_cosmo.Planck15(Omega_c=m), config)
    jax.clear_caches()
    gc.collect()
    gc.freeze()  # the search for leaks calls the garbage collector after each trace
    with jax.checking_leaks():
        jax.make_jaxpr(run, static_argnums=2)(*arguments, config)


@pytest.mark.slow
def test_eager_calls_keep_to_the_switches() -> None:
    config, cosmo = configure((1, 1), lpt_order=3), jax_cosmo.Planck15()
    key = jax.random.key(1)

    def values() -> Any:
        noise = pmd.white_noise(key, config, jnp.float32)
        solved = [simulate(noise, cosmo, config, **options) for options in ({}, {"saveat": [0.3]})]
        return solved, [f(0.5, cosmo) for f in (pmd.growth, pmd.growth_rate, pmd.linear_power, pmd.comoving_distance)]

    with guarded():
        found = values()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(values()))


@pytest.mark.slow
def test_compiled_gradients_keep_to_the_switches() -> None:
    """On several devices eager calls mix arrays of one device with divided ones, which JAX itself transfers."""
    results = []
    for pdims in ((1, 1), (2, 2)):
        config = configure(pdims)
        everywhere = jax.NamedSharding(config.decomposition.mesh, jax.P())
        arguments = noise_of(config), jax.device_put(jnp.asarray(0.26, jnp.float32), everywhere)
        compiled = jax.jit(with_slopes, static_argnums=2)
        with guarded():
            results.append(compiled(*arguments, config))
    for ours, expected in zip(*map(jax.tree.leaves, jax.device_get(results)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
