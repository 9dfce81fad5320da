"""Particles: displacements and momenta on a Lagrangian lattice, and the power-of-two grid on which they live."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config


class Particles(eqx.Module):
    """Particles of a simulation, in lattice order, divided over devices like the mesh.

    Args:
      disp: displacement from the lattice site, comoving [Mpc/h].
      vel: canonical momentum a^2 dx/d(H0 t) [Mpc/h].
    """

    disp: Float[Array, "nx ny nz 3"]
    vel: Float[Array, "nx ny nz 3"]


def resolution(config: Config, dtype: Any) -> float:
    """Spacing of the grid of displacements [Mpc/h], a power of two.

    All values up to a power of two, 64 to 128 cells (and at least 64 Mpc/h), are exact multiples of it: sums of them
    are exact, so that every drift and kick can be undone to the bit.
    """
    max_displacement = max(128 * min(config.cell_size), 64.0)
    return 2.0 ** (math.floor(math.log2(max_displacement)) - significant_bits(dtype))


def momentum_resolution(config: Config, dtype: Any) -> float:
    """Spacing of the grid of momenta [Mpc/h]: two bits coarser, the room that `BullFrog` needs to rescale them."""
    return 4 * resolution(config, dtype)


def largest(config: Config, dtype: Any) -> float:
    """Largest displacement that the grid holds exactly [Mpc/h]."""
    return resolution(config, dtype) * 2.0 ** significant_bits(dtype)


def significant_bits(dtype: Any) -> int:
    """Binary digits of a floating-point type, the leading one included."""
    return int(np.finfo(np.dtype(dtype)).nmant) + 1


def max_abs(x: Array) -> Array:
    """max |x|, and NaN if any x is: XLA's own maximum on a CPU loses NaNs.

    The bits of positive floats are ordered like the floats, with NaN beyond infinity.
    """
    x = jax.lax.stop_gradient(x)
    integer = {4: jnp.int32, 8: jnp.int64}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), integer)
    return jax.lax.bitcast_convert_type(jnp.max(bits, initial=0), x.dtype)


@jax.custom_jvp
def round_straight_through(x: Array) -> Array:
    """Round to the nearest integer; derivatives pass straight through."""
    return jnp.rint(x)


@round_straight_through.defjvp
def _round_straight_through_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The primal by the same function: a derivative of this rule, too, must pass straight through.
    return round_straight_through(primals[0]), tangents[0]


def quantize(particles: Particles, config: Config) -> Particles:
    """Put particles on the power-of-two grid; exact if they are on it."""

    def to_grid(x: Array, q: float) -> Array:
        return round_straight_through(x / q) * q

    dtype = particles.disp.dtype
    return Particles(
        to_grid(particles.disp, resolution(config, dtype)), to_grid(particles.vel, momentum_resolution(config, dtype))
    )
