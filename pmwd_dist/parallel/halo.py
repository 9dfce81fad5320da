"""Halos of a block: filled from the neighbours, or added back onto them, each the other's transpose.

A halo that is wider than a block is filled over several hops. Only divided axes have halos: a block that is whole along
an axis wraps around.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Num

from pmwd_dist.parallel.backends.base import PLAIN, Addition
from pmwd_dist.parallel.decomposition import Decomposition, over_blocks
from pmwd_dist.parallel.inputs import decomposition_of, numbers, whole_number


def halo_pad(
    field: Num[Array, "nx ny nz"], halo: int, decomposition: Decomposition | None = None
) -> Num[Array, "mx my nz"]:
    """Add `halo` cells of the neighbours to every block of a field, on each side of each divided axis.

    Returns:
      The padded blocks side by side: `pdims[i] * (n[i] / pdims[i] + 2 * halo)` cells along a divided axis.

    Raises:
      ValueError: the halo is not an integer of 0 or more, or the shape doesn't divide.

    Examples:
      >>> padded = pmd.halo_pad(field, 2, decomposition)
    """
    halo, field = whole_number(halo, "halo"), numbers(field, "field")
    decomposition, shape = decomposition_of(field, decomposition, "field")
    for axis, parts in enumerate(decomposition.pdims):
        decomposition.check_axis(shape, axis, parts, "field.shape")
    return over_blocks(field, "halo_pad", (halo,), decomposition)


def halo_reduce(
    padded: Num[Array, "mx my nz"], halo: int, decomposition: Decomposition | None = None
) -> Num[Array, "nx ny nz"]:
    """Add the halos of every padded block onto the cells of the neighbours: the transpose of `halo_pad`.

    Returns:
      The field without halos, shape (nx, ny, nz).

    Raises:
      ValueError: the halo is not an integer of 0 or more, or the blocks are no wider than their halos.

    Examples:
      >>> summed = pmd.halo_reduce(padded, 2, decomposition)
    """
    halo, padded = whole_number(halo, "halo"), numbers(padded, "padded")
    if padded.dtype == bool:
        padded = jnp.asarray(padded, int)  # a sum of booleans would be boolean
    decomposition, shape = decomposition_of(padded, decomposition, "padded")
    for axis, parts in enumerate(decomposition.pdims):
        if shape[axis] % parts or (parts > 1 and shape[axis] // parts <= 2 * halo):
            raise ValueError(
                f"padded.shape[{axis}]={shape[axis]} must be {parts} blocks of more than {2 * halo} cells each"
            )
    return over_blocks(padded, "halo_reduce", (halo,), decomposition)


def pad_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo_pad` of the local block, inside shard_map."""
    return decomposition.backend.halo_pad(block, halo, decomposition)


def reduce_block(block: Array, halo: int, decomposition: Decomposition, addition: Addition = PLAIN) -> Array:
    """`halo_reduce` of the local padded block, inside shard_map, with any addition."""
    return decomposition.backend.halo_reduce(block, halo, decomposition, addition)
