"""Halos of a block: filled from the neighbours, or added back onto them; the two are each other's transpose.

A halo may be wider than a block: it is then filled over several hops. An axis that is not divided gets none,
since a block that is whole along an axis wraps around by itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pmwd_dist.parallel.backends import cudecomp, peer
from pmwd_dist.parallel.decomposition import Decomposition, Names, Shape3
from pmwd_dist.parallel.inputs import decomposition_of


def halo_pad(
    field: Float[Array, "nx ny nz"], halo: int, decomposition: Decomposition | None = None
) -> Float[Array, "mx my nz"]:
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
    padded: Float[Array, "mx my nz"], halo: int, decomposition: Decomposition | None = None
) -> Float[Array, "nx ny nz"]:
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
    if decomposition.backend == "cudecomp" and cudecomp.can_pad(_shape3(block), halo, decomposition):
        return cudecomp.pad_block(block, halo, decomposition)
    if decomposition.backend == "peer" and peer.can_pad(block.shape[0], block.dtype, halo, decomposition):
        return peer.pad_block(block, halo, decomposition)
    for axis, (names, parts) in enumerate(_divided(decomposition)):
        if parts > 1 and halo:
            block = _pad_axis(block, halo, axis, names, parts)
    return block


def reduce_block(block: Array, halo: int, decomposition: Decomposition) -> Array:
    """`halo_reduce` of the local padded block, inside shard_map."""
    count = block.shape[0] - 2 * halo
    if decomposition.backend == "peer" and peer.can_pad(count, block.dtype, halo, decomposition):
        return peer.reduce_block(block, halo, decomposition)
    for axis, (names, parts) in reversed(list(enumerate(_divided(decomposition)))):
        if parts > 1 and halo:
            block = _reduce_axis(block, halo, axis, names, parts)
    return block


def _divided(decomposition: Decomposition) -> tuple[tuple[Names, int], tuple[Names, int]]:
    px, py = decomposition.pdims
    return (decomposition.x_names, px), (decomposition.y_names, py)


def _shift(block: Array, names: Names, parts: int, hops: int) -> Array:
    """Send a block `hops` places up the ring."""
    if hops % parts == 0:
        return block
    return jax.lax.ppermute(block, names, [(i, (i + hops) % parts) for i in range(parts)])


def _hop_widths(halo: int, width: int) -> list[int]:
    """How much of the neighbour at distance 1, 2, … a halo takes."""
    return [min(width, halo - start) for start in range(0, halo, width)]


def _pad_axis(block: Array, halo: int, axis: int, names: Names, parts: int) -> Array:
    size = block.shape[axis]
    below, above = [], []
    for hop, width in enumerate(_hop_widths(halo, size), start=1):
        last = jax.lax.slice_in_dim(block, size - width, size, axis=axis)
        first = jax.lax.slice_in_dim(block, 0, width, axis=axis)
        below.insert(0, _shift(last, names, parts, hop))
        above.append(_shift(first, names, parts, -hop))
    return jnp.concatenate([*below, block, *above], axis=axis)


def _reduce_axis(block: Array, halo: int, axis: int, names: Names, parts: int) -> Array:
    size = block.shape[axis] - 2 * halo
    out = jax.lax.slice_in_dim(block, halo, halo + size, axis=axis)
    start = 0
    for hop, width in enumerate(_hop_widths(halo, size), start=1):
        below = jax.lax.slice_in_dim(block, halo - start - width, halo - start, axis=axis)
        above = jax.lax.slice_in_dim(block, halo + size + start, halo + size + start + width, axis=axis)
        start += width
        out = _add_at(out, _shift(below, names, parts, -hop), size - width, axis)
        out = _add_at(out, _shift(above, names, parts, hop), 0, axis)
    return out


def _add_at(out: Array, piece: Array, start: int, axis: int) -> Array:
    # Not out.at[...].add(piece): over a whole axis, inside shard_map, that crashes the compiler of jaxlib 0.11.2.
    after = out.shape[axis] - start - piece.shape[axis]
    return out + jnp.pad(piece, [(start, after) if a == axis else (0, 0) for a in range(out.ndim)])


def _check_halo(halo: int) -> None:
    if halo < 0:
        raise ValueError(f"halo={halo} must be 0 or more cells")


def _shape3(field: Array) -> Shape3:
    nx, ny, nz = field.shape
    return nx, ny, nz
