"""Cross power, correlation coefficient and transfer function of two fields."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Real

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.observe.power import Deconvolve, check_deconvolve, inverse_window, mean, mode_sums, normalisation
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import rfft_block
from pmwd_dist.pm import inputs


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


@partial(jit, static_argnames=("config", "windows"))
def _cross_power(
    field: Array, reference: Array, config: Config, *, windows: tuple[Deconvolve, Deconvolve]
) -> CrossPower:
    decomposition, dtype = config.decomposition, jnp.result_type(field, reference)

    def block(field: Array, reference: Array) -> Array:
        one, other = rfft_block(field, decomposition), rfft_block(reference, decomposition)
        first, second = (inverse_window(config, dtype, window) for window in windows)
        both = (one.real * other.real + one.imag * other.imag) * jnp.sqrt(first * second)
        return mode_sums([both, jnp.abs(one) ** 2 * first, jnp.abs(other) ** 2 * second], config)

    run = decomposition.shard_map(block, (decomposition.spec, decomposition.spec), P())
    k, both, first, second, modes = run(field.astype(dtype), reference.astype(dtype))
    both, first, second = (mean(x, modes) * normalisation(config) for x in (both, first, second))
    return CrossPower(mean(k, modes), both, first, second, modes)
