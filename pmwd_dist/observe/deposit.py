"""Sums of many small contributions to large maps, in place, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.ops import vary, varying_names

_AT_ONCE = 1 << 16  # particles of small blocks that are evaluated together, since each kernel has a cost of its own
_IMAGES = 8  # of an inner loop, which ends only after all of them

Piece = Callable[[Any, Array, Any], tuple[Any, Array]]


def deposit(piece: Piece, blocks: Any, images: Array, shared: Any, wanted: Array, size: int) -> Array:
    """Map of the sum of the contributions of all blocks in all images.

    JAX's own derivative would store the map for each contribution. Here one pass over the blocks pulls the cotangents
    of the map back and stores nothing.

    Args:
      piece: function of (block, image, shared), and no other arrays, that returns indices in the map and values; only
        values are differentiated, and indices from `size` on are dropped.
      blocks: pytree of arrays with a leading axis of blocks; the first one holds vectors, (blocks, 3, nx, ny, nz).
      images: array with a leading axis of images, not differentiated.
      shared: pytree of floating-point arrays.
      wanted: mask of the blocks that contribute in an image, shape (blocks, images).
      size: number of values of the map.
    """
    leaves, treedef = jax.tree.flatten((blocks, shared))
    names = frozenset[str]().union(*map(varying_names, leaves))
    leaves = [vary(x, names) for x in leaves]

    def forward(images: Array, wanted: Array, *leaves: Array) -> Array:
        blocks, shared = treedef.unflatten(leaves)
        return _add_up(piece, vary(jnp.zeros(size, leaves[0].dtype), names), blocks, images, shared, wanted)

    @jax.custom_jvp
    def run(images: Array, wanted: Array, *leaves: Array) -> Array:
        return forward(images, wanted, *leaves)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        out = run(*primals)
        count = len(leaves)

        def apply(*args: Array) -> list[Array]:
            at, along = args[2 : 2 + count], args[-count:]
            return [jax.jvp(lambda *x: forward(args[0], args[1], *x), at, along)[1]]

        def transpose(*args: Array) -> list[Array]:
            blocks, shared = treedef.unflatten(args[2 : 2 + count])
            return jax.tree.leaves(_pull_back(piece, args[-1], blocks, args[0], shared, args[1]))

        like = range(2, 2 + count)
        return out, linear_map(
            apply, transpose, [*primals, out], list(tangents[2:]), operands_like=like, results_like=[2 + count]
        )[0]

    return run(vary(images, names), vary(wanted, names), *leaves)


def _add_up(piece: Piece, zero: Array, blocks: Any, images: Array, shared: Any, wanted: Array) -> Array:
    def add(total: Array, blocks: Any, images: Array, shared: Any, is_wanted: Array) -> Array:
        indices, values = _pieces(piece, blocks, images, shared)
        hidden = jnp.where(is_wanted.reshape(-1, *(1,) * (indices.ndim - 1)), indices, len(total))
        return total.at[hidden].add(values, mode="drop")

    def of_group(total: Array, xs: tuple[Any, Any]) -> tuple[Array, None]:
        return each_image(add, total, xs, images, shared), None

    return jax.lax.scan(of_group, zero, grouped(blocks, wanted))[0]


def _pull_back(
    piece: Piece, cotangent: Array, blocks: Any, images: Array, shared: Any, wanted: Array
) -> tuple[Any, Any]:
    """Cotangents of the blocks and of the shared arrays, from the cotangent of the map."""

    def pull(sums: Any, blocks: Any, images: Array, shared: Any, is_wanted: Array) -> Any:
        def values(blocks: Any, shared: Any) -> tuple[Array, Any]:
            indices, values = _pieces(piece, blocks, images, shared)
            return values, indices

        _, pull, indices = jax.vjp(values, blocks, shared, has_aux=True)
        pulled = cotangent.at[indices].get(mode="fill", fill_value=0)
        is_wanted = is_wanted.reshape(-1, *(1,) * (indices.ndim - 1))
        return jax.tree.map(jnp.add, sums, pull(jnp.where(is_wanted, pulled, 0)))

    def of_group(ct_shared: Any, xs: tuple[Any, Any]) -> tuple[Any, Any]:
        start = jax.tree.map(jnp.zeros_like, xs[0]), ct_shared
        ct_blocks, ct_shared = each_image(pull, start, xs, images, shared)
        return ct_shared, ct_blocks

    ct_shared, ct_groups = jax.lax.scan(of_group, jax.tree.map(jnp.zeros_like, shared), grouped(blocks, wanted))
    return jax.tree.map(lambda x, like: x.reshape(like.shape), ct_groups, blocks), ct_shared


def _pieces(piece: Piece, blocks: Any, images: Array, shared: Any) -> tuple[Any, Array]:
    return jax.vmap(piece, (0, 0, None))(blocks, images, shared)


def grouped(blocks: Any, wanted: Array) -> tuple[Any, tuple[Array, Array]]:
    """Groups of blocks that are evaluated at once, and the images of each block, the wanted ones first."""
    count, size = len(wanted), jax.tree.leaves(blocks)[0][0].size // 3
    together = max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * size <= _AT_ONCE))
    order = jnp.argsort(~wanted, axis=1, stable=True)
    parts = blocks, (order, jnp.sum(wanted, axis=1))
    return jax.tree.map(lambda x: x.reshape(-1, together, *x.shape[1:]), parts)


def each_image(function: Callable[..., Any], start: Any, group: tuple[Any, Any], images: Any, shared: Any) -> Any:
    """State after a function of (state, blocks, images, shared, mask of those that are wanted) has had all images.

    Its first call has the first wanted image of each block of a group, its second call the second ones, and so on.
    """
    blocks, (order, counts) = group
    most, first = jnp.max(counts), np.arange(0, order.shape[1], _IMAGES)

    def next_image(state: Any, i: Array) -> tuple[Any, None]:
        at = order[:, jnp.minimum(i, order.shape[1] - 1)]
        arguments = state, blocks, jax.tree.map(lambda x: x[at], images), shared, i < counts
        return jax.lax.cond(i < most, function, lambda state, *_: state, *arguments), None

    def several(state: Any, i: Array) -> tuple[Any, None]:
        scan = partial(jax.lax.scan, next_image, xs=i + jnp.arange(_IMAGES))
        return jax.lax.cond(i < most, lambda state: scan(state)[0], lambda state: state, state), None

    return jax.lax.scan(several, start, jnp.asarray(first))[0]


def split(x: Array, parts: tuple[int, int, int]) -> Array:
    """Cut a lattice into blocks: (blocks, nx / px, ny / py, nz / pz, ...)."""
    (nx, ny, nz), (px, py, pz), rest = x.shape[:3], parts, x.shape[3:]
    x = x.reshape(px, nx // px, py, ny // py, pz, nz // pz, *rest)
    return jnp.moveaxis(x, (2, 4), (1, 2)).reshape(px * py * pz, nx // px, ny // py, nz // pz, *rest)


def corners(shape: tuple[int, int, int], parts: tuple[int, int, int]) -> np.ndarray:
    """First site of each block of `split`, (blocks, 3)."""
    axes = [np.arange(p) * (n // p) for n, p in zip(shape, parts, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
