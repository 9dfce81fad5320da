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
from pmwd_dist.parallel.halo import pad_block, reduce_block
from pmwd_dist.pm.gravity import force_meshes, padded_force, solve
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, with_halo
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry, entry_spec


class Pending(NamedTuple):
    """Particles and cotangents between the reversal of a kick and of the drifts before it.

    Args:
      particles: particles before the kick, where the force acts.
      ct: cotangents of the particles, from `undo_kick`.
      mesh: cotangent of the painted mesh.
      drifts: coefficients of the drifts.
    """

    particles: ExactParticles
    ct: Particles
    mesh: Array
    drifts: UndoDrift


# Displacements, integer momenta, and cotangents of both.
State = Sequence[Array]


@partial(jax.jit, static_argnames="config")
def step_vjp(
    particles: ExactParticles,
    ct: Particles,
    undo: UndoKick,
    drifts: UndoDrift,
    entry: Entry,
    config: Config,
) -> tuple[ExactParticles, Particles, Float[Array, 4]]:
    """Reverse a kick and the drifts before it, and apply the VJP of the step.

    Args:
      particles: particles after the kick, where the force acts.
      ct: cotangents of the particles at the end of the step.
      undo: coefficients of the kick.
      drifts: coefficients of the drifts.
      entry: stored potential of the step, or an empty entry.
      config: the simulation.

    Returns:
      The particles before the drifts, the cotangents of the particles at the start of the step, and four sums over the
      particles, sum v1' F, sum v1' v0, sum x1' v1, sum x0' v0: momenta v0, v1 before and after the kick, displacements
      x0, x1 at the start and the end, and cotangents with primes.
    """
    spec = config.decomposition.spec
    run = config.decomposition.shard_map(
        partial(_step_vjp_block, config=config),
        ((spec,) * 4, P(), P(), entry_spec(entry, config)),
        (*(spec,) * 4, P()),
    )
    disp, vel, ct_disp, ct_vel, sums = run((*jax.tree.leaves(particles), ct.disp, ct.vel), undo, drifts, entry)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), sums


def _step_vjp_block(state: State, undo: UndoKick, drifts: UndoDrift, entry: Entry, config: Config) -> Any:
    disp, vel, *ct, sums, mesh = _kick_block(state, undo, entry, config)
    disp, vel, *ct, last = _drift_block((disp, vel, *ct), mesh, drifts, config)
    return disp, vel, *ct, jnp.concatenate([_sum_over_devices(sums, config), last])


@partial(jax.jit, static_argnames="config")
def pending(particles: ExactParticles, ct: Particles, drifts: UndoDrift, config: Config) -> Pending:
    """Particles before the reversal of drifts, with a cotangent of zero for the mesh."""
    spec, shape = config.decomposition.spec, config.mesh_shape
    parts = (*config.decomposition.pdims, 1)

    def zeros(nothing: Array, disp: Array) -> Array:
        block = tuple(n // p for n, p in zip(shape, parts, strict=True))
        return unify_varying(jnp.broadcast_to(nothing, block), disp)[0]

    # Allocated late, to share memory.
    nothing, _ = after(jnp.zeros((), particles.disp.dtype), ct.disp)
    return Pending(
        particles, ct, config.decomposition.shard_map(zeros, (P(), spec), spec)(nothing, particles.disp), drifts
    )


@partial(jax.jit, static_argnames="config")
def undo_drifts(pending: Pending, config: Config) -> tuple[ExactParticles, Particles, Float[Array, 1]]:
    """Reverse the pending drifts.

    Returns:
      The particles before the drifts, their cotangents, and sum x0' v0 of `step_vjp`.
    """
    spec, (state, mesh, drifts) = config.decomposition.spec, _leaves(pending)
    run = config.decomposition.shard_map(
        partial(_drift_block, config=config), ((spec,) * 4, spec, P()), (*(spec,) * 4, P())
    )
    disp, vel, *ct, last = run(state, mesh, drifts)
    return ExactParticles(disp, vel), Particles(*ct), last


@partial(jax.jit, static_argnames="config")
def cached_step_vjp(
    pending: Pending, undo: UndoKick, entry: Entry, config: Config
) -> tuple[ExactParticles, Particles, Array, Float[Array, 4]]:
    """Reverse the pending drifts, and the kick before them with its stored potential, in one pass over the particles.

    Args:
      pending: particles after the kick, with the drifts since.
      undo: coefficients of the kick.
      entry: stored potential of the step.
      config: the simulation.

    Returns:
      The particles before the kick; their cotangents without the part through the mesh; the cotangent of the painted
      mesh; the sum of `undo_drifts` and the first three sums of `step_vjp`.
    """
    spec, (state, mesh, drifts) = config.decomposition.spec, _leaves(pending)
    run = config.decomposition.shard_map(
        partial(_drift_and_kick_block, config=config),
        ((spec,) * 4, spec, P(), P(), entry_spec(entry, config)),
        (*(spec,) * 4, P(), spec),
    )
    disp, vel, ct_disp, ct_vel, sums, mesh = run(state, mesh, drifts, undo, entry)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), mesh, sums


def _leaves(pending: Pending) -> tuple[State, Array, UndoDrift]:
    (disp, vel), ct = jax.tree.leaves(pending.particles), pending.ct
    return (disp, vel, ct.disp, ct.vel), pending.mesh, pending.drifts


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def _kick_block(state: State, undo: UndoKick, entry: Entry, config: Config) -> Any:
    """Reverse a kick; returns the state, sums of this device, and the cotangent of the painted mesh."""
    max_displacement = max_displacement_block(state[0], config)
    kick = partial(_cached_kick, entry=entry) if entry.potentials else _kick
    *state, sums, ct_meshes = kick(config, max_displacement, state, undo)
    return *state, sums, _of_painted(ct_meshes, config)


