"""Multipoles of the power spectrum about a line of sight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import LARGEST_TRACER_BIAS, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.ops import vary
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.power import (
    Deconvolve,
    check_deconvolve,
    checked_noise,
    linear_power_at,
    mean,
    mode_sums,
    normalisation,
    power_of_modes,
)
from pmwd_dist.observe.redshift_space import LineOfSight, cosine_moments, direction
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.potential_factor import largest_wavenumber

_NODES = 2048  # nodes of a spectrum, equidistant in ln k, for linear interpolation


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
          ValueError: the order is not among `poles`.
        """
        if order not in self.poles:
            raise ArgumentError("order", order, f"is not one of poles={self.poles}")
        return self.power[self.poles.index(order)]


@on_auto_axes
def power_multipoles(
    field: Real[Array, "nx ny nz"],
    config: Config,
    *,
    line_of_sight: LineOfSight = "z",
    poles: Sequence[int] = (0, 2, 4),
    deconvolve: Deconvolve = True,
    cell_noise: ArrayLike = 0.0,
) -> Multipoles:
    """Multipoles of the power of a field such as the density in redshift space.

    P_l(k) is the mean of (2 l + 1) L_l(mu) |delta(k)|^2 over the modes of a bin, with mu the cosine between k and the
    line of sight (Hamilton 1998, sec. 4). At the Nyquist frequency of an axis, where this component of k has no sign,
    both signs are averaged. The monopole equals `power_spectrum`. Orders mix in bins of few modes, which sample mu
    sparsely. Shot noise of points is in the monopole alone, and is not subtracted.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      config: configuration of the simulation.
      line_of_sight: direction, the same everywhere: "x", "y", "z" or a vector of any length.
      poles: orders l, among 0, 2 and 4.
      deconvolve: deconvolution of the window, see `power_spectrum`.
      cell_noise: shot noise of counts that are drawn in cells, see `power_spectrum` [(Mpc/h)^3].

    Raises:
      ValueError: the field is not on the mesh or not real, or another argument is out of its range.

    Examples:
      >>> poles = observe.power_multipoles(density, config, line_of_sight="z")
      >>> poles.k, poles.pole(2)  # [h/Mpc], [(Mpc/h)^3]
    """
    check_deconvolve(deconvolve)
    n, field, noise = direction(line_of_sight), inputs.mesh_field(field, config), checked_noise(cell_noise)
    return _power_multipoles(field, noise, config, n=n, poles=_checked_poles(poles), deconvolve=deconvolve)


def _checked_poles(poles: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(poles, Sequence) or not poles or any(order not in (0, 2, 4) for order in poles):
        raise ArgumentError("poles", poles, "must be orders 0, 2 and 4, or some of them")
    return tuple(poles)


@on_blocks(["field", "whole"], "whole", static=["n", "poles", "deconvolve"])
def _power_multipoles(
    field: Array,
    noise: Array,
    config: Config,
    *,
    n: tuple[float, float, float],
    poles: tuple[int, ...],
    deconvolve: Deconvolve,
) -> Multipoles:
    power = power_of_modes(field, noise, config, deconvolve)
    mu = _cosine_moments(config, n, field.dtype)
    k, *power, modes = mode_sums([power * _legendre(order, *mu) for order in poles], config)
    return Multipoles(mean(k, modes), mean(jnp.stack(power), modes) * normalisation(config), modes, poles)


@on_auto_axes
def kaiser_multipoles(
    power: Callable[[Array], ArrayLike],
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    bias: ArrayLike | Callable[[Array], Array] = 1.0,
    a: ArrayLike | None = None,
    line_of_sight: LineOfSight | None = "z",
    poles: Sequence[int] = (0, 2, 4),
) -> Multipoles:
    """Multipoles of linear theory, (b + f mu^2)^2 D1^2 P(k) (Kaiser 1987), in the bins of `power_multipoles`.

    They are means over the same modes, so that bins of few modes mix orders in the same way.

    Args:
      power: linear P(k) at a = 1 [(Mpc/h)^3], a function of k [h/Mpc], NaN where it is not known.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.
      bias: linear Eulerian bias b, 1 plus the Lagrangian bias b1; a number, or a function of k.
      a: scale factor; default: `config.a_stop`.
      line_of_sight: direction "x", "y", "z" or a vector; None for real space, f = 0.
      poles: orders l, among 0, 2 and 4.

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> theory = observe.kaiser_multipoles(lambda k: pmd.linear_power(k, cosmo), cosmo, config, bias=1.9)
    """
    inputs.check_config(config)
    if not callable(bias):
        check_number(bias, "bias", -LARGEST_TRACER_BIAS, LARGEST_TRACER_BIAS)
    k, at = mesh_nodes(config), inputs.scale_factor(config.a_stop if a is None else a)
    growth, rate = growth_table_to(config.lpt_order, cosmo).linear(k, at)
    k, rate = as_array(k), 0.0 if line_of_sight is None else rate
    factors = bias(k) if callable(bias) else bias, rate
    fields = _fields(as_array(linear_power_at(k, power, beyond=True)), growth, factors)
    n = direction("z" if line_of_sight is None else line_of_sight)
    return _kaiser_multipoles(fields, config, n=n, poles=_checked_poles(poles))


def mesh_nodes(config: Config) -> np.ndarray:
    """Wavenumbers from half the fundamental mode to the corner of the mesh's Nyquist cube [h/Mpc]."""
    return np.geomspace(math.pi / max(config.box_size), 1.001 * largest_wavenumber(config), _NODES)


@jit
def _fields(power: Array, growth: Array, factors: tuple[Array, Array]) -> Array:
    return jnp.stack([factor * (jnp.sqrt(power) * growth) for factor in factors])


@on_blocks(["whole"], "whole", static=["n", "poles"])
def _kaiser_multipoles(
    fields: Array, config: Config, *, n: tuple[float, float, float], poles: tuple[int, ...]
) -> Multipoles:
    nodes, dtype = mesh_nodes(config), fields.dtype
    k2, (mu2, mu4) = fourier.k_squared(config.mesh_shape, config, dtype), _cosine_moments(config, n, dtype)
    x = 0.5 * jnp.log(jnp.where(k2 > 0, k2, 1))
    density, velocity = (jnp.interp(x, jnp.asarray(np.log(nodes), dtype), field) for field in fields)
    power = density**2 + 2 * density * velocity * mu2 + velocity**2 * mu4
    power = vary(power, config.decomposition.names)
    k, *power, modes = mode_sums([power * _legendre(order, mu2, mu4) for order in poles], config)
    return Multipoles(mean(k, modes), mean(jnp.stack(power), modes), modes, poles)


def _cosine_moments(config: Config, n: tuple[float, float, float], dtype: Any) -> tuple[Array, Array]:
    k = fourier.wavevectors(config.mesh_shape, config, dtype)
    return cosine_moments(k, config.mesh_shape, config.box_size, n)


def _legendre(order: int, mu2: Array, mu4: Array) -> Array | float:
    """(2 l + 1) L_l(mu) of an even order l, from mu^2 and mu^4."""
    if order == 0:
        return 1.0
    if order == 2:
        return 5 * (3 * mu2 - 1) / 2
    return 9 * (35 * mu4 - 30 * mu2 + 3) / 8
