"""VJP of a step: exact reversal of kick and drifts, and cotangents through read, potential and paint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.ops.step_vjp import State, UndoDrift, UndoKick, undo_drift, undo_kick
from pmwd_dist.parallel.halo import pad_block, reduce_block
from pmwd_dist.pm.gravity import force_meshes, padded_force, solve
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, with_halo
from pmwd_dist.pm.particles import resolution
from pmwd_dist.pm.stepping import potential_cache
from pmwd_dist.pm.stepping.potential_cache import Entry, entry_spec


@partial(jax.jit, static_argnames="config")
def step_vjp(
    state: State, undo: UndoKick, drifts: UndoDrift, entry: Entry, config: Config
) -> tuple[State, Float[Array, 4]]:
    """Reverse a kick and the drifts before it, and apply the VJP of the step.

    Args:
      state: particles after the kick, where the force acts, with cotangents at the end of the step.
      undo: coefficients of the kick.
      drifts: coefficients of the drifts.
      entry: stored potential of the step, or an empty entry.
      config: the simulation.

    Returns:
      The particles before the drifts, with cotangents at the start of the step, and the sums over the particles of
      v1' F, v1' v0, x1' v1 and x0' v0: momenta v0, v1 before and after the kick, displacements x0, x1 at the start and
      the end, and cotangents with primes.
    """
    spec = config.decomposition.spec
    run = config.decomposition.shard_map(
        partial(_step_vjp_block, config=config), (spec, P(), P(), entry_spec(entry, config)), (spec, P())
    )
    return run(state, undo, drifts, entry)


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def _step_vjp_block(
    state: State, undo: UndoKick, drifts: UndoDrift, entry: Entry, config: Config
) -> tuple[State, Array]:
    max_displacement = max_displacement_block(state.disp, config)
    kick = partial(_cached_kick, entry=entry) if entry.potentials else _kick
    state, sums, ct_meshes = kick(config, max_displacement, state, undo)
    state, last = _drift(config, max_displacement, state, _of_painted(ct_meshes, config), drifts)
    sums, names = jnp.concatenate([sums, last]), config.decomposition.names
    return state, jax.lax.psum(sums, names) if names else sums


def _kick(config: Config, max_displacement: Array, state: State, undo: UndoKick, entry: Entry | None = None) -> Any:
    """Reverse a kick, by the stored potential if given; returns the state, sums, and cotangents of force meshes."""
    if entry is None:
        force, sources = padded_force, force_meshes(state.disp, max_displacement, config)
    else:
        force, sources = potential_cache.padded_force, potential_cache.sources(entry, config)

    def run(halo: int, state: State, undo: UndoKick, sources: Sequence[Array]) -> tuple[Any, ...]:
        fields = force(config, halo, *sources)
        undone, sums = undo_kick(state, fields, undo, block_geometry(config, halo))
        return undone, sums, _force_transpose(config, halo, state.disp, undone.ct_vel)

    return with_halo(max_displacement, config, run, state, undo, sources)


def _drift(config: Config, max_displacement: Array, state: State, mesh: Array, drifts: UndoDrift) -> Any:
    """Reverse drifts, with the cotangent of the painted mesh; returns the state and a sum."""

    def run(halo: int, state: State, mesh: Array, drifts: UndoDrift) -> Any:
        padded, q = pad_block(mesh, halo + 1, config.decomposition), resolution(config, mesh.dtype)
        return undo_drift(state, padded, drifts, block_geometry(config, halo), resolution=q)

    return with_halo(max_displacement, config, run, state, mesh, drifts)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cached_kick(config: Config, max_displacement: Array, state: State, undo: UndoKick, entry: Entry) -> Any:
    """`_kick` with the stored potential; derivatives compute the potential at the displacements."""
    return _kick(config, max_displacement, state, undo, entry)


@_cached_kick.defjvp
def _cached_kick_jvp(config: Config, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    max_displacement, state, undo, _ = primals
    return jax.jvp(partial(_kick, config, max_displacement), (state, undo), tuple(tangents[1:3]))


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
