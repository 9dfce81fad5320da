"""Priors of parameters as bijections from a standard normal variable, the whitened parameter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.special import ndtr, ndtri
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.order import stored
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology.parameters import RANGES
from pmwd_dist.cosmology.sampled_parameters import bound_of


class Prior(Protocol):
    """The distribution of a parameter, as the image of a standard normal variable u."""

    def forward(self, u: ArrayLike) -> Array:
        """The parameter at u."""
        ...

    def inverse(self, value: ArrayLike) -> Array:
        """The u of a parameter; not finite where the prior excludes it."""
        ...


@dataclass(frozen=True)
class Normal:
    """A normal distribution, truncated where low or high is given.

    Args:
      mean, sd: mean and standard deviation before truncation.
      low, high: bounds; default: none.

    Raises:
      ValueError: a number that is not finite, sd not positive, or bounds that leave less than 1e-6 of the distribution.
    """

    mean: float
    sd: float
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self):
        _check_numbers(self, infinite=("low", "high"))
        _, _, between = self._shares
        if between < 1e-6:
            constraint = f"leaves less than 1e-6 of Normal({self.mean}, {self.sd}) up to high={self.high}"
            raise ArgumentError("low", self.low, constraint, "widen the bounds, or use Uniform")

    @property
    def _shares(self) -> tuple[float, float, float]:
        """Probabilities below, above and between the bounds."""
        low, high = (self.low - self.mean) / self.sd, (self.high - self.mean) / self.sd
        below, above = math.erfc(-low / math.sqrt(2)) / 2, math.erfc(high / math.sqrt(2)) / 2
        return below, above, 1 - below - above

    def forward(self, u: ArrayLike) -> Array:
        """The parameter at u, by quantiles from the nearer end of the normal, which keep their precision."""
        u = jnp.asarray(u, float)
        if math.isinf(self.low) and math.isinf(self.high):
            return self.mean + self.sd * u
        return jnp.clip(self.mean + self.sd * _truncated(u, *self._shares), self.low, self.high)

    def inverse(self, value: ArrayLike) -> Array:
        """The u of a parameter."""
        x = (jnp.asarray(value, float) - self.mean) / self.sd
        if math.isinf(self.low) and math.isinf(self.high):
            return x
        return _untruncated(x, *self._shares)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
@jit
def _truncated(u: Array, below: float, above: float, between: float) -> Array:
    """A standard normal variable truncated by two tail probabilities, at the quantile of u."""
    left, right = below + between * ndtr(u), above + between * ndtr(-u)  # the smaller one has all its digits
    x = ndtri(jnp.minimum(left, right))
    return stored(jnp.where(left < right, x, -x))


@_truncated.defjvp
def _truncated_jvp(
    below: float, above: float, between: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """The ratio of the two densities is the slope: a small program, unlike the derivatives of the quantiles."""
    (u,), (du,) = primals, tangents
    x = _truncated(u, below, above, between)
    return x, between * jnp.exp(0.5 * (x - u) * (x + u)) * du


@jit
def _untruncated(x: Array, below: float, above: float, between: float) -> Array:
    """The inverse of `_truncated`."""
    left = jnp.where(x < 0, ndtr(x) - below, above + between - ndtr(-x)) / between
    right = jnp.where(x < 0, below + between - ndtr(x), ndtr(-x) - above) / between
    u = ndtri(jnp.minimum(left, right))
    return jnp.where(left < right, u, -u)


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution from low to high.

    Raises:
      ValueError: bounds that are not finite, or not in order.
    """

    low: float
    high: float

    def __post_init__(self):
        _check_numbers(self)

    def forward(self, u: ArrayLike) -> Array:
        """The parameter at u, by quantiles from the nearer end."""
        u = jnp.asarray(u, float)
        tail = (self.high - self.low) * ndtr(jnp.where(u < 0, u, -u))
        return jnp.where(u < 0, self.low + tail, self.high - tail)

    def inverse(self, value: ArrayLike) -> Array:
        """The u of a parameter."""
        value, width = jnp.asarray(value, float), self.high - self.low
        left = ndtri((value - self.low) / width)
        return jnp.where(left < 0, left, -ndtri((self.high - value) / width))


