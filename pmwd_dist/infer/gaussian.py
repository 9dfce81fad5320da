"""Gaussian noise of a field, in real space or for modes up to a wavenumber."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.infer.constants import SLOPES
from pmwd_dist.infer.filtered_noise import SMALL_SCALE_NOISE, chi_squared, compared_modes, long_waves, weighted
from pmwd_dist.infer.likelihoods import (
    FLOOR,
    Likelihood,
    Templates,
    checked_data,
    checked_mask,
    checked_templates,
    masked,
    number_or_field,
    placed,
    positive_field,
)
from pmwd_dist.infer.values import check_distinct, names_of, number_or_name, value_of
from pmwd_dist.parallel.fft import pirfft3d, prfft3d
from pmwd_dist.pm.fourier import counted_modes


class Gaussian(Likelihood):
    """Gaussian noise, independent from cell to cell: data = 1 + delta + noise.

    With templates T the prediction is (1 + delta) (1 + sum A T), with amplitudes A that are parameters.

    With a k_max the likelihood compares modes up to k_max. Where a mask, a field of sigma or a slope couples
    modes, the data are

      1 + delta(modes up to k_max) + sigma (n + small_scale_noise n'),

    with white noise n, and n' without modes up to k_max (`filtered_noise`). The additional noise stands for the density
    beyond k_max: its power, (small_scale_noise sigma)^2 in a cell, must not be less than P(k_max). A gradient takes
    about 7 small_scale_noise transforms and their inverses more, in double precision 17.

    Args:
      sigma: standard deviation in a cell: a number, a field on the mesh, or the name of a parameter.
      mask: field on the mesh, true or 1 where there are data; default: everywhere.
      k_max: largest wavenumber of the comparison, in Fourier space [h/Mpc]; default: all, in real space.
      slope: change s of the variance with the density, sigma^2 (1 + s delta) of the prediction, with a k_max of its
        modes up to it. A number from -1 to 10, where 1 is like a Poisson process, or the name of a parameter;
        default: 0. The factor stays positive: below 0.05 it is 0.05^2 / (0.1 - factor).
      small_scale_noise: standard deviation of the noise of modes beyond k_max, in units of sigma, if there is a mask, a
        field of sigma or a slope; without them these modes are left out.
      noise_k2: change c of the noise's power with the wavenumber, sigma^2 (1 + c k^2) [(Mpc/h)^2] (Desjacques, Jeong &
        Schmidt 2018, sec. 2.8), a number or the name of a parameter; default: 0. It needs the same noise in all cells.
      templates: fields on the mesh of systematics, such as dust or seeing, by the names of their amplitudes.

    Raises:
      ValueError: sigma not from 1e-15 to 1e15, a mask that hides everything, or another argument out of its range.
    """

    quantity: ClassVar[str] = "density / mean"
    sigma: Any
    mask: Array | None = eqx.field()
    name: str | None = eqx.field(static=True)
    k_max: float | None = eqx.field(static=True)
    slope: str | float | None = eqx.field(static=True)
    small_scale_noise: float = eqx.field(static=True)
    noise_k2: str | float | None = eqx.field(static=True)
    templates: Templates

    def __init__(
        self,
        sigma: Any,
        *,
        mask: Any = None,
        k_max: float | None = None,
        slope: str | float | None = None,
        small_scale_noise: float = SMALL_SCALE_NOISE,
        noise_k2: str | float | None = None,
        templates: Mapping[str, Any] | None = None,
    ):
        self.name = sigma if isinstance(sigma, str) else None
        self.mask = checked_mask(mask)
        self.sigma = None if isinstance(sigma, str) else number_or_field(sigma, "sigma", self.mask)
        if k_max is not None and (isinstance(k_max, bool) or not (isinstance(k_max, Real) and 0 < k_max < math.inf)):
            raise ArgumentError("k_max", k_max, "must be positive and finite", "leave it out to compare all modes")
        check_number(small_scale_noise, "small_scale_noise", 0.1, 100.0, constant=True)
        self.k_max = None if k_max is None else float(k_max)
        self.small_scale_noise = float(small_scale_noise)
        self.slope = _changed(slope, "slope", *SLOPES)
        self.noise_k2 = _changed(noise_k2, "noise_k2")
        if self.noise_k2 is not None and not self._uniform:
            constraint = "can't be used with a mask, a field of sigma or a slope, which couple modes"
            raise ArgumentError("noise_k2", noise_k2, constraint, "leave it out")
        self.templates = checked_templates(templates, self.mask)
        check_distinct(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that need a prior."""
        return names_of(self.name, self.slope, self.noise_k2, *self.templates.amplitudes)

    @property
    def _uniform(self) -> bool:
        """Whether the noise is the same in all cells, so that its modes are independent."""
        return self.mask is None and self.slope is None and (self.sigma is None or self.sigma.ndim == 0)

    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the density of the data, up to a constant."""
        if self._uniform and (self.k_max is not None or self.noise_k2 is not None):
            sigma, weight = self._sigma(field, parameters), compared_modes(self.k_max, config, field.dtype)
            field = self.mean(field, parameters)
            modes = prfft3d(data - field, config.decomposition, norm="ortho")  # 1 is the variance of a cell
            logs = self._log_power(parameters, config, field.dtype)
            chi2 = jnp.sum(weight * jnp.exp(-logs) * (modes.real**2 + modes.imag**2)) / sigma**2
            return -0.5 * chi2 - jnp.sum(weight * (jnp.log(sigma) + 0.5 * logs))
        chi, sigma = self._chi(data, field, parameters, config)
        logs = jnp.sum(masked(jnp.broadcast_to(jnp.log(sigma), field.shape), self.mask))
        if self.k_max is None:
            return -0.5 * jnp.sum(chi**2) - logs
        return -0.5 * chi_squared(chi, self._shown, config, self.k_max, self.small_scale_noise) - logs

    def _log_power(self, parameters: Mapping[str, ArrayLike], config: Config, dtype: Any) -> Array:
        """Logarithm of the power of each mode of the noise in units of sigma^2, 0 without a change."""
        if self.noise_k2 is None:
            return jnp.zeros((), dtype)
        change = jnp.asarray(value_of(self.noise_k2, parameters), dtype)
        return _log_variance(1 + change * counted_modes(config.mesh_shape, config, dtype)[0])

    def _coloured(self, x: Array, power: float, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """A field whose modes are multiplied by a power of the noise's power in units of sigma^2."""
        if self.noise_k2 is None:
            return x
        factor = jnp.exp(power * self._log_power(parameters, config, x.dtype))
        return pirfft3d(factor * prfft3d(x, config.decomposition), config.mesh_shape, config.decomposition)

    def mean(self, field: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """The field times its systematics."""
        return self.templates.times(field, parameters)

    def _long(self, field: Array, config: Config) -> Array:
        """The field; its modes up to k_max where others have a noise of their own."""
        if self.k_max is None or self._uniform:
            return field
        return long_waves(field, self.k_max, config, mean=True)

    def _chi(
        self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config
    ) -> tuple[Array, Array]:
        """Data minus the compared field in units of the noise, 0 behind the mask, and the noise."""
        field = self.mean(masked(self._long(field, config), self.mask, 1), parameters)
        sigma = self._sigma(field, parameters)
        return (masked(data, self.mask, 1) - field) / sigma, sigma

    @property
    def _shown(self) -> Array | float:
        return 1.0 if self.mask is None else self.mask

    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """The compared field with random noise, also behind the mask."""
        noise = placed(jax.random.normal(key, field.shape, field.dtype), config)
        if self.k_max is not None and not self._uniform:
            more = placed(jax.random.normal(jax.random.fold_in(key, 1), field.shape, field.dtype), config)
            noise = noise + self.small_scale_noise * (more - long_waves(more, self.k_max, config))
        noise = self._coloured(noise, 0.5, parameters, config)
        field = self.mean(self._long(field, config), parameters)
        return field + self._sigma(field, parameters) * noise

    def residual(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Compared modes of data minus field in units of the noise, weighted by the inverse of its covariance.

        With a mask and a k_max they are not 0 behind the mask.
        """
        chi = self._coloured(self._chi(data, field, parameters, config)[0], -0.5, parameters, config)
        if self.k_max is None:
            return chi
        if not self._uniform:
            chi = weighted(chi, self._shown, config, k_max=self.k_max, excess=self.small_scale_noise)
        return long_waves(chi, self.k_max, config)

    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data are finite numbers where the mask shows them."""
        checked_data(data, config, self.mask, sigma=self.sigma, **self.templates.named())
        fundamental, nyquist = 2 * math.pi / max(config.box_size), math.pi / min(config.cell_size)
        if self.k_max is not None and self.k_max < fundamental * (1 - 1e-6):
            constraint = f"leaves no mode of a box of {max(config.box_size):g} Mpc/h"
            raise ArgumentError("k_max", self.k_max, constraint, f"use more than {fundamental:.4g} h/Mpc")
        if self.k_max is not None and self.k_max > nyquist * (1 + 1e-6):
            constraint = f"is beyond the Nyquist wavenumber, {nyquist:.4g} h/Mpc"
            raise ArgumentError("k_max", self.k_max, constraint, "leave it out to compare all modes")
        last = min(self.k_max or math.inf, math.pi * math.hypot(*(1 / cell for cell in config.cell_size)))
        if not isinstance(self.noise_k2, str | None) and 1 + self.noise_k2 * last**2 <= 0:
            constraint = f"has noise of negative power at k = {last:.3g} h/Mpc"
            raise ArgumentError("noise_k2", self.noise_k2, constraint, f"use more than {-(last**-2):.3g} (Mpc/h)^2")

    def contrast(self, data: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """Data without systematics minus their mean, with all modes, 0 behind the mask."""
        data = masked(data, self.mask, 1)
        return data / positive_field(self.mean(jnp.ones_like(data), parameters)) - 1

    def noise_variance(self, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Harmonic mean of the variance at delta = 0 over all cells, infinite behind the mask.

        With a k_max or noise_k2, the variance of each mode, infinite for modes that are not compared.
        """
        sigma = jnp.asarray(value_of(self.name or self.sigma, parameters), float)
        variance = 1 / jnp.mean(self._shown / sigma**2)
        variance = variance * jnp.exp(self._log_power(parameters, config, variance.dtype))
        if self.k_max is None:
            return variance
        return jnp.where(compared_modes(self.k_max, config, variance.dtype) > 0, variance, jnp.inf)

    def _sigma(self, field: Array, parameters: Mapping[str, ArrayLike]) -> Array:
        """Standard deviation in a cell, or in each cell."""
        sigma = jnp.asarray(value_of(self.name or self.sigma, parameters), field.dtype)
        if self.slope is None:
            return sigma
        slope = jnp.asarray(value_of(self.slope, parameters), field.dtype)
        return sigma * jnp.exp(0.5 * _log_variance(1 + slope * (field - 1)))


def _changed(value: Any, name: str, *ends: float) -> str | float | None:
    """A number in a range or the name of a parameter; None for 0, no change."""
    value = None if value is None else number_or_name(value, name, *ends)
    return None if value == 0 else value


def _log_variance(x: Array) -> Array:
    """log x, and log(F^2 / (2 F - x)) below F = 0.05: for x far below 0 chi^2 grows in proportion to x."""
    low = x <= FLOOR
    return jnp.where(
        low, 2 * math.log(FLOOR) - jnp.log(2 * FLOOR - jnp.where(low, x, 0)), jnp.log(jnp.where(low, 1, x))
    )
