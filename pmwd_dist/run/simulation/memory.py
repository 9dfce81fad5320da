"""Memory of a run on the current devices, by XLA's plans of its compiled programs; `planning` counts it for others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.observe import power
from pmwd_dist.pm.modes import log_power
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.solvers import FORMULAS
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.run.common import resources
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.simulation import light_cone

Stage = Literal["the initial conditions", "a step", "P(k)", "the bispectrum"]


def run_memory(
    simulation: SimulationSetup, times: Sequence[float], config: Config, shells: int | None
) -> dict[Stage, int]:
    """Memory of each device by stage of a run [bytes].

    Args:
      simulation: simulation on the current devices.
      times: scale factors at which steps begin and end.
      config: the configuration of the simulation with the expected halo.
      shells: shells of a bispectrum, if one is measured.
    """
    stages: dict[Stage, int] = {
        "the initial conditions": resources.planned(_initial_program(simulation)),
        "a step": resources.planned(_step_program(simulation, times, config)),
        "P(k)": power_memory(config),
    }
    if shells is not None:  # a field for each, beside the particles
        numbers = 6 * math.prod(config.particle_shape) + (shells + 6) * math.prod(config.mesh_shape)
        stages["the bispectrum"] = numbers * vectors_like(config).dtype.itemsize // config.decomposition.size
    return stages


def _initial_program(simulation: SimulationSetup) -> Any:
    config = simulation.config
    table = _like(growth_table_to(config.lpt_order, simulation.cosmo))
    key = jax.eval_shape(lambda: jax.random.key(0))
    power = _like(log_power(simulation.cosmo, config, simulation.table))
    return host.initial_particles.lower(key, table, power, config).compile()


def _step_program(simulation: SimulationSetup, times: Sequence[float], config: Config) -> Any:
    """The compiled program of a step, with the light cone if there is one."""
    cone, done, vectors = simulation.light_cone, np.int32(0), vectors_like(config)
    table = growth_table_to(config.lpt_order, simulation.cosmo)
    formula = FORMULAS[simulation.solver]
    schedule = host.make_schedule(table, jnp.asarray(np.asarray(times, vectors.dtype)), simulation.config, formula)
    small = _like((successful(vectors.dtype), schedule), config)
    particles = jax.tree.map(lambda _: vectors, jax.eval_shape(lambda x: ExactParticles(x, x), vectors))
    moved = jax.eval_shape(partial(host.first_drift, config=config), particles, *small, done)
    rest = _like(moved._replace(particles=()), config)
    # The programs themselves: compiled within others they would be other ones.
    if cone is None:
        return host._advance.lower(particles, rest, small[1], done, config).compile()  # pyright: ignore[reportPrivateUsage]
    see = light_cone.advance_and_see.lower
    return see(particles, light_cone.shells_like(cone), rest, small[1], done, cone, config).compile()


def least_memory(config: Config) -> int:
    """Memory of the particles and a field on the mesh on each device, a lower bound for any run [bytes]."""
    numbers = 6 * math.prod(config.particle_shape) + math.prod(config.mesh_shape)
    return numbers * vectors_like(config).dtype.itemsize // config.decomposition.size


def power_memory(config: Config) -> int:
    """Memory of P(k) beside the particles on each device [bytes]; painting them takes less than a step does."""
    vectors = vectors_like(config)
    field = jax.ShapeDtypeStruct(config.mesh_shape, vectors.dtype, sharding=vectors.sharding)
    program = power._power_spectrum.lower(field, config, deconvolve=True).compile()  # pyright: ignore[reportPrivateUsage]
    return resources.planned(program) + 2 * vectors.size * vectors.dtype.itemsize // config.decomposition.size


def vectors_like(config: Config) -> jax.ShapeDtypeStruct:
    """Shape, type and sharding of the displacements."""
    shape, dtype = (*config.particle_shape, 3), np.dtype(jnp.result_type(float))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=config.decomposition.sharding)


def _like(tree: Any, config: Config | None = None) -> Any:
    """Shapes of small arrays, which every device holds where a config is given."""
    sharding = None if config is None else config.decomposition.replicated
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
