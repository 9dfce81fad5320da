"""The initial conditions of a run."""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import colour, white_noise
from pmwd_dist.pm.particles import ExactParticles, exact


@partial(jax.jit, static_argnames="config")
def initial_particles(key: Array, table: GrowthTable, power: Array, config: Config) -> ExactParticles:
    """Particles at `config.a_start`, from white noise, on the grids of the steps.

    One program: noise and modes are dropped as soon as they are used, and no field lies beside the particles twice.

    Args:
      key: key of jax.random.
      table: growth of the cosmology.
      power: ln P(k) at a = 1 [(Mpc/h)^3], see `modes.log_power`.
      config: the simulation.
    """
    modes = colour(white_noise(key, config), power, config)
    particles = exact(lpt(modes, table, config), config)
    return jax.tree.map(config.decomposition.constrain, particles)
