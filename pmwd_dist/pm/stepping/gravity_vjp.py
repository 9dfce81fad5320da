"""VJP of a step: exact reversal of kick and drifts, and cotangents through read, potential and paint.

A step is x = x0 + d0 v0;  v1 = (u1 / u0) v0 + w F(x);  x1 = x + d1 v1, where w = kick * u1 (`step.Step`).
With primes for cotangents, from the end to the start (docs/explanation/adjoint.md):

    drift   x = x1 - d1 v1,                 v1' += d1 x1'
    kick    v0 = (v1 - w F(x)) u0 / u1,     x' = x1' + w (dF/dx)^T v1',  v0' = (u1 / u0) v1'
    drift   x0 = x - d0 v0,                 v0' += d0 x',  x0' = x'

dF/dx has two parts: the force is read at the particles, known at once, and it is made by them, which takes the
transpose of the solver first. Hence two passes over the particles: `undo_kick` before it and `undo_drift` after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._jax.ops import unify_varying
from pmwd_dist._jax.order import after, barrier
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.ops.step import UndoDrift, UndoKick, drifted_back, undo_drift, undo_drift_and_kick, undo_kick
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.fft import filtered_block
from pmwd_dist.parallel.halo import pad_block, reduce_block
from pmwd_dist.pm.gravity import force_meshes, padded_force, solve
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, with_halo
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution
from pmwd_dist.pm.potential_factor import Table, on_modes
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry, entry_spec


class AdjointState(NamedTuple):
    """Particles with integer momenta, and cotangents of displacements and momenta."""

    disp: Float[Array, "nx ny nz 3"]
    momenta: Float[Array, "nx ny nz 3"]
    ct_disp: Float[Array, "nx ny nz 3"]
    ct_vel: Float[Array, "nx ny nz 3"]

    @classmethod
    def join(cls, particles: ExactParticles, ct: Particles) -> AdjointState:
        """Particles with cotangents."""
        return cls(particles.disp, particles.momenta, ct.disp, ct.vel)

    def split(self) -> tuple[ExactParticles, Particles]:
        """Particles and cotangents."""
        return ExactParticles(self.disp, self.momenta), Particles(self.ct_disp, self.ct_vel)


class PendingDrifts(NamedTuple):
    """Particles and cotangents between the reversal of a kick and of the drifts before it."""

    state: AdjointState  # before the kick, where the force acts, with cotangents from `undo_kick`
    mesh: Float[Array, "mx my mz"]  # cotangent of the painted mesh
    drifts: UndoDrift  # first drift of the step, and last one of the step before


class StepFactor(eqx.Module):
    """Factor of the potential in one or several steps; its cotangent takes two more transforms a step."""

    table: Float[Array, "*steps nodes"]
    needs_gradient: bool = eqx.field(static=True)


class CoefficientGrads(NamedTuple):
    """dLoss / d(coefficient) of one or several steps: sums over the particles, in the symbols of this module."""

    kick: Float[Array, "*steps"]  # sum v1' F
    unit: Float[Array, "*steps"]  # sum v1' v0
    last: Float[Array, "*steps"]  # sum x1' v1
    first: Float[Array, "*steps"]  # sum x0' v0
    factor: Float[Array, "*steps nodes"] | None  # for w = 1; None if it is not needed


class KickVJP(NamedTuple):
    """Result of a reversed kick on a block."""

    state: AdjointState  # before the kick, with cotangents without the part through the mesh
    sums: Array  # `CoefficientGrads.first` of the step after, if its drifts are reversed; kick, unit and last
    ct_meshes: list[Array]  # of the force meshes
    factor: Table | None  # see `CoefficientGrads`


@on_blocks(["field", "whole", "whole", "whole", entry_spec], ("field", "whole"))
def step_vjp(
    state: AdjointState, undo: UndoKick, drifts: UndoDrift, factor: StepFactor | None, entry: Entry, config: Config
) -> tuple[AdjointState, CoefficientGrads]:
    """Reverse a kick and the drifts before it, and apply the VJP of the step.

    The state is the one after the kick, where the force acts, with cotangents at the end of the step. Without a stored
    potential the entry is empty.

    Returns:
      The particles before the drifts, with cotangents at the start of the step, and the cotangents of its coefficients.
    """
    max_displacement = max_displacement_block(state.disp, config)
    kick = partial(_cached_kick, entry=entry) if entry.potentials else _kick
    kicked = kick(config, max_displacement, state, undo, factor)
    pending = PendingDrifts(kicked.state, _of_painted(kicked.ct_meshes, config, factor), drifts)
    state, first = undo_drifts.block(pending, config)
    return state, CoefficientGrads(*_sum_over_devices(kicked.sums, config), *first, factor=kicked.factor)


@partial(jit, static_argnames="config")
def no_kick(state: AdjointState, drifts: UndoDrift, config: Config) -> PendingDrifts:
    """Particles before the reversal of drifts without a kick after them: the cotangent of the mesh is zero."""
    spec, block = config.decomposition.spec, config.decomposition.block(config.mesh_shape)

    def zeros(nothing: Array, disp: Array) -> Array:
        return unify_varying(jnp.broadcast_to(nothing, block), disp)[0]

    # Allocated late, to share memory.
    nothing, _ = after(jnp.zeros((), state.disp.dtype), state.ct_disp)
    return PendingDrifts(state, config.decomposition.shard_map(zeros, (P(), spec), spec)(nothing, state.disp), drifts)


def _pending_spec(config: Config) -> PendingDrifts:
    return PendingDrifts(config.decomposition.spec, config.decomposition.spec, P())  # type: ignore[arg-type]


@on_blocks([_pending_spec], ("field", "whole"))
def undo_drifts(pending: PendingDrifts, config: Config) -> tuple[AdjointState, Float[Array, 1]]:
    """Reverse the pending drifts.

    Returns:
      The particles before the drifts with their cotangents, and `CoefficientGrads.first`.
    """
    state, first = _drift(config, max_displacement_block(pending.state.disp, config), pending)
    return state, _sum_over_devices(first, config)


@on_blocks([_pending_spec, "whole", "whole", entry_spec], ("field", "field", "whole"))
def cached_step_vjp(
    pending: PendingDrifts, undo: UndoKick, factor: StepFactor | None, entry: Entry, config: Config
) -> tuple[AdjointState, Array, CoefficientGrads]:
    """Reverse the pending drifts, and the kick before them with its stored potential, in one pass over the particles.

    Returns:
      The particles before the kick, with cotangents without the part through the mesh; the cotangent of the painted
      mesh; and the cotangents of the coefficients, but `first` is the one of the step after, whose drifts are reversed.
    """
    disp, momenta = pending.state.disp, pending.state.momenta
    before = drifted_back(disp, momenta, pending.drifts, resolution(config, disp.dtype))
    max_displacement = jnp.maximum(max_displacement_block(disp, config), max_displacement_block(before, config))
    state, sums, ct_meshes, by_factor = _drift_and_kick(config, entry, max_displacement, pending, undo, factor)
    first, *sums = _sum_over_devices(sums, config)
    return state, _of_painted(ct_meshes, config, factor), CoefficientGrads(*sums, first=first, factor=by_factor)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def _kick(
    config: Config,
    max_displacement: Array,
    state: AdjointState,
    undo: UndoKick,
    factor: StepFactor | None,
    entry: Entry | None = None,
) -> KickVJP:
    """Reverse a kick, by the stored potential if given."""
    if entry is None:
        table = None if factor is None else factor.table
        meshes = force_meshes(state.disp, max_displacement, config, table)
        force, sources = padded_force, meshes
    else:
        meshes = potential_cache.meshes(entry)
        force, sources = potential_cache.cached_force, potential_cache.sources(entry, config)

    def run(halo: int, state: AdjointState, undo: UndoKick, sources: Sequence[Array]) -> tuple[Any, ...]:
        fields, geometry = force(config, halo, *sources), block_geometry(config, halo)
        momenta, ct_disp, ct_vel, sums = undo_kick(*state, fields, undo, geometry)
        return momenta, ct_disp, ct_vel, sums, _force_transpose(config, halo, state.disp, ct_vel)

    *changed, sums, ct_meshes = with_halo(max_displacement, config, run, state, undo, sources)
    by_factor = _by_factor(ct_meshes, meshes, factor, config)
    return KickVJP(AdjointState(state.disp, *changed), sums, ct_meshes, by_factor)


def _drift(config: Config, max_displacement: Array, pending: PendingDrifts) -> tuple[AdjointState, Array]:
    """Reverse drifts; returns the state and `CoefficientGrads.first`."""

    def run(halo: int, pending: PendingDrifts) -> tuple[Array, ...]:
        padded, q = pad_block(pending.mesh, halo + 1, config.decomposition), resolution(config, pending.mesh.dtype)
        return undo_drift(*pending.state, padded, pending.drifts, block_geometry(config, halo), resolution=q)

    disp, ct_disp, ct_vel, first = with_halo(max_displacement, config, run, pending)
    return AdjointState(disp, pending.state.momenta, ct_disp, ct_vel), first


# With the stored potential; derivatives compute the potential at the displacements.
_cached_kick = jax.custom_jvp(_kick, nondiff_argnums=(0,))


@_cached_kick.defjvp
def _cached_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[KickVJP, KickVJP]:
    max_displacement, *floating, _ = primals
    return jax.jvp(partial(_kick, config, max_displacement), tuple(floating), tuple(tangents[1:-1]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _drift_and_kick(
    config: Config,
    entry: Entry,
    max_displacement: Array,
    pending: PendingDrifts,
    undo: UndoKick,
    factor: StepFactor | None,
) -> KickVJP:
    """`_drift`, then `_kick` with the stored potential; derivatives compute the potential at the displacements."""

    def run(
        halo: int, pending: PendingDrifts, undo: UndoKick, sources: Sequence[Array]
    ) -> tuple[AdjointState, Array, list[Array]]:
        geometry, q = block_geometry(config, halo), resolution(config, pending.mesh.dtype)
        # In this order one halo is freed before the next.
        fields, mesh = barrier((potential_cache.cached_force(config, halo, *sources), pending.mesh))
        padded = pad_block(mesh, halo + 1, config.decomposition)
        drifts = pending.drifts
        *changed, sums = undo_drift_and_kick(pending.state, padded, fields, drifts, undo, geometry, resolution=q)
        state = AdjointState(*changed)
        return state, sums, _force_transpose(config, halo, state.disp, state.ct_vel)

    sources = potential_cache.sources(entry, config)
    state, sums, ct_meshes = with_halo(max_displacement, config, run, pending, undo, sources)
    return KickVJP(state, sums, ct_meshes, _by_factor(ct_meshes, potential_cache.meshes(entry), factor, config))


@_drift_and_kick.defjvp
def _drift_and_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[KickVJP, KickVJP]:
    _, max_displacement, *floating = primals

    def one_after_the_other(pending: PendingDrifts, undo: UndoKick, factor: StepFactor | None) -> KickVJP:
        state, first = _drift(config, max_displacement, pending)
        kicked = _kick(config, max_displacement, state, undo, factor)
        return kicked._replace(sums=jnp.concatenate([first, kicked.sums]))

    return jax.jvp(one_after_the_other, tuple(floating), tuple(tangents[2:]))


def _of_painted(ct_meshes: list[Array], config: Config, factor: StepFactor | None) -> Array:
    """Cotangent of the painted mesh, from the cotangents of `force_meshes`."""
    table = None if factor is None else factor.table
    _, pull = jax.vjp(partial(solve, config=config, factor=table), ct_meshes[0])  # linear: the value is not used
    return pull(ct_meshes)[0]


def _by_factor(
    ct_meshes: list[Array], meshes: Sequence[Array], factor: StepFactor | None, config: Config
) -> Table | None:
    """Cotangent of the factor f of the potential phi, from d phi = phi df / f; None if it is not needed."""
    if factor is None or not factor.needs_gradient:
        return None

    def varied(change: Table) -> list[Array]:
        def response() -> Array:
            return on_modes(change, config) / on_modes(factor.table, config)

        return [filtered_block(mesh, response, config.decomposition) for mesh in meshes]

    _, pull = jax.vjp(varied, jnp.zeros_like(factor.table))
    return pull(ct_meshes)[0]


def _force_transpose(config: Config, halo: int, disp: Array, weight: Array) -> list[Array]:
    """Cotangents of the force meshes, from the cotangents of the force at the particles."""
    geometry, decomposition = block_geometry(config, halo), config.decomposition
    if config.gradient == "spectral":
        painted = cic.paint(disp, weight[..., None, :], geometry)
        return [reduce_block(painted[..., axis], halo + 1, decomposition) for axis in range(3)]
    return [reduce_block(force_transpose(disp, weight, geometry, config.cell_size), halo + 1 + WIDTH, decomposition)]


def _sum_over_devices(x: Array, config: Config) -> Array:
    names = config.decomposition.names
    return jax.lax.psum(x, names) if names else x
