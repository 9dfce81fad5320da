"""One drift-kick-drift step with integer momenta; every operation has an exact inverse.

    x0 -first drift-> * kick -last drift-> x1 -first drift-> * kick -last drift-> x2 ...

The loops hold the particles at *, where the force acts (`MidStep`). One pass over the particles reads the force, kicks,
and takes both drifts to the next *. After a failure nothing moves.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._jax.order import barrier
from pmwd_dist._jax.program import filter_jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.ops import cic
from pmwd_dist.ops.momenta import momentum, pack, rounded, to_integers
from pmwd_dist.ops.rounding import round_straight_through
from pmwd_dist.ops.step import KickDrift, kick_drift
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.pm.gravity import acceleration, force_meshes, padded_force
from pmwd_dist.pm.paint import block_geometry, halo_limit, largest_on_devices, max_displacement_block, with_halo
from pmwd_dist.pm.particles import ExactParticles, Particles, largest, momentum_unit, resolution, significant_bits
from pmwd_dist.pm.potential_factor import PotentialFactor, Table, kick_scale_factor, tabulate, with_neutrinos
from pmwd_dist.pm.solvers import Coefficients, Formula
from pmwd_dist.pm.status import Code, Status, failure
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry, cache_spec, entry_spec

# Sums of log_scale stay below this: the momenta are scaled by less than 2^4 = 16. On a grid of this range the sums are
# exact in any order, so that the units of the momenta have the same bits in every program.
_LARGEST_LOG = 4.0


class Step(NamedTuple):
    """Coefficients of a step, on the grids of the particles.

    disp += first * vel;  vel = (vel / unit0 + kick * acceleration) * unit1;  disp += last * vel

    Args:
      first, last: drifts, without a unit.
      kick: kick, in the unit of the momenta at the end of the step.
      unit0, unit1: units of the integer momenta at the start and at the end of the step [Mpc/h].
      factor: factor of the potential, from `potential_factor.tabulate`; None for 1.
    """

    first: Array
    kick: Array
    last: Array
    unit0: Array
    unit1: Array
    factor: Array | None = None

    def where(self, good: Array, unit: Array) -> Step:
        """Good steps, and in place of the others steps that change nothing, with this unit of the momenta."""
        first, kick, last = (jnp.where(good, x, 0) for x in (self.first, self.kick, self.last))
        unit0, unit1 = (jnp.where(good, x, unit) for x in (self.unit0, self.unit1))
        factor = None if self.factor is None else jnp.where(good[..., None], self.factor, 1)
        return Step(first, kick, last, unit0, unit1, factor)

    def finite(self) -> Array:
        """Whether all coefficients of a step are finite."""
        finite = jnp.isfinite(jnp.stack([self.first, self.kick, self.last, self.unit0, self.unit1])).all(axis=0)
        return finite if self.factor is None else finite & jnp.isfinite(self.factor).all(axis=-1)

    def invertible_first(self) -> Array:
        """First drift; 0 if a coefficient is not finite, since that has no inverse."""
        return jnp.where(self.finite(), self.first, 0)


class MidStep(NamedTuple):
    """State between the first drift of a step and its kick.

    Args:
      particles: particles where the force acts.
      drift: first drift, already taken; 0 after a failed step, which leaves the particles unchanged.
      unit: unit of the momenta [Mpc/h].
      max_displacement: largest displacement of the particles [mesh cells].
    """

    particles: ExactParticles
    drift: Array
    unit: Array
    max_displacement: Array
    status: Status


@filter_jit
def coefficients_of(
    formula: Formula, table: GrowthTable, times: Array, config: Config, factor: PotentialFactor | None = None
) -> Coefficients:
    """Coefficients of the steps between given times, in their precision, log_scale on its grid.

    Outside of tracing this is a compiled program of its own: all drivers of the same steps use the same bits.
    """
    factor = with_neutrinos(factor, table)

    def of_step(lower: Array, upper: Array) -> Coefficients:
        tabulated = None if factor is None else tabulate(factor, kick_scale_factor(table, lower, upper), config)
        return formula(table, lower, upper)._replace(factor=tabulated)

    coefficients = jax.tree.map(lambda x: x.astype(times.dtype), jax.vmap(of_step)(times[:-1], times[1:]))
    spacing = _LARGEST_LOG * 2.0 ** -significant_bits(times.dtype)
    return coefficients._replace(log_scale=round_straight_through(coefficients.log_scale / spacing) * spacing)


def all_steps(coefficients: Coefficients, config: Config) -> Step:
    """Steps from their coefficients; each field has an axis of steps."""
    c = coefficients
    log_scale = jnp.concatenate([jnp.zeros(1, c.log_scale.dtype), jnp.cumsum(c.log_scale)])
    unit = momentum_unit(config, log_scale.dtype) * jnp.exp2(log_scale)
    return Step(c.drift_before, c.kick / unit[1:], c.drift_after, unit[:-1], unit[1:], c.factor)


def unit_after(taken: Array, steps: Step) -> Array:
    """Unit of the momenta after a number of steps [Mpc/h]."""
    return jnp.concatenate([steps.unit0[:1], steps.unit1])[taken]


def half_drift(particles: ExactParticles, drift: Array, unit: Array, status: Status, config: Config) -> MidStep:
    """Take the first drift of a step."""
    disp = drifted(particles.with_unit(unit), drift, config).disp
    disp = barrier(disp)  # XLA would compute it again for each use
    spec, largest_of = config.decomposition.spec, partial(max_displacement_block, config=config)
    max_displacement = config.decomposition.shard_map(largest_of, (spec,), P())(disp)
    return MidStep(ExactParticles(disp, particles.momenta), drift, unit, max_displacement, status)


def take_step(
    mid: MidStep, step: Step, following: Array, config: Config, entry: Entry | None = None
) -> tuple[MidStep, tuple[Array, ...]]:
    """Kick and last drift of a step, and the first drift of the next one; a failed step is reversed.

    Without an entry no potential is stored.

    Returns:
      The state after the following drift, and the cache with the potential of the step.
    """
    entry = Entry((), jnp.zeros((), jnp.int32)) if entry is None else entry
    running = mid.status.code == Code.SUCCESSFUL
    step = step.where(running, mid.unit)
    q, dtype = resolution(config, mid.particles.disp.dtype), mid.particles.disp.dtype
    largest_on_grid = largest(config, dtype) / min(config.cell_size)
    code = failure(mid.max_displacement, halo_limit(config), largest_on_grid, step.finite())
    code = jnp.where(running, code, mid.status.code)
    good = code == Code.SUCCESSFUL
    unit, following = jnp.where(good, step.unit1, step.unit0), jnp.where(good, following, 0)
    coefficients = KickDrift(
        kick=jnp.where(good, step.kick, 0),
        inverse=1 / step.unit0,
        after=unit,
        last=jnp.where(good, step.last, -step.invertible_first()) / q,
        first=following / q,
        good=good.astype(step.kick.dtype),
    )
    factor = None if step.factor is None else jnp.where(good, step.factor, 1)
    particles, max_displacement, cache = _kick_and_drift(
        mid.particles, mid.max_displacement, coefficients, factor, entry, config
    )
    status = Status(
        code=code,
        step=mid.status.step + jnp.where(good, 1, 0),
        max_displacement=jnp.maximum(mid.status.max_displacement, mid.max_displacement),
        halo=jnp.full_like(max_displacement, halo_limit(config)),
    )
    return MidStep(particles, following, unit, max_displacement, status), cache


@on_blocks(["field", "whole", "whole", "whole", entry_spec], ("field", "whole", cache_spec))
def _kick_and_drift(
    particles: ExactParticles,
    max_displacement: Float[Array, ""],
    coefficients: KickDrift,
    factor: Table | None,
    entry: Entry,
    config: Config,
) -> tuple[ExactParticles, Float[Array, ""], tuple[Array, ...]]:
    """Kick by the acceleration, then take two drifts, see `KickDrift`; returns the cache, too."""
    disp, momenta = particles.disp, particles.momenta
    meshes = force_meshes(disp, max_displacement, config, factor)

    def run(halo: int, disp: Array, momenta: Array, coefficients: KickDrift, *meshes: Array) -> Any:
        fields, geometry = padded_force(config, halo, *meshes), block_geometry(config, halo)
        return kick_drift(disp, momenta, fields, coefficients, geometry, resolution=resolution(config, disp.dtype))

    disp, momenta, most = with_halo(max_displacement, config, run, disp, momenta, coefficients, *meshes)
    most = largest_on_devices(most, config) / min(config.cell_size)
    return ExactParticles(disp, momenta), most, potential_cache.updated(entry, meshes)


def undo_half_drift(mid: MidStep, config: Config) -> Particles:
    """Reverse `half_drift`, exactly: the particles at the end of the last step."""
    return drifted(mid.particles.with_unit(mid.unit), -mid.drift, config)


def drifted(particles: Particles, coefficient: Array, config: Config) -> Particles:
    """Particles after a drift, rounded to the grid; the opposite coefficient is the exact inverse."""
    q = resolution(config, particles.disp.dtype)
    disp = particles.disp + q * round_straight_through(coefficient / q * particles.vel)
    return Particles(disp, particles.vel)


def final_status(status: Status, max_displacement: Array, momenta_in_range: Array, config: Config) -> Status:
    """Status after the last drift, a failure if a particle left the range of the grid or is not finite.

    `max_displacement` is the largest one at the end [mesh cells].
    """
    largest_on_grid = largest(config, max_displacement.dtype) / min(config.cell_size)
    code = failure(max_displacement, jnp.inf, largest_on_grid)  # no force follows: any halo will do
    code = jnp.where((code == Code.SUCCESSFUL) & ~momenta_in_range, Code.TOO_FAST, code).astype(jnp.int32)
    failed = (status.code == Code.SUCCESSFUL) & (code != Code.SUCCESSFUL)
    shown = jnp.where(failed, max_displacement, status.max_displacement)
    return Status(jnp.where(failed, code, status.code), status.step, shown, status.halo)


def finish_step(kicked: ExactParticles, step: Step, config: Config) -> Particles:
    """Take the last drift of a step, after its kick: x1 = x + last * v1."""
    return drifted(kicked.with_unit(step.unit1), step.last, config)


def undo_step(
    kicked: ExactParticles, step: Step, good: Array, config: Config, entry: Entry
) -> tuple[ExactParticles, Entry]:
    """Reverse the kick and the first drift: v0 = (v1 / unit1 - kick * acceleration(x)) * unit0,  x0 = x - first * v0.

    A failed step has moved nothing, and the force at its particles may not be finite.

    Returns:
      The particles at the start of the step, and the entry, with the potential of the step if it was empty.
    """
    force, entry = _force(jnp.where(good, kicked.disp, 0), step.factor, entry, config)
    kick = step.kick * jnp.where(good, force, 0)
    vel = (momentum(kicked.momenta, step.unit1) / step.unit1 - kick) * step.unit0
    momenta = pack(to_integers(kicked.momenta) - rounded(kick)[0], vel)
    start = drifted(ExactParticles(kicked.disp, momenta).with_unit(step.unit0), -step.first, config)
    return ExactParticles(start.disp, momenta), entry


@on_blocks(["field", "whole", entry_spec], ("field", entry_spec))
def _force(disp: Array, factor: Table | None, entry: Entry, config: Config) -> tuple[Array, Entry]:
    """`gravity.acceleration` with the potential of an entry, and the entry."""
    if not entry.potentials:
        meshes = force_meshes(jax.lax.stop_gradient(disp), max_displacement_block(disp, config), config, factor)
        entry = potential_cache.of_meshes(meshes)
    return _stored_force(config, disp, factor, entry), entry


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _stored_force(config: Config, disp: Array, factor: Table | None, entry: Entry) -> Array:
    """Force of a stored potential; derivatives compute the potential at the displacements."""
    del factor

    def read(halo: int, disp: Array, *sources: Array) -> Array:
        fields = potential_cache.cached_force(config, halo, *sources)
        return cic.read(disp, fields, block_geometry(config, halo))[..., 0, :]

    return with_halo(max_displacement_block(disp, config), config, read, disp, *potential_cache.sources(entry, config))


@_stored_force.defjvp
def _stored_force_jvp(config: Config, primals: Any, tangents: Any) -> tuple[Array, Array]:
    def force(disp: Array, factor: Table | None) -> Array:
        return acceleration.block(disp, config, factor)[0]

    return jax.jvp(force, primals[:2], tangents[:2])
