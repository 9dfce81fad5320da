"""A kick and two drifts of the particles of one block, in one pass that also reads the force from the mesh.

Displacements are multiples of q, momenta of the spacings at the start and at the end of the step:

    momentum = rint(vel * inverse) + rint(kick * force);  vel = momentum * after
    disp += q * rint(last * vel);  disp += q * rint(first * vel)

The derivatives are those of the reference: they pass straight through the rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pmwd_dist._jax.batching import barrier
from pmwd_dist._jax.define import define_op, with_derivatives_of
from pmwd_dist._jax.varying import result_aval
from pmwd_dist.ops.cic.geometry import Geometry
from pmwd_dist.ops.cic.primitives import read
from pmwd_dist.ops.native_steps import step_targets
from pmwd_dist.ops.rounding import max_abs, round_straight_through


class KickDrift(NamedTuple):
    """Coefficients of a kick and two drifts, on the grids of the particles.

    Args:
      kick: of the force, in units of the spacing of the momenta at the end.
      inverse: 1 / spacing of the momenta at the start.
      after: spacing of the momenta at the end.
      last: drift at the end of a step, in units of the spacing of the displacements.
      first: drift at the start of the following step, in the same units.
      good: 1, or 0 for no kick, whatever the force.
    """

    kick: Array
    inverse: Array
    after: Array
    last: Array
    first: Array
    good: Array


def kick_drift(
    disp: Float[Array, "px py pz 3"],
    vel: Float[Array, "px py pz 3"],
    fields: Float[Array, "mx my mz 3"],
    coefficients: KickDrift,
    geometry: Geometry,
    resolution: float,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, ""]]:
    """Kick by the force that is read from a mesh, then drift twice.

    Args:
      disp: displacements from the lattice.
      vel: momenta.
      fields: the force on the mesh.
      coefficients: of the step.
      geometry: of lattice and mesh.
      resolution: q, the spacing of the displacements.

    Returns:
      Displacements, momenta and the largest component of a displacement, NaN if one is.
    """
    params: Any = {"geometry": geometry, "resolution": resolution}
    run = with_derivatives_of(partial(_reference, **params), _kick_drift_p, **params)
    new_disp, new_vel, most = run(disp, vel, fields, jnp.stack(barrier(tuple(coefficients))))
    return new_disp, new_vel, most[0]


def _reference(
    disp: Array, vel: Array, fields: Array, step: Array, *, geometry: Geometry, resolution: float
) -> tuple[Array, Array, Array]:
    force = read(disp, fields, geometry)[..., 0, :]
    c = KickDrift(*(step[i] for i in range(len(KickDrift._fields))))
    kick = jnp.where(c.good != 0, round_straight_through(c.kick * force), 0)
    vel = (round_straight_through(vel * c.inverse) + kick) * c.after
    disp = disp + resolution * round_straight_through(c.last * vel)
    disp = disp + resolution * round_straight_through(c.first * vel)
    return disp, vel, max_abs(disp)[None]


def _batched_reference(*operands: Array, **params: Any) -> tuple[Array, Array, Array]:
    return jax.vmap(partial(_reference, **params))(*operands)


def _avals(disp: Any, vel: Any, fields: Any, step: Any, **_: Any) -> list[Any]:
    del vel, fields, step
    return [disp, disp, result_aval(disp, (disp.shape[0], 1), disp.dtype)]


_kick_drift_p = define_op(
    "kick_drift", _avals, _batched_reference, targets=step_targets("kick_drift", {0: 0, 1: 1}), multiple_results=True
)
