"""What a tuning makes of the shift of parameters by finite steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pmwd_dist.infer.samplers.tilting import Shift


def draws(length: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two correlated numbers of four chains, and what steps add: the first, and noise."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((4, length, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    return numbers, numbers[..., 0] + noise * rng.standard_normal((4, length))


def test_a_shift_is_seen_with_its_error_and_taken_away() -> None:
    numbers, added = draws(4000, 1.0)
    shift = Shift.of(numbers, added)
    np.testing.assert_allclose(shift.root @ shift.bias, [1.0, 0.8], atol=0.05)
    # Products of normal numbers x (x + noise) and y (x + noise) have variances of 3 and 2.
    np.testing.assert_allclose(shift.error, np.sqrt(np.array([3.0, 2.0]) / 16000), rtol=0.1)
    # exp(-0.04 u) moves u, of unit variance, by -0.04, and the other with it: nothing else is needed.
    np.testing.assert_allclose(shift.tilt(0.2, 0.1), [0.04, 0.0], atol=2e-3)


@pytest.mark.parametrize("length", [100, 1600])
def test_the_error_of_a_shift_bounds_the_step(length: int) -> None:
    """Where steps add noise alone, of which a tilt would leave a tenth of a standard deviation or so."""
    numbers, added = draws(length, 10.0)
    step = Shift.of(numbers, added - numbers[..., 0]).longest_step(0.1)
    assert step == pytest.approx(math.sqrt(0.1 * math.sqrt(4 * length) / 10.0), rel=0.3)


def test_half_the_square_of_a_shift_bounds_the_step() -> None:
    shift = Shift(np.eye(2), np.array([3.0, -4.0]), np.zeros(2))
    step = shift.longest_step(0.1)
    assert 0.5 * (5 * step**2) ** 2 == pytest.approx(0.1)
    np.testing.assert_allclose(shift.tilt(step, 0.1), shift.bias * step**2)
    np.testing.assert_allclose(shift.tilt(2 * step, 0.1), shift.bias * step**2)  # no more than there


def test_chains_that_are_not_together_show_no_shift() -> None:
    numbers, added = draws(400, 1.0)
    shift = Shift.of(numbers + np.arange(4)[:, None, None], added)
    assert shift.longest_step(0.1) == math.inf and not shift.tilt(1.0, 0.1).any()
