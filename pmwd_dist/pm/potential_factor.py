"""Factor of the potential: a function of wavenumber and scale factor that multiplies the Green's function of a force.

The factor of a step is tabulated at wavenumbers k_j = k_max (j / n)^2, and interpolated linearly in sqrt(k / k_max) on
the spectrum. The table is a coefficient of the step, so that the same table serves the step and its reversal.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import rows
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.parallel.decomposition import Shape3
from pmwd_dist.pm import fourier
from pmwd_dist.pm.force_correction import ForceCorrection

PotentialFactor = Callable[[Array, Array], Array]
Table = Float[Array, "nodes"]

_INTERVALS = 127


def tabulate(factor: PotentialFactor, a: Float[Array, ""], config: Config) -> Table:
    """Table of a factor at a scale factor; NaN where the factor is not positive.

    Raises:
      ValueError: the factor returns another shape than the wavenumbers have.
    """
    nodes = np.maximum(np.arange(_INTERVALS + 1), 1) / _INTERVALS  # k = 0 is never used
    k = jnp.asarray(largest_wavenumber(config) * nodes**2, a.dtype)
    try:
        values = jnp.asarray(factor(k, a), a.dtype)
    except (TypeError, ValueError) as error:
        constraint = f"fails for wavenumbers k [h/Mpc] and a number a: {error}"
        raise ArgumentError("potential_factor", factor, constraint, "take (k, a)", show_value=False) from error
    if jnp.shape(values) not in ((), k.shape):
        constraint = f"returns an array of shape {jnp.shape(values)} for k of shape {k.shape} and a number a"
        raise ArgumentError("potential_factor", factor, constraint, "return one value for each k", show_value=False)
    values = jnp.broadcast_to(values, k.shape)
    return jnp.where(values > 0, values, jnp.nan)


def kick_scale_factor(table: GrowthTable, lower: Array, upper: Array) -> Array:
    """Scale factor of the kick of a step between two scale factors, at the mean of their growth factors."""
    return table.scale_factor((table.D1(lower) + table.D1(upper)) / 2)


def with_neutrinos(factor: PotentialFactor | None, table: GrowthTable) -> PotentialFactor | None:
    """A factor of the potential, times the force of massive neutrinos on cold matter, if any."""
    response = table.response
    if isinstance(factor, ForceCorrection):
        factor = factor.in_cosmology(table)
    if response is None or factor is None:
        return factor if response is None else response.force
    return lambda k, a: factor(k, a) * response.force(k, a)


def on_modes(table: Table, config: Config, shape: Shape3 | None = None) -> Float[Array, "nx ny nk"]:
    """Factor at the modes of the local block of the spectrum, of the mesh or another shape; inside shard_map."""
    k2 = fourier.k_squared(config.mesh_shape if shape is None else shape, config, table.dtype)
    x = _INTERVALS * jnp.sqrt(jnp.sqrt(k2) / largest_wavenumber(config))
    index = jnp.minimum(x.astype(jnp.int32), _INTERVALS - 1)
    low, high = rows(table, index), rows(table, index + 1)
    return low + (x - index) * (high - low)


def largest_wavenumber(config: Config) -> float:
    """Largest wavenumber of the mesh [h/Mpc]."""
    return math.hypot(*(math.pi / cell for cell in config.cell_size))
