"""Sums of many small contributions to large maps, in place, and their derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.ops import vary, varying_names

_BLOCKS = 4  # largest number of blocks per axis of the local lattice: shells are thinner than boxes
_AT_ONCE = 1 << 16  # particles of small blocks that are evaluated together, since each kernel has a cost of its own

Piece = Callable[[Any, Array, Any], tuple[Any, Array]]
Shape = tuple[int, int, int]


def deposit(piece: Piece, lattice: Any, corners: Array, images: Array, shared: Any, wanted: Array, size: int) -> Array:
    """Map of the sum of the contributions of all blocks in all images.

    JAX's own derivative would store the map for each contribution. Here one pass over the blocks pulls the cotangents
    of the map back and stores nothing.

    Args:
      piece: function of (block, image of its corner, shared), and no other arrays, that returns indices in the map and
        values; only values are differentiated, and indices from `size` on are dropped.
      lattice: pytree of arrays whose last three axes are the local lattice; a first axis has components, since loops
        over a last one would have 3 iterations, which are not vectorised.
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
    def put(total: Array, blocks: Any, images: Array, shared: Any, is_wanted: Array) -> Array:
        indices, values = _pieces(piece, blocks, images, shared)
        hidden = jnp.where(is_wanted.reshape(-1, *(1,) * (indices.ndim - 1)), indices, len(total))
        return total.at[hidden].add(values, mode="drop")

    def add(total: Array, blocks: Any, order: Any, first: Array) -> Array:
        del first
        return each_image(put, total, blocks, order, images, shared)

    return each_group(add, zero, lattice, corners, wanted)


def _pull_back(
    piece: Piece, cotangent: Array, lattice: Any, corners: Array, images: Array, shared: Any, wanted: Array
) -> tuple[Any, Any]:
    """Cotangents of the lattice and of the shared arrays, from the cotangent of the map."""

    def pull(sums: Any, blocks: Any, images: Array, given: tuple[Any, Array], is_wanted: Array) -> Any:
        (of_lattice, corner), (shared, cotangent) = blocks, given

        def values(of_lattice: Any, shared: Any) -> tuple[Array, Any]:
            indices, values = _pieces(piece, (of_lattice, corner), images, shared)
            return values, indices

        _, pull, indices = jax.vjp(values, of_lattice, shared, has_aux=True)
        pulled = cotangent.at[indices].get(mode="fill", fill_value=0)
        is_wanted = is_wanted.reshape(-1, *(1,) * (indices.ndim - 1))
        return jax.tree.map(jnp.add, sums, pull(jnp.where(is_wanted, pulled, 0)))

    def add(sums: tuple[Any, Any], blocks: Any, order: Any, first: Array) -> tuple[Any, Any]:
        (total, ct_shared), zeros = sums, jax.tree.map(jnp.zeros_like, blocks[0])
        given = shared, cotangent
        ct_blocks, ct_shared = each_image(pull, (zeros, ct_shared), blocks, order, images, given)
        return jax.tree.map(partial(_joined, first=first), total, ct_blocks), ct_shared

    return each_group(add, jax.tree.map(jnp.zeros_like, (lattice, shared)), lattice, corners, wanted)


def _pieces(piece: Piece, blocks: Any, images: Array, shared: Any) -> tuple[Any, Array]:
    of_lattice, corners = blocks
    return jax.vmap(piece, (0, 0, None))(of_lattice, corners + images, shared)


