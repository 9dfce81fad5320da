"""Halos against numpy's wrapped indices, and the two ops as exact transposes of each other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import problems

import pmwd_dist as pmd

SHAPE = (8, 12, 3)  # blocks of 2 and 3 cells over four devices
HALOS = (0, 1, 2, 5, 11)  # none; within a block; a block; several hops; more than once around


def padded_indices(size: int, parts: int, halo: int) -> np.ndarray:
    """Cells of a periodic axis in the order of its padded blocks."""
    if parts == 1:
        return np.arange(size)
    width = size // parts
    return np.concatenate([np.arange(p * width - halo, (p + 1) * width + halo) % size for p in range(parts)])


def expected_pad(field: np.ndarray, halo: int, pdims: tuple[int, int]) -> np.ndarray:
    """Padded blocks side by side."""
    x, y = (padded_indices(field.shape[axis], pdims[axis], halo) for axis in range(2))
    return field[np.ix_(x, y)]


def expected_reduce(padded: np.ndarray, shape: Any, halo: int, pdims: tuple[int, int]) -> np.ndarray:
    """Padded blocks added onto the cells for which they stand."""
    x, y = (padded_indices(shape[axis], pdims[axis], halo) for axis in range(2))
    out = np.zeros(shape)
    np.add.at(out, np.ix_(x, y), padded)
    return out


def padded_shape(decomposition: pmd.Decomposition, halo: int) -> tuple[int, int, int]:
    x, y = (n + (2 * halo * p if p > 1 else 0) for n, p in zip(SHAPE[:2], decomposition.pdims, strict=True))
    return x, y, SHAPE[2]


def whole_numbers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of whole numbers have no rounding error: comparisons can be exact."""
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(float)


def test_halos_match_numpy_at_any_width(decomposition: pmd.Decomposition) -> None:
    field = whole_numbers(0, SHAPE)
    padded = {halo: whole_numbers(halo, padded_shape(decomposition, halo)) for halo in HALOS}
    pad = jax.jit(lambda x: {halo: pmd.halo_pad(x, halo, decomposition) for halo in HALOS})(field)
    reduce = jax.jit(lambda x: {halo: pmd.halo_reduce(x[halo], halo, decomposition) for halo in HALOS})(padded)
    for halo in HALOS:
        np.testing.assert_array_equal(pad[halo], expected_pad(field, halo, decomposition.pdims))
        np.testing.assert_array_equal(reduce[halo], expected_reduce(padded[halo], SHAPE, halo, decomposition.pdims))
        assert all(problems.has_sharding(out, decomposition.sharding) for out in (pad[halo], reduce[halo]))


def test_pad_and_reduce_are_exact_transposes(decomposition: pmd.Decomposition) -> None:
    def transposes(field: jax.Array, padded: jax.Array, halo: int) -> tuple[jax.Array, jax.Array]:
        _, pad = jax.vjp(lambda x: pmd.halo_pad(x, halo, decomposition), field)
        _, reduce = jax.vjp(lambda x: pmd.halo_reduce(x, halo, decomposition), padded)
        return pad(padded)[0], reduce(field)[0]

    field = whole_numbers(0, SHAPE)
    padded = {halo: whole_numbers(halo, padded_shape(decomposition, halo)) for halo in HALOS}
    out = jax.jit(lambda x, y: {halo: transposes(x, y[halo], halo) for halo in HALOS})(field, padded)
    for halo, (from_pad, from_reduce) in out.items():
        np.testing.assert_array_equal(from_pad, expected_reduce(padded[halo], SHAPE, halo, decomposition.pdims))
        np.testing.assert_array_equal(from_reduce, expected_pad(field, halo, decomposition.pdims))
        assert np.vdot(expected_pad(field, halo, decomposition.pdims), padded[halo]) == np.vdot(field, from_pad)
