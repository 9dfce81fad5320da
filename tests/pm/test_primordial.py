"""Local primordial non-Gaussianity of modes and of tracers, against NumPy."""

from __future__ import annotations

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
INSIDE = np.abs(np.fft.fftfreq(N, 1 / N)) < N / 4
LOW = INSIDE[:, None, None] & INSIDE[None, :, None] & INSIDE[None, None, :] & (K > 0)
NODES = np.geomspace(1e-3, 1.0, 400)


def configure(decomposition: Any) -> pmd.Config:
    return pmd.Config(BOX, N, decomposition=decomposition)


def long_noise(seed: int) -> np.ndarray:
    """Noise without waves whose products have aliases."""
    modes = np.fft.fftn(np.random.default_rng(seed).standard_normal((N, N, N)))
    return np.fft.ifftn(modes * LOW).real


def field(modes: Any) -> np.ndarray:
    return np.fft.irfftn(np.asarray(modes)[..., : N // 2 + 1], (N, N, N), (0, 1, 2))


def potential(delta: np.ndarray, transfer: np.ndarray = TRANSFER) -> np.ndarray:
    return np.fft.ifftn(np.fft.fftn(delta) / np.where(transfer > 0, transfer, np.inf)).real


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
    run = jax.jit(jax.value_and_grad(total))
    _, gradient = run(jnp.asarray(start))
    for slope, step in zip(gradient, steps, strict=True):
        difference = (run(jnp.asarray(start + step))[0] - run(jnp.asarray(start - step))[0]) / (2 * step.sum())
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


@pytest.mark.parametrize("kind", [lambda power: power, lambda power: (NODES, power(NODES))], ids=["function", "table"])
def test_the_potential_belongs_to_the_power_in_use(kind: Any) -> None:
    """delta / phi is the root of P(k) / k^(n_s - 4), and of CAMB's amplitude at the fundamental mode."""
    config, f_nl = configure((1, 1)), 3e3
    power = kind(lambda k: (1 + 5 * k) ** 2 * pmd.linear_power(k, COSMO))
    transfer = TRANSFER * (1 + 5 * K) / (1 + 5 * 2 * np.pi / BOX)
    gaussian, modes = (pmd.linear_modes(long_noise(0), COSMO, config, linear_power=power, f_nl=x) for x in (None, f_nl))
    phi = potential(field(gaussian), transfer)
    change = f_nl * np.fft.ifftn(transfer * np.fft.fftn(phi**2)).real
    np.testing.assert_allclose(field(modes) - field(gaussian), change, atol=3e-4 * np.abs(change).max())
    bias = LagrangianBias(bphi=4.0)
    weights = bias_weights(gaussian, bias, COSMO, config, f_nl=f_nl, linear_power=power)
    np.testing.assert_allclose(weights - 1, 4 * f_nl * phi, atol=3e-4 * 4 * f_nl * np.abs(phi).max())
