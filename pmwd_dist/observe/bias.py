"""Biased tracers: Lagrangian bias as weights of the particles, and linear Eulerian bias."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Real

from pmwd_dist._checks import LARGEST_TRACER_BIAS, check_number, check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.filters import filter_warning
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import irfft_block, sequence_after
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.lpt_fields import PAIRS
from pmwd_dist.pm.modes import LinearPower, local_transfer, log_transfer, potential
from pmwd_dist.pm.paint import cic_paint
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.potential_factor import on_modes, tabulate

_NONLINEAR = ("b2", "bs2", "bnabla2", "bphidelta", "b3", "bdeltas2", "bs3")
_PRIMORDIAL = ("bphi", "bphidelta")


class LagrangianBias(eqx.Module):
    """Parameters of a Lagrangian bias expansion (Modi et al. 2020; Zennaro et al. 2021; Abidi & Baldauf 2018).

      w = 1 + b1 delta + b2 (delta^2 - <delta^2>) + bs2 (s^2 - <s^2>) + bnabla2 laplacian delta
          + b3 (delta^3 - 3 <delta^2> delta) + bdeltas2 (delta s^2 - <s^2> delta) + bs3 s^3
          + f_nl (bphi phi + bphidelta (phi delta - <phi delta>))

    less the means of operators of third order. The density delta is linear, smoothed, at the time of the tracers and at
    the lattice sites of the particles. It has the tidal field s_ij = (k_i k_j / k^2 - 1/3 kronecker_ij) delta, with
    s^2 = s_ij s_ij and s^3 = s_ij s_jk s_ki. Parameters of an expansion with b2 / 2, bs2 / 2 or b3 / 6 are two and
    six times the values here. The terms with <delta^2> delta and <s^2> delta keep the bias of long waves at 1 + b1. phi
    is the smoothed primordial potential of `linear_modes`.

    Args:
      b1, b2, bs2: dimensionless coefficients.
      bnabla2: coefficient of the Laplacian [(Mpc/h)^2].
      bphi, bphidelta: dimensionless coefficients of primordial non-Gaussianity (Barreira 2022).
      b3, bdeltas2, bs3: dimensionless coefficients of third order.

    Raises:
      ValueError: a coefficient is not a finite number, or beyond 1e4; traced values are not checked.
    """

    b1: ArrayLike = 0.0
    b2: ArrayLike = 0.0
    bs2: ArrayLike = 0.0
    bnabla2: ArrayLike = 0.0
    bphi: ArrayLike = 0.0
    bphidelta: ArrayLike = 0.0
    b3: ArrayLike = 0.0
    bdeltas2: ArrayLike = 0.0
    bs3: ArrayLike = 0.0

    def __check_init__(self):
        for name, value in vars(self).items():
            check_number(value, name, -LARGEST_TRACER_BIAS, LARGEST_TRACER_BIAS)


@on_auto_axes
def bias_weights(
    modes: Num[Array, "nx ny nk"],
    bias: LagrangianBias,
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    smoothing: float | None = None,
    a: ArrayLike | None = None,
    f_nl: ArrayLike = 0.0,
    linear_power: LinearPower | None = None,
) -> Float[Array, "px py pz"]:
    """Weights of the particles as tracers of galaxies, with a mean of 1 over the lattice.

    On large scales `tracer_density` with these weights has (1 + b1)^2 times the power of matter. The means <delta^2>
    and <s^2> are taken over the lattice. Weights may be negative, as in the papers.

    Args:
      modes: linear delta(k) at a = 1, from `linear_modes`.
      bias: parameters of the expansion.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.
      smoothing: radius R of a Gaussian filter exp(-k^2 R^2 / 2) on delta and phi [Mpc/h]. It must be given where a bias
        other than b1 and bphi is not zero: variances of an unsmoothed field grow with the lattice without limit.
      a: scale factor of the tracers; default: `config.a_stop`.
      f_nl: primordial non-Gaussianity of the modes, as in `linear_modes`.
      linear_power: P(k) of the modes, as in `linear_modes`, which relates them to phi.

    Raises:
      ValueError: the modes have another shape, an operator diverges, or another argument is out of its range.

    Warns:
      UserWarning: the filter leaves no wave of the box.

    Examples:
      >>> bias = observe.LagrangianBias(b1=0.9, b2=0.1)
      >>> weights = observe.bias_weights(modes, bias, cosmo, config, smoothing=8.0)
    """
    check_type(bias, LagrangianBias, "bias", "must be a LagrangianBias", "use LagrangianBias(b1=1.0)")
    check_number(f_nl, "f_nl", -1e6, 1e6)
    modes = inputs.checked_modes(modes, config)
    dtype = jnp.finfo(modes.dtype).dtype  # real
    at = inputs.scale_factor(config.a_stop if a is None else a)
    radius = checked_smoothing(smoothing, bias)
    if text := filter_warning("smoothing", radius, config):
        warnings.warn(text, stacklevel=3)
    names = [field.name for field in fields(bias) if not _is_zero(getattr(bias, field.name))]
    used = tuple(name for name in names if name not in _PRIMORDIAL or not _is_zero(f_nl))
    factors = {name: f_nl if name in _PRIMORDIAL else 1 for name in used}
    values = [as_array(getattr(bias, name) * factors[name], dtype) for name in used]
    table, transfer = growth_table_to(config.lpt_order, cosmo), as_array(0, dtype)
    if {*_PRIMORDIAL} & {*used}:
        transfer = log_transfer(table, config, linear_power).astype(dtype)
    growth = table.D1(at)
    if table.response is not None:
        growth = tabulate(lambda k, a: table.linear(k, a)[0], jnp.asarray(at, growth.dtype), config)
    growth = growth.astype(dtype)
    return _bias_weights(modes, values, transfer, growth, config, used=used, radius=radius)


def _is_zero(value: Any) -> bool:
    return not isinstance(value, Tracer) and float(value) == 0


def checked_smoothing(smoothing: Any, bias: LagrangianBias) -> float:
    """The radius of the filter, 0 without one; ValueError if an operator needs one."""
    if smoothing is None:
        for name in _NONLINEAR:
            if not _is_zero(getattr(bias, name)):
                constraint = f"must be given: the operator of {name} diverges on an unsmoothed field"
                remedy = "pass the radius of a Gaussian filter, such as 2.0 Mpc/h"
                raise ArgumentError("smoothing", None, constraint, remedy)
        return 0.0
    check_number(smoothing, "smoothing", 1e-6, 1e6, unit="Mpc/h", remedy="or leave it out")
    return float(smoothing)


@on_blocks(["spectrum", "whole", "whole", "whole"], "field", static=["used", "radius"])
def _bias_weights(
    modes: Array,
    values: list[Array],
    transfer: Array,
    growth: Array,
    config: Config,
    *,
    used: tuple[str, ...],
    radius: float,
) -> Array:
    dtype = modes.real.dtype
    k2 = fourier.k_squared(config.particle_shape, config, dtype)
    phi = modes
    if {*_PRIMORDIAL} & {*used}:
        phi = potential(modes * jnp.exp(-k2 * radius**2 / 2), local_transfer(transfer, config))
    if growth.ndim > 0:  # by wavenumber
        growth = on_modes(growth, config, config.particle_shape)
    modes = modes * (growth * jnp.exp(-k2 * radius**2 / 2))
    weights = jnp.ones(config.decomposition.block(config.particle_shape), dtype)
    for value, field in zip(values, _operators(modes, phi, k2, used, config), strict=True):
        weights = weights + value * field
    return weights


def _operators(modes: Array, phi: Array, k2: Array, used: tuple[str, ...], config: Config) -> Iterator[Array]:
    """Fields of the operators in `used`, in order; inside shard_map."""
    nz, decomposition = config.particle_shape[2], config.decomposition
    delta = irfft_block(modes, nz, decomposition)
    tide = _squared_tide(modes, config) if {"bs2", "bdeltas2"} & {*used} else delta
    for name in used:
        if name in ("b1", "b2", "b3"):
            centred = delta**2 - (3 * _mean(delta**2, config) if name == "b3" else 0)
            yield delta if name == "b1" else _without_mean(centred if name == "b2" else centred * delta, config)
        elif name in ("bs2", "bdeltas2"):
            centred = tide - _mean(tide, config)
            yield centred if name == "bs2" else _without_mean(centred * delta, config)
        elif name == "bs3":
            yield _without_mean(_cubed_tide(modes, config), config)
        elif name in _PRIMORDIAL:
            field = irfft_block(phi, nz, decomposition)
            yield field if name == "bphi" else _without_mean(field * delta, config)
        else:
            yield irfft_block(-k2 * modes, nz, decomposition)


def _squared_tide(modes: Array, config: Config) -> Array:
    """s_ij s_ij = (phi_ij)^2 - delta^2 / 3, with laplacian phi = delta."""
    potential, total = _potential(modes, config), jnp.zeros((), modes.real.dtype)
    trace = total
    for i, j in PAIRS:
        field = _second_derivative(potential, i, j, config)
        total = total + (1 if i == j else 2) * field**2
        trace = trace + field if i == j else trace
        potential, (total, trace) = sequence_after(potential, (total, trace))
    return total - trace**2 / 3


def _cubed_tide(modes: Array, config: Config) -> Array:
    """s_ij s_jk s_ki, three times the determinant of s, whose trace is 0."""
    potential = _potential(modes, config)
    xx, yy, zz, xy, xz, yz = (_second_derivative(potential, i, j, config) for i, j in PAIRS)
    third = (xx + yy + zz) / 3
    xx, yy, zz = xx - third, yy - third, zz - third
    return 3 * (xx * yy * zz + 2 * xy * xz * yz - xx * yz**2 - yy * xz**2 - zz * xy**2)


def _potential(modes: Array, config: Config) -> Array:
    return modes * fourier.inverse_laplacian(config.particle_shape, config, modes.real.dtype)


def _second_derivative(potential: Array, i: int, j: int, config: Config) -> Array:
    """Minus the second derivative along two axes; waves at the Nyquist frequency have none along different axes."""
    k = fourier.wavevectors(config.particle_shape, config, potential.real.dtype, odd=i != j)
    return irfft_block(k[i] * k[j] * potential, config.particle_shape[2], config.decomposition)


def _mean(field: Array, config: Config) -> Array:
    return jax.lax.pmean(jnp.mean(field), config.decomposition.names)


def _without_mean(field: Array, config: Config) -> Array:
    return field - _mean(field, config)


@on_auto_axes
def tracer_density(particles: Particles, weights: Real[Array, "px py pz"], config: Config) -> Float[Array, "nx ny nz"]:
    """Density of tracers in units of the mean, 1 + delta_g: particles painted with weights, see `bias_weights`.

    Raises:
      ValueError: the particles are not Particles of this config, or the weights have another shape.

    Examples:
      >>> galaxies = observe.tracer_density(solution.particles, weights, config)
    """
    disp = inputs.checked_particles(particles, config).disp
    return cic_paint(disp, config, inputs.lattice_field(weights, config, "weights") / config.particles_per_cell)


@on_auto_axes
def eulerian_bias(density: Real[Array, "nx ny nz"], b1: ArrayLike, config: Config) -> Float[Array, "nx ny nz"]:
    """Density of linearly biased tracers in units of the mean: 1 + b1 delta.

    Raises:
      ValueError: the density is not on the mesh, or the bias is beyond 1e4.

    Examples:
      >>> galaxies = observe.eulerian_bias(density, 1.5, config)
    """
    density = inputs.mesh_field(density, config, "density")
    check_number(b1, "b1", -LARGEST_TRACER_BIAS, LARGEST_TRACER_BIAS)
    return 1 + jnp.asarray(b1, density.dtype) * (density - 1)
