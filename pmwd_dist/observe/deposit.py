"""Sums of many small contributions to large maps, in place, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.ops import vary, varying_names

Piece = Callable[[Any, Array, Any], tuple[Any, Array]]


def deposit(piece: Piece, blocks: Any, images: Array, shared: Any, wanted: Array, size: int) -> Array:
    """Map of the sum of the contributions of all blocks in all images.

    JAX's own derivative would store the map for each contribution. Here one pass over the blocks pulls the cotangents
    of the map back and stores nothing.

    Args:
      piece: function of (block, image, shared), and no other arrays, that returns indices in the map and values; only
        values are differentiated, and indices from `size` on are dropped.
      blocks: pytree of arrays with a leading axis of blocks.
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
    def put(total: Array, block: Any, image: Array, shared: Any) -> Array:
        indices, values = piece(block, image, shared)
        return total.at[indices].add(values, mode="drop")

    def of_image(total: Array, xs: tuple[Array, Array]) -> tuple[Array, None]:
        image, wanted = xs

        def of_block(total: Array, xs: tuple[Any, Array]) -> tuple[Array, None]:
            return jax.lax.cond(xs[1], put, lambda total, *_: total, total, xs[0], image, shared), None

        def of_all_blocks(total: Array) -> Array:
            return jax.lax.scan(of_block, total, (blocks, wanted))[0]

        return jax.lax.cond(jnp.any(wanted), of_all_blocks, lambda total: total, total), None

    return jax.lax.scan(of_image, zero, (images, wanted.T))[0]


def _pull_back(
    piece: Piece, cotangent: Array, blocks: Any, images: Array, shared: Any, wanted: Array
) -> tuple[Any, Any]:
    """Cotangents of the blocks and of the shared arrays, from the cotangent of the map."""

    def pull(sums: Any, block: Any, image: Array, shared: Any) -> Any:
        def values(block: Any, shared: Any) -> tuple[Array, Any]:
            indices, values = piece(block, image, shared)
            return values, indices

        _, pull, indices = jax.vjp(values, block, shared, has_aux=True)
        return jax.tree.map(jnp.add, sums, pull(cotangent.at[indices].get(mode="fill", fill_value=0)))

    def of_block(ct_shared: Any, xs: tuple[Any, Array]) -> tuple[Any, Any]:
        block, wanted = xs

        def of_image(sums: Any, xs: tuple[Array, Array]) -> tuple[Any, None]:
            return jax.lax.cond(xs[1], pull, lambda sums, *_: sums, sums, block, xs[0], shared), None

        start = jax.tree.map(jnp.zeros_like, block), ct_shared
        (ct_block, ct_shared), _ = jax.lax.scan(of_image, start, (images, wanted))
        return ct_shared, ct_block

    ct_shared, ct_blocks = jax.lax.scan(of_block, jax.tree.map(jnp.zeros_like, shared), (blocks, wanted))
    return ct_blocks, ct_shared


def split(x: Array, parts: tuple[int, int, int]) -> Array:
    """Cut a lattice into blocks: (blocks, nx / px, ny / py, nz / pz, ...)."""
    (nx, ny, nz), (px, py, pz), rest = x.shape[:3], parts, x.shape[3:]
    x = x.reshape(px, nx // px, py, ny // py, pz, nz // pz, *rest)
    return jnp.moveaxis(x, (2, 4), (1, 2)).reshape(px * py * pz, nx // px, ny // py, nz // pz, *rest)


def corners(shape: tuple[int, int, int], parts: tuple[int, int, int]) -> np.ndarray:
    """First site of each block of `split`, (blocks, 3)."""
    axes = [np.arange(p) * (n // p) for n, p in zip(shape, parts, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
