"""A step of the particles of one block: a kick and two drifts, and their reversal with the pull-back of cotangents.

Displacements are multiples of q. Momenta are integers in a unit (`ops.momenta`), `after` at the end of the step:

    momentum += rint(kick * force);  vel = momentum * after
    disp += q * rint(last * vel);  disp += q * rint(first * vel)

`kick_drift` reads the force from the mesh in the same pass. The reversal takes two passes: `undo_kick` needs the force
on the mesh; `undo_drift` needs the cotangent of the painted mesh, which follows from it. `undo_drift_and_kick` also
reverses the kick of the step before in the same pass, where its force is known. Derivatives come from the references,
with straight-through rounding.
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
from pmwd_dist.ops.cic.geometry import VALUE, Geometry, attributes
from pmwd_dist.ops.cic.primitives import read
from pmwd_dist.ops.kernels import native_targets
from pmwd_dist.ops.momenta import momentum, pack, rounded, to_integers
from pmwd_dist.ops.rounding import max_abs, round_straight_through

# Sites of a block of the kernels, each with partial sums.
_BLOCK = (1, 8, 32)


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


class UndoKick(NamedTuple):
    """Coefficients of the reversal of a kick.

    Args:
      kick: coefficient of the force, in units of the momenta after the kick.
      after: unit of the momenta after the kick.
      before: unit of the momenta before the kick.
      last: drift after the kick.
      weight: coefficient of the force in the momenta after the kick, kick times their unit.
      good: 1, or 0 for no kick, even by a force that is not finite.
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
      weight: coefficient of the force in the momenta after the kick.
      scale: unit of the momenta after the kick over the unit before.
      before: unit of the momenta before the kick.
      undo_first: -first / resolution: an integer is subtracted, exactly.
      undo_last: -last / resolution, for the last drift of the step before.
      good: 1, or 0 where there was no kick.
    """

    weight: Array
    scale: Array
    before: Array
    undo_first: Array
    undo_last: Array
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
    operands = disp, momenta, fields
    disp, momenta, most = _bind(_kick_drift_p, _kick_drift_reference, operands, coefficients, geometry, resolution)
    return disp, momenta, most[0]


def undo_kick(
    disp: Float[Array, "px py pz 3"],
    momenta: Float[Array, "px py pz 3"],
    ct_disp: Float[Array, "px py pz 3"],
    ct_vel: Float[Array, "px py pz 3"],
    fields: Float[Array, "mx my mz 3"],
    coefficients: UndoKick,
    geometry: Geometry,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, 3]]:
    """Reverse a kick, and pull cotangents back through the drift after it and the slopes of the force.

        v1' += last x1';  m0 = m1 - rint(kick F(x));  x' = x1' + weight sum_i v1'_i dF_i/dx

    Force F and displacements x are those at the kick, integer momenta m1 the ones after it, with v1 = m1 after and
    v0 = m0 before, and cotangents x1', v1' the ones after the drift at the end.

    Returns:
      m0; x', without the part through the mesh; v1', the weights of the particles for that part; and the sums over the
      particles of v1' F, v1' v0 and x1' v1.
    """
    operands = disp, momenta, ct_disp, ct_vel, fields
    return _bind(_undo_kick_p, _undo_kick_reference, operands, coefficients, geometry, 1.0)


def undo_drift(
    disp: Float[Array, "px py pz 3"],
    momenta: Float[Array, "px py pz 3"],
    ct_disp: Float[Array, "px py pz 3"],
    ct_vel: Float[Array, "px py pz 3"],
    field: Float[Array, "mx my mz"],
    coefficients: UndoDrift,
    geometry: Geometry,
    *,
    resolution: float,
) -> tuple[Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, "px py pz 3"], Float[Array, 1]]:
    """Add the cotangents through the mesh, pull all back through a drift, and reverse it and the drift before.

        x' += weight dg/dx;  v0' = scale v1' + first x';  x -= first v0;  x -= last v0

    Displacements x are those where the force acts, integer momenta m0 = v0 / before the ones before the kick, x' and
    v1' from `undo_kick`; `field` is the cotangent g of the painted mesh, read at x.

    Returns:
      x before both drifts; x' and v0' before the first drift; and the sum over the particles of x' v0.
    """
    operands = disp, momenta, ct_disp, ct_vel, field[..., None]
    return _bind(_undo_drift_p, _undo_drift_reference, operands, coefficients, geometry, resolution)


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

    `particles` are displacements, integer momenta and cotangents of both, `field` the cotangent of the painted mesh,
    and `fields` the force of the step before.

    Returns:
      Displacements after the kick, integer momenta before it, cotangents as from `undo_kick`, and the sum of
      `undo_drift` followed by the three of `undo_kick`.
    """
    operands, coefficients = (*particles, field[..., None], fields), (*drift, *kick)
    return _bind(_undo_drift_and_kick_p, _undo_drift_and_kick_reference, operands, coefficients, geometry, resolution)


