"""XLA's collectives: on any devices, in one process or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.parallel.backends.base import Add
from pmwd_dist.parallel.backends.transposing import TransposingBackend
from pmwd_dist.parallel.device_mesh import Names
from pmwd_dist.parallel.division import Division


@final
@dataclass(frozen=True)
class XLA(TransposingBackend):
    """Moves data by all-to-alls and permutations of XLA."""

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

    def halo_reduce(self, block: Array, halo: int, division: Division, add: Add = jnp.add) -> Array:
        """Add halos back onto the cells that they stand for."""
        for axis, (names, shards) in reversed(list(enumerate(division.axis_groups))):
            if shards > 1 and halo:
                block = _reduce_axis(block, halo, axis, names, shards, add)
        return block


def _all_to_all(block: Array, names: Names, shards: int, division: Division) -> Array:
    """Send the piece at index i of the first axis to device i; what came from device i is then in its place.

    XLA runs an all-to-all among rows of devices and one among columns in groups of their own. In a process that
    drives several GPUs, the first all-to-all of one kind can wait forever for a device that still runs the
    other (jaxlib 0.11.2). Permutations have one group of all devices, so pencils use those there.
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
    """How much of the neighbour at distance 1, 2, … a halo takes."""
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


def _reduce_axis(block: Array, halo: int, axis: int, names: Names, shards: int, add: Add) -> Array:
    size = block.shape[axis] - 2 * halo
    out = jax.lax.slice_in_dim(block, halo, halo + size, axis=axis)
    start = 0
    for hop, width in enumerate(_hop_widths(halo, size), start=1):
        below = jax.lax.slice_in_dim(block, halo - start - width, halo - start, axis=axis)
        above = jax.lax.slice_in_dim(block, halo + size + start, halo + size + start + width, axis=axis)
        start += width
        out = add_at(out, _shift(below, names, shards, -hop), size - width, axis, add)
        out = add_at(out, _shift(above, names, shards, hop), 0, axis, add)
    return out


def add_at(out: Array, piece: Array, start: int, axis: int, add: Add) -> Array:
    """Add a piece to the planes from `start` on.

    By a concatenation, of which a program makes one pass: sums of whole blocks, with zeros around the piece, take a
    multiple of that for integers of two halves, and `out.at[...].add`, over a whole axis inside shard_map, crashes the
    compiler of jaxlib 0.11.2.
    """
    stop, size = start + piece.shape[axis], out.shape[axis]
    before, edge, after = (
        jax.lax.slice_in_dim(out, first, last, axis=axis) for first, last in ((0, start), (start, stop), (stop, size))
    )
    parts = [part for part in (before, add(edge, piece), after) if part.shape[axis]]
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]
