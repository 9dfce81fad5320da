"""A kick and two drifts of the particles of one block, in one pass that also reads the force from the mesh.

Displacements are multiples of q. Momenta are integers in a unit (`ops.momenta`), `after` at the end of the step:

    momentum += rint(kick * force);  vel = momentum * after
    disp += q * rint(last * vel);  disp += q * rint(first * vel)

Derivatives come from the reference, with straight-through rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array, Float

from pmwd_dist._jax.ops import Target, define_op, result_aval, with_derivatives_of
from pmwd_dist._jax.order import barrier
from pmwd_dist.ops.cic.geometry import VALUE, Geometry, attributes
from pmwd_dist.ops.cic.primitives import read
from pmwd_dist.ops.kernels import native_targets
from pmwd_dist.ops.momenta import momentum, pack, rounded, to_integers
from pmwd_dist.ops.rounding import max_abs, round_straight_through


class KickDrift(NamedTuple):
    """Coefficients of a kick and two drifts, on the grids of the particles.

    Args:
      kick: coefficient of the force, in units of the momenta at the end.
      inverse: 1 / unit of the momenta at the start.
      after: unit of the momenta at the end.
      last: drift at the end of a step, in units of the spacing of the displacements.
      first: drift at the start of the following step, in the same units.
      good: 1, or 0 for no kick, even by a force that is not finite.
    """

    kick: Array
    inverse: Array
    after: Array
    last: Array
    first: Array
    good: Array


def kick_drift(
    disp: Float[Array, "px py pz 3"],
    momenta: Float[Array, "px py pz 3"],
    fields: Float[Array, "mx my mz 3"],
    coefficients: KickDrift,
    geometry: Geometry,
    *,
    resolution: float,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, ""]]:
    """Kick by the force that is read from a mesh, then drift twice.

    `fields` is the force on the mesh, and `resolution` the spacing of the displacements.

    Returns:
      Displacements, momenta, and the largest absolute component of the displacements, NaN if one is NaN.
    """
    params: Any = {"geometry": geometry, "resolution": resolution}
    run = with_derivatives_of(partial(_reference, **params), _kick_drift_p, **params)
    new_disp, new_momenta, most = run(disp, momenta, fields, jnp.stack(barrier(tuple(coefficients))))
    return new_disp, new_momenta, most[0]


def _reference(
    disp: Array, momenta: Array, fields: Array, step: Array, *, geometry: Geometry, resolution: float
) -> tuple[Array, Array, Array]:
    force = read(disp, fields, geometry)[..., 0, :]
    c = KickDrift(*step)
    kick = jnp.where(c.good != 0, c.kick * force, 0)
    by, missing = rounded(kick)
    momenta = pack(to_integers(momenta) + by, (momentum(momenta, 1 / c.inverse) * c.inverse + kick) * c.after)
    p = momentum(momenta, c.after) + missing
    disp = disp + resolution * round_straight_through(c.last * p)
    disp = disp + resolution * round_straight_through(c.first * p)
    return disp, momenta, max_abs(disp)[None]


def step_targets(
    name: str, in_place: Mapping[int, int], cuda_scratch: Callable[..., ShapedArray] | None = None
) -> dict[str, Target]:
    """`native_targets` of an op with a geometry and the spacing of the displacements."""

    def of_step(*, geometry: Geometry, resolution: float) -> dict[str, Any]:
        return attributes(geometry, (VALUE,)) | {"resolution": np.array([resolution], np.float64)}

    return native_targets(name, of_step, in_place, cuda_scratch)


def _avals(disp: Any, *_: Any, **__: Any) -> list[Any]:
    return [disp, disp, result_aval(disp, (disp.shape[0], 1), disp.dtype)]


def _batched(*operands: Array, **params: Any) -> tuple[Array, Array, Array]:
    return jax.vmap(partial(_reference, **params))(*operands)


_kick_drift_p = define_op(
    "kick_drift", _avals, _batched, targets=step_targets("kick_drift", {0: 0, 1: 1}), multiple_results=True
)
