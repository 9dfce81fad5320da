"""Exchanges of local blocks between devices that divide one axis and devices that divide another; inside shard_map.

Transforms are along the last axis, as XLA's are: so the exchanges leave the axis that they make whole last, in the
same pass over the data in which they pack and unpack.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.parallel.backends import cudecomp
from pmwd_dist.parallel.decomposition import Decomposition, Names


def collect(block: Array, split: int, along: int, decomposition: Decomposition) -> Array:
    """Split an axis over the devices that hold the parts of another (x or y), which ends last and whole.

    The other axes keep their order: (x, y, z) with split=2, along=1 becomes (x, z, y).
    """
    names, parts = _axis_group(along, decomposition)
    if parts == 1:
        return jnp.moveaxis(block, along, -1)
    if decomposition.backend == "cudecomp":
        return cudecomp.collect(block, split, along, decomposition)
    size = block.shape[split]
    block = block.reshape(*block.shape[:split], parts, size // parts, *block.shape[split + 1 :])
    block = jnp.moveaxis(block, (split, along + (along > split)), (0, -1))
    block = jnp.moveaxis(_all_to_all(block, names, parts, decomposition), 0, -2)
    return block.reshape(*block.shape[:-2], -1)


def spread(block: Array, split: int, along: int, decomposition: Decomposition) -> Array:
    """The inverse of `collect`."""
    names, parts = _axis_group(along, decomposition)
    if parts == 1:
        return jnp.moveaxis(block, -1, along)
    if decomposition.backend == "cudecomp":
        return cudecomp.spread(block, split, along, decomposition)
    block = block.reshape(*block.shape[:-1], parts, block.shape[-1] // parts)
    block = _all_to_all(jnp.moveaxis(block, -2, 0), names, parts, decomposition)
    block = jnp.moveaxis(block, (0, -1), (split, along + (along > split)))
    return block.reshape(*block.shape[:split], -1, *block.shape[split + 2 :])


def _axis_group(along: int, decomposition: Decomposition) -> tuple[Names, int]:
    return (decomposition.x_names, decomposition.y_names)[along], decomposition.pdims[along]


def _all_to_all(block: Array, names: Names, parts: int, decomposition: Decomposition) -> Array:
    """Send the piece at index i of the first axis to device i; what came from device i is then in its place.

    XLA runs an exchange among rows of devices and one among columns in groups of their own. In a process that
    drives several GPUs, the first exchange of one kind can wait for ever for a device that is still held up by the
    other (jaxlib 0.11.2). Permutations have one group of all devices, so there pencils take those.
    """
    if min(decomposition.pdims) == 1 or not decomposition.shared_process:
        return jax.lax.all_to_all(block, names, 0, 0)
    me = jax.lax.axis_index(names)
    out = block
    for hop in range(1, parts):
        piece = jax.lax.dynamic_index_in_dim(block, (me + hop) % parts, 0)
        piece = jax.lax.ppermute(piece, names, [(i, (i + hop) % parts) for i in range(parts)])
        out = jax.lax.dynamic_update_index_in_dim(out, piece, (me - hop) % parts, 0)
    return out
