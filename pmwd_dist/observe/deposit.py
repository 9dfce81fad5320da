"""Sums of many small contributions to large maps, in place, and their derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.ops import vary, varying_names
from pmwd_dist._jax.order import after, stored

_BLOCKS = 8  # largest number of blocks per axis of the local lattice: shells are thinner than boxes
_AT_ONCE = 1 << 16  # particles that are evaluated together, since each kernel has a cost of its own
_LEAST_CHUNKS = 64  # of a large lattice, whose chunks are larger

Piece = Callable[[Any, Array, Any], tuple[Any, Array]]
Shape = tuple[int, int, int]


def deposit(piece: Piece, lattice: Any, corners: Array, images: Array, shared: Any, wanted: Array, size: int) -> Array:
    """Map of the sum of the contributions of all blocks in all images.

    JAX's own derivative would store the map for each contribution. Here one pass over the blocks pulls the cotangents
    of the map back and stores nothing.

    Args:
      piece: function of (block, image of its corner, shared), and no other arrays, that returns indices in the map and
        values, both of shape (parts, sites); only values are differentiated, and indices from `size` on are dropped.
      lattice: pytree of arrays of `split`, with sites along the last axis: loops over the last one are vectorised.
      corners: added to the images for each block of `first_sites`, shape (blocks, ...), not differentiated.
      images: array with a leading axis of images, not differentiated.
      shared: pytree of floating-point arrays.
      wanted: mask of the blocks that contribute in an image, shape (blocks, images).
      size: number of values of the map.
    """
    leaves, treedef = jax.tree.flatten((lattice, shared))
    names = frozenset[str]().union(*map(varying_names, leaves))
    leaves = [vary(x, names) for x in leaves]
    given = [vary(x, names) for x in (corners, images, wanted)]

    def forward(*arrays: Array) -> Array:
        corners, images, wanted, *leaves = arrays
        lattice, shared = treedef.unflatten(leaves)
        zero = vary(jnp.zeros(size, leaves[0].dtype), names)
        return _add_up(piece, zero, lattice, corners, images, shared, wanted)

    @jax.custom_jvp
    def run(*arrays: Array) -> Array:
        return forward(*arrays)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        out, fixed = run(*primals), len(given)
        end = fixed + len(leaves)

        def apply(*args: Array) -> list[Array]:
            return [jax.jvp(partial(forward, *args[:fixed]), args[fixed:end], args[end + 1 :])[1]]

        def transpose(*args: Array) -> list[Array]:
            lattice, shared = treedef.unflatten(args[fixed:end])
            return jax.tree.leaves(_pull_back(piece, args[-1], lattice, args[0], args[1], shared, args[2]))

        return out, linear_map(
            apply,
            transpose,
            [*primals, out],
            list(tangents[fixed:]),
            operands_like=range(fixed, end),
            results_like=[end],
        )[0]

    return run(*given, *leaves)


def _add_up(
    piece: Piece, zero: Array, lattice: Any, corners: Array, images: Array, shared: Any, wanted: Array
) -> Array:
    def put(total: Array, chunk: Chunk, images: Array, shared: Any) -> Array:
        indices, values = _pieces(piece, chunk.lattice, chunk.others + images, shared)
        hidden = jnp.where(chunk.wanted[None, :, None], indices, len(total))
        return total.at[hidden].add(values, mode="drop")

    return each_chunk(put, zero, lattice, corners, images, shared, wanted)


def _pull_back(
    piece: Piece, cotangent: Array, lattice: Any, corners: Array, images: Array, shared: Any, wanted: Array
) -> tuple[Any, Any]:
    """Cotangents of the lattice and of the shared arrays, from the cotangent of the map."""

    def pull(sums: tuple[Any, Any], chunk: Chunk, images: Array, given: tuple[Any, Array]) -> tuple[Any, Any]:
        (total, ct_shared), (shared, cotangent) = sums, given

        def values(lattice: Any, shared: Any) -> tuple[Array, Any]:
            indices, values = _pieces(piece, lattice, chunk.others + images, shared)
            return values, indices

        _, pull, indices = jax.vjp(values, chunk.lattice, shared, has_aux=True)
        pulled = cotangent.at[indices].get(mode="fill", fill_value=0)
        ct_blocks, more = pull(jnp.where(chunk.wanted[None, :, None], pulled, 0))
        total = jax.tree.map(lambda x, ct: x.at[chunk.blocks].add(ct), total, ct_blocks)
        return total, jax.tree.map(jnp.add, ct_shared, more)

    first = jax.tree.leaves(lattice)[0]

    def zeros(x: Array) -> Array:
        # After the lattice, and each from another number: XLA would fill one array long before, and copy it.
        return jnp.broadcast_to(after(jnp.zeros((), x.dtype), (first, x))[0], x.shape)

    start = jax.tree.map(zeros, lattice), jax.tree.map(jnp.zeros_like, shared)
    return each_chunk(pull, start, lattice, corners, images, (shared, cotangent), wanted)


def _pieces(piece: Piece, lattice: Any, corners: Array, shared: Any) -> tuple[Any, Array]:
    # Parts before blocks, as XLA concatenates them, and stored: it would compute them one by one in the scatter.
    return stored(jax.vmap(piece, (0, 0, None), out_axes=-2)(lattice, corners, shared))


class Chunk(NamedTuple):
    """Blocks that are evaluated together, each in an image of its own.

    Args:
      lattice: the lattice in these blocks.
      others: rows of the other arrays for these blocks.
      blocks: numbers of the blocks.
      wanted: mask of those that are wanted.
    """

    lattice: Any
    others: Any
    blocks: Array
    wanted: Array


def each_chunk(
    function: Callable[..., Any], start: Any, lattice: Any, others: Any, images: Any, shared: Any, wanted: Array
) -> Any:
    """State after a function of (state, chunk, its images, shared) has had all blocks in their wanted images.

    The function depends on no other arrays that are differentiated.

    Args:
      function: function of (state, `Chunk`, images, shared) that returns the state.
      start: first state.
      lattice: pytree of arrays of `split`, blocks along the first axis and sites along the last one.
      others: pytree of arrays with a leading axis of blocks.
      images: pytree of arrays with a leading axis of images.
      shared: pytree of arrays.
      wanted: mask, shape (blocks, images).
    """
    x = jax.tree.leaves(lattice)[0]
    count, sites = len(x), x.shape[-1]
    together = min(max(_AT_ONCE // sites, count // _LEAST_CHUNKS, 1), wanted.size)
    most = -(-wanted.size // together)
    # By images: their blocks lie together in maps.
    order = jnp.nonzero(wanted.T.ravel(), size=most * together, fill_value=0)[0].astype(jnp.int32)
    order = order.reshape(most, together), jnp.sum(wanted)

    def turn(i: Array, state: Any, arrays: Any, images: Any, shared: Any, order: Any) -> Any:
        numbers, pairs = order
        blocks, which = numbers[i] % count, numbers[i] // count
        lattice, others = jax.tree.map(lambda x: x[blocks], arrays)
        chunk = Chunk(lattice, others, blocks, i * together + jnp.arange(together) < pairs)
        return function(state, chunk, jax.tree.map(lambda x: x[which], images), shared)

    # Without a condition for each chunk, which a GPU waits for.
    @jax.custom_jvp
    def run(state: Any, *arrays: Any) -> Any:
        turns = -(-arrays[-1][1] // together)
        return jax.lax.fori_loop(0, turns, lambda i, state: turn(i, state, *arrays), state)

    # Its derivatives have a number of turns that is known, as reverse mode needs it.
    def by_conditions(state: Any, *arrays: Any) -> Any:
        def next_chunk(state: Any, i: Array) -> tuple[Any, None]:
            wanted = i * together < arrays[-1][1]
            return jax.lax.cond(wanted, turn, lambda *args: args[1], i, state, *arrays), None

        return jax.lax.scan(next_chunk, state, jnp.arange(most))[0]

    run.defjvp(lambda primals, tangents: jax.jvp(by_conditions, primals, tangents))
    return run(start, (lattice, others), images, shared, order)


def parts_of(shape: Sequence[int]) -> Shape:
    """Number of blocks of a local lattice along each axis."""
    nx, ny, nz = (max(p for p in range(1, _BLOCKS + 1) if n % p == 0) for n in shape)
    return nx, ny, nz


def split(x: Any, parts: Shape) -> Any:
    """Cut a lattice, the last three axes, into blocks: (blocks, ..., sites of a block)."""
    rest, n = x.shape[:-3], x.ndim - 3
    pairs = zip(parts, x.shape[-3:], strict=True)
    cut = x.reshape(*rest, *itertools.chain.from_iterable((p, m // p) for p, m in pairs))
    cut = cut.transpose(n, n + 2, n + 4, *range(n), n + 1, n + 3, n + 5)
    return cut.reshape(math.prod(parts), *rest, -1)


def first_sites(shape: Sequence[int], parts: Shape) -> np.ndarray:
    """First site of each block of `split`, (blocks, 3)."""
    return np.indices(parts).reshape(3, -1).T * np.floor_divide(shape, parts)


def block_sites(shape: Sequence[int]) -> np.ndarray:
    """Sites of the first block of a local lattice, (3, sites)."""
    return np.indices([n // p for n, p in zip(shape, parts_of(shape), strict=True)]).reshape(3, -1)
