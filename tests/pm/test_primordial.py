"""Local primordial non-Gaussianity of modes and of tracers, against NumPy and tree level."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology.linear_power import potential_transfer
from pmwd_dist.observe import LagrangianBias, bias_weights

N, BOX = 16, 400.0
COSMO = problems.cosmology()
K = np.sqrt(sum(k**2 for k in problems.wavevectors((N, N, N), (BOX, BOX, BOX))))
TRANSFER = np.where(K > 0, np.asarray(potential_transfer(np.maximum(K, 1e-3), pmd.growth_table(COSMO))), 0)


def configure(decomposition: Any) -> pmd.Config:
    return pmd.Config(BOX, N, decomposition=decomposition)


def long_noise(seed: int) -> np.ndarray:
    """Noise without waves whose products have aliases."""
    modes = np.fft.fftn(np.random.default_rng(seed).standard_normal((N, N, N)))
    low = np.abs(np.fft.fftfreq(N, 1 / N)) < N / 4
    return np.fft.ifftn(modes * low[:, None, None] * low[None, :, None] * low[None, None, :]).real


def field(modes: Any) -> np.ndarray:
    return np.fft.irfftn(np.asarray(modes)[..., : N // 2 + 1], (N, N, N), (0, 1, 2))


def potential(delta: np.ndarray) -> np.ndarray:
    return np.fft.ifftn(np.fft.fftn(delta) / np.where(TRANSFER > 0, TRANSFER, np.inf)).real


def test_the_potential_gains_its_square(decomposition: pmd.Decomposition) -> None:
    noise, config, f_nl = long_noise(0), configure(decomposition), 3e3
    gaussian = field(pmd.linear_modes(noise, COSMO, config))
    phi = potential(gaussian)
    assert 1e-6 < phi.std() < 1e-4
    expected = gaussian + f_nl * np.fft.ifftn(TRANSFER * np.fft.fftn(phi**2)).real
    modes = pmd.linear_modes(noise, COSMO, config, f_nl=f_nl)
    assert problems.has_sharding(modes, decomposition.spectrum_sharding)
    # The tables of P(k) and M(k) are interpolated: 1e-5 of the change.
    np.testing.assert_allclose(field(modes), expected, atol=1e-4 * np.abs(expected - gaussian).max())


def test_without_it_modes_are_the_same_bits(decomposition: pmd.Decomposition) -> None:
    noise, config = long_noise(1), configure(decomposition)
    modes = pmd.linear_modes(noise, COSMO, config)
    np.testing.assert_array_equal(pmd.linear_modes(noise, COSMO, config, f_nl=0.0), modes)


def test_the_skewness_is_that_of_tree_level() -> None:
    """<delta^3> = 6 f_nl sum_k M(k) FT(xi^2), with xi the correlation of delta and phi."""
    config, f_nl, found = configure((1, 1)), 100.0, list[float]()
    for seed in range(40):  # half the difference of two signs: without the scatter of a Gaussian skewness
        ends = [field(pmd.linear_modes(long_noise(seed), COSMO, config, f_nl=sign * f_nl)) for sign in (1, -1)]
        found.append(float((ends[0] ** 3).mean() - (ends[1] ** 3).mean()) / 2)
    inside = np.abs(np.fft.fftfreq(N, 1 / N)) < N / 4
    low = inside[:, None, None] & inside[None, :, None] & inside[None, None, :] & (K > 0)
    power = np.where(low, np.asarray(pmd.linear_power(np.maximum(K, 1e-3), COSMO)), 0) / BOX**3
    correlation = np.fft.fftn(power / np.where(TRANSFER > 0, TRANSFER, np.inf)).real
    expected = 6 * f_nl * np.mean(np.fft.fftn(correlation**2).real * TRANSFER)
    error = np.std(found) / math.sqrt(len(found))
    assert expected > 10 * error
    assert abs(np.mean(found) - expected) < 4 * error


def test_short_waves_follow_a_long_wave_of_the_potential() -> None:
    """The squeezed limit: waves in a long wave of phi grow by 2 f_nl phi."""
    config, f_nl = configure((1, 1)), 2e3
    x = np.arange(N) / N
    long = 5.0 * np.broadcast_to(np.cos(2 * np.pi * x)[:, None, None], (N, N, N))
    short = 5.0 * np.broadcast_to(np.cos(2 * np.pi * 3 * x)[None, :, None], (N, N, N))
    delta = [field(pmd.linear_modes(noise, COSMO, config, f_nl=f_nl)) for noise in (long + short, long, short)]
    gaussian = [field(pmd.linear_modes(noise, COSMO, config)) for noise in (long, short)]
    growth = delta[0] - delta[1] - delta[2]
    expected = 2 * f_nl * potential(gaussian[0]) * gaussian[1]  # up to M(k_short + k_long) / M(k_short)
    slope = np.sum(growth * expected) / np.sum(expected**2)
    ratio = potential_transfer(np.array([3, math.sqrt(10)]) * 2 * np.pi / BOX, pmd.growth_table(COSMO))
    assert slope == pytest.approx(float(ratio[1] / ratio[0]), rel=1e-3)


@pytest.mark.parametrize("pdims", [(1, 1), (4, 1), (2, 2)])
def test_derivatives_match_differences(pdims: tuple[int, int]) -> None:
    config, weights = configure(pdims), np.random.default_rng(3).standard_normal((N, N, N))
    bias = LagrangianBias(b1=0.5, bphi=2.0, bphidelta=3.0)

    def total(values: Any) -> jax.Array:
        f_nl, n_s, scale = values
        cosmo = problems.cosmology(n_s=n_s)
        modes = pmd.linear_modes(scale * long_noise(4), cosmo, config, f_nl=f_nl)
        return jnp.sum(weights * bias_weights(modes, bias, cosmo, config, smoothing=20.0, f_nl=f_nl))

    start, steps = np.array([200.0, 0.96, 1.0]), np.diag([1.0, 1e-4, 1e-4])
    gradient = jax.jit(jax.grad(total))(jnp.asarray(start))
    run = jax.jit(total)
    for slope, step in zip(gradient, steps, strict=True):
        difference = (run(jnp.asarray(start + step)) - run(jnp.asarray(start - step))) / (2 * step.sum())
        np.testing.assert_allclose(slope, difference, rtol=1e-5)


def test_weights_of_tracers_respond_to_the_potential(decomposition: pmd.Decomposition) -> None:
    config, f_nl, radius = configure(decomposition), 50.0, 30.0
    modes = pmd.linear_modes(long_noise(5), COSMO, config)
    smooth = np.fft.ifftn(np.fft.fftn(field(modes)) * np.exp(-(K**2) * radius**2 / 2)).real
    phi = potential(smooth)
    expected = 1 + f_nl * (4 * phi + 7 * (phi * smooth - (phi * smooth).mean()))
    bias = LagrangianBias(bphi=4.0, bphidelta=7.0)
    weights = bias_weights(modes, bias, COSMO, config, smoothing=radius, f_nl=f_nl)
    np.testing.assert_allclose(weights - 1, expected - 1, atol=1e-4 * np.abs(expected - 1).max())
    np.testing.assert_array_equal(bias_weights(modes, bias, COSMO, config, smoothing=radius), 1)
