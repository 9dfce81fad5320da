"""Multipoles of the power spectrum about a line of sight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Real

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.observe.power import Deconvolve, check_deconvolve, inverse_window, mode_sums, normalisation
from pmwd_dist.observe.redshift_space import LineOfSight, direction
from pmwd_dist.parallel.fft import rfft_block
from pmwd_dist.pm import fourier, inputs


class Multipoles(eqx.Module):
    """Multipoles of a power spectrum, in bins of one fundamental mode.

    Args:
      k: mean wavenumber of the modes of each bin [h/Mpc].
      power: mean of (2 l + 1) L_l(mu) times the power [(Mpc/h)^3], a row for each of `poles`.
      modes: number of modes, conjugates included.
      poles: the orders l.
    """

    k: Float[Array, " bins"]
    power: Float[Array, "poles bins"]
    modes: Float[Array, " bins"]
    poles: tuple[int, ...] = eqx.field(static=True)

    def pole(self, order: int) -> Array:
        """Power of one order [(Mpc/h)^3].

        Raises:
          ValueError: an order that was not asked for.
        """
        if order not in self.poles:
            raise ArgumentError("order", order, f"is not one of poles={self.poles}")
        return self.power[self.poles.index(order)]


def power_multipoles(
    field: Real[Array, "nx ny nz"],
    config: Config,
    *,
    line_of_sight: LineOfSight = "z",
    poles: Sequence[int] = (0, 2, 4),
    deconvolve: Deconvolve = True,
) -> Multipoles:
    """Multipoles of the power of a field such as the density in redshift space.

    P_l(k) is the mean of (2 l + 1) L_l(mu) |delta(k)|^2 over the modes of a bin, mu the cosine of k and line of sight
    (Hamilton 1998, sec. 4). The monopole is that of `power_spectrum`. In bins of few modes, which sample mu
    sparsely, orders mix. Shot noise, which is not subtracted, is in the monopole alone.

    Args:
      field: on the mesh.
      config: the simulation.
      line_of_sight: the same everywhere: "x", "y", "z" or three numbers, of any length.
      poles: orders, of 0, 2 and 4.
      deconvolve: as in `power_spectrum`.

    Raises:
      ValueError: a field that is not on the mesh or not real, or another argument out of its range.
    """
    inputs.check_config(config)
    check_deconvolve(deconvolve)
    poles = tuple(poles)
    if not poles or any(order not in (0, 2, 4) for order in poles):
        raise ArgumentError("poles", poles, "must be orders 0, 2 and 4, or some of them")
    field = inputs.mesh_field(field, config)
    return _power_multipoles(field, config, n=direction(line_of_sight), poles=poles, deconvolve=deconvolve)


@partial(jax.jit, static_argnames=("config", "n", "poles", "deconvolve"))
def _power_multipoles(
    field: Array, config: Config, *, n: tuple[float, float, float], poles: tuple[int, ...], deconvolve: Deconvolve
) -> Multipoles:
    decomposition = config.decomposition

    def block(field: Array) -> Array:
        power = jnp.abs(rfft_block(field, decomposition)) ** 2 * inverse_window(config, field.dtype, deconvolve)
        mu2 = _squared_cosine(config, n, field.dtype)
        return mode_sums([power * _legendre(order, mu2) for order in poles], config)

    k, *power, modes = decomposition.shard_map(block, decomposition.spec, P())(field)
    some = jnp.maximum(modes, 1)
    return Multipoles(k / some, jnp.stack(power) / some[None] * normalisation(config), modes, poles)


def _squared_cosine(config: Config, n: tuple[float, float, float], dtype: Any) -> Array:
    """Square of the cosine between wavevectors and a direction; 0 at k = 0."""
    k = fourier.wavevectors(config.mesh_shape, config, dtype)
    along = sum(component * k_ for component, k_ in zip(n, k, strict=True) if component)
    k2 = fourier.k_squared(config.mesh_shape, config, dtype)
    return along**2 / jnp.where(k2 > 0, k2, 1)


def _legendre(order: int, mu2: Array) -> Array | float:
    """(2 l + 1) times the Legendre polynomial of an even order l, from mu^2."""
    if order == 0:
        return 1.0
    if order == 2:
        return 5 * (3 * mu2 - 1) / 2
    return 9 * ((35 * mu2 - 30) * mu2 + 3) / 8
