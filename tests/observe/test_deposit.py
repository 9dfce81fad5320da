"""Sums of contributions of blocks of a lattice to a map, against the sum over all sites at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist.observe import deposit as module
from pmwd_dist.observe.deposit import deposit, first_sites, parts_of, split

SHAPE, SIZE = (2, 2, 10), 5
IMAGES = np.array([[0.0], [1.0], [3.0]])
WANTED = np.random.default_rng(0).random((20, 3)) < 0.6


def piece(block: Any, image: Any, shared: Any) -> Any:
    vectors, numbers = block
    values = jnp.sin(shared * vectors[0] + image[0]) * numbers**2 + vectors[1] ** 3 * shared
    return jax.lax.stop_gradient(jnp.floor(jnp.abs(vectors[2]) * 4)).astype(int), values


def all_at_once(vectors: Any, numbers: Any, shared: Any) -> Any:
    total, side = jnp.zeros(SIZE), np.divide(SHAPE, parts_of(SHAPE)).astype(int)
    i, j, k = np.indices(SHAPE)
    for number, image in enumerate(IMAGES):
        wanted = WANTED[:, number].reshape(parts_of(SHAPE))[i // side[0], j // side[1], k // side[2]]
        at, values = piece((vectors, numbers), (image[0] + i // side[0] * side[0],), shared)
        total = total.at[jnp.where(wanted, at, SIZE)].add(values, mode="drop")
    return jnp.sum(total * jnp.arange(1.0, 6.0)), total


@pytest.mark.parametrize("at_once", [12, 1000])
def test_groups_of_blocks_have_the_sum_and_its_derivatives(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In forward and reverse mode over reverse mode, too."""
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    at = rng.standard_normal((3, *SHAPE)), rng.standard_normal(SHAPE), 0.7

    given: Any = jnp.asarray(first_sites(SHAPE, parts_of(SHAPE))[:, :1]), jnp.asarray(IMAGES)

    def ours(vectors: Any, numbers: Any, shared: Any) -> Any:
        lattice = split(vectors, parts_of(SHAPE)), split(numbers, parts_of(SHAPE))
        one_part = lambda *x: jax.tree.map(lambda y: y[None], piece(*x))  # noqa: E731
        total = deposit(one_part, lattice, given[0], given[1], jnp.asarray(shared), jnp.asarray(WANTED), SIZE)
        return jnp.sum(total * jnp.arange(1.0, 6.0)), total

    def derivatives(function: Any) -> Any:
        gradient = jax.grad(lambda *x: function(*x)[0], (0, 1, 2))
        seconds = (mode(lambda x: gradient(at[0], at[1], x), 0) for mode in (jax.jacfwd, jax.jacrev))
        return jax.jit(lambda *x: [function(*x), gradient(*x), *(second(x[2]) for second in seconds)])(*at)

    for a, b in zip(*(jax.tree.leaves(derivatives(f)) for f in (ours, all_at_once)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