def each_group(function: Callable[..., Any], start: Any, lattice: Any, others: Any, wanted: Array) -> Any:
    """State after a function of (state, blocks, order, first site) has had all groups of blocks that lie together.

    Blocks are those of the lattice, and the arrays of `others` with a leading axis of all blocks; `order` has the
    images of each block, the wanted ones first, and their number.
    """
    shape = jax.tree.leaves(lattice)[0].shape[-3:]
    parts = parts_of(shape)
    block: Any = tuple(n // p for n, p in zip(shape, parts, strict=True))
    together = _together(block, parts)
    region: Any = tuple(n * m for n, m in zip(block, together, strict=True))
    groups: Any = tuple(p // m for p, m in zip(parts, together, strict=True))
    numbers = split(np.arange(math.prod(parts)).reshape(parts), groups).reshape(math.prod(groups), -1)
    order = jnp.argsort(~wanted, axis=1, stable=True), jnp.sum(wanted, axis=1)
    others, order = jax.tree.map(lambda x: x[numbers], (others, order))

    def cut(x: Array, first: Array) -> Array:
        rest = x.shape[:-3]
        return split(jax.lax.dynamic_slice(x, (*(0 for _ in rest), *first), (*rest, *region)), together)

    def of_group(state: Any, xs: Any) -> tuple[Any, None]:
        first, others, order = xs
        return function(state, (jax.tree.map(partial(cut, first=first), lattice), others), order, first), None

    return jax.lax.scan(of_group, start, (jnp.asarray(first_sites(shape, groups)), others, order))[0]


def parts_of(shape: Sequence[int]) -> Shape:
    """Number of blocks of a local lattice along each axis."""
    nx, ny, nz = (max(p for p in range(1, _BLOCKS + 1) if n % p == 0) for n in shape)
    return nx, ny, nz


def _together(block: Shape, parts: Shape) -> Shape:
    """Number of blocks of a group along each axis."""
    found, most = [1, 1, 1], max(1, _AT_ONCE // math.prod(block))
    for axis in (2, 1, 0):
        found[axis] = max(m for m in range(1, parts[axis] + 1) if parts[axis] % m == 0 and (m == 1 or m <= most))
        most //= found[axis]
        if found[axis] < parts[axis]:
            break
    return found[0], found[1], found[2]


def each_image(
    function: Callable[..., Any], start: Any, blocks: Any, order: tuple[Array, Array], images: Any, shared: Any
) -> Any:
    """State after a function of (state, blocks, images, shared, mask of those that are wanted) has had all images.

    Its first call has the first wanted image of each block of a group, its second call the second ones, and so on. The
    function depends on no other arrays that are differentiated.
    """

    def turn(i: Array, state: Any, blocks: Any, images: Any, shared: Any, order: Any) -> Any:
        numbers, counts = order
        return function(state, blocks, jax.tree.map(lambda x: x[numbers[:, i]], images), shared, i < counts)

    # Without a condition for each image, which a GPU waits for.
    @jax.custom_jvp
    def run(state: Any, *arrays: Any) -> Any:
        return jax.lax.fori_loop(0, jnp.max(arrays[-1][1]), lambda i, state: turn(i, state, *arrays), state)

    # Its derivatives have a number of turns that is known, as reverse mode needs it.
    def by_conditions(state: Any, *arrays: Any) -> Any:
        numbers, counts = arrays[-1]

        def next_image(state: Any, i: Array) -> tuple[Any, None]:
            return jax.lax.cond(i < jnp.max(counts), turn, lambda *args: args[1], i, state, *arrays), None

        return jax.lax.scan(next_image, state, jnp.arange(numbers.shape[1]))[0]

    run.defjvp(lambda primals, tangents: jax.jvp(by_conditions, primals, tangents))
    return run(start, blocks, images, shared, order)


def _joined(total: Array, blocks: Array, first: Array) -> Array:
    """A lattice with the blocks of a group put in from a first site on, the inverse of cutting."""
    rest, sides = total.shape[:-3], blocks.shape[-3:]
    together = _together((sides[0], sides[1], sides[2]), parts_of(total.shape[-3:]))
    n = len(rest)
    order = (*range(3, 3 + n), 0, n + 3, 1, n + 4, 2, n + 5)
    region = blocks.reshape(*together, *rest, *sides).transpose(order)
    region = region.reshape(*rest, *(m * k for m, k in zip(together, sides, strict=True)))
    return jax.lax.dynamic_update_slice(total, region, (*(0 for _ in rest), *first))


def split(x: Any, parts: Shape) -> Any:
    """Cut a lattice, the last three axes, into blocks: (blocks, ..., nx / px, ny / py, nz / pz)."""
    rest, n = x.shape[:-3], x.ndim - 3
    pairs = zip(parts, x.shape[-3:], strict=True)
    cut = x.reshape(*rest, *itertools.chain.from_iterable((p, m // p) for p, m in pairs))
    cut = cut.transpose(n, n + 2, n + 4, *range(n), n + 1, n + 3, n + 5)
    return cut.reshape(math.prod(parts), *cut.shape[3:])


def first_sites(shape: Sequence[int], parts: Shape) -> np.ndarray:
    """First site of each block of `split`, (blocks, 3)."""
    axes = [np.arange(p) * (n // p) for n, p in zip(shape, parts, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
