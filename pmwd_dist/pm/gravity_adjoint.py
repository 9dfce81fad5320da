"""Gravity backwards: a kick and its drifts undone, with cotangents pulled back through paint, potential and read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.pull_back import UndoDrift, UndoKick, undo_drift, undo_kick
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.parallel.halo import pad_block, reduce_block
from pmwd_dist.pm import kept
from pmwd_dist.pm.gravity import force_meshes, padded_force, solve
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
    stored = Recall((kept.stored_spec(config),) * len(recall.bits), P())  # type: ignore[arg-type]
    run = config.decomposition.shard_map(
        partial(_pull_back_block, config=config),
        ((spec,) * 4, P(), P(), stored),
        (*(spec,) * 4, P()),
    )
    disp, vel, ct_disp, ct_vel, sums = run((*jax.tree.leaves(particles), ct.disp, ct.vel), undo, drifts, recall)
    return ExactParticles(disp, vel), Particles(ct_disp, ct_vel), sums


def _pull_back_block(
    state: tuple[Array, Array, Array, Array],
    undo: UndoKick,
    drifts: UndoDrift,
    recall: Recall,
    config: Config,
) -> tuple[Array, Array, Array, Array, Array]:
    disp, vel, ct_disp, ct_vel = state
    max_displacement = max_displacement_block(disp, config)
    meshes = _recalled_meshes(disp, max_displacement, recall, config)
    _, pull_mesh = jax.vjp(partial(solve, config=config), meshes[0])  # linear: any mesh will do
    count, q = len(undo), resolution(config, disp.dtype)

    def kick(halo: int, disp: Array, vel: Array, ct_disp: Array, ct_vel: Array, *rest: Array) -> tuple[Any, ...]:
        geometry = block_geometry(config, halo)
        fields = padded_force(config, halo, *rest[count:])
        vel, ct_disp, ct_vel, sums = undo_kick(disp, vel, ct_disp, ct_vel, fields, UndoKick(*rest[:count]), geometry)
        return vel, ct_disp, ct_vel, sums, _force_transpose(config, halo, disp, ct_vel)

    vel, ct_disp, ct_vel, sums, ct_meshes = with_halo(
        max_displacement, config, kick, disp, vel, ct_disp, ct_vel, *undo, *meshes
    )
    (ct_mesh,) = pull_mesh(ct_meshes)

    def drift(halo: int, *operands: Array) -> tuple[Array, ...]:
        disp, vel, ct_disp, ct_vel, mesh = operands[:5]
        padded, geometry = pad_block(mesh, halo + 1, config.decomposition), block_geometry(config, halo)
        coefficients = UndoDrift(*operands[5:])
        return undo_drift(disp, vel, ct_disp, ct_vel, padded, coefficients, geometry, resolution=q)

    disp, ct_disp, ct_vel, last = with_halo(
        max_displacement, config, drift, disp, vel, ct_disp, ct_vel, ct_mesh, *drifts
    )
    return disp, vel, ct_disp, ct_vel, _sum_over_devices(jnp.concatenate([sums, last]), config)


def _recalled_meshes(disp: Array, max_displacement: Array, recall: Recall, config: Config) -> list[Array]:
    """`force_meshes` of a step, from what was kept if it was."""
    if not recall.bits:
        return force_meshes(disp, max_displacement, config)
    bits = [jax.lax.dynamic_index_in_dim(b, recall.place, keepdims=False) for b in recall.bits]
    return _kept_meshes(config, disp, max_displacement, bits)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _kept_meshes(config: Config, disp: Array, max_displacement: Array, bits: list[Array]) -> list[Array]:
    """`force_meshes` from their bits; differentiated as computed at the displacements."""
    del config, max_displacement
    return [kept.from_bits(b, disp.dtype) for b in bits]


@_kept_meshes.defjvp
def _kept_meshes_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    disp, max_displacement, bits = primals
    force = partial(force_meshes, max_displacement=max_displacement, config=config)
    return _kept_meshes(config, disp, max_displacement, bits), jax.jvp(force, (disp,), (tangents[0],))[1]


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
