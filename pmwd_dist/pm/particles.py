"""Particles: displacements and momenta on a Lagrangian lattice, and the power-of-two grid on which they live."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.ops.rounding import round_straight_through


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


def quantize(particles: Particles, config: Config) -> Particles:
    """Put particles on the power-of-two grid; exact if they are on it."""

    def to_grid(x: Array, q: float) -> Array:
        return round_straight_through(x / q) * q

    dtype = particles.disp.dtype
    return Particles(
        to_grid(particles.disp, resolution(config, dtype)), to_grid(particles.vel, momentum_resolution(config, dtype))
    )
