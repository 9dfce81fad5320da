"""Bispectrum against sums over triangles one by one, a single triangle, and a field with a known bispectrum."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe import bispectrum, bispectrum_edges, tree_bispectrum

N, BOX = 8, 20.0
FUNDAMENTAL = 2 * math.pi / BOX
EDGES = tuple(FUNDAMENTAL * x for x in (0.5, 1.2, 2.1, 2.6))


def field() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((N, N, N)) ** 2


def by_triangles(field: np.ndarray) -> dict[tuple[int, ...], tuple[float, int]]:
    """Mean product of closed triangles, and their number, by their shells."""
    numbers = np.fft.fftfreq(N, 1 / N).astype(int)
    k = [np.asarray(x) for x in itertools.product(numbers, repeat=3)]
    shell = np.searchsorted(EDGES, FUNDAMENTAL * np.linalg.norm(k, axis=1), side="right") - 1
    some = [(n, s) for n, s in zip(k, shell, strict=True) if 0 <= s < 3]
    modes = np.fft.fftn(field) / N**3
    sums: dict[tuple[int, ...], list[complex]] = {}
    for (a, i), (b, j) in itertools.product(some, repeat=2):
        c = -a - b
        length = FUNDAMENTAL * np.linalg.norm(c)
        s = int(np.searchsorted(EDGES, length, side="right")) - 1
        if i <= j <= s < 3:
            window = np.prod([np.sinc(x / N) ** 2 for x in (a, b, c)])
            sums.setdefault((int(i), int(j), s), []).append(
                complex(modes[tuple(a)] * modes[tuple(b)] * modes[tuple(c)] / window)
            )
    return {key: (float(np.mean(values).real) * BOX**6, len(values)) for key, values in sums.items()}


def measure(pdims: tuple[int, int]) -> tuple[Any, Any]:
    config = pmd.Config(BOX, N, decomposition=pmd.Decomposition(pdims=pdims))

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def run(x: Any) -> Any:
        found = bispectrum(x, config, edges=EDGES)
        return jnp.nansum(found.bispectrum * jnp.arange(1, len(found.shells) + 1)), found

    return run(jax.device_put(field(), config.decomposition.sharding))


@pytest.fixture(scope="module")
def single_device() -> tuple[Any, Any]:
    return measure((1, 1))


@pytest.mark.parametrize("pdims", [(1, 1), (4, 1), (2, 2)], ids=["1x1", "4x1", "2x2"])
def test_is_the_sum_over_triangles(pdims: tuple[int, int], single_device: tuple[Any, Any]) -> None:
    (_, found), gradient = single_device if pdims == (1, 1) else measure(pdims)
    expected = by_triangles(field())
    assert set(found.shells) > set(expected)
    values = [expected.get(sides, (np.nan, 0)) for sides in found.shells]
    np.testing.assert_allclose(found.bispectrum, [value for value, _ in values], rtol=1e-10)
    np.testing.assert_array_equal(found.triangles, [count for _, count in values])
    np.testing.assert_allclose(gradient, single_device[1], rtol=0, atol=1e-12 * np.abs(gradient).max())
    # Homogeneous of third order, and blind to the mean.
    np.testing.assert_allclose(
        np.vdot(field(), gradient), 3 * np.nansum(found.bispectrum * np.arange(1, len(values) + 1))
    )
    assert abs(np.sum(gradient)) < 1e-10 * np.abs(gradient).sum()


def test_kinds_of_triangles_and_a_single_one(single: pmd.Decomposition) -> None:
    config = pmd.Config(BOX, 12, decomposition=single)
    x = np.stack(np.meshgrid(*[np.arange(12) / 12 * 2 * np.pi] * 3, indexing="ij"))
    wave = [np.cos(np.tensordot(n, x, 1)) for n in ((1, 1, 0), (1, -1, 0))]
    delta = 2 * wave[0] + 3 * wave[1] + 5 * np.cos(2 * x[0] + 0.4)
    edges = FUNDAMENTAL * np.array([0.5, 1.1, 1.5, 1.9, 2.1])
    run = jax.jit(partial(bispectrum, config=config, edges=edges, triangles="isosceles", deconvolve=False))
    found = run(delta)
    assert all(len(set(sides)) < 3 for sides in found.shells)
    i = found.shells.index((1, 1, 3))
    # Two waves, in either order, and their conjugates, among all triangles of the bin.
    assert found.bispectrum[i] * found.triangles[i] == pytest.approx(4 * math.cos(0.4) * 2 * 3 * 5 / 8 * BOX**6)
    np.testing.assert_allclose(found.k[i], FUNDAMENTAL * np.array([2**0.5, 2**0.5, 2]))
    others = np.delete(np.asarray(found.bispectrum), i)
    assert np.nanmax(np.abs(others)) < 1e-9 * found.bispectrum[i]


def test_field_with_a_known_bispectrum(single: pmd.Decomposition) -> None:
    """g + f g^2: 2 f (P1 P2 + P2 P3 + P3 P1) at lowest order; the mean with -g has none of the scatter of g^3."""
    n, f = 24, 0.1
    config = pmd.Config(100.0, n, decomposition=single)
    edges = bispectrum_edges(config, shells=4)
    k = problems.wavevectors((n,) * 3, config.box_size)
    shape = np.exp(-sum(k_**2 for k_ in k) / (2 * 0.15**2))
    run = jax.jit(partial(bispectrum, config=config, edges=edges, deconvolve=False))
    ratios = []
    for seed in range(6):
        g = np.fft.ifftn(np.fft.fftn(np.random.default_rng(seed).standard_normal((n,) * 3)) * shape).real
        g /= g.std()
        plus, minus, linear = run(g + f * g**2), run(-g + f * g**2), run(g)
        one, two, three = np.asarray(linear.power).T
        tree = 2 * f * (one * two + two * three + three * one)
        mean = (np.asarray(plus.bispectrum) + np.asarray(minus.bispectrum)) / 2
        weight = tree * np.asarray(plus.triangles) / np.asarray(linear.scatter) ** 2
        ratios.append(np.sum(weight * mean) / np.sum(weight * tree))
    error = np.std(ratios) / np.sqrt(len(ratios) - 1)
    assert error < 0.05
    assert abs(np.mean(ratios) - 1) < 0.1, ratios


def test_tree_level_of_right_triangles() -> None:
    """Sides 1, 1 and sqrt(2), P = 1: F2 is 5/7 between the legs, 3/28 between a leg and the longest side."""
    (value,) = tree_bispectrum(np.ones_like, (0.9999, 1.0001, 1.4141, 1.4143), [(0, 0, 2)])
    assert value == pytest.approx(2 * (5 / 7 + 2 * 3 / 28), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"edges": [0.3, 0.2]}, r"edges=\[0.3, 0.2\] must ascend"),
        ({"edges": [0.3, 1.0]}, r"edges=.* must lie between 0 and 0.8378 h/Mpc, 2/3 of the Nyq.*; beyond, triangles"),
        ({"triangles": "scalene"}, r"triangles='scalene' must be 'all', 'isosceles' or 'equilateral'"),
        ({"deconvolve": "cic"}, "deconvolve='cic' must be True"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], error: str, single: pmd.Decomposition) -> None:
    with pytest.raises(ValueError, match=error):
        bispectrum(np.ones((N, N, N)), pmd.Config(BOX, N, decomposition=single), **options)
    with pytest.raises(ValueError, match=r"k_max=2.0 must be 0.1571 to 0.8378 h/Mpc"):
        bispectrum_edges(pmd.Config(BOX, N, decomposition=single), k_max=2.0)
    for power, edges, message in (
        (np.ones_like, [0.3, 0.2, 0.1], r"edges=\[0.3, 0.2, 0.1\] must ascend"),
        (([0.1], [1.0]), [0.1, 0.2], "power must be a function"),
        (np.ones_like, [0.1, 0.2], "shells must be a finite number from 0 to 0"),
    ):
        with pytest.raises(ValueError, match=message):
            tree_bispectrum(power, edges, [(0, 0, 9)])