def _bind(
    primitive: Any,
    reference: Callable[..., Any],
    operands: Sequence[Array],
    coefficients: Sequence[Array],
    geometry: Geometry,
    resolution: float,
) -> Any:
    """The results of an op, with the derivatives of its reference."""
    params: Any = {"geometry": geometry, "resolution": resolution}
    run = with_derivatives_of(partial(reference, **params), primitive, **params)
    return run(*operands, jnp.stack(barrier(tuple(coefficients))))


def drifted_back(disp: Array, momenta: Array, coefficients: UndoDrift, resolution: float) -> Array:
    """Displacements before both drifts."""
    c, p = coefficients, momentum(momenta, coefficients.before)
    disp = disp + resolution * round_straight_through(c.undo_first * p)
    return disp + resolution * round_straight_through(c.undo_last * p)


def _kick_drift_reference(
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


def _undo_kick_reference(*operands: Array, geometry: Geometry, resolution: float) -> tuple[Array, Array, Array, Array]:
    del resolution  # of displacements, which stay
    disp, momenta, ct_disp, ct_vel, fields, step = operands
    c = UndoKick(*step)
    force, pull = jax.vjp(lambda disp: read(disp, fields, geometry)[..., 0, :], disp)
    kicked = momentum(momenta, c.after)
    ends = jnp.sum(ct_disp * kicked)
    ct_vel = ct_vel + c.last * ct_disp
    force = jnp.where(c.good != 0, force, 0)
    kick = c.kick * force
    momenta = pack(to_integers(momenta) - rounded(kick)[0], (kicked / c.after - kick) * c.before)
    ct_disp = ct_disp + jnp.where(c.good != 0, c.weight * pull(ct_vel)[0], 0)
    sums = jnp.stack([jnp.sum(ct_vel * force), jnp.sum(ct_vel * momentum(momenta, c.before)), ends])
    return momenta, ct_disp, ct_vel, sums


def _undo_drift_reference(*operands: Array, geometry: Geometry, resolution: float) -> tuple[Array, Array, Array, Array]:
    disp, momenta, ct_disp, ct_vel, field, step = operands
    c = UndoDrift(*step)
    values, pull = jax.vjp(lambda disp: read(disp, field, geometry), disp)
    ct_disp = ct_disp + jnp.where(c.good != 0, c.weight * pull(jnp.ones_like(values))[0], 0)
    ct_vel = c.scale * ct_vel - c.undo_first * resolution * ct_disp
    total = jnp.sum(ct_disp * momentum(momenta, c.before))[None]
    return drifted_back(disp, momenta, c, resolution), ct_disp, ct_vel, total


def _undo_drift_and_kick_reference(
    *operands: Array, geometry: Geometry, resolution: float
) -> tuple[Array, Array, Array, Array, Array]:
    disp, momenta, ct_disp, ct_vel, field, fields, steps = operands
    first, second = jnp.split(steps, [len(UndoDrift._fields)])
    q: Any = {"geometry": geometry, "resolution": resolution}
    disp, ct_disp, ct_vel, of_drift = _undo_drift_reference(disp, momenta, ct_disp, ct_vel, field, first, **q)
    out = _undo_kick_reference(disp, momenta, ct_disp, ct_vel, fields, second, **q)
    return disp, *out[:3], jnp.concatenate([of_drift, out[3]])


def _avals(sums: int, results: int, disp: Any, *_: Any, **__: Any) -> list[Any]:
    return [*(disp,) * results, result_aval(disp, (disp.shape[0], sums), disp.dtype)]


def _scratch(sums: int, disp: Any, *_: Any, **__: Any) -> ShapedArray:
    blocks = math.prod(-(-n // size) for n, size in zip(disp.shape[1:4], _BLOCK, strict=True))
    return ShapedArray((2 * sums * blocks,), np.dtype(np.int32))


def _attributes(*, geometry: Geometry, resolution: float) -> dict[str, Any]:
    return attributes(geometry, (VALUE,)) | {"resolution": np.array([resolution], np.float64)}


def _define(name: str, reference: Callable[..., Any], sums: int, in_place: dict[int, int], *, scratch: bool) -> Any:
    def batched(*operands: Array, **params: Any) -> Sequence[Array]:
        return jax.vmap(partial(reference, **params))(*operands)

    targets = native_targets(name, _attributes, in_place, partial(_scratch, sums) if scratch else None)
    return define_op(name, partial(_avals, sums, len(in_place)), batched, multiple_results=True, **targets)


_kick_drift_p = _define("kick_drift", _kick_drift_reference, 1, {0: 0, 1: 1}, scratch=False)
_undo_kick_p = _define("undo_kick", _undo_kick_reference, 3, {1: 0, 2: 1, 3: 2}, scratch=True)
_undo_drift_p = _define("undo_drift", _undo_drift_reference, 1, {0: 0, 2: 1, 3: 2}, scratch=True)
_undo_drift_and_kick_p = _define(
    "undo_drift_and_kick", _undo_drift_and_kick_reference, 4, {0: 0, 1: 1, 2: 2, 3: 3}, scratch=True
)