def _drift_block(state: State, mesh: Array, drifts: UndoDrift, config: Config) -> Any:
    disp, vel, ct_disp, ct_vel, last = _drift(config, max_displacement_block(state[0], config), state, mesh, drifts)
    return disp, vel, ct_disp, ct_vel, _sum_over_devices(last, config)


def _drift_and_kick_block(
    state: State, mesh: Array, drifts: UndoDrift, undo: UndoKick, entry: Entry, config: Config
) -> Any:
    disp, vel = state[:2]
    before = drifted_back(disp, vel, drifts, resolution(config, disp.dtype))
    max_displacement = jnp.maximum(max_displacement_block(disp, config), max_displacement_block(before, config))
    *state, sums, ct_meshes = _drift_and_kick(config, entry, max_displacement, state, mesh, drifts, undo)
    return *state, _sum_over_devices(sums, config), _of_painted(ct_meshes, config)


def _kick(config: Config, max_displacement: Array, state: State, undo: UndoKick, entry: Entry | None = None) -> Any:
    """Reverse a kick, by the stored potential if given; returns the state, sums, and cotangents of force meshes."""
    count = len(undo)
    if entry is None:
        force, sources = padded_force, force_meshes(state[0], max_displacement, config)
    else:
        force, sources = potential_cache.padded_force, potential_cache.sources(entry, config)

    def run(halo: int, disp: Array, vel: Array, ct_disp: Array, ct_vel: Array, *rest: Array) -> tuple[Any, ...]:
        geometry = block_geometry(config, halo)
        fields = force(config, halo, *rest[count:])
        vel, ct_disp, ct_vel, sums = undo_kick(disp, vel, ct_disp, ct_vel, fields, UndoKick(*rest[:count]), geometry)
        return vel, ct_disp, ct_vel, sums, _force_transpose(config, halo, disp, ct_vel)

    return state[0], *with_halo(max_displacement, config, run, *state, *undo, *sources)


def _drift(config: Config, max_displacement: Array, state: State, mesh: Array, drifts: UndoDrift) -> Any:
    """Reverse drifts; returns the state and a sum."""

    def run(halo: int, *operands: Array) -> tuple[Array, ...]:
        disp, vel, ct_disp, ct_vel, mesh = operands[:5]
        padded, geometry = pad_block(mesh, halo + 1, config.decomposition), block_geometry(config, halo)
        q = resolution(config, disp.dtype)
        return undo_drift(disp, vel, ct_disp, ct_vel, padded, UndoDrift(*operands[5:]), geometry, resolution=q)

    disp, ct_disp, ct_vel, last = with_halo(max_displacement, config, run, *state, mesh, *drifts)
    return disp, state[1], ct_disp, ct_vel, last


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cached_kick(config: Config, max_displacement: Array, state: State, undo: UndoKick, entry: Entry) -> Any:
    """`_kick` with the stored potential; derivatives compute the potential at the displacements."""
    return _kick(config, max_displacement, state, undo, entry)


@_cached_kick.defjvp
def _cached_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    max_displacement, state, undo, _ = primals
    return jax.jvp(partial(_kick, config, max_displacement), (state, undo), tuple(tangents[1:3]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _drift_and_kick(
    config: Config,
    entry: Entry,
    max_displacement: Array,
    state: State,
    mesh: Array,
    drifts: UndoDrift,
    undo: UndoKick,
) -> Any:
    """`_drift`, then `_kick` with the stored potential; derivatives compute the potential at the displacements."""
    sources, counts = potential_cache.sources(entry, config), (len(drifts), len(undo))

    def run(halo: int, mesh: Array, *operands: Array) -> tuple[Any, ...]:
        geometry, q = block_geometry(config, halo), resolution(config, mesh.dtype)
        state, rest = operands[:4], operands[4:]
        coefficients = UndoDrift(*rest[: counts[0]]), UndoKick(*rest[counts[0] : sum(counts)])
        # In this order one halo is freed before the next.
        fields, mesh = barrier((potential_cache.padded_force(config, halo, *rest[sum(counts) :]), mesh))
        padded = pad_block(mesh, halo + 1, config.decomposition)
        *state, sums = undo_drift_and_kick(state, padded, fields, *coefficients, geometry, resolution=q)
        return *state, sums, _force_transpose(config, halo, state[0], state[3])

    return with_halo(max_displacement, config, run, mesh, *state, *drifts, *undo, *sources)


@_drift_and_kick.defjvp
def _drift_and_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    _, max_displacement, *floating = primals

    def one_after_the_other(state: State, mesh: Array, drifts: UndoDrift, undo: UndoKick) -> Any:
        *state, last = _drift(config, max_displacement, state, mesh, drifts)
        *state, sums, ct_meshes = _kick(config, max_displacement, state, undo)
        return *state, jnp.concatenate([last, sums]), ct_meshes

    return jax.jvp(one_after_the_other, tuple(floating), tuple(tangents[2:]))


def _of_painted(ct_meshes: list[Array], config: Config) -> Array:
    """Cotangent of the painted mesh, from the cotangents of `force_meshes`."""
    _, pull = jax.vjp(partial(solve, config=config), ct_meshes[0])  # linear: the value is not used
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
