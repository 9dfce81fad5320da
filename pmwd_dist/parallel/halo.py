"""Halos of a block: filled from the neighbours, or added back onto them, each the other's transpose.

A halo may be wider than a block: it is then filled over several hops. An axis that is not divided gets none,
since a block that is whole along an axis wraps around by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Num

from pmwd_dist.parallel.backends.base import PLAIN, Addition
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.inputs import decomposition_of, numbers, whole_number


def halo_pad(
    field: Num[Array, "nx ny nz"], halo: int, decomposition: Decomposition | None = None
) -> Num[Array, "mx my nz"]:
    """Give every block of a real field `halo` cells of its neighbours on each side of each divided axis.

    Returns:
      The padded blocks side by side: `pdims[i] * (n[i] / pdims[i] + 2 * halo)` cells along a divided axis.

    Raises:
      ValueError: a halo that is no whole number of 0 or more, or a shape that doesn't divide.
    """
    halo, field = whole_number(halo, "halo"), numbers(field, "field")
    decomposition, shape = decomposition_of(field, decomposition, "field")
    for axis, parts in enumerate(decomposition.pdims):
        decomposition.check_axis(shape, axis, parts, "field.shape")
    return _over_blocks(field, pad_block, halo, decomposition)


def halo_reduce(
    padded: Num[Array, "mx my nz"], halo: int, decomposition: Decomposition | None = None
) -> Num[Array, "nx ny nz"]:
    """Add the halos of every padded block onto the cells of the neighbours that they stand for.

    Raises:
      ValueError: a halo that is no whole number of 0 or more, or blocks that are no wider than their halos.
    """
    halo, padded = whole_number(halo, "halo"), numbers(padded, "padded")
    if padded.dtype == bool:
        padded = jnp.asarray(padded, int)  # of booleans, a sum is whether any is true
    decomposition, shape = decomposition_of(padded, decomposition, "padded")
    for axis, parts in enumerate(decomposition.pdims):
        if shape[axis] % parts or (parts > 1 and shape[axis] // parts <= 2 * halo):
            raise ValueError(
                f"padded.shape[{axis}]={shape[axis]} must be {parts} blocks of more than {2 * halo} cells each"
            )
    return _over_blocks(padded, reduce_block, halo, decomposition)


def _over_blocks(x: Array, function: Callable[..., Array], halo: int, decomposition: Decomposition) -> Array:
    """Apply a function of blocks to a whole array."""
    traced = isinstance(x, Tracer) or decomposition.manual
    return (_mapped if traced else _compiled)(function, halo, decomposition)(x)


def _mapped(function: Callable[..., Array], halo: int, decomposition: Decomposition) -> Callable[[Array], Array]:
    return decomposition.shard_map(
        lambda block: function(block, halo, decomposition), (decomposition.spec,), decomposition.spec
    )


@lru_cache(maxsize=64)
def _compiled(function: Callable[..., Array], halo: int, decomposition: Decomposition) -> Callable[[Array], Array]:
    """The function, compiled as a whole: outside of jit, shard_map runs operation by operation."""

    def run(x: Array) -> Array:  # mapped at each trace, with the mesh that is current then
        return _mapped(function, halo, decomposition)(x)

    return jax.jit(run, out_shardings=decomposition.sharding)


def pad_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo_pad` of the local block, inside shard_map."""
    return decomposition.backend.halo_pad(block, halo, decomposition)


def reduce_block(block: Array, halo: int, decomposition: Decomposition, addition: Addition = PLAIN) -> Array:
    """`halo_reduce` of the local padded block, inside shard_map, by any addition."""
    return decomposition.backend.halo_reduce(block, halo, decomposition, addition)
