"""A step of the particles of one block undone, with cotangents pulled back through it, in two passes.

`undo_kick` stands where the force is known, `undo_drift` where its cotangent has become a potential on the mesh. Where
the force of the step before is known by then, `undo_drift_and_kick` does that and the kick of that step in one pass.
Momenta are held as whole numbers, see `momenta`. Derivatives are those of the references, which pass straight through
the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array, Float

from pmwd_dist._jax.ops import define_op, result_aval, with_derivatives_of
from pmwd_dist._jax.order import barrier
from pmwd_dist.ops.cic.geometry import Geometry
from pmwd_dist.ops.cic.primitives import read
from pmwd_dist.ops.momenta import count, momentum, pack, rounded
from pmwd_dist.ops.native_steps import step_targets
from pmwd_dist.ops.rounding import round_straight_through

# Sites of the kernels' blocks, for each of which they keep partial sums.
_BLOCK = (1, 8, 32)


class UndoKick(NamedTuple):
    """Coefficients of a kick to be undone.

    Args:
      kick: of the force, in units of the momenta after it.
      after: unit of the momenta after the kick.
      before: unit of the momenta before the kick.
      last: the drift after the kick.
      weight: of the force in the momenta after the kick: kick times their unit.
      good: 1, or 0 for no kick, whatever the force.
    """

    kick: Array
    after: Array
    before: Array
    last: Array
    weight: Array
    good: Array


class UndoDrift(NamedTuple):
    """Coefficients of two drifts backwards.

    Args:
      weight: of the force in the momenta after the kick.
      scale: unit of the momenta after the kick over that before.
      before: unit of the momenta before the kick.
      first_q: minus the drift before the kick, in units of the spacing of displacements.
      last_q: minus the drift at the end of the step before, in the same units.
      good: 1, or 0 where there was no kick.
    """

    weight: Array
    scale: Array
    before: Array
    first_q: Array
    last_q: Array
    good: Array


def undo_kick(
    disp: Float[Array, "px py pz 3"],
    vel: Float[Array, "px py pz 3"],
    ct_disp: Float[Array, "px py pz 3"],
    ct_vel: Float[Array, "px py pz 3"],
    fields: Float[Array, "mx my mz 3"],
    coefficients: UndoKick,
    geometry: Geometry,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, 3]]:
    """Undo a kick, and pull cotangents back through the drift after it and the slopes of the force.

    Args:
      disp: displacements where the force acts.
      vel: holds the momenta after the kick.
      ct_disp: cotangents of the displacements after the drift at the end.
      ct_vel: cotangents of the momenta there.
      fields: the force on the mesh.
      coefficients: of the kick.
      geometry: of lattice and mesh.

    Returns:
      What holds the momenta before the kick; cotangents of the displacements without what comes through the mesh;
      cotangents of the momenta after the kick, also the weights with which the particles are to be painted for the
      rest; and the sums over the particles of: these times the force, these times the new momenta, ct_disp times the
      momenta after the kick.
    """
    reference = partial(_undo_kick_reference, geometry=geometry)
    run = with_derivatives_of(reference, _undo_kick_p, geometry=geometry, resolution=1.0)
    return run(disp, vel, ct_disp, ct_vel, fields, jnp.stack(barrier(tuple(coefficients))))


def undo_drift(
    disp: Float[Array, "px py pz 3"],
    vel: Float[Array, "px py pz 3"],
    ct_disp: Float[Array, "px py pz 3"],
    ct_vel: Float[Array, "px py pz 3"],
    field: Float[Array, "mx my mz"],
    coefficients: UndoDrift,
    geometry: Geometry,
    *,
    resolution: float,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, 1]]:
    """Add the cotangents that come through the mesh, pull them back through a drift, and undo it and the one before.

    Args:
      disp: displacements where the force acts.
      vel: holds the momenta before the kick.
      ct_disp: cotangents of the displacements, from `undo_kick`.
      ct_vel: cotangents of the momenta, from `undo_kick`.
      field: cotangent of the painted mesh.
      coefficients: of the drifts.
      geometry: of lattice and mesh.
      resolution: q, the spacing of the displacements.

    Returns:
      Displacements before both drifts, cotangents before the first of them, and the sum over the particles of the
      cotangents of the displacements times the momenta.
    """
    reference = partial(_undo_drift_reference, geometry=geometry, resolution=resolution)
    run = with_derivatives_of(reference, _undo_drift_p, geometry=geometry, resolution=resolution)
    return run(disp, vel, ct_disp, ct_vel, field[..., None], jnp.stack(barrier(tuple(coefficients))))


def undo_drift_and_kick(
    particles: Sequence[Array],
    field: Float[Array, "mx my mz"],
    fields: Float[Array, "mx my mz 3"],
    drift: UndoDrift,
    kick: UndoKick,
    geometry: Geometry,
    *,
    resolution: float,
) -> tuple[Array, Array, Array, Array, Float[Array, 4]]:
    """`undo_drift`, and then `undo_kick` of the step before, in one pass over the particles.

    Args:
      particles: displacements, what holds the momenta, and cotangents of both.
      field: cotangent of the painted mesh.
      fields: the force of the step before on the mesh.
      drift: coefficients of the drifts.
      kick: coefficients of the kick of the step before.
      geometry: of lattice and mesh.
      resolution: q, the spacing of the displacements.

    Returns:
      Displacements after the kick, what holds the momenta before it, and cotangents as `undo_kick` gives them; and the
      sum of `undo_drift` with those of `undo_kick`.
    """
    reference = partial(_undo_drift_and_kick_reference, geometry=geometry, resolution=resolution)
    run = with_derivatives_of(reference, _undo_drift_and_kick_p, geometry=geometry, resolution=resolution)
    return run(*particles, field[..., None], fields, jnp.stack(barrier((*drift, *kick))))


def drifted_back(disp: Array, vel: Array, coefficients: UndoDrift, resolution: float) -> Array:
    """Displacements before both drifts."""
    c, p = coefficients, momentum(vel, coefficients.before)
    disp = disp + resolution * round_straight_through(c.first_q * p)
    return disp + resolution * round_straight_through(c.last_q * p)


def _undo_kick_reference(
    disp: Array, vel: Array, ct_disp: Array, ct_vel: Array, fields: Array, step: Array, *, geometry: Geometry
) -> tuple[Array, Array, Array, Array]:
    c = UndoKick(*(step[i] for i in range(len(UndoKick._fields))))
    force, pull = jax.vjp(lambda disp: read(disp, fields, geometry)[..., 0, :], disp)
    kicked = momentum(vel, c.after)
    ends = _sum(ct_disp * kicked)
    ct_vel = ct_vel + c.last * ct_disp
    force = jnp.where(c.good != 0, force, 0)
    kick = c.kick * force
    vel = pack(count(vel) - rounded(kick)[0], (kicked / c.after - kick) * c.before)
    ct_disp = ct_disp + jnp.where(c.good != 0, c.weight * pull(ct_vel)[0], 0)
    return vel, ct_disp, ct_vel, jnp.stack([_sum(ct_vel * force), _sum(ct_vel * momentum(vel, c.before)), ends])


def _undo_drift_reference(
    disp: Array,
    vel: Array,
    ct_disp: Array,
    ct_vel: Array,
    field: Array,
    step: Array,
    *,
    geometry: Geometry,
    resolution: float,
) -> tuple[Array, Array, Array, Array]:
    c = UndoDrift(*(step[i] for i in range(len(UndoDrift._fields))))
    values, pull = jax.vjp(lambda disp: read(disp, field, geometry), disp)
    ct_disp = ct_disp + jnp.where(c.good != 0, c.weight * pull(jnp.ones_like(values))[0], 0)
    ct_vel = c.scale * ct_vel - c.first_q * resolution * ct_disp
    total = _sum(ct_disp * momentum(vel, c.before))[None]
    return drifted_back(disp, vel, c, resolution), ct_disp, ct_vel, total


def _undo_drift_and_kick_reference(
    *operands: Array, geometry: Geometry, resolution: float
) -> tuple[Array, Array, Array, Array, Array]:
    disp, vel, ct_disp, ct_vel, field, fields, steps = operands
    first, second = jnp.split(steps, [len(UndoDrift._fields)])
    q: Any = {"geometry": geometry, "resolution": resolution}
    disp, ct_disp, ct_vel, of_drift = _undo_drift_reference(disp, vel, ct_disp, ct_vel, field, first, **q)
    out = _undo_kick_reference(disp, vel, ct_disp, ct_vel, fields, second, geometry=geometry)
    return disp, *out[:3], jnp.concatenate([of_drift, out[3]])


def _sum(x: Array) -> Array:
    return jnp.sum(x)


def _avals(sums: int, results: int, disp: Any, *_: Any, **__: Any) -> list[Any]:
    return [*(disp,) * results, result_aval(disp, (disp.shape[0], sums), disp.dtype)]


def _scratch(sums: int, disp: Any, *_: Any, **__: Any) -> ShapedArray:
    blocks = math.prod(-(-n // size) for n, size in zip(disp.shape[1:4], _BLOCK, strict=True))
    return ShapedArray((2 * sums * blocks,), np.dtype(np.int32))


def _define(name: str, reference: Callable[..., Any], sums: int, in_place: dict[int, int]) -> Any:
    def batched(*operands: Array, **params: Any) -> Sequence[Array]:
        return jax.vmap(partial(reference, **params))(*operands)

    targets = step_targets(name, in_place, partial(_scratch, sums))
    return define_op(name, partial(_avals, sums, len(in_place)), batched, targets=targets, multiple_results=True)


def _undo_kick_batched(*operands: Array, geometry: Geometry, resolution: float) -> Any:
    del resolution
    return _undo_kick_reference(*operands, geometry=geometry)


_undo_kick_p = _define("undo_kick", _undo_kick_batched, 3, {1: 0, 2: 1, 3: 2})
_undo_drift_p = _define("undo_drift", _undo_drift_reference, 1, {0: 0, 2: 1, 3: 2})
_undo_drift_and_kick_p = _define("undo_drift_and_kick", _undo_drift_and_kick_reference, 4, {0: 0, 1: 1, 2: 2, 3: 3})
