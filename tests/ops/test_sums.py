"""Integer sums of paints, against sums in double precision and Python's integers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.ops.cic import VALUE, Geometry, sums

PRECISIONS = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def held(numbers: list[int], dtype: Any) -> jax.Array:
    """Numbers of one row, joined from the halves of the ops."""
    width = 8 * np.dtype(dtype).itemsize
    unsigned = [(n >> shift) & ((1 << width) - 1) for n in numbers for shift in (0, width)]
    return sums.joined(jnp.asarray(np.array(unsigned, f"uint{width}").view(f"int{width}")))


def draw(dtype: Any, count: int = 4000) -> list[int]:
    """Sums of all sizes, and around those that round half up or down, first to a double and then to a float."""
    rng, bits = np.random.default_rng(0), 62 if dtype == np.float32 else 103
    sizes = [int(rng.integers(1, bits)) for _ in range(count)]
    numbers = [int.from_bytes(rng.bytes(16), "little") % (1 << size) for size in sizes]
    for size in range(24, bits):
        half = (1 << size) + (1 << max(0, size - (24 if dtype == np.float32 else 53)))
        far = [1 << n for n in (1, size // 4, size // 3, size // 2)]
        numbers += [half + step for step in (-1, 0, 1, *far, *(-n for n in far))]
    return [*numbers, *(-n for n in numbers), 0]


@PRECISIONS
def test_sums_convert_as_native_paints_convert_them(dtype: Any) -> None:
    numbers, bits = draw(dtype), 20
    bounds = np.array([1.0, 0.3, 2.0**-30, 5e20], dtype)
    row = held(numbers, dtype)
    values = np.asarray(jax.jit(jax.vmap(lambda bound: sums.values_of_sums(row, bound, bits)))(bounds))
    exact = np.array([float(n) for n in numbers])  # rounds once
    for own, bound in zip(values, bounds, strict=True):
        unit = 2.0 ** (np.frexp(float(bound))[1] - bits)
        np.testing.assert_array_equal(own, (exact * unit).astype(dtype))


@PRECISIONS
def test_sums_add_up_exactly_and_invalid_ones_stay_invalid(dtype: Any) -> None:
    first, rng = draw(dtype), np.random.default_rng(1)
    second = [first[i] for i in rng.permutation(len(first))]
    invalid = -(1 << (16 * np.dtype(dtype).itemsize - 1))
    first, second = [*first, invalid, 5, invalid, invalid], [*second, -7, invalid, invalid, 0]
    add = jax.jit(partial(sums.add_sums, halves=dtype == np.float64))
    got = np.asarray(add(held(first, dtype), held(second, dtype)))
    expected = [a + b for a, b in zip(first, second, strict=True)][:-4] + [invalid] * 4
    np.testing.assert_array_equal(got, held(expected, dtype))
    values = sums.values_of_sums(jnp.asarray(got), jnp.ones((), dtype), 20)
    np.testing.assert_array_equal(np.isnan(values), [False] * (len(first) - 4) + [True] * 4)


def test_no_number_of_particles_overflows() -> None:
    for particles in (1, 2**12 + 1, 512**3, 8192**3):
        for masks in (1, 3, 9):
            for dtype, most in ((np.float32, 62), (np.float64, 103)):
                bits = sums.contribution_bits(particles, masks, dtype)
                assert bits > 8
                assert particles * masks * 2**bits <= 2**most


@pytest.mark.skipif(not pmd.native_available(), reason="the native ops are not installed")
@pytest.mark.parametrize("particles", [12**3, 512**3], ids=str)
def test_paints_are_multiples_of_a_unit_of_the_largest_weight(particles: int) -> None:
    """Each contribution is rounded to the unit, and their exact sum once to single precision."""
    n, rng = 12, np.random.default_rng(0)
    geometry = Geometry((n,) * 3, ((1, 1),) * 3, (0,) * 3, (True,) * 3, (1.0,) * 3)
    disp = (np.rint(rng.uniform(-1, 1, (n, n, n, 3)) * 2**12) / 2**12).astype(np.float32)
    weight = (10 ** rng.uniform(-6, 0, (n,) * 3) * rng.choice([-37, 37], (n,) * 3)).astype(np.float32)
    bound, bits = np.abs(weight).max(), sums.contribution_bits(particles, 1, np.float32)
    unit = 2.0 ** (np.frexp(float(bound))[1] - bits)

    @jax.jit
    def paint(disp: Any, weight: Any) -> Any:  # as blocks with so many particles in all do
        painted = sums.paint_sums(disp[None], weight[None, ..., None, None], bound[None], geometry, (VALUE,), bits)
        with jax.enable_x64(True):
            return sums.values_of_sums(sums.joined(painted[0]), jnp.asarray(bound), bits)

    position = problems.lattice((n,) * 3, (n,) * 3) + disp
    expected = problems.paint(position, weight.astype(float), (n,) * 3)
    error = np.abs(np.asarray(paint(disp, weight), float) - expected)
    assert (error <= 64 * unit / 2 + 2.0**-24 * np.abs(expected) + 1e-15).all()  # of at most 64 particles
