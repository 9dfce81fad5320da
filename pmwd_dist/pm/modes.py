"""Linear modes from white noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Complex, Float, Real

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.derivatives import value_and_jacobian
from pmwd_dist._jax.order import barrier
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config, Vector3
from pmwd_dist.cosmology import linear_power as linear
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to, parameters_of
from pmwd_dist.cosmology.parameters import Cosmology, Parameters
from pmwd_dist.parallel.decomposition import Shape3, on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import irfft_block, rfft_block
from pmwd_dist.parallel.inputs import numbers
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.lpt_fields import dealiased

_TABLE = 4096  # nodes of P(k), equidistant in ln k; relative error of log-log interpolation: 1e-5
_APART, _JUMP = 2, 1000  # largest factors of k and P(k) between rows of a table

LinearPower = str | tuple[Any, Any] | Callable[[Array], Array] | Callable[[Array, Parameters], Array]


@on_auto_axes
def linear_modes(
    noise: Real[Array, "nx ny nz"],
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    linear_power: LinearPower | None = None,
    f_nl: ArrayLike | None = None,
) -> Complex[Array, "kx ky kz"]:
    """Linear density contrast delta(k) of cold matter at a = 1, in the layout of `prfft3d`.

    Args:
      noise: real noise of unit variance, shape particle_shape.
      cosmo: cosmology, or its `growth_table`.
      config: the simulation.
      linear_power: P(k) at a = 1 [(Mpc/h)^3]: a table (k [h/Mpc], P), a function of k, a function of (k, cosmology),
        or a transfer function of `linear_power`, by its name; default: "boltzmann".
      f_nl: local primordial non-Gaussianity, phi + f_nl (phi^2 - <phi^2>) with phi = 3/5 zeta in the matter era;
        positive values skew the density positively. A table must have the n_s of the cosmology. None: Gaussian modes.

    Raises:
      ValueError: noise of another shape, or f_nl beyond 1e6, or a table of P(k) that is too short for the box,
        unsorted or not positive.

    Examples:
      >>> modes = pmd.linear_modes(noise, jax_cosmo.Planck15(), config)
    """
    noise = inputs.lattice_field(noise, config, "noise")
    if f_nl is not None:
        check_number(f_nl, "f_nl", -1e6, 1e6)
    if linear_power is None or isinstance(linear_power, str):
        name, values = _transfer(linear_power), parameters_of(cosmo)
        linear.check_transfer(name, values)
        modes = _of_cosmology(noise, values, config, name)
    else:
        modes = colour(noise, log_power(cosmo, config, linear_power), config)
    if f_nl is None:
        return modes
    return add_local(modes, as_array(f_nl), log_transfer(cosmo, config, linear_power), config)


def log_transfer(
    cosmo: Cosmology | GrowthTable, config: Config, linear_power: LinearPower | None
) -> Float[Array, " nodes"]:
    """ln M(k) at `power_nodes`, where delta(k) = M(k) phi(k), for a linear P(k) as in `linear_modes`.

    M = M_b sqrt(P / P_b), normalised at the first node, with M_b of `potential_transfer` and P_b of "boltzmann": both
    P(k) must have the same n_s.
    """
    table = growth_table_to(2, cosmo)
    log_M = _log_transfer(table, config)
    if linear_power is None or (isinstance(linear_power, str) and linear_power == "boltzmann"):
        return log_M
    ratio = log_power(table, config, linear_power) - log_power(table, config, "boltzmann")
    return log_M + (ratio - ratio[0]) / 2


@partial(jit, static_argnames="config")
def _log_transfer(table: GrowthTable, config: Config) -> Array:
    return jnp.log(linear.potential_transfer(as_array(power_nodes(config)), table))


@on_blocks(["spectrum", "whole", "whole"], "spectrum")
def add_local(modes: Array, f_nl: Array, log_transfer: Array, config: Config) -> Array:
    """Modes of delta for the primordial potential phi + f_nl (phi^2 - <phi^2>), of Gaussian modes.

    Products of phi are dealiased as in third-order LPT, and vanish at the Nyquist frequency.
    """

    def squared(phi: Array) -> Array:
        return irfft_block(phi, config.particle_shape[2], config.decomposition) ** 2

    f_nl, log_transfer = (x.astype(modes.real.dtype) for x in (f_nl, log_transfer))
    transfer = local_transfer(log_transfer, config)
    return modes + scaled(dealiased(squared, potential(modes, transfer), config), f_nl * transfer)


def local_transfer(log_transfer: Array, config: Config) -> Array:
    """delta / phi at the local modes, 0 at k = 0; inside shard_map."""
    look_up, scale = _look_up(config, log_transfer)
    return jnp.where(scale > 0, jnp.exp(look_up(log_transfer)), 0)


def potential(modes: Array, transfer: Array) -> Array:
    """Modes of phi from modes of delta."""
    return scaled(modes, 1 / jnp.where(transfer > 0, transfer, jnp.inf))


def log_power(
    cosmo: Cosmology | GrowthTable, config: Config, linear_power: LinearPower | None
) -> Float[Array, " nodes"]:
    """ln P(k) at `power_nodes`; arguments as in `linear_modes`."""
    if linear_power is None or isinstance(linear_power, str):
        return _log_power(parameters_of(cosmo), config, _transfer(linear_power))
    k = power_nodes(config)
    if not callable(linear_power):
        return jnp.log(_from_table(k, linear_power))
    function: Any = linear_power
    if depends_on_cosmology(linear_power):
        values = parameters_of(cosmo)
        return jnp.log(_of_function(lambda k: function(k, values), k))
    return jnp.log(_of_function(function, k))


def depends_on_cosmology(linear_power: LinearPower | None) -> bool:
    """Whether P(k) is computed from the cosmology, by a transfer function or a function of (k, cosmology)."""
    if not callable(linear_power):
        return linear_power is None or isinstance(linear_power, str)
    try:
        arguments = signature(linear_power).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return False
    return sum(x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD) for x in arguments) == 2


def _transfer(name: str | None) -> str:
    return linear.DEFAULT if name is None else linear.transfer_name(name, "linear_power")


def power_nodes(config: Config) -> np.ndarray:
    """Wavenumbers of the table of P(k) [h/Mpc]."""
    return np.geomspace(*wavenumber_range(config.particle_shape, config.box_size), _TABLE)


def wavenumber_range(lattice: Shape3, box_size: Vector3) -> tuple[float, float]:
    """Fundamental mode and corner of the Nyquist cube of a lattice [h/Mpc], with a margin."""
    low = 2 * math.pi / max(box_size)
    high = math.hypot(*(math.pi * n / length for n, length in zip(lattice, box_size, strict=True)))
    return low * 0.999, max(high, 2 * low) * 1.001


def _of_function(linear_power: Callable[[Array], Array], k: np.ndarray) -> Array:
    power = jnp.asarray(linear_power(as_array(k)), dtype=float)
    if power.shape != k.shape:
        constraint = f"returns an array of shape {power.shape} for k of shape {k.shape}"
        raise ArgumentError("linear_power", linear_power, constraint, "return P at each k", show_value=False)
    if not isinstance(power, Tracer):
        _check_values(k, power, "is")
    return power


def _from_table(k: np.ndarray, table: Any) -> Array:
    if not isinstance(table, tuple | list | np.ndarray) or len(table) != 2:
        constraint = f"is a {type(table).__name__} and must be a table or a function"
        remedy = "pass (k, P), a function of k or of (k, cosmology), or the name of a transfer function"
        raise ArgumentError("linear_power", table, constraint, remedy, show_value=False)
    table_k, table_power = (numbers(x, "linear_power") for x in table)
    check_table(table_k, table_power, k[0], k[-1])
    table_k, table_power = as_array(table_k), as_array(table_power)
    return linear.interpolate_power(as_array(k), table_k, table_power)


def check_table(k: Any, power: Any, low: float, high: float) -> None:
    """Raise ValueError unless a P(k) table is sorted, positive and covers low <= k <= high [h/Mpc].

    Traced values are not checked.
    """

    def wrong(constraint: str, remedy: str = "") -> ArgumentError:
        return ArgumentError("linear_power", (k, power), constraint, remedy, show_value=False)

    if jnp.ndim(k) != 1 or jnp.shape(k) != jnp.shape(power) or len(k) < 2:
        raise wrong(f"has shapes {jnp.shape(k)}, {jnp.shape(power)}", "pass two equal 1-D arrays")
    if isinstance(power, Tracer) or isinstance(k, Tracer):
        return
    k, power = np.asarray(k, float), np.asarray(power, float)
    _check_values(k, power, "holds")
    if not (np.diff(k, prepend=0) > 0).all():
        row = int(np.argmin(np.diff(k, prepend=0) > 0))
        raise wrong(f"is not sorted: k[{row}]={k[row]}", "k must be positive and rise, each k once")
    if k[0] > low or k[-1] < high:
        raise wrong(
            f"covers k={k[0]:.4g}..{k[-1]:.4g} h/Mpc, but the box needs {low:.4g}..{high:.4g}",
            "use a longer table, or another box or lattice",
        )
    used = np.flatnonzero((k[1:] > low) & (k[:-1] < high))
    for name, x, most in (("k", k, _APART), ("P", power, _JUMP)):
        ratio = np.exp(np.abs(np.diff(np.log(x))))[used]
        if ratio.max() > most * (1 + 1e-6):
            i = used[ratio.argmax()]
            constraint = f"goes from {name} = {x[i]:.4g} to {x[i + 1]:.4g} in one row, at k = {k[i]:.4g} h/Mpc"
            raise wrong(constraint, f"use finer rows: {name} may change by a factor of {most} in the range of the box")


def _check_values(k: Any, power: Any, verb: str) -> None:
    """Raise ValueError unless P(k) is positive and finite in the precision of the program."""
    known = np.finfo(jnp.result_type(float))
    power = np.asarray(power, float)
    bad = ~((power >= float(known.tiny)) & (power <= float(known.max)))
    if bad.any():
        i = int(np.argmax(bad))
        constraint = f"{verb} P = {power[i]:.4g} at k = {k[i]:.4g} h/Mpc"
        remedy = f"P(k) must be positive and finite, {known.tiny:.1e} to {known.max:.1e} in {known.dtype}"
        raise ArgumentError("linear_power", power, constraint, remedy, show_value=False)


@partial(jit, static_argnames=("config", "transfer"))
def _of_cosmology(noise: Array, cosmo: Parameters, config: Config, transfer: str) -> Array:
    return _coloured(noise, cosmo, config, transfer)  # jitted: derivatives are then no operations one by one


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _coloured(noise: Array, cosmo: Parameters, config: Config, transfer: str) -> Array:
    """Linear modes of a cosmology.

    The derivative of ln P(k) with respect to each parameter is computed forwards, tabulated and interpolated like P(k),
    so that reverse mode is a sum over the modes for each parameter. Reverse mode through the interpolation would
    scatter all modes to the nodes of P(k): on GPUs by atomic additions, in any order.
    """
    return colour(noise, _log_power(cosmo, config, transfer), config)


@partial(_coloured.defjvp, symbolic_zeros=True)
def _coloured_jvp(config: Config, transfer: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    noise, cosmo = primals
    by_noise, by_cosmo = tangents
    moving = {name: x for name, x in vars(by_cosmo).items() if not (x is None or isinstance(x, SymbolicZero))}
    shape = linear.SHAPE_PARAMETERS if cosmo.m_nu is None else vars(cosmo).keys() - {"sigma8"}
    names = [name for name in vars(cosmo) if name in shape and name in moving]
    values, pack = ravel_pytree({name: getattr(cosmo, name) for name in names})
    changes, _ = ravel_pytree({name: moving[name] for name in names})

    def log_power(values: Array) -> Array:
        return _log_power(replace(cosmo, **pack(values)), config, transfer)

    if names:
        table, slopes = value_and_jacobian(log_power, values)
    else:
        table, slopes = _log_power(cosmo, config, transfer), ()
    modes = colour(noise, table, config)
    tangent = jnp.zeros_like(modes) if isinstance(by_noise, SymbolicZero) else colour(by_noise, table, config)
    if names or "sigma8" in moving:
        by_sigma8 = 2 * moving["sigma8"] / cosmo.sigma8 if "sigma8" in moving else jnp.zeros(())
        change = by_sigma8, list(zip(changes, slopes, strict=True))
        tangent += colour(noise, table, config, change)
    return modes, tangent


def _log_power(cosmo: Parameters, config: Config, transfer: str) -> Array:
    return _finite_log(linear.linear_power(power_nodes(config), cosmo, transfer))


@jit
def _finite_log(power: Array) -> Array:
    return jnp.log(jnp.maximum(power, jnp.finfo(power.dtype).tiny))  # sigma8 may be 0


@partial(jit, static_argnames="config")
def colour(noise: Array, log_power: Array, config: Config, change: Any = None) -> Array:
    """Modes of white noise scaled to a power spectrum, given as ln P at `power_nodes`.

    With a change of ln P, a number and (number, table) pairs whose products are added to it, their tangent.
    """
    tables = jax.tree.map(lambda x: x.astype(noise.dtype), (log_power, change))
    # Derivatives store the tables, not the field of amplitudes.
    return jax.checkpoint(partial(_scaled_noise, config=config))(noise, *tables)


@on_blocks(["field", "whole", "whole"], "spectrum")
def _scaled_noise(noise: Array, log_power: Array, change: Any, config: Config) -> Array:
    look_up, scale = _look_up(config, log_power)
    amplitude = jnp.exp(0.5 * look_up(log_power)) * scale
    if change is not None:
        amplitude = amplitude * 0.5 * (change[0] + sum(factor * look_up(slope) for factor, slope in change[1]))
    return scaled(rfft_block(noise, config.decomposition), amplitude)


def _look_up(config: Config, of: Array) -> tuple[Callable[[Array], Array], Array]:
    """Interpolation of tables at the local modes, linear in ln k, and the amplitude of a mode for P = 1."""
    shape, k, dtype = config.particle_shape, power_nodes(config), of.dtype
    x0, dx = math.log(k[0]), math.log(k[-1] / k[0]) / (_TABLE - 1)
    k2 = fourier.k_squared(shape, config, dtype)
    # After the table: XLA would store the logarithms of the forward pass for the backward pass.
    one = barrier((jnp.ones((), dtype), jax.lax.stop_gradient(of)))[0]
    x = (0.5 * jnp.log(jnp.where(k2 > 0, k2, one)) - x0) / dx
    i = jnp.clip(x.astype(jnp.int32), 0, _TABLE - 2)
    t = x - i.astype(x.dtype)
    valid = (k2 > 0) & (fourier.mode_count(shape, config, dtype) > 0)
    scale = jnp.where(valid, math.sqrt(math.prod(shape) / math.prod(config.box_size)), 0)
    return lambda table: (1 - t) * table[..., i] + t * table[..., i + 1], scale.astype(dtype)
