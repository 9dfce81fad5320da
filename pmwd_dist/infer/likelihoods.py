"""Likelihoods of an observed field, given a predicted field in units of its mean."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.parallel.inputs import check_unmasked
from pmwd_dist.pm.inputs import mesh_field

FLOOR = 0.05  # predicted density per mean, or variance in its unit, below which both are replaced by a positive one


class Likelihood(eqx.Module):
    """The distribution of data around a predicted field. Abstract: subclass it for a likelihood of your own.

    Methods `logdensity`, `draw` and `check` are needed. Preconditioning also needs `contrast` and `noise_variance`,
    and checks of the fit need `residual`; `unusual` names data in other units. A subclass may replace these attributes
    by fields or values of its own:

    Attributes:
      quantity: name of the data in figures.
      mask: true or 1 where there are data, in the shape of the data; None: everywhere.
      name: name of the parameter of the noise, which must be positive and have a prior; None: there is none.
      names: names of all parameters that need a prior; by default this one.
      positive: names of all parameters that must be positive; by default this one.
    """

    quantity = "data"
    mask = None  # without types, so that fields of subclasses may replace them
    name = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that need a prior."""
        return () if self.name is None else (self.name,)

    @property
    def positive(self) -> tuple[str, ...]:
        """Names of the parameters that must be positive."""
        return () if self.name is None else (self.name,)

    @abstractmethod
    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the density of the data, up to a constant."""

    @abstractmethod
    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Random data."""

    @abstractmethod
    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data can have come from this likelihood."""

    def unusual(self, values: np.ndarray, seen: np.ndarray) -> str:
        """A phrase after "data" if these values, of the seen cells or pixels, are in other units; else empty."""
        del values, seen
        return ""

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
        """Data minus field in units of the noise, 0 where there are no data; None: unknown.

        Behind the mask it is not 0 if modes are weighted.
        """
        return None

    def statistics(self, residual: Array) -> dict[str, Array]:
        """Further statistics of residuals of maps, by name, for checks of the fit; default: none."""
        del residual
        return {}


def log_positive(field: Array) -> Array:
    """Logarithm of a predicted density or variance in units of its mean, linear below 0.05, with one slope there."""
    low = field <= FLOOR
    return jnp.where(low, math.log(FLOOR) + field / FLOOR - 1, jnp.log(jnp.where(low, 1, field)))


def positive_field(field: Array) -> Array:
    """A predicted density or variance in units of its mean, positive, see `log_positive`."""
    return jnp.where(field > FLOOR, field, jnp.exp(log_positive(jnp.minimum(field, FLOOR))))


def placed(field: Array, config: Config) -> Array:
    """A field that is divided over devices as the mesh."""
    return jax.lax.with_sharding_constraint(field, config.decomposition.sharding)


def masked(x: Array, mask: Array | None, fill: float = 0) -> Array:
    """A field with a constant behind the mask, so that hidden cells enter no sum and no derivative."""
    return x if mask is None else jnp.where(mask > 0, x, fill)


def shown(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Whether there are data in each cell or pixel, on the host."""
    return np.broadcast_to(True if mask is None else np.asarray(mask) > 0, shape)


_LARGEST_TEMPLATE = 3.0  # rms change in units of predictions, which no systematics have
_SIZES = 1e-15, 1e15  # of positive numbers, whose squares single precision holds
_LARGEST_DATA = 1e12  # in units of the noise, or counts: the sum of squares is finite in single precision
_BOUNDS = {"positive": "positive and finite, from 1e-15 to 1e15", "not negative": "0 or more and finite", "": "finite"}


def number_or_field(
    value: Any, name: str, mask: Array | None, *, bound: Literal["positive", "not negative", ""] = "positive"
) -> Array:
    """A finite number or field in a bound; wrong values behind the mask become a constant."""
    check_unmasked(value, name)
    values = np.asarray(value)
    if values.ndim in (0, 3) and values.dtype.kind in "biuf":
        with np.errstate(over="ignore", under="ignore"):
            values = values.astype(np.dtype(jnp.result_type(float)))
        between = (values >= _SIZES[0]) & (values <= _SIZES[1])
        fine = np.isfinite(values) & {"positive": between, "not negative": values >= 0, "": True}[bound]
        if values.ndim and mask is not None:
            if values.shape != mask.shape:
                raise ArgumentError(f"{name}.shape", values.shape, f"must be that of the mask, {mask.shape}")
            hidden = ~fine & (np.asarray(mask) == 0)
            values, fine = np.where(hidden, bound == "positive", values), fine | hidden
        if np.all(fine):
            return jnp.asarray(values)
    constraint = f"must be {_BOUNDS[bound]}, a number or a field"
    raise ArgumentError(name, value, constraint, show_value=values.ndim == 0)


