"""Local primordial non-Gaussianity of modes and of tracers, against NumPy and tree level."""

from __future__ import annotations

import itertools
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
INSIDE = np.abs(np.fft.fftfreq(N, 1 / N)) < N / 4
LOW = INSIDE[:, None, None] & INSIDE[None, :, None] & INSIDE[None, None, :] & (K > 0)
POWER = np.where(LOW, np.asarray(pmd.linear_power(np.maximum(K, 1e-3), COSMO)), 0) / BOX**3
CROSS = POWER / np.where(TRANSFER > 0, TRANSFER, np.inf)  # of delta and phi
F_NL = 100.0
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


@pytest.fixture(scope="module")
def universes() -> list[tuple[Any, Any]]:
    """Modes of both signs of f_nl: half of the difference is without the scatter of a Gaussian field."""
    config = configure((1, 1))
    return [
        tuple(pmd.linear_modes(long_noise(seed), COSMO, config, f_nl=sign * F_NL) for sign in (1, -1))
        for seed in range(40)
    ]


def agrees(found: list[Any], expected: Any, least: float) -> bool:
    """Whether means agree with expected values within the scatter, which is `least` times smaller than them."""
    error = np.std(found, 0) / math.sqrt(len(found))
    return bool((np.abs(expected) > least * error).all() and (np.abs(np.mean(found, 0) - expected) < 4 * error).all())


@pytest.mark.slow
def test_the_skewness_is_that_of_tree_level(universes: list[tuple[Any, Any]]) -> None:
    """<delta^3> = 6 f_nl sum_k M(k) FT(xi^2), with xi the correlation of delta and phi."""
    found = [float((field(one) ** 3).mean() - (field(other) ** 3).mean()) / 2 for one, other in universes]
    correlation = np.fft.fftn(CROSS).real
    assert agrees(found, 6 * F_NL * np.mean(np.fft.fftn(correlation**2).real * TRANSFER), 10)


@pytest.mark.slow
def test_bispectra_are_those_of_tree_level(universes: list[tuple[Any, Any]]) -> None:
    """B = 2 f_nl M_1 M_2 M_3 (P_1 P_2 + P_2 P_3 + P_3 P_1) of phi, over all triangles of shells, squeezed ones too."""
    edges = np.array([0.5, 1.2, 2.2, 3.2]) * 2 * np.pi / BOX
    shells = [(low < K) & ~(high < K) for low, high in itertools.pairwise(edges)]
    squeezed, others = [(0, 1, 1), (0, 2, 2)], [(1, 1, 2), (1, 2, 2), (2, 2, 2)]

    def over_triangles(*factors: np.ndarray) -> float:
        """Sum of a product over closed triangles."""
        return float(np.prod([np.fft.ifftn(each, norm="forward") for each in factors], 0).real.mean())

    def measured(modes: Any) -> np.ndarray:
        delta = np.fft.fftn(field(modes), norm="forward")
        return np.array([over_triangles(*(delta * shells[i] for i in each)) for each in squeezed + others])

    def expected(i: int, j: int, k: int) -> float:
        sums = ((a, b, c) for a, b, c in ((i, j, k), (j, k, i), (k, i, j)))
        return (
            2
            * F_NL
            * sum(over_triangles(CROSS * shells[a], CROSS * shells[b], TRANSFER * shells[c]) for a, b, c in sums)
        )

    found = [(measured(one) - measured(other)) / 2 for one, other in universes]
    assert agrees(found, [expected(*each) for each in squeezed + others], 3)


@pytest.mark.slow
def test_tracers_of_small_scale_power_gain_a_bias_of_the_potential(universes: list[tuple[Any, Any]]) -> None:
    """Weights b2 delta^2 follow a long wave of phi by 4 f_nl b2 sigma^2: b_phi = 2 d ln n / d ln sigma8."""
    config, radius, b2 = configure((1, 1)), 20.0, 0.5
    window = np.exp(-(K**2) * radius**2 / 2)
    long = (K > 0) & ~(1.2 * 2 * np.pi / BOX < K)
    phi_power = np.where(long, CROSS / np.where(TRANSFER > 0, TRANSFER, np.inf), 0)

    def response(modes: Any) -> float:
        weights = bias_weights(modes, LagrangianBias(b2=b2), COSMO, config, smoothing=radius)
        phi = np.fft.fftn(potential(field(modes)), norm="forward")
        return float(
            (np.fft.fftn(np.asarray(weights), norm="forward") * phi.conj() * long).real.sum() / phi_power.sum()
        )

    found = [(response(one) - response(other)) / 2 for one, other in universes]
    amplitude, cross = (np.fft.ifftn(x * window, norm="forward").real for x in (TRANSFER, CROSS))
    terms = 2 * phi_power * np.fft.fftn(amplitude * cross, norm="forward"), long * np.fft.fftn(cross**2, norm="forward")
    tree = 2 * F_NL * b2 * sum(x.real.sum() for x in terms) / phi_power.sum()
    assert agrees(found, tree, 5)
    squeezed = 4 * F_NL * b2 * (CROSS * TRANSFER * window**2).sum()
    assert squeezed == pytest.approx(tree, rel=0.3)


@pytest.mark.slow
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
