"""Permuting, reflecting, shifting or tiling the noise does the same to the universe.

Errors are in units of the side of the box. FFTs of permuted or shifted fields round differently, by 1e-16 of them, and
positions are rounded to a grid of 3e-16 of these boxes: where no orbits have crossed, that is all. Once they have,
rounding grows with the distances of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm.gravity import acceleration
from pmwd_dist.pm.particles import resolution

MESHES = {"even": (8, 8, 3), "odd": (7, 7, 2), "finer": (12, 8, 1)}  # cells, particles along a side, order of LPT
Fields = tuple[np.ndarray, ...]


@cache
def program(shape: tuple[int, ...], lattice: tuple[int, ...], order: int) -> Callable[[Any], Any]:
    """Displacements, momenta and accelerations at a = 0.1, displacements and momenta at 0.3 and 1.

    Neighbours on the lattice are 3 Mpc/h apart.
    """
    config = configure(shape, lattice, lpt_order=order)
    cosmo = problems.cosmology()

    def run(noise: jax.Array) -> tuple[Any, Any, Any]:
        # A straight line in log-log: the same P(k) in every box.
        modes = pmd.linear_modes(noise, cosmo, config, linear_power=lambda k: 50 * k**-1.5)
        start = pmd.lpt(modes, cosmo, config)
        saved = pmd.nbody(start, cosmo, config, saveat=[0.3, 1.0]).snapshots
        middle, end = ((saved.disp[i], saved.vel[i]) for i in (0, 1))
        return (start.disp, start.vel, acceleration(start.disp, config)[0]), middle, end

    return jax.jit(run)


def configure(shape: tuple[int, ...], lattice: tuple[int, ...], **options: Any) -> pmd.Config:
    decomposition = pmd.Decomposition(pdims=(1, 1))
    return pmd.Config(tuple(3.0 * n for n in lattice), shape, lattice, steps=2, decomposition=decomposition, **options)


def universe(noise: np.ndarray, cells: int, particles: int, order: int) -> tuple[Fields, Fields, Fields]:
    shape = tuple(n * cells // particles for n in noise.shape)
    start, middle, end = (tuple(map(np.asarray, x)) for x in program(shape, noise.shape, order)(noise))
    return start, middle, end


def close(actual: Fields, expected: Fields, atol: float) -> None:
    box = 3 * max(expected[0].shape[:3])
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol * box)


def symmetries(n: int) -> Iterator[tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]]:
    """What is done to the noise, and to a field of vectors."""
    for axes in ((1, 2, 0), (0, 2, 1)):
        yield lambda x, axes=axes: x.transpose(axes), lambda x, axes=axes: x.transpose(*axes, 3)[..., axes]
    sites = -np.arange(n) % n
    for axis in range(3):
        signs = np.where(np.arange(3) == axis, -1, 1)
        yield lambda x, i=axis: x.take(sites, i), lambda x, i=axis, signs=signs: x.take(sites, i) * signs
    shift = (2, 4, 6)  # a whole number of cells of every mesh
    yield lambda x: np.roll(x, shift, (0, 1, 2)), lambda x: np.roll(x, shift, (0, 1, 2))


# Measured over 12 seeds: 4e-16 at the start, 7e-16 at a = 0.3, before the first orbits cross, 2.4e-15 at a = 1, after.
TOLERANCES = (1e-15, 2e-15, 1e-14)


@pytest.mark.parametrize("mesh", MESHES)
def test_symmetries(mesh: str) -> None:
    cells, n, order = MESHES[mesh]
    noise = np.random.default_rng(0).standard_normal((n, n, n))
    before = universe(noise, cells, n, order)
    # Approach of neighbours along an axis, in units of their distance on the lattice.
    middle, end = (max(-np.diff(disp[..., i], axis=i).min() for i in range(3)) / 3 for disp, _ in before[1:])
    assert 0.4 < middle < 0.8
    assert end > 0.9
    for of_noise, of_vectors in symmetries(n):
        moved = universe(of_noise(noise), cells, n, order)
        for got, wanted, atol in zip(moved, before, TOLERANCES, strict=True):
            close(got, tuple(map(of_vectors, wanted)), atol)


@pytest.mark.parametrize("mesh", MESHES)
def test_painting_is_exact_under_shifts_and_rounds_products_else(mesh: str) -> None:
    """Fixed-point sums have no order; the product of three weights is rounded by order of the axes."""
    cells, n, _ = MESHES[mesh]
    config = configure((cells,) * 3, (n,) * 3)
    q = resolution(config, float)
    disp = np.rint(np.random.default_rng(2).normal(0, 3, (n, n, n, 3)) / q) * q
    paint = jax.jit(lambda disp: pmd.density(pmd.Particles(disp, disp), config))
    before, shift = np.asarray(paint(disp)), (2, 4, 6)
    shifted = np.roll(before, [s * cells // n for s in shift], (0, 1, 2))
    np.testing.assert_array_equal(paint(np.roll(disp, shift, (0, 1, 2))), shifted)
    permuted = paint(disp.transpose(1, 2, 0, 3)[..., (1, 2, 0)])
    np.testing.assert_allclose(permuted, before.transpose(1, 2, 0), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_tiled_noise_makes_the_tiled_universe() -> None:
    noise = np.random.default_rng(1).standard_normal((8, 8, 8))
    before = universe(noise, 8, 8, 3)
    tiled = universe(np.concatenate([noise, noise], 1), 8, 8, 3)
    for got, wanted, atol in zip(tiled, before, TOLERANCES, strict=True):
        close(got, tuple(np.concatenate([field, field], 1) for field in wanted), atol)