@dataclass(frozen=True)
class LogNormal:
    """The distribution of a positive parameter whose logarithm is normal.

    Args:
      median: median of the parameter.
      sd: standard deviation of its logarithm.

    Raises:
      ValueError: a number that is not finite and positive.
    """

    median: float
    sd: float

    def __post_init__(self):
        _check_numbers(self)

    def forward(self, u: ArrayLike) -> Array:
        """The parameter at u."""
        return self.median * jnp.exp(self.sd * jnp.asarray(u, float))

    def inverse(self, value: ArrayLike) -> Array:
        """The u of a parameter."""
        return jnp.log(jnp.asarray(value, float) / self.median) / self.sd


def check_priors(priors: Any, noise: tuple[str, ...]) -> None:
    """Raise ValueError unless all are priors in bounds, with a width that the floating-point precision resolves.

    The parameters `noise` of the likelihood are positive. A warning names priors that reach a bound of zero.
    """
    if not isinstance(priors, Mapping):
        raise ArgumentError("priors", priors, "must be a mapping from names", 'for example {"b1": infer.Normal(1, 1)}')
    for name, prior in priors.items():
        if not all(callable(getattr(prior, method, None)) for method in ("forward", "inverse")):
            raise ArgumentError(f"priors[{name!r}]", prior, "is no prior", "use infer.Normal, Uniform or LogNormal")
        with jax.ensure_compile_time_eval():
            values = np.asarray(prior.forward(jnp.asarray([-2.0, 0.0, 2.0])))
        if not np.isfinite(values).all() or len(set(values.tolist())) < 3:
            constraint = f"has {', '.join(f'{x:g}' for x in values)} as its median and two deviations from it"
            remedy = f"numbers are {values.dtype}: use another sd, other bounds, or other units"
            raise ArgumentError(f"priors[{name!r}]", prior, constraint, remedy)
        bound = "positive" if name in noise else bound_of(name)
        if bound == "positive" and not values[1] > 0:
            raise ArgumentError(f"priors[{name!r}]", prior, "has a median that is not positive", "bound it from below")
        least = getattr(prior, "low", 0.0)
        least = least if math.isfinite(least) else values[0] if bound == "not negative" else 0.0
        if bound and least < 0:
            constraint = f"allows {least:.3g}, and {name} is not negative"
            raise ArgumentError(f"priors[{name!r}]", prior, constraint, "bound it from below with low")
        low, high, kind = RANGES.get(name, (-math.inf, math.inf, ""))
        if values[2] > high or (not bound and values[0] < low):
            value = values[2] if values[2] > high else values[0]
            constraint = f"allows {value:.3g}, within two deviations of its median, and {name} is {kind}"
            raise ArgumentError(f"priors[{name!r}]", prior, constraint, f"use bounds from {low:g} to {high:g}")
        if bound == "positive" and values[0] <= 0:
            text = "0 is within two deviations of its median; bound it from below with low"
            warnings.warn(f"priors[{name!r}]: {text}", stacklevel=5)  # equinox calls Model.__init__


def whiten(values: Mapping[str, Any], priors: Mapping[str, Prior]) -> dict[str, Array]:
    """Whitened parameters, in the order of the priors.

    Raises:
      ValueError: a name without a prior, or a value that is no finite number or that its prior excludes; traced values
        are not checked.
    """
    for name in values:
        if name not in priors:
            remedy = f"use one of {', '.join(priors)}" if priors else "there are no priors"
            raise ArgumentError(name, values[name], "has no prior", remedy)
        check_number(values[name], name)
    white = {name: priors[name].inverse(values[name]) for name in priors if name in values}
    for name, u in white.items():
        if not isinstance(u, Tracer) and not math.isfinite(float(u)):
            raise ArgumentError(name, values[name], f"is excluded by its prior {priors[name]}")
    return white


def unwhiten(white: Mapping[str, ArrayLike], priors: Mapping[str, Prior]) -> dict[str, Array]:
    """Parameters from whitened parameters."""
    return {name: priors[name].forward(u) for name, u in white.items()}


def _check_numbers(prior: Any, infinite: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless all fields are finite numbers, medians and widths positive, and bounds in order."""
    for name, value in vars(prior).items():
        if isinstance(value, bool) or not isinstance(value, Real) or not (name in infinite or math.isfinite(value)):
            raise ArgumentError(name, value, "must be a number" if name in infinite else "must be a finite number")
        if name in ("median", "sd") and not float(value) > 0:
            raise ArgumentError(name, value, "must be positive")
    if hasattr(prior, "low") and not prior.low < prior.high:
        raise ArgumentError("low", prior.low, f"must be less than high={prior.high}")
