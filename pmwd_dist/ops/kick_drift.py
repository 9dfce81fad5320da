"""A kick and two drifts of the particles of one block, in one pass that also reads the force from the mesh.

Displacements are multiples of q, momenta of the spacings at the start and at the end of the step:

    momentum = rint(vel * inverse) + rint(kick * force);  vel = momentum * after
    disp += q * rint(last * vel);  disp += q * rint(first * vel)

or, with momenta that are held as whole numbers (`momenta`), momentum += rint(kick * force).

The derivatives are those of the reference: they pass straight through the rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jaxtyping import Array, Float

from pmwd_dist._jax.batching import barrier
from pmwd_dist._jax.define import define_op, with_derivatives_of
from pmwd_dist._jax.varying import result_aval
from pmwd_dist.ops.cic.geometry import Geometry
from pmwd_dist.ops.cic.primitives import read
from pmwd_dist.ops.momenta import count, momentum, pack, rounded
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
    *,
    resolution: float,
    whole: bool,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, ""]]:
    """Kick by the force that is read from a mesh, then drift twice.

    Args:
      disp: displacements from the lattice.
      vel: momenta, or what holds them as whole numbers.
      fields: the force on the mesh.
      coefficients: of the step.
      geometry: of lattice and mesh.
      resolution: q, the spacing of the displacements.
      whole: whether momenta are held as whole numbers.

    Returns:
      Displacements, momenta and the largest component of a displacement, NaN if one is.
    """
    params: Any = {"geometry": geometry, "resolution": resolution}
    run = with_derivatives_of(partial(_reference, **params, whole=whole), _primitives[whole], **params)
    new_disp, new_vel, most = run(disp, vel, fields, jnp.stack(barrier(tuple(coefficients))))
    return new_disp, new_vel, most[0]


def _reference(
    disp: Array, vel: Array, fields: Array, step: Array, *, geometry: Geometry, resolution: float, whole: bool
) -> tuple[Array, Array, Array]:
    force = read(disp, fields, geometry)[..., 0, :]
    c = KickDrift(*(step[i] for i in range(len(KickDrift._fields))))
    kick = jnp.where(c.good != 0, c.kick * force, 0)
    if whole:
        by, missing = rounded(kick)
        vel = pack(count(vel) + by, (momentum(vel, 1 / c.inverse) * c.inverse + kick) * c.after)
        p = momentum(vel, c.after) + missing
    else:
        p = vel = (round_straight_through(vel * c.inverse) + round_straight_through(kick)) * c.after
    disp = disp + resolution * round_straight_through(c.last * p)
    disp = disp + resolution * round_straight_through(c.first * p)
    return disp, vel, max_abs(disp)[None]


def _avals(disp: Any, vel: Any, fields: Any, step: Any, **_: Any) -> list[Any]:
    del vel, fields, step
    return [disp, disp, result_aval(disp, (disp.shape[0], 1), disp.dtype)]


def _define(name: str, whole: bool) -> Primitive:
    def batched(*operands: Array, **params: Any) -> tuple[Array, Array, Array]:
        return jax.vmap(partial(_reference, **params, whole=whole))(*operands)

    return define_op(name, _avals, batched, targets=step_targets(name, {0: 0, 1: 1}), multiple_results=True)


_primitives = {False: _define("kick_drift", whole=False), True: _define("whole_kick_drift", whole=True)}
