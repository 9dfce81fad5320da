"""Programs of a run up to its first output, from shapes, and their memory; `planning` counts it for other devices."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Lowered

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe import power
from pmwd_dist.observe.lensing import LightCone
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.noise import NoiseKind
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.solvers import FORMULAS
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.run.common import resources
from pmwd_dist.run.outputs import light_cone
from pmwd_dist.run.outputs.base import Output
from pmwd_dist.run.settings import SimulationSetup


def lowered_initial(config: Config, table: Any, kind: NoiseKind, *, of_file: bool, f_nl: bool) -> Lowered:
    """The program of the initial conditions, for a growth table or its shapes."""
    noise, vectors = jax.eval_shape(lambda: jax.random.key(0)), vectors_like(config)
    if of_file:
        noise = jax.ShapeDtypeStruct(config.particle_shape, vectors.dtype, sharding=vectors.sharding)
    nodes = jax.ShapeDtypeStruct(power_nodes(config).shape, vectors.dtype)
    primordial = (jax.ShapeDtypeStruct((), vectors.dtype), nodes) if f_nl else None
    return host.initial_particles.lower(noise, _like(table), nodes, config, kind, primordial)


def lowered_step(
    config: Config,
    table: Any,
    solver: str,
    times: int,
    cone: LightCone | None,
    factor: PotentialFactor | None,
) -> Lowered:
    """The program of a step between so many times, with the light cone if there is one."""
    done, vectors = np.int32(0), vectors_like(config)
    make = partial(host.make_schedule, config=config, formula=FORMULAS[solver], factor=factor)
    schedule = jax.eval_shape(make, _like(table), jax.ShapeDtypeStruct((times,), vectors.dtype))
    small = _like((jax.eval_shape(partial(successful, vectors.dtype)), schedule), config)
    particles = jax.tree.map(lambda _: vectors, jax.eval_shape(lambda x: ExactParticles(x, x), vectors))
    moved = jax.eval_shape(partial(host.half_drift, config=config), particles, *small, done)
    rest = _like(moved._replace(particles=()), config)
    # The programs themselves: compiled within others they would be other ones.
    if cone is None:
        return host._advance.lower(particles, rest, small[1], done, config)
    see = light_cone.advance_and_see.lower
    return see(particles, light_cone.shells_like(cone), rest, small[1], done, cone, config)


def lowered_power(config: Config) -> Lowered:
    """The program of P(k)."""
    vectors = vectors_like(config)
    field = jax.ShapeDtypeStruct(config.mesh_shape, vectors.dtype, sharding=vectors.sharding)
    return power._power_spectrum.lower(field, config, deconvolve=True)


def run_memory(
    simulation: SimulationSetup, times: Sequence[float], config: Config, outputs: Sequence[Output] = ()
) -> dict[str, int]:
    """Memory of each device by stage of a run on the current devices [bytes], by XLA's plans of its programs.

    They are compiled beside each other, outside of Python's lock. `config` has the expected halo.
    """
    table, cone = table_like(config, simulation.cosmo), simulation.light_cone
    of_file, f_nl = simulation.field is not None, simulation.f_nl is not None
    with ThreadPoolExecutor() as pool:
        programs: dict[str, Future[Any]] = {}
        if simulation.start is None:
            initial = lowered_initial(simulation.config, table, simulation.kind, of_file=of_file, f_nl=f_nl)
            programs["the initial conditions"] = pool.submit(initial.compile)
        step = lowered_step(config, table, simulation.solver, len(times), cone, simulation.potential_factor)
        programs["a step"] = pool.submit(step.compile)
        stages = {"P(k)": power_memory(config)}
    stages |= {stage: resources.planned(program.result()) for stage, program in programs.items()}
    return stages | {output.stage: memory for output in outputs if (memory := output.memory(config))}


def power_memory(config: Config) -> int:
    """Memory of P(k) beside the particles on each device [bytes]; painting them takes less than a step does."""
    vectors = vectors_like(config)
    particles = 2 * vectors.size * vectors.dtype.itemsize // config.decomposition.size
    return resources.planned(lowered_power(config).compile()) + particles


def least_memory(config: Config) -> int:
    """Memory of the particles and a field on the mesh on each device, a lower bound for any run [bytes]."""
    numbers = 6 * math.prod(config.particle_shape) + math.prod(config.mesh_shape)
    return numbers * vectors_like(config).dtype.itemsize // config.decomposition.size


def vectors_like(config: Config) -> jax.ShapeDtypeStruct:
    """Shape, type and sharding of the displacements."""
    shape, dtype = (*config.particle_shape, 3), np.dtype(jnp.result_type(float))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=config.decomposition.sharding)


def _like(tree: Any, config: Config | None = None) -> Any:
    """Shapes of small arrays, which every device holds where a config is given."""
    sharding = None if config is None else config.decomposition.replicated
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def table_like(config: Config, cosmo: Cosmology) -> Any:
    """Shapes of the growth table."""
    return jax.eval_shape(lambda: growth_table_to(config.lpt_order, cosmo))
