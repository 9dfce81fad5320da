"""Diagnostics of chains, on the host: R-hat and effective sample sizes by ArviZ (Vehtari et al. 2021, 1903.08008).

Fewer than four draws, or values that are not finite, are a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from pmwd_dist._checks import check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer import constants
from pmwd_dist.parallel.inputs import whole_number

Chains = Float[np.ndarray, "chains draws"]


def rhat(x: Chains) -> float:
    """The larger of the rank-normalised split R-hat of the draws and of their distances from the median.

    It is infinite for constant draws, since chains that never moved show no convergence. The halves of a single chain
    count as two chains; with fewer than eight draws it is NaN.
    """
    x = _checked(x)
    if len(x) == 1:
        half = x.shape[1] // 2
        x = np.concatenate([x[:, :half], x[:, -half:]])
    with np.errstate(divide="ignore", invalid="ignore"):  # chains of one value each
        return math.inf if np.ptp(x) == 0 else float(_arviz().rhat(x))


def ess_bulk(x: Chains) -> float:
    """Effective sample size of the centre of the distribution; 1 for constant draws."""
    return _ess(x, method="bulk")


def ess_tail(x: Chains) -> float:
    """Effective sample size of the tails: the smaller size of the 5 % and 95 % quantiles; 1 for constant draws."""
    return _ess(x, method="tail", prob=(0.05, 0.95))


def ess_mean(x: Chains) -> float:
    """Effective sample size of the mean, whose standard error is the standard deviation over the root of this.

    It is 1 for constant draws.
    """
    return _ess(x, method="mean")


def summary(draws: Mapping[str, Chains]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation, R-hat and effective sample sizes of each parameter.

    Examples:
      >>> infer.summary(chain.parameters)["b1"]
    """

    def row(x: Chains) -> dict[str, float]:
        x = _checked(x)
        moments = {"mean": float(np.mean(x)), "sd": float(np.std(x, ddof=1))}
        return moments | {"rhat": rhat(x), "ess_bulk": ess_bulk(x), "ess_tail": ess_tail(x)}

    check_type(draws, Mapping, "draws", "must be a mapping from names", "pass chain.parameters")
    return {name: row(x) for name, x in draws.items()}


def evaluations_per_ess(draws: Mapping[str, Chains], evaluations: int) -> float:
    """Number of gradients of all chains per effective sample, the harmonic mean over parameters (arXiv 2504.20130).

    Effective sample sizes are `ess_mean`.
    """
    check_type(draws, Mapping, "draws", "must be a mapping from names", "pass chain.parameters")
    if not draws:
        raise ArgumentError("draws", draws, "has no parameters")
    return evaluations * float(np.mean([1 / ess_mean(x) for x in draws.values()]))


def stuck(x: Chains) -> dict[int, int]:
    """Chains with the same draw in a row for more than half of their length, and the number of these draws."""
    longest_runs = dict[int, int]()
    for chain, draws in enumerate(np.asarray(x)):
        changes = np.flatnonzero(np.diff(draws)) + 1
        longest = int(np.max(np.diff(np.concatenate([[0], changes, [len(draws)]]))))
        if longest > max(0.5 * len(draws), 1):
            longest_runs[chain] = longest
    return longest_runs


def energy_errors(energy_change: Chains, dimensions: int) -> dict[str, float]:
    """Variance of the energy errors of steps, per dimension, and their share of outliers.

    MCLMC has no Metropolis step that would reject large errors. The target of its tuning is a variance of 1e-3, and far
    less than 1e-3 of the steps should be beyond ten standard deviations of this.
    """
    x, dimensions = _checked(energy_change, 1), whole_number(dimensions, "dimensions", least=1)
    limit = 10 * math.sqrt(1e-3 * dimensions)
    return {"variance": float(np.var(x)) / dimensions, "outliers": float(np.mean(np.abs(x) > limit))}


def step_bias(x: Chains, density_shift: Chains) -> tuple[float, float]:
    """First-order discretisation bias of the mean by MCLMC, in standard deviations, and its Monte Carlo error.

    The sampled density is the posterior times exp(density_shift), which moves the mean by their covariance. The shift
    is a sum over all dimensions: a parameter on which the widths of a large field depend is biased even if the energy
    error per dimension is small. The bias goes as the square of the step.

    Args:
      x: draws.
      density_shift: shift of the log density at these draws (`Chain.density_shift`); 0 with a Metropolis step.
    """
    x, shift = _checked(x), _checked(density_shift)
    if x.shape != shift.shape:
        raise ArgumentError("density_shift.shape", shift.shape, f"is not that of the draws, {x.shape}")
    width = float(np.std(x))
    if width == 0 or not shift.any():
        return 0.0, 0.0
    # About the mean of each chain, since chains may not be mixed. `left` restores the slow part of the variance.
    product = (x - x.mean(axis=1, keepdims=True)) * (shift - shift.mean(axis=1, keepdims=True)) / width
    left = max(1 - x.shape[0] / ess_mean(x), constants.LEAST_LEFT)
    return float(np.mean(product)) / left, float(np.std(product)) / math.sqrt(ess_mean(product)) / left


