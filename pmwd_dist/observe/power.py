"""Power spectrum of a field on the mesh, and cross power of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_callable, check_choice, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import rfft_block
from pmwd_dist.pm import fourier, inputs

Deconvolve = bool | Literal["shot-noise"]


class PowerSpectrum(eqx.Module):
    """A power spectrum in bins of one fundamental mode.

    Args:
      k: mean wavenumber of the modes of each bin [h/Mpc].
      power: mean power [(Mpc/h)^3].
      modes: number of modes, conjugates included.
    """

    k: Float[Array, " bins"]
    power: Float[Array, " bins"]
    modes: Float[Array, " bins"]


@on_auto_axes
def power_spectrum(
    field: Real[Array, "nx ny nz"], config: Config, *, deconvolve: Deconvolve = True, cell_noise: ArrayLike = 0.0
) -> PowerSpectrum:
    """Power spectrum of a field such as `density`, P(k) = V <|delta(k)|^2> over the modes of each bin.

    Bins are centred on multiples of the smallest fundamental mode and end at the smallest Nyquist frequency. Shot noise
    is not subtracted: particles of a simulation sample the field on a lattice, not at random.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      config: configuration of the simulation.
      deconvolve: True divides by the square of the cloud-in-cell window of a painted field (Jing 2005), which suits the
        steep spectrum of matter but leaves aliases in a white one. With "shot-noise" it divides by the sum over all
        aliases, which suits white spectra, such as random points, but leaves the power of matter too low.
      cell_noise: shot noise of counts that are drawn in cells [(Mpc/h)^3]. It has no window, and is subtracted before
        the window is divided out.

    Raises:
      ValueError: the field is not on the mesh or not real, or another argument is out of its range.

    Examples:
      >>> spectrum = pmd.power_spectrum(pmd.density(solution.particles, config), config)
      >>> spectrum.k, spectrum.power  # [h/Mpc], [(Mpc/h)^3]
    """
    check_deconvolve(deconvolve)
    field, noise = inputs.mesh_field(field, config), checked_noise(cell_noise)
    return _power_spectrum(field, noise, config, deconvolve=deconvolve)


@on_blocks(["field", "whole"], "whole", static=["deconvolve"])
def _power_spectrum(field: Array, noise: Array, config: Config, *, deconvolve: Deconvolve) -> PowerSpectrum:
    k, power, modes = mode_sums([power_of_modes(field, noise, config, deconvolve)], config)
    return PowerSpectrum(mean(k, modes), mean(power, modes) * normalisation(config), modes)


@jit
def mean(total: Float[Array, "*rows bins"], count: Float[Array, " bins"]) -> Array:
    """Mean in each bin from sums and counts; NaN where the count is zero."""
    count = jnp.broadcast_to(count, total.shape)
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)


def check_deconvolve(deconvolve: Any) -> None:
    """Raise ValueError unless this is a value of `deconvolve` of `power_spectrum`."""
    check_choice(deconvolve, "deconvolve", (True, False, "shot-noise"))


def checked_noise(cell_noise: ArrayLike) -> Array:
    """The `cell_noise` of `power_spectrum`; ArgumentError if it is none."""
    check_number(cell_noise, "cell_noise", 0, unit="(Mpc/h)^3")
    return as_array(cell_noise)


def normalisation(config: Config) -> float:
    """Power per squared modulus of a mode of the transform [(Mpc/h)^3]."""
    return math.prod(config.box_size) / math.prod(config.mesh_shape) ** 2


def shot_noise(config: Config) -> float:
    """Shot noise of random particles, the volume per particle [(Mpc/h)^3]."""
    return math.prod(config.box_size) / math.prod(config.particle_shape)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def power_of_modes(field: Array, noise: Array, config: Config, deconvolve: Deconvolve) -> Array:
    """Squared moduli of the modes of a field without its noise and window, see `power_spectrum`."""
    power = jnp.abs(rfft_block(field, config.decomposition)) ** 2 - (noise / normalisation(config)).astype(field.dtype)
    return power * inverse_window(config, field.dtype, deconvolve)


def inverse_window(config: Config, dtype: Any, deconvolve: Deconvolve) -> Array:
    """Factor of the power of a painted field, see `power_spectrum`."""
    if deconvolve == "shot-noise":
        return 1 / fourier.aliased_cic_power(config.mesh_shape, config, dtype)
    if deconvolve:
        return fourier.cic_window(config.mesh_shape, config, dtype, power=-2)
    return jnp.ones((1, 1, 1), dtype)


def mode_sums(values: Sequence[Array], config: Config) -> Array:
    """Sums over the modes of each bin: of k, of each of `values`, and of 1."""
    dtype, shape = values[0].dtype, config.mesh_shape
    fundamental = [2 * math.pi / length for length in config.box_size]
    modulus = jnp.sqrt(fourier.k_squared(shape, config, dtype))
    step = min(fundamental)
    nyquist = min(n * f / 2 for n, f in zip(shape, fundamental, strict=True))
    bins = math.floor(nyquist / step + 1e-6)
    index = jnp.rint(modulus / step).astype(jnp.int32)
    index = jnp.where((index >= 1) & (index <= bins), index - 1, bins)
    return bin_sums([modulus, *values], index, bins, config)


def bin_sums(values: Sequence[Array], index: Array, bins: int, config: Config) -> Array:
    """Sums of each of `values`, and of 1, over the modes with indices 0 to bins - 1; others have the index `bins`."""
    dtype = values[0].dtype
    weight = fourier.mode_count(config.mesh_shape, config, dtype)

    def plane(index: Array, *values: Array) -> Array:
        # Sums of one plane first: a float32 sum over all modes would lose digits.
        weights = jnp.broadcast_to(weight[0], index.shape)
        sums = jnp.stack([*(value * weights for value in values), weights], -1)
        return jnp.zeros((bins + 1, len(values) + 1), dtype).at[index.ravel()].add(sums.reshape(-1, len(values) + 1))

    sums = jnp.sum(jax.vmap(plane)(index, *values), axis=0)[:bins].T
    return jax.lax.psum(sums, config.decomposition.names)


class CrossPower(eqx.Module):
    """Cross power and power of two fields, in bins of one fundamental mode.

    Args:
      k: mean wavenumber of the modes of each bin [h/Mpc].
      power: cross power, mean of the real part of field times conjugate reference [(Mpc/h)^3].
      field_power: power of the field [(Mpc/h)^3].
      reference_power: power of the reference [(Mpc/h)^3].
      modes: number of modes, conjugates included.
    """

    k: Float[Array, " bins"]
    power: Float[Array, " bins"]
    field_power: Float[Array, " bins"]
    reference_power: Float[Array, " bins"]
    modes: Float[Array, " bins"]

    @property
    def correlation(self) -> Array:
        """Correlation coefficient r(k); NaN where a field has no power."""
        return self.power / jnp.sqrt(self.field_power * self.reference_power)

    @property
    def transfer(self) -> Array:
        """Transfer function T(k), the square root of the ratio of the powers; NaN where the fields have none."""
        return jnp.sqrt(self.field_power / self.reference_power)


@on_auto_axes
def cross_power(
    field: Real[Array, "nx ny nz"],
    reference: Real[Array, "nx ny nz"],
    config: Config,
    *,
    deconvolve: Deconvolve | tuple[Deconvolve, Deconvolve] = True,
) -> CrossPower:
    """Cross power of two fields on one mesh, with the power of each, in the bins of `power_spectrum`.

    Shot noise is not subtracted: it lowers r(k), but does not add to the cross power of different particles.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      reference: field on the mesh to compare with.
      config: configuration of the simulation.
      deconvolve: deconvolution of both fields, see `power_spectrum`, or of each: (True, False) for a painted field and
        a linear one.

    Raises:
      ValueError: a field is not on the mesh or not real, or deconvolve has another value.

    Examples:
      >>> found = observe.cross_power(density, reference, config)
      >>> found.correlation, found.transfer  # r(k), T(k)
    """
    windows = deconvolve if isinstance(deconvolve, tuple) and len(deconvolve) == 2 else (deconvolve, deconvolve)
    for window in windows:
        check_deconvolve(window)
    field, reference = inputs.mesh_field(field, config), inputs.mesh_field(reference, config, "reference")
    return _cross_power(field, reference, config, windows=windows)


@on_blocks(["field", "field"], "whole", static=["windows"])
def _cross_power(
    field: Array, reference: Array, config: Config, *, windows: tuple[Deconvolve, Deconvolve]
) -> CrossPower:
    dtype = jnp.result_type(field, reference)
    one, other = (rfft_block(x.astype(dtype), config.decomposition) for x in (field, reference))
    first, second = (inverse_window(config, dtype, window) for window in windows)
    both = (one.real * other.real + one.imag * other.imag) * jnp.sqrt(first * second)
    values = [both, jnp.abs(one) ** 2 * first, jnp.abs(other) ** 2 * second]
    k, both, first, second, modes = mode_sums(values, config)
    both, first, second = (mean(x, modes) * normalisation(config) for x in (both, first, second))
    return CrossPower(mean(k, modes), both, first, second, modes)


def linear_power_at(k: Any, power: Callable[[Any], Any], *, beyond: bool = False) -> Any:
    """P(k) of a user's function at wavenumbers [h/Mpc].

    Raises:
      ValueError: it is no function, or returns another shape, or values that are negative, infinite or NaN; NaN may
        mark wavenumbers `beyond` a table, and follows from a wavenumber of NaN. Traced values are not checked.
    """
    check_callable(power, "power", "lambda k: linear_power(k, cosmo)")
    values = power(k)
    if np.shape(values) != k.shape:
        constraint = f"returns an array of shape {np.shape(values)} for k of shape {k.shape}"
        raise ArgumentError("power", power, constraint, "return P at each k", show_value=False)
    if isinstance(values, Tracer) or isinstance(k, Tracer):
        return values
    found = np.asarray(values, float)
    bad = ~((found >= 0) & np.isfinite(found) | (np.isnan(found) & (beyond | np.isnan(k))))
    if bad.any():
        constraint = f"returns P = {found[bad][0]:.4g} at k = {np.asarray(k)[bad][0]:.4g} h/Mpc"
        raise ArgumentError("power", power, constraint, "P(k) must be finite, and not negative", show_value=False)
    return values
