"""Likelihoods of an observed field, given a predicted field in units of its mean."""

from __future__ import annotations

import math
from abc import abstractmethod
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
from pmwd_dist.infer.forward import value_of
from pmwd_dist.parallel.inputs import check_unmasked
from pmwd_dist.pm.inputs import mesh_field

_FLOOR = 0.05  # predicted density per mean below which Poisson means fall exponentially


class Likelihood(eqx.Module):
    """The distribution of data around a predicted field. Abstract: subclass it for a likelihood of your own.

    Methods `logdensity`, `draw` and `check` are needed. Preconditioning also needs `contrast` and `noise_variance`,
    and checks of the fit need `residual`. A subclass may replace these attributes by fields or values of its own:

    Attributes:
      quantity: name of the data in figures.
      mask: true or 1 where there are data, in the shape of the data; None: everywhere.
      name: name of the parameter of the noise, which must be positive and have a prior; None: there is none.
    """

    quantity: ClassVar[str] = "data"
    mask = None  # without types, so that fields of subclasses may replace them
    name = None

    @abstractmethod
    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the density of the data, up to a constant."""

    @abstractmethod
    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Random data."""

    @abstractmethod
    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data can have come from this likelihood."""

    def mean(self, field: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """Expected data; by default the predicted field."""
        return field

    def contrast(self, data: Array, parameters: Mapping[str, ArrayLike]) -> Array | None:
        """Data as a density contrast, 0 without data; None: unknown."""
        return None

    def noise_variance(self, parameters: Mapping[str, ArrayLike], config: Config) -> Array | None:
        """Variance of the contrast in a cell; None: unknown.

        One for all cells, or one for each mode in the layout of `prfft3d`, infinite for modes that are not compared.
        """
        return None

    def residual(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array | None:
        """Data minus field in units of the noise, 0 without data; None: unknown."""
        return None


class Poisson(Likelihood):
    """Counts of galaxies in cells, drawn independently: data ~ Poisson(nbar * selection * (1 + delta)).

    Bias can make predictions negative. Below 0.05, 1 + delta is replaced by 0.05 exp(20 (1 + delta) - 1), which is
    positive and continuous with its derivative. A lower floor needs shorter steps of a sampler, since the derivative of
    the log density of a galaxy in such a cell is the inverse of the floor.

    Args:
      nbar: mean number in a cell where the selection is 1: a number or the name of a parameter.
      selection: field on the mesh, fraction of the galaxies that is observed; default: 1.
      mask: field on the mesh, true or 1 where there are data; default: everywhere.

    Raises:
      ValueError: nbar not positive, a selection beyond 0 to 1, or a mask or selection that hides everything.
    """

    quantity: ClassVar[str] = "galaxies in a cell"
    nbar: Any
    selection: Array
    mask: Array | None = eqx.field()
    name: str | None = eqx.field(static=True)

    def __init__(self, nbar: Any, *, selection: Any = None, mask: Any = None):
        self.name = nbar if isinstance(nbar, str) else None
        self.mask = checked_mask(mask)
        self.nbar = None if isinstance(nbar, str) else number_or_field(nbar, "nbar", self.mask)
        fraction = 1.0 if selection is None else selection
        self.selection = number_or_field(fraction, "selection", self.mask, zeros=True)
        check_shares(masked(self.selection, self.mask), "selection")
        if not np.any(masked(self.selection, self.mask)):
            constraint = "is 0 in every cell" + ("" if self.mask is None else " that the mask shows")
            raise ArgumentError("selection", selection, constraint, "it is the fraction observed", show_value=False)

    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the probability of the counts."""
        field = masked(field, self.mask, 1)
        data = masked(data, self.mask).astype(field.dtype)
        selection = self.selection.astype(field.dtype)
        selected = selection > 0  # a selection of 0 allows no galaxies
        factor = jnp.asarray(self._nbar(parameters), field.dtype) * jnp.where(selected, selection, 1)
        log_mean = jnp.log(factor) + _log_positive(field)  # the mean itself may underflow
        terms = data * log_mean - self.mean(field, parameters) - gammaln(data + 1)
        terms = jnp.where(selected, terms, jnp.where(data > 0, -jnp.inf, 0))
        return jnp.sum(masked(terms, self.mask))

    def mean(self, field: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """Expected number of galaxies in each cell."""
        positive = jnp.where(field > _FLOOR, field, jnp.exp(_log_positive(jnp.minimum(field, _FLOOR))))
        mean = jnp.asarray(self._nbar(parameters), field.dtype) * positive
        return self.selection.astype(field.dtype) * mean

    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Random counts."""
        return placed(jax.random.poisson(key, self.mean(field, parameters)).astype(field.dtype), config)

    def residual(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Root of counts minus root of means, with a variance of about 1 (Anscombe 1948); 0 behind the mask."""
        mean = self.mean(masked(field, self.mask, 1), parameters)
        return 2 * masked(jnp.sqrt(masked(data, self.mask) + 0.375) - jnp.sqrt(mean + 0.375), self.mask)

    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data are counts where the mask shows them, and 0 where the selection is 0."""
        data = checked_data(data, config, self.mask, selection=self.selection, nbar=self.nbar)
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
        contrast = masked(data, self.mask) / jnp.where(mean > 0, mean, 1) - 1
        return masked(jnp.where(mean > 0, contrast, 0), self.mask)

    def noise_variance(self, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Inverse of the mean number of observed galaxies in a cell."""
        return 1 / jnp.mean(self._nbar(parameters) * masked(self.selection, self.mask))

    def _nbar(self, parameters: Mapping[str, ArrayLike]) -> Any:
        return value_of(self.name or self.nbar, parameters)


def _log_positive(field: Array) -> Array:
    """Logarithm of a predicted density, linear below the floor."""
    low = field <= _FLOOR
    return jnp.where(low, math.log(_FLOOR) + field / _FLOOR - 1, jnp.log(jnp.where(low, 1, field)))


def placed(field: Array, config: Config) -> Array:
    """A field that is divided over devices as the mesh."""
    return jax.lax.with_sharding_constraint(field, config.decomposition.sharding)


def masked(x: Array, mask: Array | None, fill: float = 0) -> Array:
    """A field with a constant behind the mask, so that hidden cells enter no sum and no derivative."""
    return x if mask is None else jnp.where(mask > 0, x, fill)


def shown(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Whether there are data in each cell or pixel, on the host."""
    return np.broadcast_to(True if mask is None else np.asarray(mask) > 0, shape)


def number_or_field(value: Any, name: str, mask: Array | None, *, zeros: bool = False) -> Array:
    """A finite number or field, positive or with zeros; wrong values behind the mask become a constant."""
    check_unmasked(value, name)
    values = np.asarray(value)
    if values.ndim in (0, 3) and values.dtype.kind in "biuf":
        with np.errstate(over="ignore", under="ignore"):
            values = values.astype(np.dtype(jnp.result_type(float)))
        fine = np.isfinite(values) & ((values >= 0) if zeros else (values > 0))
        if values.ndim and mask is not None:
            if values.shape != mask.shape:
                raise ArgumentError(f"{name}.shape", values.shape, f"must be that of the mask, {mask.shape}")
            hidden = ~fine & (np.asarray(mask) == 0)
            values, fine = np.where(hidden, 0 if zeros else 1, values), fine | hidden
        if np.all(fine):
            return jnp.asarray(values)
    constraint = f"must be {'0 or more' if zeros else 'positive'} and finite, a number or a field"
    raise ArgumentError(name, value, constraint, show_value=values.ndim == 0)


def checked_mask(mask: Any) -> Array | None:
    """A mask as numbers; ValueError for other values than 0 and 1."""
    if mask is None:
        return None
    check_unmasked(mask, "mask")
    values = np.asarray(mask)
    if not np.isin(values, (0, 1)).all():
        raise ArgumentError("mask", mask, "must hold only 0 and 1, or booleans", show_value=False)
    if not values.any():
        raise ArgumentError("mask", mask, "hides every cell", "1 or True means that there are data", show_value=False)
    return jnp.asarray(mask, float)


def checked_data(data: Any, config: Config, mask: Array | None, **fields: Any) -> np.ndarray:
    """Data on the mesh, on the host; ValueError unless they are finite, and all fields are on the mesh."""
    for name, x in {"mask": mask, **fields}.items():
        if x is not None and jnp.ndim(x) > 0 and jnp.shape(x) != config.mesh_shape:
            raise ArgumentError(f"{name}.shape", jnp.shape(x), f"must be mesh_shape={config.mesh_shape}")
    data = np.asarray(mesh_field(data, config, "data"))
    check_finite(data, mask)
    return data


def check_finite(data: np.ndarray, mask: Array | None) -> None:
    """Raise ValueError unless the data are finite numbers where the mask shows them."""
    wrong = shown(mask, data.shape) & ~np.isfinite(data)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        constraint = f"holds {int(wrong.sum())} values that are no finite numbers, the first at {index}"
        raise ArgumentError("data", data, constraint, "mask those cells", show_value=False)


def data_warning(data: Any, mask: Any = None, *, density: bool = False) -> str:
    """A phrase after "data" if they are constant where the mask shows them, or densities of mean 0; else empty."""
    values = np.asarray(data)
    values = values[shown(mask, values.shape)]
    if values.size > 1 and (values == values[0]).all():
        return f"are {values[0]:g} everywhere: nothing is known of phases but that; look at the file and its mask"
    if density and abs(float(values.mean())) < 0.1:
        return "have a mean of about 0, as of a contrast; densities are in units of the mean, 1 + delta"
    return ""