class Templates(eqx.Module):
    """Fields of systematics, 0 behind the mask, and the names of their amplitudes."""

    amplitudes: tuple[str, ...] = eqx.field(static=True)
    fields: tuple[Array, ...]

    def times(self, field: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """A field times 1 + sum of amplitudes times templates."""
        pairs = zip(self.amplitudes, self.fields, strict=True)
        terms = (jnp.asarray(parameters[name], field.dtype) * template.astype(field.dtype) for name, template in pairs)
        return field * (1.0 + sum(terms))

    def named(self) -> dict[str, Array]:
        """The fields by their names in errors."""
        return {f"templates[{name!r}]": x for name, x in zip(self.amplitudes, self.fields, strict=True)}


def checked_templates(templates: Any, mask: Array | None) -> Templates:
    """Templates from a mapping of names to fields."""
    if templates is not None and not (isinstance(templates, Mapping) and all(isinstance(x, str) for x in templates)):
        remedy = 'for example {"dust": field}'
        raise ArgumentError("templates", templates, "must map names of amplitudes to fields", remedy, show_value=False)
    checked = {n: number_or_field(x, f"templates[{n!r}]", mask, bound="") for n, x in (templates or {}).items()}
    return Templates(tuple(checked), tuple(masked(x, mask) for x in checked.values()))


def template_warnings(likelihood: Likelihood, priors: Mapping[str, Any]) -> list[str]:
    """Warnings of templates on the host that change predictions by several times, or that no data can tell apart."""
    templates, found, units = getattr(likelihood, "templates", None), list[str](), dict[str, np.ndarray]()
    if not isinstance(templates, Templates):
        return []
    for name, field in zip(templates.amplitudes, map(np.asarray, templates.fields), strict=True):
        rms = float(np.sqrt(np.mean(np.square(field, dtype=float))))
        most = max(abs(float(priors[name].forward(u))) for u in (-2.0, 2.0)) * rms
        if most > _LARGEST_TEMPLATE:
            found.append(
                f"template {name}: changes predictions by {most:.2g} times; narrow its prior, or scale its field"
            )
        if rms == 0:
            found.append(f"template {name}: is 0 wherever there are data; leave it out")
            continue
        unit = field / (rms * math.sqrt(field.size))
        same = [other for other, x in units.items() if abs(np.vdot(x, unit)) > 1 - 1e-6]
        found += [f"template {name}: is {other} up to a factor; leave one of them out" for other in same]
        units[name] = unit
    return found


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
    check_finite(data, mask, fields.get("sigma"))
    return data


def check_finite(data: np.ndarray, mask: Array | None, sigma: Any = None) -> None:
    """Raise ValueError unless the data are finite, and not beyond 1e12 sigma, where the mask shows them."""
    largest = _LARGEST_DATA * np.asarray(1 if sigma is None else sigma, float)
    wrong = shown(mask, data.shape) & ~(np.abs(data) <= largest)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        constraint = f"holds {int(wrong.sum())} values that are no finite numbers, or too large, the first at {index}"
        remedy = "mask those cells, or use other units or noise"
        if np.isnan(data).all():
            remedy = "data of a failed simulation need a wider halo"
        raise ArgumentError("data", data, constraint, remedy, show_value=False)


def data_warning(data: Any, likelihood: Likelihood, *, density: bool) -> str:
    """A phrase after "data" if they are constant where the mask shows them, or in other units; else empty."""
    values = np.asarray(data)
    seen = shown(likelihood.mask, values.shape)
    values = values[seen]
    if values.size > 1 and (values == values[0]).all():
        return f"are {values[0]:g} everywhere: nothing is known of phases but that; look at the file and its mask"
    mean = float(values.mean())
    if density and not 0.5 < mean < 2:
        found = "about 0, as of a contrast" if abs(mean) < 0.1 else f"{mean:.3g}"
        return f"have a mean of {found}; densities are in units of the mean, 1 + delta"
    return likelihood.unusual(values, seen)
