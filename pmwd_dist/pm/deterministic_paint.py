"""Paint of divided meshes with integer sums: the mesh has the same bits for every division over devices.

With native ops, contributions are rounded to multiples of a unit, which depends on the number of all particles and the
largest weight (`ops.cic.sums`). Integers are summed on each block, then over the halos, and converted at the end; one
device paints in the same unit. Without native ops the sums are floats, and the last bits depend on the division.
Derivatives are paints, too; the transpose pads with halos and reads.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pmwd_dist._jax import native
from pmwd_dist._jax.ops import (
    Composed,
    add_batch_axis,
    define_derivatives,
    define_op,
    drop_batch_axis,
    over_batch,
    result_aval,
    unify_varying,
    varying_names,
)
from pmwd_dist.ops import cic
from pmwd_dist.ops.cic import sums
from pmwd_dist.ops.rounding import max_abs, max_over_devices
from pmwd_dist.parallel.backends.base import Addition
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.halo import pad_block, reduce_block


class Paint(NamedTuple):
    """A paint of the particles of all devices.

    Args:
      geometry: place of the local lattice in the padded block.
      pad: width of the halo [cells].
      particles: number of particles of all devices.
    """

    geometry: cic.Geometry
    decomposition: Decomposition
    pad: int
    particles: int


def paint_and_reduce(
    disp: Float[Array, "px py pz 3"], weight: Float[Array, "wx wy wz 1 1"], paint: Paint
) -> Float[Array, "nx ny nz"]:
    """Paint the local particles and add the halos, inside shard_map.

    `weight` holds one weight, which may vary over devices, or one for each particle.
    """
    replicated = not varying_names(weight) & set(paint.decomposition.names)
    operands = map(add_batch_axis, unify_varying(disp, weight))
    return drop_batch_axis(_paint_p.bind(*operands, paint=paint, masks=(cic.VALUE,), replicated=replicated))


def _aval(disp: Any, *_: Any, paint: Paint, **__: Any) -> Any:
    parts = (*paint.decomposition.pdims, 1)
    block = [n - 2 * paint.pad if p > 1 else n for n, p in zip(paint.geometry.mesh, parts, strict=True)]
    return result_aval(disp, (disp.shape[0], *block), disp.dtype)


def _in_floats(disp: Array, weight: Array, *, paint: Paint, masks: Any, **_: Any) -> Array:
    def one(disp: Array, weight: Array) -> Array:
        return reduce_block(cic.paint(disp, weight, paint.geometry, masks)[..., 0], paint.pad, paint.decomposition)

    return over_batch(one, disp, weight)


def _in_integers(disp: Array, weight: Array, *, paint: Paint, masks: Any, replicated: bool) -> Array:
    bound = over_batch(max_abs, weight)
    if not replicated:
        bound = max_over_devices(bound, paint.decomposition.names)
    bits = sums.contribution_bits(paint.particles, len(masks), disp.dtype)
    painted = sums.paint_sums(disp, weight, bound, paint.geometry, masks, bits)

    def reduced(block: Array, bound: Array) -> Array:
        add = partial(sums.add_sums, halves=bound.dtype == jnp.float64)
        addition = Addition(add, lambda part: sums.values_of_sums(part, bound, bits))
        with jax.enable_x64(True):
            return reduce_block(sums.joined(block), paint.pad, paint.decomposition, addition)

    return over_batch(reduced, painted, bound)


_paint_p = define_op(
    "paint_and_reduce",
    _aval,
    _in_floats,
    cpu=Composed(_in_integers, lambda: native.native_available()),  # noqa: PLW0108  looked up at each call
    cuda=Composed(_in_integers, lambda: cic.cuda_unavailable_reason() is None),
)


def _moved(ddisp: Array, disp: Array, weight: Array, *, paint: Paint, masks: Any, **_: Any) -> Array:
    """Tangent of the mesh for tangents of the displacements."""
    slopes, masks = cic.jvp_weights(ddisp, weight, paint.geometry, masks)
    return _paint_p.bind(*unify_varying(disp, slopes), paint=paint, masks=masks, replicated=False)


def _transpose(ct: Array, disp: Array, weight: Any, *, paint: Paint, masks: Any, **_: Any) -> Array:
    def one(disp: Array, ct: Array) -> Array:
        padded = pad_block(ct, paint.pad, paint.decomposition)
        return cic.read(disp, padded[..., None], paint.geometry, masks)

    out = over_batch(one, disp, ct)
    return out if weight.aval.shape == out.shape else jnp.sum(out, axis=(1, 2, 3), keepdims=True)


define_derivatives(
    _paint_p,
    (_moved, lambda dweight, disp, _, **params: _paint_p.bind(*unify_varying(disp, dweight), **params)),
    {1: _transpose},
)
