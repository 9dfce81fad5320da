"""Momentum and velocity of the matter on the mesh."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.pm import inputs
from pmwd_dist.pm.paint import cic_paint, density
from pmwd_dist.pm.particles import Particles


@on_auto_axes
def momentum_field(particles: Particles, config: Config, *, a: Any = None) -> Float[Array, "3 nx ny nz"]:
    """Momentum density of the matter in units of its mean density, (1 + delta) u [km/s].

    Peculiar velocities u of the particles, painted with their masses by cloud-in-cell.

    Args:
      particles: particles at scale factor a.
      config: configuration of the simulation; `dataclasses.replace(config, mesh_shape=...)` for another mesh.
      a: scale factor of the particles; default: the one that they are made for.

    Returns:
      The components along x, y and z, each divided over devices like a density; all NaN if a particle is beyond the
      halo.

    Raises:
      ValueError: the particles are not Particles of this config, or the scale factor is not known or not theirs.

    Examples:
      >>> momentum = observe.momentum_field(solution.particles, config)
    """
    checked, unit = inputs.checked_particles(particles, config), particles.velocity_unit(a)
    return jnp.stack([momentum_along(checked, config, unit, axis) for axis in range(3)])


@on_auto_axes
def velocity_field(particles: Particles, config: Config, *, a: Any = None) -> Float[Array, "3 nx ny nz"]:
    """Mean peculiar velocity of the matter in each cell, weighted by mass, and 0 in cells without particles [km/s].

    The ratio of `momentum_field` and `density`, with the same arguments and errors.

    Examples:
      >>> velocity = observe.velocity_field(solution.particles, config)
    """
    momentum = momentum_field(particles, config, a=a)
    return per_mass(momentum, density(particles, config)[None])


def momentum_along(particles: Particles, config: Config, unit: Array, axis: int) -> Array:
    """A component of `momentum_field`, shape (nx, ny, nz) [km/s]; the unit is the velocity of a momentum of 1 Mpc/h."""
    return cic_paint(particles.disp, config, particles.vel[..., axis] * (unit / config.particles_per_cell))


@jit
def per_mass(momentum: Array, density: Array) -> Array:
    """Momentum over density; 0 where there is no mass."""
    return jnp.where(density == 0, 0, momentum / jnp.where(density == 0, 1, density))
