"""Programs of a run up to its first output, from shapes, and their memory."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Lowered

from pmwd_dist.config import Config
from pmwd_dist.observe import power
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.solvers import FORMULAS
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.run.common import resources
from pmwd_dist.run.outputs import light_cone
from pmwd_dist.run.outputs.base import Output
from pmwd_dist.run.settings import SimulationSetup


def run_memory(
    simulation: SimulationSetup, count: int, config: Config, outputs: Sequence[Output] = ()
) -> dict[str, int]:
    """Memory of each device by stage of a run on the current devices [bytes], by XLA's plans of its programs.

    They are compiled beside each other, outside of Python's lock. `config` has the expected halo, `count` is the number
    of times at which steps begin and end.
    """
    vectors = vectors_of(config)
    particles = 2 * vectors.size * vectors.dtype.itemsize // config.decomposition.size
    with ThreadPoolExecutor() as pool:
        drift, step = _steps(simulation, count, config)
        compiled = {"a step": pool.submit(step.compile)}
        if simulation.start is None:
            first, second = _initial(simulation)
            compiled |= {"the initial conditions": pool.submit(first.compile)}
            compiled |= {"the initial particles": pool.submit(second.compile)}
        field = jax.ShapeDtypeStruct(config.mesh_shape, vectors.dtype, sharding=vectors.sharding)
        pool.submit(drift.compile)
        measured = field, jax.ShapeDtypeStruct((), vectors.dtype)
        compiled["P(k)"] = pool.submit(power._power_spectrum.lower(*measured, config, deconvolve=True).compile)
    stages = {stage: resources.planned(program.result()) for stage, program in compiled.items()}
    stages["P(k)"] += particles  # painting them takes less than a step does
    return stages | {output.stage: memory for output in outputs if (memory := output.memory(simulation, config))}


def least_memory(config: Config) -> int:
    """Memory of the particles and a field on the mesh on each device, a lower bound for any run [bytes]."""
    numbers = 6 * math.prod(config.particle_shape) + math.prod(config.mesh_shape)
    return numbers * vectors_of(config).dtype.itemsize // config.decomposition.size


def _initial(simulation: SimulationSetup) -> tuple[Lowered, Lowered]:
    """The programs of the initial conditions: of the potentials, and of the particles that they displace."""
    config, vectors, table = simulation.config, vectors_of(simulation.config), _table(simulation)
    noise = jax.eval_shape(lambda: jax.random.key(0))
    if simulation.field is not None:
        noise = jax.ShapeDtypeStruct(config.particle_shape, vectors.dtype, sharding=vectors.sharding)
    nodes = jax.ShapeDtypeStruct(power_nodes(config).shape, vectors.dtype)
    primordial = None if simulation.f_nl is None else (jax.ShapeDtypeStruct((), vectors.dtype), nodes)
    first = host.initial_potentials.lower(noise, table, nodes, config, simulation.kind, primordial)
    sharding = config.decomposition.spectrum_sharding
    potentials = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in first.out_info)
    return first, host.initial_particles.lower(potentials, table, config)


def _steps(simulation: SimulationSetup, count: int, config: Config) -> tuple[Lowered, Lowered]:
    """The programs of the first drift and of a step between so many times, with the light cone if there is one."""
    done, vectors, cone = np.int32(0), vectors_of(config), simulation.light_cone
    formula, factor = FORMULAS[simulation.solver], simulation.potential_factor
    make = partial(host.make_schedule, config=config, formula=formula, factor=factor)
    schedule = jax.eval_shape(make, _table(simulation), jax.ShapeDtypeStruct((count,), vectors.dtype))
    small = _small((jax.eval_shape(partial(successful, vectors.dtype)), schedule), config)
    particles = jax.tree.map(lambda _: vectors, jax.eval_shape(lambda x: ExactParticles(x, x), vectors))
    drift = host.half_drift.lower(particles, *small, done, config)
    rest = _small(drift.out_info._replace(particles=()), config)
    # The programs themselves: compiled within others they would be other ones.
    if cone is None:
        return drift, host._advance.lower(particles, rest, small[1], done, config)
    see = light_cone.advance_and_see.lower
    return drift, see(particles, light_cone.shells_like(cone), rest, small[1], done, cone, config)


def vectors_of(config: Config) -> jax.ShapeDtypeStruct:
    """Shape, type and sharding of the displacements."""
    shape, dtype = (*config.particle_shape, 3), np.dtype(jnp.result_type(float))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=config.decomposition.sharding)


def _table(simulation: SimulationSetup) -> Any:
    return jax.eval_shape(lambda: simulation.growth)


def _small(tree: Any, config: Config) -> Any:
    """Shapes of small arrays, which every device holds."""
    sharding = config.decomposition.replicated
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
