"""Gravity backwards: a kick and its drifts undone, with cotangents pulled back through paint, potential and read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._jax.batching import after, barrier
from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.pull_back import (
    UndoDrift,
    UndoKick,
    drifted_back,
    undo_drift,
    undo_drift_and_kick,
    undo_kick,
)
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.parallel.halo import pad_block, reduce_block
from pmwd_dist.pm import kept
from pmwd_dist.pm.gravity import force_meshes, kept_force, kept_sources, padded_force, solve
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, with_halo
from pmwd_dist.pm.particles import ExactParticles, Particles, resolution


class Recall(NamedTuple):
    """What the force of a step was read from, if it was kept.

    Args:
      bits: of all steps that are kept, from `kept.room`, or nothing.
      place: of the step among them.
    """

    bits: tuple[Array, ...]
    place: Array


class Pending(NamedTuple):
    """Particles with cotangents, of which the drifts before a kick are still to be undone.

    Args:
      particles: before the kick, where the force acts.
      ct: cotangents of the particles, from `undo_kick`.
      drifts: coefficients of the drifts.
    """

    particles: ExactParticles
    ct: Particles
    drifts: UndoDrift


# Displacements, what holds the momenta, and cotangents of both.
State = Sequence[Array]


@partial(jax.jit, static_argnames="config")
def pull_back(
    particles: ExactParticles,
    ct: Particles,
    undo: UndoKick,
    drifts: UndoDrift,
    recall: Recall,
    config: Config,
) -> tuple[ExactParticles, Particles, Float[Array, 4]]:
    """Undo a kick and the drifts before it, and pull cotangents back through the step.

    Args:
      particles: after the kick, where the force acts.
      ct: cotangents of the particles at the end of the step.
      undo: coefficients of the kick.
      drifts: coefficients of the drifts.
      recall: what the force was read from.
      config: the simulation.

    Returns:
      The particles before the drifts, the cotangents of the particles at the start of the step, and sums over the
      particles: of the cotangents of the momenta after the kick times the force, of the same times the momenta before
      it, of the cotangents of the displacements at the end times the momenta after it, and of those at the start times
      the momenta before it.
    """
    spec = config.decomposition.spec
    run = config.decomposition.shard_map(
        partial(_pull_back_block, config=config),
        ((spec,) * 4, P(), P(), _recall_spec(recall, config)),
        (*(spec,) * 4, P()),
    )
    disp, vel, ct_disp, ct_vel, sums = run((*jax.tree.leaves(particles), ct.disp, ct.vel), undo, drifts, recall)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), sums


def _pull_back_block(state: State, undo: UndoKick, drifts: UndoDrift, recall: Recall, config: Config) -> Any:
    *state, sums = _kick_block(state, undo, recall, config)
    *state, last = _drift_block(state, drifts, config)
    return *state, jnp.concatenate([sums, last])


@partial(jax.jit, static_argnames="config")
def pull_back_kick(
    particles: ExactParticles, ct: Particles, undo: UndoKick, recall: Recall, config: Config
) -> tuple[ExactParticles, Particles, Float[Array, 3]]:
    """The first half of `pull_back`: the particles before the kick, what `Pending` holds of cotangents, three sums."""
    spec = config.decomposition.spec
    run = config.decomposition.shard_map(
        partial(_waiting_kick_block, config=config),
        ((spec,) * 4, P(), _recall_spec(recall, config)),
        (*(spec,) * 4, P()),
    )
    disp, vel, ct_disp, ct_vel, sums = run((*jax.tree.leaves(particles), ct.disp, ct.vel), undo, recall)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), sums


@partial(jax.jit, static_argnames="config")
def pull_back_drifts(pending: Pending, config: Config) -> tuple[ExactParticles, Particles, Float[Array, 1]]:
    """The second half of `pull_back`: the particles before the drifts, their cotangents, and the last of the sums."""
    spec, ct = config.decomposition.spec, pending.ct
    run = config.decomposition.shard_map(partial(_drift_block, config=config), ((spec,) * 4, P()), (*(spec,) * 4, P()))
    state = (*jax.tree.leaves(pending.particles), ct.disp, ct.vel)
    disp, vel, ct_disp, ct_vel, last = run(state, pending.drifts)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), last


@partial(jax.jit, static_argnames="config")
def pull_back_kept(
    pending: Pending, undo: UndoKick, recall: Recall, config: Config
) -> tuple[ExactParticles, Particles, Float[Array, 4]]:
    """`pull_back_drifts`, and `pull_back_kick` of the step before, in one pass over the particles.

    Args:
      pending: the particles after the kick, and the drifts since.
      undo: coefficients of the kick.
      recall: what the force was read from; not nothing.
      config: the simulation.

    Returns:
      The particles before the kick, and what `Pending` holds of cotangents; the sums of both.
    """
    spec, ct = config.decomposition.spec, pending.ct
    run = config.decomposition.shard_map(
        partial(_drift_and_kick_block, config=config),
        ((spec,) * 4, P(), P(), _recall_spec(recall, config)),
        (*(spec,) * 4, P()),
    )
    state = (*jax.tree.leaves(pending.particles), ct.disp, ct.vel)
    disp, vel, ct_disp, ct_vel, sums = run(state, pending.drifts, undo, recall)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), sums


def _recall_spec(recall: Recall, config: Config) -> Any:
    return Recall((kept.stored_spec(config),) * len(recall.bits), P())  # type: ignore[arg-type]


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def _kick_block(state: State, undo: UndoKick, recall: Recall, config: Config) -> Any:
    reach = max_displacement_block(state[0], config)
    kick = partial(_kept_kick, recall=recall) if recall.bits else _kick
    *state, sums = kick(config, reach, state, undo)
    return *state, _sum_over_devices(sums, config)


def _waiting_kick_block(state: State, undo: UndoKick, recall: Recall, config: Config) -> Any:
    """`_kick_block`. The force, which needs no particles, is not to be computed before them: 12 bytes a particle."""
    place, _ = after(recall.place.astype(state[0].dtype), state[0])
    place, *state = barrier((place, *state))
    place = jnp.where(place >= 0, place, 0).astype(jnp.int32)  # no number where displacements are none
    return _kick_block(state, undo, Recall(recall.bits, place), config)


def _drift_block(state: State, drifts: UndoDrift, config: Config) -> Any:
    reach = max_displacement_block(state[0], config)
    *state, last = _drift(config, reach, state, _through_the_mesh(config, reach, state), drifts)
    return *state, _sum_over_devices(last, config)


def _drift_and_kick_block(state: State, drifts: UndoDrift, undo: UndoKick, recall: Recall, config: Config) -> Any:
    disp, vel = state[:2]
    reach = max_displacement_block(disp, config)
    mesh = _through_the_mesh(config, reach, state)
    before = max_displacement_block(drifted_back(disp, vel, drifts, resolution(config, disp.dtype)), config)
    *state, sums = _drift_and_kick(config, recall, jnp.maximum(reach, before), state, mesh, drifts, undo)
    return *state, _sum_over_devices(sums, config)


def _through_the_mesh(config: Config, reach: Array, state: State) -> Array:
    """Cotangent of the painted mesh."""
    ct_meshes = with_halo(reach, config, partial(_force_transpose, config), state[0], state[3])
    _, pull = jax.vjp(partial(solve, config=config), ct_meshes[0])  # linear: any mesh will do
    return pull(ct_meshes)[0]


def _kick(config: Config, reach: Array, state: State, undo: UndoKick, recall: Recall | None = None) -> Any:
    """The state with a kick undone, by what was kept or by the force of the particles, and sums."""
    sources, count = (
        force_meshes(state[0], reach, config) if recall is None else kept_sources(*recall, config),
        len(undo),
    )
    force = padded_force if recall is None else kept_force

    def run(halo: int, disp: Array, vel: Array, ct_disp: Array, ct_vel: Array, *rest: Array) -> tuple[Array, ...]:
        fields, coefficients = force(config, halo, *rest[count:]), UndoKick(*rest[:count])
        return undo_kick(disp, vel, ct_disp, ct_vel, fields, coefficients, block_geometry(config, halo))

    return state[0], *with_halo(reach, config, run, *state, *undo, *sources)


def _drift(config: Config, reach: Array, state: State, mesh: Array, drifts: UndoDrift) -> Any:
    """The state with drifts undone, and a sum."""

    def run(halo: int, *operands: Array) -> tuple[Array, ...]:
        disp, vel, ct_disp, ct_vel, mesh = operands[:5]
        padded, geometry = pad_block(mesh, halo + 1, config.decomposition), block_geometry(config, halo)
        q = resolution(config, disp.dtype)
        return undo_drift(disp, vel, ct_disp, ct_vel, padded, UndoDrift(*operands[5:]), geometry, resolution=q)

    disp, ct_disp, ct_vel, last = with_halo(reach, config, run, *state, mesh, *drifts)
    return disp, state[1], ct_disp, ct_vel, last


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _kept_kick(config: Config, reach: Array, state: State, undo: UndoKick, recall: Recall) -> Any:
    """`_kick` by what was kept; differentiated as computed at the displacements."""
    return _kick(config, reach, state, undo, recall)


@_kept_kick.defjvp
def _kept_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    reach, state, undo, _ = primals
    return _kept_kick(config, *primals), jax.jvp(partial(_kick, config, reach), (state, undo), tuple(tangents[1:3]))[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _drift_and_kick(
    config: Config, recall: Recall, reach: Array, state: State, mesh: Array, drifts: UndoDrift, undo: UndoKick
) -> Any:
    """`_drift` and then `_kick` by what was kept; differentiated as these, computed at the displacements."""
    sources, counts = kept_sources(*recall, config), (len(drifts), len(undo))

    def run(halo: int, mesh: Array, *operands: Array) -> tuple[Any, ...]:
        padded, geometry = pad_block(mesh, halo + 1, config.decomposition), block_geometry(config, halo)
        state, rest = operands[:4], operands[4:]
        coefficients = UndoDrift(*rest[: counts[0]]), UndoKick(*rest[counts[0] : sum(counts)])
        fields, q = kept_force(config, halo, *rest[sum(counts) :]), resolution(config, mesh.dtype)
        return undo_drift_and_kick(state, padded, fields, *coefficients, geometry, resolution=q)

    return with_halo(reach, config, run, mesh, *state, *drifts, *undo, *sources)


@_drift_and_kick.defjvp
def _drift_and_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    _, reach, *floating = primals

    def one_after_the_other(state: State, mesh: Array, drifts: UndoDrift, undo: UndoKick) -> Any:
        *state, last = _drift(config, reach, state, mesh, drifts)
        *state, sums = _kick(config, reach, state, undo)
        return *state, jnp.concatenate([last, sums])

    return _drift_and_kick(config, *primals), jax.jvp(one_after_the_other, tuple(floating), tuple(tangents[2:]))[1]


def _force_transpose(config: Config, halo: int, disp: Array, weight: Array) -> list[Array]:
    """Cotangents of what the force is read from, for those of the force at the particles."""
    geometry, decomposition = block_geometry(config, halo), config.decomposition
    if config.gradient == "spectral":
        painted = cic.paint(disp, weight[..., None, :], geometry)
        return [reduce_block(painted[..., axis], halo + 1, decomposition) for axis in range(3)]
    return [reduce_block(force_transpose(disp, weight, geometry, config.cell_size), halo + 1 + WIDTH, decomposition)]


def _sum_over_devices(x: Array, config: Config) -> Array:
    names = config.decomposition.names
    return jax.lax.psum(x, names) if names else x
