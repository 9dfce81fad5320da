"""Checks of the fit, by exact posteriors: p-values of a right model are uniform or conservative, of a wrong one low."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest
from scipy.stats import kstest

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer.forward import wavevectors
from pmwd_dist.infer.predictive_checks import check_fit, check_prior, deviation, shows_another_window

CONFIG = pmd.Config(160.0, 8, a_stop=0.5, steps=2, lpt_order=2, decomposition=(1, 1))
DRAWS, MOCKS = 24, 60
VARIANCE, SKEWNESS = "variance of residuals", "skewness of initial modes"
LARGE, BEYOND = "k < 0.079 h/Mpc", "k > 0.16 h/Mpc"


def linear_model(likelihood: Any, bias: float = 1.8, config: pmd.Config = CONFIG) -> infer.Model:
    """Galaxies in linear theory with nothing free but the noise, whose posterior is known exactly without a mask."""
    return infer.Model(config, infer.LinearField(config, jax_cosmo.Planck15(), bias=bias), {}, likelihood)


@eqx.filter_jit
def exact_draws(posterior: infer.Posterior, key: Any, count: int) -> Any:
    return jax.vmap(lambda k: posterior.from_latent(posterior.initial(k))[0])(jax.random.split(key, count))


def checks_of(model: infer.Model, data: Any, seed: int = 0, draws: int = DRAWS) -> dict[str, infer.Check]:
    posterior = model.condition(data)
    return check_fit(posterior, exact_draws(posterior, jax.random.key(seed), draws), {}, jax.random.key(seed + 1))


def mock(model: infer.Model, seed: int) -> Any:
    keys = jax.random.split(jax.random.key(seed))
    return model.mock(keys[1], model.draw(keys[0]))


@pytest.mark.slow
def test_p_values_over_mocks_are_uniform_for_powers_of_modes_and_conservative_for_residuals() -> None:
    model = linear_model(infer.Gaussian(0.5))
    checks = [checks_of(model, mock(model, seed), seed) for seed in range(MOCKS)]
    assert len(checks[0]) == 12
    for name in checks[0]:
        z, p = (np.array([getattr(c[name], value) for c in checks]) for value in ("z", "p"))
        assert abs(z.mean()) < 3.5 * max(z.std(), 0.3) / MOCKS**0.5 and z.std() < 1.25, name
        assert np.mean(p < 0.1) < 0.1 + 3 * (0.09 / MOCKS) ** 0.5, name
        if "power of initial modes" in name:
            assert z.std() > 0.75 and kstest(p, "uniform").pvalue > 1e-3, name
    assert min(check.p for c in checks for check in c.values()) > 1e-3 / MOCKS


@pytest.mark.slow
def test_p_values_of_the_prior_are_uniform_over_mocks_and_low_for_other_data() -> None:
    model = linear_model(infer.Gaussian(0.5))
    checks = [
        check_prior(model.condition(mock(model, seed)), jax.random.key(seed + 1000)) for seed in range(100, 100 + MOCKS)
    ]
    assert set(checks[0]) >= {"mean of data", "variance of data", "skewness of data", f"power of data at {LARGE}"}
    for name in checks[0]:
        p = np.array([c[name].p for c in checks])
        assert kstest(p, "uniform").pvalue > 1e-3 and p.min() >= 1 / 41, name
    ratios = [c["variance of data"].ratio for c in checks]
    assert np.mean(ratios) == pytest.approx(1, abs=4 * np.std(ratios) / MOCKS**0.5)
    loud = check_prior(model.condition(1 + 2 * (mock(model, 0) - 1)), jax.random.key(0))
    assert loud["variance of data"].ratio > 2.5 and loud["variance of data"].p == pytest.approx(1 / 41)


def test_a_prior_without_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="draws=0 must be a whole number, 1 or more"):
        check_prior(None, jax.random.key(0), draws=0)  # type: ignore[arg-type]


def test_deviations_of_correlated_draws_are_standard_normal() -> None:
    rng = np.random.default_rng(0)
    for shared in (0.2, 0.8):
        z = []
        for _ in range(2000):
            value = shared**0.5 * rng.normal() + (1 - shared) ** 0.5 * rng.normal(size=40)
            z.append(deviation(3 + 2 * value, 3 + 2 * rng.normal(size=(40, 400))))
        assert 0.75 < np.std(z) < 1.05 and abs(np.mean(z)) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (VARIANCE, {"sigma": 1.0}),
        (f"power of initial modes at {LARGE}", {"bias": 4.0}),
        (SKEWNESS, {"skewed": True}),
    ],
)
def test_data_of_another_model_fail_the_checks(name: str, wrong: dict[str, Any]) -> None:
    model, key = linear_model(infer.Gaussian(0.5)), jax.random.key(1)
    truth = linear_model(infer.Gaussian(wrong.get("sigma", 0.5)), wrong.get("bias", 1.8))
    position = truth.draw(key)
    if "skewed" in wrong:
        position["noise"] = jax.random.exponential(key, (8,) * 3) - 1
    found = checks_of(model, truth.mock(jax.random.key(2), position))
    assert found[name].p * len(found) < 0.01 and found[name].z > 0
    assert "skewed" in wrong or found[name].ratio > 1.2


class Painted(infer.LinearField):
    """Galaxies in linear theory with a window on the mesh, of 1, 2 or 3 cells along an axis."""

    order: Any = 2.0

    def _factor(self, parameters: Any, table: Any) -> Any:
        k = zip(wavevectors(self.config), self.config.cell_size, strict=True)
        window = math.prod(jnp.sinc(ki * side / (2 * np.pi)) for ki, side in k)
        return super()._factor(parameters, table) * window**self.order


def nearest_cell_counts(field: np.ndarray, config: pmd.Config) -> Any:
    """Counts by the nearest cell of 64 objects in each cell, with the interpolated field as weights."""
    n, fine = field.shape[0], 4 * field.shape[0]
    waves = np.exp(2j * np.pi * np.outer((np.arange(fine) + 0.5) / 4, np.fft.fftfreq(n))) / n
    waves[:, n // 2] = waves[:, n // 2].real
    modes = np.fft.fftn(field)
    weights = np.einsum("ax,by,cz,xyz->abc", waves, waves, waves, modes, optimize=True).real.ravel()
    positions = (np.indices((fine,) * 3).reshape(3, -1).T + 0.5) * config.cell_size[0] / 4
    above = weights - weights.min()
    return pmd.observe.counts_from_catalogue(positions, config, weights=above / 64, window="nearest") + weights.min()


@pytest.mark.filterwarnings("ignore:positions. objects keep to a lattice")
def test_counts_by_the_nearest_cell_fail_a_cloud_in_cell_model_and_the_window_is_named() -> None:
    config, noise = pmd.Config(160.0, 16, a_stop=0.5, decomposition=(1, 1)), np.random.default_rng(0)
    points = infer.LinearField(config, jax_cosmo.Planck15(), bias=1.8)
    field = np.asarray(points(noise.standard_normal((16,) * 3), {}))
    data = nearest_cell_counts(field, config) + 0.3 * noise.standard_normal((16,) * 3)
    for order in (1.0, 2.0):
        forward = Painted(config, jax_cosmo.Planck15(), bias=1.8, order=jnp.asarray(order))
        found = checks_of(infer.Model(config, forward, {}, infer.Gaussian(0.3)), data)
        assert shows_another_window(found, 0.01 / len(found)) == (order == 2)
        assert (min(check.p for check in found.values()) > 0.01 / len(found)) == (order == 1)
    assert not shows_another_window({name: found[name] for name in (VARIANCE, SKEWNESS)}, 0.1)  # of maps


def test_checks_ignore_modes_outside_the_likelihood() -> None:
    model = linear_model(infer.Gaussian(0.5, k_max=0.1))
    data = mock(model, 3)
    modes = np.fft.rfftn(np.asarray(data))
    k = [2 * np.pi * np.fft.fftfreq(8, 20.0)] * 2 + [2 * np.pi * np.fft.rfftfreq(8, 20.0)]
    high = sum(x**2 for x in np.meshgrid(*k, indexing="ij")) > 0.1**2 * 1.001
    found = checks_of(model, np.fft.irfftn(np.where(high, 10 * modes, modes), data.shape, axes=(0, 1, 2)))
    assert not any("residual" in name and BEYOND in name for name in found)
    assert min(check.p for check in found.values()) > 1e-3


@pytest.mark.slow
def test_divided_fields_have_the_same_checks() -> None:
    data = np.asarray(mock(linear_model(infer.Gaussian(0.5)), 7))
    one = checks_of(linear_model(infer.Gaussian(0.5)), data)
    config = pmd.Config(160.0, 8, a_stop=0.5, steps=2, lpt_order=2, decomposition=(2, 2))
    model = linear_model(infer.Gaussian(0.5), config=config)
    for name, check in checks_of(model, data).items():
        assert check == pytest.approx(one[name], abs=1e-3, nan_ok=True), name
