"""Particles: displacements and momenta on a Lagrangian lattice, and the power-of-two grid on which they live."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.ops.momenta import bits, momentum, pack, rounded
from pmwd_dist.ops.rounding import round_straight_through


class Particles(eqx.Module):
    """Particles of a simulation, in lattice order, divided over devices like the mesh.

    Args:
      disp: displacement from the lattice site, comoving [Mpc/h].
      vel: canonical momentum a^2 dx/d(H0 t) [Mpc/h].
    """

    disp: Float[Array, "nx ny nz 3"]
    vel: Float[Array, "nx ny nz 3"]


class ExactParticles(eqx.Module):
    """Particles within a step, whose momenta are integers in a unit.

    Args:
      disp: displacement from the lattice site, on its grid [Mpc/h].
      momenta: integers in the bits of floats, see `ops.momenta`; derivatives are those of the momenta [Mpc/h].
    """

    disp: Float[Array, "nx ny nz 3"]
    momenta: Float[Array, "nx ny nz 3"]

    def with_unit(self, unit: Any) -> Particles:
        """The particles, for the unit of their momenta [Mpc/h]."""
        return Particles(self.disp, momentum(self.momenta, unit))


def resolution(config: Config, dtype: Any) -> float:
    """Spacing of the grid of displacements [Mpc/h], a power of two.

    All values up to a power of two, 16 to 32 cells and at least 64 Mpc/h, are exact multiples of it: sums of them are
    exact, so that every drift can be undone to the bit. In a LCDM universe none moves farther than 30 Mpc/h.
    """
    max_displacement = max(32 * min(config.cell_size), 64.0)
    return 2.0 ** (math.floor(math.log2(max_displacement)) - significant_bits(dtype))


def momentum_unit(config: Config, dtype: Any) -> float:
    """Unit of the momenta at the start of a run [Mpc/h]: integers hold 16 times the largest displacement."""
    return 16 * largest(config, dtype) * 2.0 ** -bits(dtype)


def largest(config: Config, dtype: Any) -> float:
    """Largest displacement that the grid holds exactly [Mpc/h]."""
    return resolution(config, dtype) * 2.0 ** significant_bits(dtype)


def significant_bits(dtype: Any) -> int:
    """Binary digits of a floating-point type, the leading one included."""
    return int(np.finfo(np.dtype(dtype)).nmant) + 1


def exact(particles: Particles, config: Config) -> ExactParticles:
    """Put particles on the grids of the steps; a displacement is NaN where the momentum isn't finite."""
    dtype = particles.disp.dtype
    momenta, missing = rounded(particles.vel / momentum_unit(config, dtype))
    disp = to_grid(particles.disp, resolution(config, dtype)) + missing
    return ExactParticles(disp, pack(momenta, particles.vel))


def to_grid(x: Array, q: float) -> Array:
    """Round to multiples of q, a power of two; derivatives pass straight through."""
    return round_straight_through(x / q) * q
