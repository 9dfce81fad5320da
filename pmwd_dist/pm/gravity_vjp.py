"""VJP of a step: exact reversal of kick and drifts, and cotangents through read, potential and paint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._jax.ops import unify_varying
from pmwd_dist._jax.order import after, barrier
from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.ops.step_vjp import (
    UndoDrift,
    UndoKick,
    drifted_back,
    undo_drift,
    undo_drift_and_kick,
    undo_kick,
)
from pmwd_dist.parallel.fft import filtered_block
from pmwd_dist.parallel.halo import pad_block, reduce_block
from pmwd_dist.pm.gravity import force_meshes, padded_force, solve
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, with_halo
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution
from pmwd_dist.pm.potential_factor import Table, on_modes
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry, entry_spec


class State(NamedTuple):
    """Particles with integer momenta, and cotangents of displacements and momenta."""

    disp: Float[Array, "nx ny nz 3"]
    momenta: Float[Array, "nx ny nz 3"]
    ct_disp: Float[Array, "nx ny nz 3"]
    ct_vel: Float[Array, "nx ny nz 3"]


class Pending(NamedTuple):
    """Particles and cotangents between the reversal of a kick and of the drifts before it.

    Args:
      state: particles before the kick, where the force acts, with cotangents from `undo_kick`.
      mesh: cotangent of the painted mesh.
    """

    state: State
    mesh: Array
    drifts: UndoDrift


class UndoFactor(NamedTuple):
    """Factor of the potential in a step.

    Args:
      zero: zeros like the table if its cotangent is wanted, else None.
    """

    table: Table
    zero: Table | None


def with_cotangents(particles: ExactParticles, ct: Particles) -> State:
    """Join particles and cotangents."""
    return State(particles.disp, particles.momenta, ct.disp, ct.vel)


def split(state: State) -> tuple[ExactParticles, Particles]:
    """Particles and cotangents."""
    return ExactParticles(state.disp, state.momenta), Particles(state.ct_disp, state.ct_vel)


@partial(jax.jit, static_argnames="config")
def step_vjp(
    state: State, undo: UndoKick, drifts: UndoDrift, factor: UndoFactor | None, entry: Entry, config: Config
) -> tuple[State, Float[Array, 4], Table | None]:
    """Reverse a kick and the drifts before it, and apply the VJP of the step.

    The state is the one after the kick, where the force acts, with cotangents at the end of the step. Without a stored
    potential the entry is empty.

    Returns:
      The particles before the drifts, with cotangents at the start of the step; the sums over the particles of
      v1' F, v1' v0, x1' v1 and x0' v0: momenta v0, v1 before and after the kick, displacements x0, x1 at the start and
      the end, and cotangents with primes; and the cotangent of the factor for a unit kick, if wanted.
    """
    spec = config.decomposition.spec
    run = config.decomposition.shard_map(
        partial(_step_vjp_block, config=config), (spec, P(), P(), P(), entry_spec(entry, config)), (spec, P(), P())
    )
    return run(state, undo, drifts, factor, entry)


def _step_vjp_block(
    state: State, undo: UndoKick, drifts: UndoDrift, factor: UndoFactor | None, entry: Entry, config: Config
) -> tuple[State, Array, Table | None]:
    max_displacement = max_displacement_block(state.disp, config)
    kick = partial(_cached_kick, entry=entry) if entry.potentials else _kick
    state, sums, ct_meshes, by_factor = kick(config, max_displacement, state, undo, factor)
    state, last = _drift_block(Pending(state, _of_painted(ct_meshes, config, factor), drifts), config)
    return state, jnp.concatenate([_sum_over_devices(sums, config), last]), by_factor


@partial(jax.jit, static_argnames="config")
def pending(state: State, drifts: UndoDrift, config: Config) -> Pending:
    """Particles before the reversal of drifts, with a cotangent of zero for the mesh."""
    spec, shape = config.decomposition.spec, config.mesh_shape
    parts = (*config.decomposition.pdims, 1)

    def zeros(nothing: Array, disp: Array) -> Array:
        block = tuple(n // p for n, p in zip(shape, parts, strict=True))
        return unify_varying(jnp.broadcast_to(nothing, block), disp)[0]

    # Allocated late, to share memory.
    nothing, _ = after(jnp.zeros((), state.disp.dtype), state.ct_disp)
    return Pending(state, config.decomposition.shard_map(zeros, (P(), spec), spec)(nothing, state.disp), drifts)


@partial(jax.jit, static_argnames="config")
def undo_drifts(pending: Pending, config: Config) -> tuple[State, Float[Array, 1]]:
    """Reverse the pending drifts.

    Returns:
      The particles before the drifts with their cotangents, and the sum of x0' v0, see `step_vjp`.
    """
    decomposition, specs = config.decomposition, (_pending_spec(config),)
    return decomposition.shard_map(partial(_drift_block, config=config), specs, (decomposition.spec, P()))(pending)


@partial(jax.jit, static_argnames="config")
def cached_step_vjp(
    pending: Pending, undo: UndoKick, factor: UndoFactor | None, entry: Entry, config: Config
) -> tuple[State, Array, Float[Array, 4], Table | None]:
    """Reverse the pending drifts, and the kick before them with its stored potential, in one pass over the particles.

    Returns:
      The particles before the kick, with cotangents without the part through the mesh; the cotangent of the painted
      mesh; the sum of `undo_drifts` and the first three sums of `step_vjp`; and the cotangent of the factor for a unit
      kick, if wanted.
    """
    spec = config.decomposition.spec
    run = config.decomposition.shard_map(
        partial(_drift_and_kick_block, config=config),
        (_pending_spec(config), P(), P(), entry_spec(entry, config)),
        (spec, spec, P(), P()),
    )
    return run(pending, undo, factor, entry)


def _pending_spec(config: Config) -> Any:
    specs: Any = config.decomposition.spec, config.decomposition.spec, P()
    return Pending(*specs)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def _drift_block(pending: Pending, config: Config) -> tuple[State, Array]:
    state, last = _drift(config, max_displacement_block(pending.state.disp, config), pending)
    return state, _sum_over_devices(last, config)


def _drift_and_kick_block(
    pending: Pending, undo: UndoKick, factor: UndoFactor | None, entry: Entry, config: Config
) -> tuple[State, Array, Array, Table | None]:
    disp, momenta = pending.state[:2]
    before = drifted_back(disp, momenta, pending.drifts, resolution(config, disp.dtype))
    max_displacement = jnp.maximum(max_displacement_block(disp, config), max_displacement_block(before, config))
    state, sums, ct_meshes, by_factor = _drift_and_kick(config, entry, max_displacement, pending, undo, factor)
    return state, _of_painted(ct_meshes, config, factor), _sum_over_devices(sums, config), by_factor


def _kick(
    config: Config,
    max_displacement: Array,
    state: State,
    undo: UndoKick,
    factor: UndoFactor | None,
    entry: Entry | None = None,
) -> Any:
    """Reverse a kick, by the stored potential if given.

    Returns the state, sums, cotangents of the force meshes, and the cotangent of the factor.
    """
    if entry is None:
        table = None if factor is None else factor.table
        meshes = force_meshes(state.disp, max_displacement, config, table)
        force, sources = padded_force, meshes
    else:
        meshes = potential_cache.meshes(entry)
        force, sources = potential_cache.cached_force, potential_cache.sources(entry, config)

    def run(halo: int, state: State, undo: UndoKick, sources: Sequence[Array]) -> tuple[Any, ...]:
        fields = force(config, halo, *sources)
        *others, sums = undo_kick(*state, fields, undo, block_geometry(config, halo))
        return *others, sums, _force_transpose(config, halo, state.disp, others[2])

    *others, sums, ct_meshes = with_halo(max_displacement, config, run, state, undo, sources)
    return State(state.disp, *others), sums, ct_meshes, _by_factor(ct_meshes, meshes, factor, config)


def _drift(config: Config, max_displacement: Array, pending: Pending) -> tuple[State, Array]:
    """Reverse drifts; returns the state and a sum."""

    def run(halo: int, pending: Pending) -> tuple[Array, ...]:
        padded, q = pad_block(pending.mesh, halo + 1, config.decomposition), resolution(config, pending.mesh.dtype)
        return undo_drift(*pending.state, padded, pending.drifts, block_geometry(config, halo), resolution=q)

    disp, ct_disp, ct_vel, last = with_halo(max_displacement, config, run, pending)
    return State(disp, pending.state.momenta, ct_disp, ct_vel), last


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cached_kick(
    config: Config, max_displacement: Array, state: State, undo: UndoKick, factor: UndoFactor | None, entry: Entry
) -> Any:
    """`_kick` with the stored potential; derivatives compute the potential at the displacements."""
    return _kick(config, max_displacement, state, undo, factor, entry)


@_cached_kick.defjvp
def _cached_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    max_displacement, *floating, _ = primals
    return jax.jvp(partial(_kick, config, max_displacement), tuple(floating), tuple(tangents[1:-1]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _drift_and_kick(
    config: Config,
    entry: Entry,
    max_displacement: Array,
    pending: Pending,
    undo: UndoKick,
    factor: UndoFactor | None,
) -> Any:
    """`_drift`, then `_kick` with the stored potential; derivatives compute the potential at the displacements."""

    def run(halo: int, pending: Pending, undo: UndoKick, sources: Sequence[Array]) -> tuple[Any, ...]:
        geometry, q = block_geometry(config, halo), resolution(config, pending.mesh.dtype)
        # In this order one halo is freed before the next.
        fields, mesh = barrier((potential_cache.cached_force(config, halo, *sources), pending.mesh))
        padded = pad_block(mesh, halo + 1, config.decomposition)
        *state, sums = undo_drift_and_kick(pending.state, padded, fields, pending.drifts, undo, geometry, resolution=q)
        return State(*state), sums, _force_transpose(config, halo, state[0], state[3])

    sources = potential_cache.sources(entry, config)
    state, sums, ct_meshes = with_halo(max_displacement, config, run, pending, undo, sources)
    return state, sums, ct_meshes, _by_factor(ct_meshes, potential_cache.meshes(entry), factor, config)


@_drift_and_kick.defjvp
def _drift_and_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    _, max_displacement, *floating = primals

    def one_after_the_other(pending: Pending, undo: UndoKick, factor: UndoFactor | None) -> Any:
        state, last = _drift(config, max_displacement, pending)
        state, sums, *others = _kick(config, max_displacement, state, undo, factor)
        return state, jnp.concatenate([last, sums]), *others

    return jax.jvp(one_after_the_other, tuple(floating), tuple(tangents[2:]))


def _of_painted(ct_meshes: list[Array], config: Config, factor: UndoFactor | None) -> Array:
    """Cotangent of the painted mesh, from the cotangents of `force_meshes`."""
    table = None if factor is None else factor.table
    _, pull = jax.vjp(partial(solve, config=config, factor=table), ct_meshes[0])  # linear: the value is not used
    return pull(ct_meshes)[0]


def _by_factor(
    ct_meshes: list[Array], meshes: Sequence[Array], factor: UndoFactor | None, config: Config
) -> Table | None:
    """Cotangent of the factor F of the potential phi, from d phi = phi dF / F; None if it is not wanted."""
    if factor is None or factor.zero is None:
        return None

    def varied(change: Table) -> list[Array]:
        def response() -> Array:
            return on_modes(change, config) / on_modes(factor.table, config)

        return [filtered_block(mesh, response, config.decomposition) for mesh in meshes]

    _, pull = jax.vjp(varied, factor.zero)
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
