"""White noise: precision, amplitudes, pairs, and the long waves at other resolutions."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd

KEY = jax.random.key(5)


def configure(decomposition: Any, shape: Any = (8, 12, 10)) -> pmd.Config:
    """A lattice of this shape, in a mesh of another."""
    return pmd.Config(100.0, 2 * np.array(shape), shape, decomposition=decomposition)


def modes_of(noise: Any) -> np.ndarray:
    """Modes of unit variance."""
    return np.fft.fftn(np.asarray(noise, float)) / math.sqrt(noise.size)


def long_waves(modes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Modes below the Nyquist frequency of a lattice."""
    return modes[np.ix_(*(np.r_[0 : (n + 1) // 2, -((n - 1) // 2) : 0] for n in shape))]


@pytest.mark.parametrize("kind", [{}, {"nested": True}, {"fixed": True}, {"nested": True, "fixed": True}])
def test_single_and_double_precision_have_the_same_universe(single: pmd.Decomposition, kind: dict[str, bool]) -> None:
    low, high = (pmd.white_noise(KEY, configure(single), dtype, **kind) for dtype in (np.float32, np.float64))
    assert (low.dtype, high.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(low, high, rtol=0, atol=4e-6 if kind else 0)


@pytest.mark.parametrize("shape", [(8, 12, 10), (8, 8, 7)])
@pytest.mark.parametrize("fixed", [False, True])
def test_long_waves_are_those_of_a_finer_lattice(
    parallel: pmd.Decomposition, single: pmd.Decomposition, shape: tuple[int, ...], fixed: bool
) -> None:
    finer = tuple(2 * n for n in shape)
    fine = modes_of(pmd.white_noise(KEY, configure(parallel, finer), nested=True, fixed=fixed))
    coarse = modes_of(pmd.white_noise(KEY, configure(single, shape), nested=True, fixed=fixed))
    np.testing.assert_allclose(long_waves(fine, shape), long_waves(coarse, shape), atol=1e-6)
    assert np.abs(coarse).min() > 0


@pytest.mark.parametrize("nested", [False, True])
def test_noise_is_white_and_gaussian_and_follows_the_key(parallel: pmd.Decomposition, nested: bool) -> None:
    """Within five standard errors."""
    config = configure(parallel, 32)
    first, second = (np.asarray(pmd.white_noise(jax.random.key(i), config, nested=nested)) for i in (0, 1))
    n = first.size
    assert abs(first.mean()) < 5 / math.sqrt(n)
    assert abs(first.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((first**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((first * second).mean()) < 5 / math.sqrt(n)
    for axis in range(3):
        assert abs((first * np.roll(first, 1, axis)).mean()) < 5 / math.sqrt(n)
        assert abs((first * np.flip(first, axis)).mean()) < 8 / math.sqrt(n)
    power = np.abs(modes_of(first)) ** 2
    for plane in (power[:, :, 0], power[:, :, 16], power[0], power[:, 16]):  # half of the modes are independent
        assert abs(plane.mean() - 1) < 5 * math.sqrt(2 / plane.size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_is_the_same_bits_on_any_layout(
    parallel: pmd.Decomposition, single: pmd.Decomposition, dtype: Any
) -> None:
    noise = pmd.white_noise(KEY, configure(parallel), dtype)
    np.testing.assert_array_equal(noise, pmd.white_noise(KEY, configure(single), dtype))
    assert noise.dtype == dtype
    assert problems.has_sharding(noise, parallel.sharding)


@pytest.mark.parametrize("nested", [False, True])
def test_fixed_noise_has_the_rms_amplitude_and_its_phases(parallel: pmd.Decomposition, nested: bool) -> None:
    config = configure(parallel)
    free, fixed = (modes_of(pmd.white_noise(KEY, config, nested=nested, fixed=x)) for x in (False, True))
    np.testing.assert_allclose(np.abs(fixed), 1, rtol=1e-6)
    np.testing.assert_allclose(fixed, free / np.abs(free), atol=1e-5)


def test_a_pair_differs_by_its_sign(parallel: pmd.Decomposition) -> None:
    config = configure(parallel)
    first, second = (pmd.white_noise(KEY, config, fixed=True, paired=x) for x in (False, True))
    np.testing.assert_array_equal(first, -second)
