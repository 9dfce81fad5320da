"""Chains of `sample` against the posterior of a linear, Gaussian model: mode by mode, and that of its parameter."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer

pytestmark = pytest.mark.slow

SHAPE, BOX, SIGMA, CHAINS = (8, 8, 8), 160.0, 0.6, 4
PRIOR = infer.Normal(1.5, 0.3, low=0.3)


class Wiener(NamedTuple):
    """The posterior by NumPy: probabilities of b1 on a grid, and mean and variance of each mode over all b1."""

    b1: np.ndarray
    probability: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    k: np.ndarray


def amplitudes(cosmo: Any) -> tuple[np.ndarray, np.ndarray]:
    """Wavenumbers, and modes of the density per mode of the noise."""
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, (BOX,) * 3)))
    power = np.where(k > 0, np.asarray(pmd.linear_power(np.where(k > 0, k, 1), cosmo)), 0)
    return k, float(pmd.growth(0.5, cosmo)) * np.sqrt(power * k.size / BOX**3)


def wiener(data: np.ndarray, k: np.ndarray, amplitude: np.ndarray) -> Wiener:
    b1, modes = np.linspace(0.3, 3.3, 601), np.fft.fftn(data - 1, norm="ortho")
    response = b1[:, None, None, None] * amplitude
    total = response**2 + SIGMA**2
    log = -0.5 * np.sum(abs(modes) ** 2 / total + np.log(total), axis=(1, 2, 3))  # the evidence
    log -= 0.5 * ((b1 - PRIOR.mean) / PRIOR.sd) ** 2
    probability = np.exp(log - log.max()) / np.sum(np.exp(log - log.max()))
    share = np.tensordot(probability, response / total, 1)
    spread = np.tensordot(probability, (response / total - share) ** 2, 1) * abs(modes) ** 2
    variance = np.tensordot(probability, SIGMA**2 / total, 1) + spread
    return Wiener(b1, probability, share * modes, variance, k)


@pytest.fixture(scope="module")
def sampled(cosmo: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[infer.Chain, Wiener]:
    """Chains, and what they should have drawn."""
    config = pmd.Config(BOX, 8, a_stop=0.5, decomposition=(1, 1))
    model = infer.Model(config, infer.LinearField(config, cosmo, bias="b1"), {"b1": PRIOR}, infer.Gaussian(SIGMA))
    k, amplitude = amplitudes(cosmo)
    rng = np.random.default_rng(0)
    white, noise = rng.standard_normal((2, *SHAPE))
    data = 1 + np.fft.ifftn(1.8 * amplitude * np.fft.fftn(white)).real + SIGMA * noise
    posterior = model.condition(data)
    positions = {
        "noise": jnp.asarray(rng.standard_normal((CHAINS, *SHAPE))),
        "parameters": {"b1": jnp.asarray(rng.standard_normal(CHAINS))},
    }
    options: dict[str, Any] = {"tuning_steps": 120, "steps": 240, "thin": 3, "chunk": 2, "energy_variance": 5e-5}
    folder = tmp_path_factory.mktemp("chains")
    chain = infer.sample(posterior, positions, key=jax.random.key(3), output=folder, keep_noise=True, **options)
    return chain, wiener(data, k, amplitude)


def test_modes_of_each_scale_have_the_right_means_and_variances(sampled: tuple[infer.Chain, Wiener]) -> None:
    chain, expected = sampled
    modes = np.fft.fftn(chain.noise, axes=(2, 3, 4), norm="ortho")
    away = (modes - expected.mean) / np.sqrt(expected.variance)
    scale = np.digitize(expected.k, (0.1, 0.15, 0.2))
    assert expected.variance.min() < 0.2 and expected.variance.max() > 0.95  # what data fix, and what they do not
    for of_scale in range(4):
        here = away[..., scale == of_scale]  # (draws, chains, modes)
        means = here.mean(axis=0)
        error = np.mean(abs(means - means.mean(axis=0)) ** 2) / (CHAINS - 1)  # of the mean over chains
        # Over the n real and imaginary parts that are independent a variable of F, of variance 2 / n * C / (C - 1).
        spread = math.sqrt(2 / here.shape[-1] * CHAINS / (CHAINS - 1))
        assert abs(np.mean(abs(means.mean(axis=0)) ** 2) / error - 1) < 4 * spread
        assert error < 0.03  # 0.17 of the standard deviation of a mode
        variances = np.mean(abs(here) ** 2, axis=0)
        error = variances.std() * math.sqrt(2 / variances.size)  # a mode and its conjugate are one
        assert abs(variances.mean() - 1) < 4 * error < 0.15


def test_the_parameter_has_its_marginal_posterior(sampled: tuple[infer.Chain, Wiener]) -> None:
    """Density times evidence, with all modes integrated out: mean, standard deviation and quantiles."""
    chain, expected = sampled
    draws = chain.parameters["b1"]
    mean = float(np.sum(expected.b1 * expected.probability))
    sd = math.sqrt(float(np.sum((expected.b1 - mean) ** 2 * expected.probability)))
    assert sd < 0.4 * PRIOR.sd  # it is the data that say so
    size = infer.ess_mean(draws)
    assert size > 250
    assert abs(draws.mean() - mean) < 4 * sd / math.sqrt(size)
    assert abs(np.std(draws) / sd - 1) < 4 / math.sqrt(2 * infer.ess_mean((draws - mean) ** 2))
    below = np.cumsum(expected.probability)
    for share in (0.16, 0.5, 0.84):
        under = draws < np.interp(share, below, expected.b1)
        error = math.sqrt(share * (1 - share) / infer.ess_mean(under.astype(float)))
        assert abs(under.mean() - share) < 4 * error < 0.15
