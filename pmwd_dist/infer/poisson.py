"""Counts of galaxies in cells: Poisson numbers, and numbers with a larger variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_shares
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.infer.constants import LARGEST_DISPERSION
from pmwd_dist.infer.likelihoods import (
    Likelihood,
    Templates,
    checked_data,
    checked_mask,
    checked_templates,
    log_positive,
    masked,
    number_or_field,
    placed,
    positive_field,
    shown,
)
from pmwd_dist.infer.values import check_distinct, names_of, positive_or_name, value_of
from pmwd_dist.observe.counts import MOST_IN_A_CELL

_SHIFT = 8  # number from which on Stirling's series is exact to 3e-10


class Poisson(Likelihood):
    """Counts of galaxies in cells, drawn independently: data ~ Poisson(nbar * selection * (1 + delta)).

    With a dispersion alpha the counts are negative binomial, of the variance mean + alpha mean^2 (Kitaura et al. 2014,
    1407.1236): Poisson numbers whose means scatter by sqrt(alpha) in units of themselves.

    With templates T, 1 + delta is multiplied by 1 + sum A T, with amplitudes A that are parameters.

    Bias can make predictions negative. Below 0.05, 1 + delta is replaced by 0.05 exp(20 (1 + delta) - 1), which is
    positive and continuous with its derivative. A lower floor needs shorter steps of a sampler, since the derivative of
    the log density of a galaxy in such a cell is the inverse of the floor.

    Args:
      nbar: mean number in a cell where the selection is 1: a number, a field or the name of a parameter.
      selection: field on the mesh, fraction of the galaxies that is observed; default: 1.
      mask: field on the mesh, true or 1 where there are data; default: everywhere.
      bins: field on the mesh of whole numbers, the bin of each cell from 0 on, such as shells of distance. The mean
        number of bin i is the parameter nbar_i, with the name that `nbar` is.
      templates: fields on the mesh of systematics, such as dust or seeing, by the names of their amplitudes.
      dispersion: variance beyond Poisson's in units of the squared mean, a number up to 100 or the name of a parameter;
        default: none.

    Raises:
      ValueError: nbar or dispersion not positive, nbar above 1e6, a selection beyond 0 to 1, a mask or selection that
        hides everything, bins with gaps, a template that is not finite, or two parameters of one name.
    """

    quantity: ClassVar[str] = "galaxies in a cell"
    nbar: Any
    selection: Array
    mask: Array | None = eqx.field()
    name: str | None = eqx.field(static=True)
    dispersion: str | float | None = eqx.field(static=True)
    bins: Array | None
    means: tuple[str, ...] = eqx.field(static=True)
    templates: Templates

    def __init__(
        self,
        nbar: Any,
        *,
        selection: Any = None,
        mask: Any = None,
        bins: Any = None,
        templates: Mapping[str, Any] | None = None,
        dispersion: str | float | None = None,
    ):
        self.name = nbar if isinstance(nbar, str) and bins is None else None
        self.mask = checked_mask(mask)
        self.nbar = None if isinstance(nbar, str) else number_or_field(nbar, "nbar", self.mask)
        if self.nbar is not None and (largest := float(self.nbar.max())) > MOST_IN_A_CELL:
            remedy = "use Gaussian for so many galaxies"
            raise ArgumentError("nbar", largest, f"must be at most {MOST_IN_A_CELL:g} galaxies a cell", remedy)
        fraction = 1.0 if selection is None else selection
        self.selection = number_or_field(fraction, "selection", self.mask, bound="not negative")
        check_shares(masked(self.selection, self.mask), "selection")
        if not np.any(masked(self.selection, self.mask)):
            constraint = "is 0 in every cell" + ("" if self.mask is None else " that the mask shows")
            raise ArgumentError("selection", selection, constraint, "it is the fraction observed", show_value=False)
        self.bins, self.means = (None, ()) if bins is None else self._checked_bins(bins, nbar)
        self.templates = checked_templates(templates, self.mask)
        self.dispersion = None if dispersion is None else positive_or_name(dispersion, "dispersion", LARGEST_DISPERSION)
        check_distinct(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that need a prior."""
        return *self.positive, *self.templates.amplitudes

    @property
    def positive(self) -> tuple[str, ...]:
        """Names of the parameters that must be positive."""
        return names_of(self.name, *self.means, self.dispersion)

    def _checked_bins(self, bins: Any, nbar: Any) -> tuple[Array, tuple[str, ...]]:
        """Bins, 0 behind the mask, and the names of their mean numbers."""
        if not isinstance(nbar, str):
            raise ArgumentError("nbar", nbar, "must be a name where there are bins", 'for example "nbar"')
        values = np.asarray(number_or_field(bins, "bins", self.mask, bound=""))
        fields = [x.shape for x in (self.selection, self.mask) if x is not None and x.ndim > 0]
        if values.ndim != 3 or any(shape != values.shape for shape in fields):
            constraint = f"must be that of {'the selection and the mask' if fields else 'the mesh'}"
            raise ArgumentError("bins.shape", values.shape, constraint)
        seen = np.unique(values[shown(masked(self.selection, self.mask), values.shape)])
        if not np.array_equal(seen, np.arange(len(seen))):
            constraint = f"hold {', '.join(f'{x:g}' for x in seen[:5])}{', ...' * (len(seen) > 5)} where there are data"
            raise ArgumentError("bins", bins, constraint, "number them 0, 1, 2, ... without gaps", show_value=False)
        values = jnp.asarray(np.where(np.isin(values, seen), values, 0), jnp.int32)
        return values, tuple(f"{nbar}_{i}" for i in range(len(seen)))

    def unusual(self, values: np.ndarray, seen: np.ndarray) -> str:
        """A phrase after "data" if the mean of these counts is not near the expected one; else empty."""
        if self.nbar is None:
            return ""
        expected = np.broadcast_to(np.asarray(self.nbar) * np.asarray(self.selection), seen.shape)[seen].mean()
        if 0.5 < (mean := values.mean()) / expected < 2:
            return ""
        return f"have a mean of {mean:.3g} galaxies in a cell, and nbar and the selection expect {expected:.3g}"

    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the probability of the counts."""
        density = self.templates.times(masked(field, self.mask, 1), parameters)
        data = masked(data, self.mask).astype(field.dtype)
        selection = self.selection.astype(field.dtype)
        selected = selection > 0  # a selection of 0 allows no galaxies
        factor = jnp.asarray(self._nbar(parameters), field.dtype) * jnp.where(selected, selection, 1)
        log_mean = jnp.log(factor) + log_positive(density)  # the mean itself may underflow
        mean = selection * jnp.asarray(self._nbar(parameters), field.dtype) * positive_field(density)
        terms = data * log_mean - gammaln(data + 1)
        if self.dispersion is None:
            terms = terms - mean
        else:
            alpha = self._dispersion(parameters, field.dtype)
            terms = terms + _log_rising(data, alpha) - (1 / alpha + data) * jnp.log1p(alpha * mean)
        terms = jnp.where(selected, terms, jnp.where(data > 0, -jnp.inf, 0))
        return jnp.sum(masked(terms, self.mask))

    def mean(self, field: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """Expected number of galaxies in each cell."""
        nbar = jnp.asarray(self._nbar(parameters), field.dtype)
        return self.selection.astype(field.dtype) * (nbar * positive_field(self.templates.times(field, parameters)))

    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Random counts."""
        mean = self.mean(field, parameters)
        if self.dispersion is not None:
            alpha = self._dispersion(parameters, field.dtype)
            scatter = jax.random.gamma(jax.random.fold_in(key, 1), 1 / alpha, field.shape, field.dtype)
            mean = mean * placed(alpha * scatter, config)
        return placed(jax.random.poisson(key, mean).astype(field.dtype), config)

    def residual(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Root of counts minus root of means, with a variance of about 1 (Anscombe 1948); 0 behind the mask.

        With a dispersion, inverse hyperbolic sines of the roots.
        """
        mean = self.mean(masked(field, self.mask, 1), parameters)
        roots = jnp.sqrt(masked(data, self.mask) + 0.375), jnp.sqrt(mean + 0.375)
        if self.dispersion is not None:
            root = jnp.sqrt(self._dispersion(parameters, field.dtype))
            roots = tuple(jnp.arcsinh(root * x) / root for x in roots)
        return 2 * masked(roots[0] - roots[1], self.mask)

    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data are counts where the mask shows them, and 0 where the selection is 0."""
        fields = {"selection": self.selection, "nbar": self.nbar, "bins": self.bins, **self.templates.named()}
        data = checked_data(data, config, self.mask, **fields)
        data = np.asarray(masked(data, self.mask))
        wrong = (data < 0) | (data != np.rint(data))
        if wrong.any():
            raise ArgumentError("data", data[wrong][0], "is no number of galaxies", "use Gaussian for densities")
        if ((np.asarray(self.selection) == 0) & (data > 0)).any():
            constraint = "holds galaxies where the selection is 0"
            raise ArgumentError("data", data, constraint, "mask those cells", show_value=False)

    def contrast(self, data: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """Counts over their mean, minus 1; 0 without data."""
        mean = self._nbar(parameters) * self.selection
        mean = mean * positive_field(self.templates.times(jnp.ones_like(data), parameters))
        contrast = masked(data, self.mask) / jnp.where(mean > 0, mean, 1) - 1
        return masked(jnp.where(mean > 0, contrast, 0), self.mask)

    def noise_variance(self, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Inverse of the mean number of observed galaxies in a cell; with a dispersion, harmonic mean of variances."""
        mean = self._nbar(parameters) * masked(self.selection, self.mask)
        more = 0.0 if self.dispersion is None else mean * value_of(self.dispersion, parameters)
        return 1 / jnp.mean(mean / (1 + more))

    def _nbar(self, parameters: Mapping[str, ArrayLike]) -> Any:
        if self.bins is None:
            return value_of(self.name or self.nbar, parameters)
        each = (jnp.where(self.bins == i, jnp.asarray(parameters[name]), 0) for i, name in enumerate(self.means))
        return sum(each)  # the slope of a gather would be a sum in any order

    def _dispersion(self, parameters: Mapping[str, ArrayLike], dtype: Any) -> Array:
        return jnp.asarray(value_of(self.dispersion, parameters), dtype)


def _log_rising(k: Array, alpha: Array) -> Array:
    """log(Gamma(k + n) / (Gamma(n) n^k)) with n = 1 / alpha, without differences of large logarithms.

    By Stirling's series from n + 8 on, with a relative error of 3e-10 of a Gamma function.
    """

    def series(x: Array) -> Array:
        y = 1 / x
        return y * (1 / 12 - y**2 * (1 / 360 - y**2 / 1260))

    above = 1 / alpha + _SHIFT
    shifted = (above + k - 0.5) * jnp.log1p(k / above) - k + series(above + k) - series(above)
    below = sum(jnp.log1p(alpha * k / (1 + alpha * j)) for j in range(_SHIFT))
    return shifted + k * jnp.log1p(_SHIFT * alpha) - below
