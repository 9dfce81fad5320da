"""XLA's collectives: on any devices, in one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.parallel.backends.base import PLAIN, Addition
from pmwd_dist.parallel.backends.transposing import TransposingBackend
from pmwd_dist.parallel.division import Division, Names


@final
@dataclass(frozen=True)
class XLA(TransposingBackend):
    """All-to-alls and permutations of XLA."""

    name: ClassVar[str] = "xla"

    def unavailable_reason(self, division: Division) -> str | None:
        """None: XLA's collectives are available everywhere."""
        del division
        return None

    def gather_axis(self, block: Array, axis: int, split: int, division: Division) -> Array:
        """Make an axis whole and last; see the base class."""
        names, shards = division.axis_groups[axis]
        size = block.shape[split]
        block = block.reshape(*block.shape[:split], shards, size // shards, *block.shape[split + 1 :])
        block = jnp.moveaxis(block, (split, axis + (axis > split)), (0, -1))
        block = jnp.moveaxis(_all_to_all(block, names, shards, division), 0, -2)
        return block.reshape(*block.shape[:-2], -1)

    def split_axis(self, block: Array, axis: int, gather: int, division: Division) -> Array:
        """Invert `gather_axis`."""
        names, shards = division.axis_groups[axis]
        block = block.reshape(*block.shape[:-1], shards, block.shape[-1] // shards)
        block = _all_to_all(jnp.moveaxis(block, -2, 0), names, shards, division)
        block = jnp.moveaxis(block, (0, -1), (gather, axis + (axis > gather)))
        return block.reshape(*block.shape[:gather], -1, *block.shape[gather + 2 :])

    def halo_pad(self, block: Array, halo: int, division: Division) -> Array:
        """Add halos, over several hops where they are wider than a block."""
        for axis, (names, shards) in enumerate(division.axis_groups):
            if shards > 1 and halo:
                block = _pad_axis(block, halo, axis, names, shards)
        return block

    def halo_reduce(self, block: Array, halo: int, division: Division, addition: Addition = PLAIN) -> Array:
        """Add halos back onto the cells of the neighbours."""
        axes = [axis for axis, (_, shards) in enumerate(division.axis_groups) if shards > 1 and halo]
        for axis in reversed(axes):
            own = addition if axis == axes[0] else Addition(addition.add)
            block = _reduce_axis(block, halo, axis, division.axis_groups[axis], own)
        return block if axes else addition.finish(block)


def _all_to_all(block: Array, names: Names, shards: int, division: Division) -> Array:
    """Send the piece at index i of the first axis to device i, and replace it by the piece from device i.

    XLA runs all-to-alls among rows and among columns of devices in separate groups. In a process that drives several
    GPUs, the first all-to-all of one kind can wait forever for a device that still runs the other (jaxlib 0.11.2).
    Permutations have one group of all devices, so pencils use them there.
    """
    if min(division.pdims) == 1 or not division.shared_process:
        return jax.lax.all_to_all(block, names, 0, 0)
    me = jax.lax.axis_index(names)
    out = block
    for hop in range(1, shards):
        piece = jax.lax.dynamic_index_in_dim(block, (me + hop) % shards, 0)
        piece = jax.lax.ppermute(piece, names, [(i, (i + hop) % shards) for i in range(shards)])
        out = jax.lax.dynamic_update_index_in_dim(out, piece, (me - hop) % shards, 0)
    return out


def _shift(block: Array, names: Names, shards: int, hops: int) -> Array:
    """Send a block `hops` devices up the ring."""
    if hops % shards == 0:
        return block
    return jax.lax.ppermute(block, names, [(i, (i + hops) % shards) for i in range(shards)])


def _hop_widths(halo: int, width: int) -> list[int]:
    """Widths of the parts of a halo from the neighbours at distance 1, 2 and so on."""
    return [min(width, halo - start) for start in range(0, halo, width)]


def _pad_axis(block: Array, halo: int, axis: int, names: Names, shards: int) -> Array:
    size = block.shape[axis]
    below: list[Array] = []
    above: list[Array] = []
    for hop, width in enumerate(_hop_widths(halo, size), start=1):
        last = jax.lax.slice_in_dim(block, size - width, size, axis=axis)
        first = jax.lax.slice_in_dim(block, 0, width, axis=axis)
        below.insert(0, _shift(last, names, shards, hop))
        above.append(_shift(first, names, shards, -hop))
    return jnp.concatenate([*below, block, *above], axis=axis)


def _reduce_axis(block: Array, halo: int, axis: int, group: tuple[Names, int], addition: Addition) -> Array:
    size = block.shape[axis] - 2 * halo
    own = jax.lax.slice_in_dim(block, halo, halo + size, axis=axis)
    pieces: list[tuple[int, Array]] = []
    start = 0
    for hop, width in enumerate(_hop_widths(halo, size), start=1):
        below = jax.lax.slice_in_dim(block, halo - start - width, halo - start, axis=axis)
        above = jax.lax.slice_in_dim(block, halo + size + start, halo + size + start + width, axis=axis)
        start += width
        pieces += [(size - width, _shift(below, *group, -hop)), (0, _shift(above, *group, hop))]
    return add_pieces(own, pieces, axis, addition)


def add_pieces(block: Array, pieces: Sequence[tuple[int, Array]], axis: int, addition: Addition) -> Array:
    """Add pieces to a block, each from a given plane on.

    The result is concatenated from parts, in one pass. Sums of whole blocks, with zeros around the pieces, are slower
    for integers of two halves; `block.at[...].add` over a whole axis inside shard_map crashes the compiler of jaxlib
    0.11.2.
    """

    def planes(x: Array, first: int, last: int) -> Array:
        return jax.lax.slice_in_dim(x, first, last, axis=axis)

    ranges = [(start, start + piece.shape[axis]) for start, piece in pieces]
    parts: list[Array] = []
    for first, last in pairwise(sorted({0, block.shape[axis]}.union(*ranges))):
        part = planes(block, first, last)
        for (start, piece), (_, stop) in zip(pieces, ranges, strict=True):
            if start <= first and last <= stop:
                part = addition.add(part, planes(piece, first - start, last - start))
        parts.append(addition.finish(part))
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]
