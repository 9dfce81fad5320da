"""Predictive checks: comparisons of data with draws of a model.

A statistic S of data, modes and parameters is compared with replications, t = (S - mean) / sd, where data are new draws
from the likelihood and modes are new draws from their prior. In a right model a draw of the posterior has the
distribution of the truth: its t has mean 0 and variance 1 over data (Johnson 2007, Bayesian Analysis 2, 719). By the
law of total variance the posterior mean of t has the variance 1 - Var(t | data), which the draws give. Their quotient z
is standard normal. A posterior predictive p-value, the mean over draws, is not uniform but near 1/2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmwd_dist._jax.program import filter_jit
from pmwd_dist.config import Config
from pmwd_dist.infer.likelihoods import masked
from pmwd_dist.infer.model import Posterior
from pmwd_dist.parallel.distributed import to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import prfft3d
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.fourier import counted_modes

PRIOR_DRAWS = 40
_REPLICATIONS = 8  # per draw
_ROUNDING = 1e-6  # bound for statistics of modes that the likelihood does not compare
_MEAN_SQUARES = ("power", "variance")
_BANDS = (0.5, 1.0)  # upper ends of the first two bands in units of the Nyquist frequency


class Check(NamedTuple):
    """A statistic of data compared with replications.

    Args:
      ratio: value over the mean of the replications, for powers and variances; NaN for others, whose mean is 0.
      z: posterior mean of the deviation, in units of its standard deviation for data of the model.
    """

    ratio: float
    z: float

    @property
    def p(self) -> float:
        """Probability of a larger deviation where the model is right."""
        return math.erfc(abs(self.z) / math.sqrt(2))


@on_auto_axes
def check_fit(posterior: Posterior, noise: Array, parameters: Mapping[str, Array], key: Array) -> dict[str, Check]:
    """Compare data with replications by the draws of a posterior, by name of the statistic.

    Statistics of residuals are their variance, their skewness, and in bands of wavenumbers their power and their
    correlation with the prediction. Statistics of the initial modes are their skewness and their power. Maps have the
    `statistics` of their likelihood in place of bands. Likelihoods without a `residual` have checks of initial modes
    only.

    Args:
      posterior: posterior, given the data.
      noise: white noise of the draws, (draws, nx, ny, nz).
      parameters: parameters of the draws, by name.
      key: random key.

    Examples:
      >>> checks = infer.check_fit(posterior, noise, {"b1": b1}, jax.random.key(0))
    """
    keys = jax.random.split(key, len(noise))
    statistics = to_host(_compared(posterior.model, posterior.data, (keys, noise, dict(parameters))))
    checks = {name: _check(name, *x) for name, x in statistics.items()}
    return {name: check for name, check in checks.items() if math.isfinite(check.z)}


@on_auto_axes
def check_prior(posterior: Posterior, key: Array, draws: int = PRIOR_DRAWS) -> dict[str, Check]:
    """Compare data with data that the prior predicts, by name of the statistic.

    Statistics of the data, where the mask shows them, are their mean, variance and skewness, and on a mesh their power
    in bands of wavenumbers. Each z is the normal score of the rank of the data among the predictions. Where the model
    is right, p has the uniform distribution of ranks. It is at least 1 / (draws + 1).

    Args:
      posterior: posterior, given the data.
      key: random key.
      draws: number of draws from the prior, each with one forward model.
    """
    from scipy.special import ndtri

    draws = whole_number(draws, "draws", least=1)
    value, predicted, fine = to_host(_predicted(posterior.model, posterior.data, jax.random.split(key, draws)))
    checks = dict[str, Check]()
    for name, x in predicted.items():
        ranked = x[fine]
        share = (np.sum(ranked < value[name]) + np.sum(ranked <= value[name]) + 1) / 2 / (len(ranked) + 1)
        ratio = float(value[name] / ranked.mean()) if name.startswith(_MEAN_SQUARES) else math.nan
        checks[name] = Check(ratio, float(ndtri(share)))
    return checks


@filter_jit
def _predicted(model: Any, data: Array, keys: Array) -> Any:
    """Statistics of the data and of predictions of the prior, and whether the forward models succeeded."""
    config, likelihood = model.config, model.likelihood

    def statistics(data: Array) -> dict[str, Array]:
        x = masked(data, likelihood.mask)
        moments = {"mean of data": jnp.mean(x), "variance of data": jnp.var(x), "skewness of data": _skewness(x)}
        return moments | (_powers("data", x, config) if x.shape == config.mesh_shape else {})

    def one(key: Array) -> Any:
        keys = jax.random.split(key)
        position = model.draw_around(keys[0], {})
        numbers = model.parameters(position)
        field, fine = model.predict(position["noise"], numbers)
        return statistics(likelihood.draw(keys[1], field, numbers, config)), fine

    return statistics(data), *jax.lax.map(one, keys)


def shows_another_window(checks: Mapping[str, Check], smallest: float) -> bool:
    """Whether residuals look like the ones of data with another window on the mesh than the model.

    As the difference of two windows, their power rises with the wavenumber, and beyond the Nyquist frequency they
    follow the prediction, or oppose it.

    Args:
      checks: checks of the fit.
      smallest: largest probability of a check that has failed.
    """
    powers, correlations = (
        [check for name, check in sorted(checks.items()) if name.startswith(f"{what} at")]  # by wavenumber
        for what in ("power of residuals", "residual-prediction correlation")
    )
    if len(powers) < len(_BANDS) + 1 or not correlations:
        return False
    rises = all(low.ratio < high.ratio for low, high in itertools.pairwise(powers))
    return rises and powers[-1].p < smallest and powers[-1].z > 0 and correlations[-1].p < smallest


def deviation(value: np.ndarray, replicated: np.ndarray) -> float:
    """Posterior mean of the deviation of a statistic, in units of its standard deviation for data of the model.

    `value` is the statistic of each draw, and `replicated` of its replications, (draws, replications).
    """
    draws, count = replicated.shape
    spread = math.sqrt(float(np.mean(np.var(replicated, axis=1, ddof=1))) * (1 + 1 / count))
    if spread < _ROUNDING:
        return math.nan
    t = (value - replicated.mean(axis=1)) / spread
    # Subtract one standard error from the variance among draws: an overestimate would make z too large.
    among = min(1.0, float(np.var(t, ddof=1))) * max(0.0, 1 - math.sqrt(2 / (draws - 1))) if draws > 1 else 0.0
    return float(t.mean()) / math.sqrt(1 - among * (1 - 1 / draws))


def _check(name: str, value: np.ndarray, replicated: np.ndarray) -> Check:
    if not name.startswith(_MEAN_SQUARES):
        return Check(math.nan, deviation(value, replicated))
    if replicated.mean() < _ROUNDING:
        return Check(math.nan, math.nan)
    # The cube root of a mean square is nearly normal (Wilson & Hilferty 1931).
    return Check(float(value.mean() / replicated.mean()), deviation(np.cbrt(value), np.cbrt(replicated)))


@filter_jit
def _compared(model: Any, data: Array, draws: Any) -> dict[str, tuple[Array, Array]]:
    """Statistics of each draw, and of its replications."""
    config, likelihood = model.config, model.likelihood

    def one(drawn: tuple[Array, Array, Any]) -> tuple[Any, Any]:
        key, noise, numbers = drawn
        field, _ = model.predict(noise, numbers)

        def statistics(data: Array, noise: Array) -> dict[str, Array]:
            residual = likelihood.residual(data, field, numbers, config)
            of_modes = _powers("initial modes", noise, config) | {"skewness of initial modes": _skewness(noise)}
            if residual is None:
                return of_modes
            return _of_residual(residual, field, config) | likelihood.statistics(residual) | of_modes

        def replication(key: Array) -> dict[str, Array]:
            keys = jax.random.split(key)
            anew = jax.lax.with_sharding_constraint(jax.random.normal(keys[1], noise.shape), noise_sharding)
            return statistics(likelihood.draw(keys[0], field, numbers, config), anew)

        return statistics(data, noise), jax.lax.map(replication, jax.random.split(key, _REPLICATIONS))

    noise_sharding = config.decomposition.sharding
    value, replicated = jax.lax.map(one, draws)
    return {name: (value[name], replicated[name]) for name in value}


def _of_residual(residual: Array, field: Array, config: Config) -> dict[str, Array]:
    statistics = {"variance of residuals": jnp.mean(residual**2), "skewness of residuals": _skewness(residual)}
    shape = field - jnp.mean(field)
    if residual.shape != config.mesh_shape:
        return statistics | {"residual-prediction correlation": jnp.mean(residual * shape) / jnp.std(shape)}
    of_field = _in_bands(shape, shape, config)
    for name, product in _in_bands(residual, shape, config).items():
        statistics[f"residual-prediction correlation at {name}"] = product / jnp.sqrt(of_field[name])
    return statistics | _powers("residuals", residual, config)


def _powers(what: str, x: Array, config: Config) -> dict[str, Array]:
    """Power of a field in each band."""
    return {f"power of {what} at {name}": power for name, power in _in_bands(x, x, config).items()}


def _skewness(x: Array) -> Array:
    """Third central moment over the cube of the standard deviation; 0 for constants."""
    centred = x - jnp.mean(x)
    square = jnp.mean(centred**2)
    return jnp.mean(centred**3) / jnp.where(square > 0, square, 1) ** 1.5


def _in_bands(x: Array, y: Array, config: Config) -> dict[str, Array]:
    """Mean over the modes of each band of the product of two fields, in units of the variance of a cell."""
    decomposition, shape = config.decomposition, (x.shape[0], x.shape[1], x.shape[2])
    nyquist = math.pi * min(n / length for n, length in zip(shape, config.box_size, strict=True))
    half, whole = (end * nyquist for end in _BANDS)
    k2, count = counted_modes(shape, config, x.dtype)
    band = sum(jnp.where(k2 < end**2 * (1 + 1e-5), 0, 1) for end in (half, whole))
    count = jnp.where(k2 > 0, count, 0)
    one, other = (prfft3d(field, decomposition, norm="ortho") for field in (x, y))
    product = count * (one.real * other.real + one.imag * other.imag)
    names = f"k < {half:.2g} h/Mpc", f"k = {half:.2g} to {whole:.2g} h/Mpc", f"k > {whole:.2g} h/Mpc"

    def mean(i: int) -> Array:
        inside = band == i
        return jnp.sum(jnp.where(inside, product, 0)) / jnp.maximum(jnp.sum(jnp.where(inside, count, 0)), 1)

    return {name: mean(i) for i, name in enumerate(names)}
