"""The power-of-two grid on which particles live."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.ops import momenta
from pmwd_dist.ops.rounding import round_straight_through
from pmwd_dist.pm.particles import exact, largest, momentum_unit, resolution


def configure(decomposition: pmd.Decomposition, box: float = 20.0) -> pmd.Config:
    return pmd.Config(box_size=box, mesh_shape=8, decomposition=decomposition)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("box", [0.1, 8.0, 20.0, 5000.0])
def test_the_grid_is_a_power_of_two_and_holds_32_cells_exactly(
    single: pmd.Decomposition, box: float, dtype: Any
) -> None:
    config = configure(single, box)
    q = resolution(config, dtype)
    assert [math.frexp(x)[0] for x in (q, momentum_unit(config, dtype))] == [0.5] * 2
    max_displacement = largest(config, dtype)
    assert max_displacement <= max(32 * config.cell_size[0], 64) <= 2 * max_displacement
    # Neighbours of the last exact multiple are representable, and their sum with q has no rounding error.
    edge = dtype(max_displacement) - dtype(q)
    assert float(edge) == max_displacement - q
    assert edge + dtype(q) == dtype(max_displacement)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_particles_move_to_the_nearest_grid_point_once(single: pmd.Decomposition, dtype: Any) -> None:
    config = configure(single)
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 8, 3)).astype(dtype)
    q, unit = resolution(config, dtype), momentum_unit(config, dtype)
    particles = exact(pmd.Particles(*x), config)
    steps = np.asarray(particles.disp, float) / q
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert np.abs(np.asarray(particles.disp, float) - x[0]).max() <= q / 2
    np.testing.assert_array_equal(momenta.to_integers(particles.momenta), np.rint(x[1] / dtype(unit)))
    assert particles.disp.dtype == particles.momenta.dtype == dtype
    again = exact(particles.with_unit(unit), config)
    np.testing.assert_array_equal(again.disp, particles.disp)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_momenta_as_whole_numbers_are_exact_and_differentiable(dtype: Any) -> None:
    """Up to half the range no sum is a NaN, and the derivatives are those of the momenta."""
    most = 2 ** (momenta.bits(dtype) - 1) - 2 ** (np.finfo(dtype).nmant + 1)
    numbers = np.array([0, 1, -1, most, -most, 2**24 + 1], {np.float32: np.int32, np.float64: np.int64}[dtype])
    x = np.linspace(-1, 1, 6).astype(dtype)

    def there_and_back(x: Any, unit: Any) -> Any:
        packed = momenta.pack(jnp.asarray(numbers), x**2)
        return momenta.momentum(packed, unit), packed

    (value, packed), (tangent, _) = jax.jvp(there_and_back, (x, dtype(0.5)), (np.ones_like(x), dtype(1)))
    np.testing.assert_array_equal(momenta.to_integers(packed), numbers)
    assert packed.dtype == value.dtype == dtype
    assert (np.asarray(packed) >= np.finfo(dtype).tiny).all() and np.isfinite(packed).all()
    np.testing.assert_array_equal(value, numbers.astype(dtype) / 2)
    np.testing.assert_array_equal(tangent, 2 * x)
    counts, missing = momenta.rounded(jnp.asarray([2.5, -1.5, np.nan, np.inf, 2.0 ** momenta.bits(dtype)], dtype))
    np.testing.assert_array_equal(counts, [2, -2, 0, 0, 0])
    np.testing.assert_array_equal(missing, [0, 0, np.nan, np.nan, np.nan])


def test_derivatives_pass_straight_through_rounding() -> None:
    x = np.array([0.2, 0.5, 1.7, -2.5])
    value, tangent = jax.jvp(round_straight_through, (x,), (x + 1,))
    np.testing.assert_array_equal(value, [0, 0, 2, -2])
    np.testing.assert_array_equal(tangent, x + 1)
    np.testing.assert_array_equal(
        jax.grad(lambda x: (round_straight_through(x) * np.arange(4.0)).sum())(x), np.arange(4.0)
    )