def bias_slopes(chain: Any, priors: Mapping[str, Any]) -> dict[str, float]:
    """Slopes with each whitened parameter of a log density whose draws have no discretisation bias to first order.

    Chains of the density p exp(-b v), with independent combinations v = R^-1 (u - mean) of the whitened parameters u
    and b = Cov(s, v), have draws of p to first order in the density shift s (docs/explanation/tuning.md). The shift of
    the chain, whose draws are mixed, includes the correction that it was drawn with.
    """
    # A draw at a bound in floating-point precision is infinitely far away.
    white = [np.clip(np.asarray(priors[name].inverse(x), float), -8, 8) for name, x in chain.parameters.items()]
    u, s = np.stack([x.ravel() for x in white]), np.asarray(chain.density_shift, float).ravel()
    u, s = u - u.mean(axis=1, keepdims=True), s - s.mean()
    root = np.linalg.cholesky(u @ u.T / s.size + 1e-12 * np.eye(len(u)))
    v = np.linalg.solve(root, u)
    b = v @ s / s.size
    products = [x.reshape(white[0].shape) for x in v * (s - b @ v)]
    error = np.array([np.std(x) / math.sqrt(ess_mean(x)) for x in products])
    shrunk = b**3 / np.maximum(b**2 + error**2, 1e-300)
    return dict(zip(chain.parameters, (-np.linalg.solve(root.T, shrunk)).tolist(), strict=True))


class StepErrors(NamedTuple):
    """Errors of draws by MCLMC whose steps are too long.

    Args:
      unstable: sentence about large energy errors, with the range of parameters, if there are any.
      biased: sentence about each discretisation bias.
      unmixed: parameters whose chains have not mixed, with R-hat and effective sample size. They show no bias.
      factor: factor of the step size at which the errors should be small; 1 without errors.
      corrected_factor: the same if shifts of means are corrected.
    """

    unstable: list[str]
    biased: list[str]
    unmixed: list[str]
    factor: float
    corrected_factor: float

    @property
    def reasons(self) -> list[str]:
        """Sentences about all errors."""
        return self.unstable + self.biased


def step_errors(chain: Any, energy_variance: float, largest_bias: float = constants.LARGEST_BIAS) -> StepErrors:
    """Errors of the draws of a chain by finite steps: the energy error, its tail, and the discretisation bias.

    The bias goes as the square of the step if steps are stable. A bias counts if it is larger than three of its errors.

    The chain is one of MCLMC whose tuning aimed at this variance of the energy error of a step per dimension.
    """
    unstable, biased = _energy_reasons(chain, energy_variance), list[str]()
    unmixed, factors = list[str](), {"shift": 1.0, "change the width of": 1.0}
    for name, draws in chain.parameters.items():
        x = np.asarray(draws, float)
        if x.shape[1] < 4:
            continue
        if (ratio := rhat(x)) > constants.UNMIXED or ess_mean(x) < constants.FEWEST_EFFECTIVE:
            unmixed.append(f"{name} (R-hat {ratio:.2f}, {ess_mean(x):.0f} effective samples)")
            continue
        square = 0.5 * ((x - x.mean()) / x.std()) ** 2
        of_width = square.std() * np.array(step_bias(square, chain.density_shift))
        for (bias, error), what, most in (
            (step_bias(x, chain.density_shift), "shift", largest_bias),
            (of_width, "change the width of", constants.LARGEST_WIDTH_BIAS),
        ):
            if abs(bias) > max(most, 3 * error):
                biased.append(f"steps {what} {name} by {bias:+.3f} ± {error:.3f} standard deviations")
                factor = max(constants.SHORTEST_FACTOR, math.sqrt(constants.AIM * most / abs(bias)))
                factors[what] = min(factors[what], factor)
    if unstable:
        return StepErrors(unstable, biased, unmixed, constants.SHORTER, constants.SHORTER)
    return StepErrors(unstable, biased, unmixed, min(factors.values()), factors["change the width of"])


def _energy_reasons(chain: Any, energy_variance: float) -> list[str]:
    """A sentence about energy errors far beyond the target, of a chain or where a parameter is large or small."""
    dimensions = chain.noise_mean.size + len(chain.parameters)
    if chain.energy_change.shape[1] < constants.FEWEST_STEPS:
        return []
    largest = float(np.max(np.var(chain.energy_change, axis=1))) / dimensions
    where, tail = _energy_tail(chain, dimensions)
    if largest <= constants.CHAIN_VARIANCE * energy_variance and tail <= constants.TAIL_VARIANCE * energy_variance:
        return []
    of_tail = f", and {tail:.1e} {where}" if where else ""
    return [f"the variance of the energy error is up to {largest:.1e} a dimension in a chain{of_tail}"]


def _energy_tail(chain: Any, dimensions: int) -> tuple[str, float]:
    """Range of a parameter in which the energy error is largest, and its variance per dimension there."""
    worst = "", 0.0
    for name, x in chain.parameters.items():
        draws = np.asarray(x, float).ravel()
        energies = np.asarray(chain.energy_change, float).reshape(draws.size, -1)
        order, count = np.argsort(draws), min(constants.PARTS, energies.size // constants.FEWEST_STEPS)
        parts = np.array_split(order, count) if count > 1 else []
        for part in parts:
            variance, (low, high) = float(np.var(energies[part])) / dimensions, draws[part[[0, -1]]]
            if variance > worst[1]:
                worst = f"where {name} is from {low:.3g} to {high:.3g}", variance
    return worst


def _checked(x: Any, least: int = 4) -> np.ndarray:
    try:
        x = np.asarray(x, float)
    except (TypeError, ValueError):
        x = np.zeros(())
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < least:
        raise ArgumentError("draws.shape", x.shape, f"must be (chains, draws) with {least} draws or more")
    if not np.isfinite(x).all():
        raise ArgumentError("draws", x, "holds values that are no finite numbers", show_value=False)
    return x


def _ess(x: Chains, **options: Any) -> float:
    x = _checked(x)
    return 1.0 if np.ptp(x) == 0 else float(_arviz().ess(x, **options))


def _arviz() -> Any:
    from arviz_stats.base.array import array_stats  # slow to import

    return array_stats
