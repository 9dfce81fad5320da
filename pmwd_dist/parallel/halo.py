"""Halos of a block: filled from the neighbours, or added back onto them, each the other's transpose.

A halo may be wider than a block: it is then filled over several hops. An axis that is not divided gets none,
since a block that is whole along an axis wraps around by itself.
"""

from __future__ import annotations

from jaxtyping import Array, Num

from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.inputs import decomposition_of


def halo_pad(
    field: Num[Array, "nx ny nz"], halo: int, decomposition: Decomposition | None = None
) -> Num[Array, "mx my nz"]:
    """Give every block of a real field `halo` cells of its neighbours on each side of each divided axis.

    Returns:
      The padded blocks side by side: `pdims[i] * (n[i] / pdims[i] + 2 * halo)` cells along a divided axis.

    Raises:
      ValueError: a negative halo, or a shape that doesn't divide.
    """
    _check_halo(halo)
    decomposition, shape = decomposition_of(field, decomposition, "field")
    for axis, parts in enumerate(decomposition.pdims):
        decomposition.check_axis(shape, axis, parts, "field.shape")
    pad = decomposition.shard_map(
        lambda block: pad_block(block, halo, decomposition), (decomposition.spec,), decomposition.spec
    )
    return pad(field)


def halo_reduce(
    padded: Num[Array, "mx my nz"], halo: int, decomposition: Decomposition | None = None
) -> Num[Array, "nx ny nz"]:
    """Add the halos of every padded block onto the cells of the neighbours that they stand for.

    Raises:
      ValueError: a negative halo, or blocks that are no wider than their halos.
    """
    _check_halo(halo)
    decomposition, shape = decomposition_of(padded, decomposition, "padded")
    for axis, parts in enumerate(decomposition.pdims):
        if shape[axis] % parts or (parts > 1 and shape[axis] // parts <= 2 * halo):
            raise ValueError(
                f"padded.shape[{axis}]={shape[axis]} must be {parts} blocks of more than {2 * halo} cells each"
            )
    reduce = decomposition.shard_map(
        lambda block: reduce_block(block, halo, decomposition), (decomposition.spec,), decomposition.spec
    )
    return reduce(padded)


def pad_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo_pad` of the local block, inside shard_map."""
    return decomposition.backend.halo_pad(block, halo, decomposition)


def reduce_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo_reduce` of the local padded block, inside shard_map."""
    return decomposition.backend.halo_reduce(block, halo, decomposition)


def _check_halo(halo: int) -> None:
    if halo < 0:
        raise ValueError(f"halo={halo} must be 0 or more cells")
