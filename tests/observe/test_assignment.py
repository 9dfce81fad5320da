"""Counts of catalogues in cells against loops over objects, and windows of models against plane waves."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd

SHAPE, BOX = (8, 8, 4), (16.0, 24.0, 8.0)


def configure(decomposition: Any = None) -> pmd.Config:
    return pmd.Config(BOX, SHAPE, halo=4, decomposition=decomposition)


def shares(distance: np.ndarray, window: str) -> np.ndarray:
    """Share of an object in a cell at a distance along an axis [cells]."""
    x = np.abs(distance)
    if window == "nearest":
        return (x < 0.5).astype(float)
    if window == "cloud-in-cell":
        return np.maximum(1 - x, 0)
    return np.where(x < 0.5, 0.75 - x**2, np.maximum(1.5 - x, 0) ** 2 / 2)


@pytest.mark.parametrize("window", ["nearest", "cloud-in-cell", "triangular"])
def test_counts_of_objects(window: Any, decomposition: pmd.Decomposition) -> None:
    config, random = configure(decomposition), np.random.default_rng(0)
    x, w = random.uniform(-1, 2, (40, 3)) * BOX, random.uniform(0.5, 2, 40)
    expected = np.zeros(SHAPE)
    for cell in itertools.product(*map(range, SHAPE)):
        away = (x / config.cell_size - cell + np.divide(SHAPE, 2)) % SHAPE - np.divide(SHAPE, 2)
        expected[cell] = np.sum(w * shares(away, window).prod(axis=1))
    counts = pmd.observe.counts_from_catalogue(x, config, weights=w, window=window)
    np.testing.assert_allclose(counts, expected, atol=1e-12)
    assert counts.sharding.is_equivalent_to(decomposition.sharding, 3)
    assert float(pmd.observe.counts_from_catalogue(x, config, window=window).sum()) == pytest.approx(40)


def test_counts_of_particles_are_their_density() -> None:
    config = configure()
    cosmo = problems.cosmology()
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
    particles = pmd.lpt(modes, cosmo, config)
    counts = pmd.observe.counts_from_catalogue
    x = np.asarray(particles.positions(config)).reshape(-1, 3)
    np.testing.assert_allclose(counts(x, config, window="cloud-in-cell"), pmd.density(particles, config), atol=1e-9)
    both = counts(x, config, window="cloud-in-cell", interlaced=True)
    np.testing.assert_allclose(both, pmd.observe.interlaced_density(particles, config), atol=1e-9)


def test_windows_of_waves(decomposition: pmd.Decomposition) -> None:
    config, n = configure(decomposition), np.array([1, 2, 1])
    phase = 2 * np.pi * sum(i * k / size for i, k, size in zip(np.indices(SHAPE), n, SHAPE, strict=True))
    window = np.prod(np.sinc(n / SHAPE))

    change = jax.jit(pmd.observe.with_window, static_argnums=(1, 2))
    painted = 1 + 0.3 * window**2 * np.cos(phase)
    for order, name in enumerate(("nearest", "cloud-in-cell", "triangular"), start=1):
        np.testing.assert_allclose(change(painted, config, name), 1 + 0.3 * window**order * np.cos(phase), atol=1e-12)
    # The operator is its own adjoint.
    u, v = np.random.default_rng(1).standard_normal((2, *SHAPE))
    transposed = jax.vjp(lambda x: change(x, config, "nearest"), jnp.asarray(v))[1](jnp.asarray(u))[0]
    np.testing.assert_allclose(transposed, change(u, config, "nearest"), atol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_wrong_catalogues_are_refused() -> None:
    config, x = configure(), np.ones((5, 3))
    refused: dict[str, tuple[Any, dict[str, Any]]] = {
        r"positions.shape=\(5, 2\) must be \(objects, 3\)": (x[:, :2], {}),
        "positions hold 1 values that are not finite": (np.where(np.arange(15).reshape(5, 3) == 4, np.nan, x), {}),
        r"weights.shape=\(4,\) must be \(5,\)": (x, {"weights": np.ones(4)}),
        "weights must be a finite number, 0 or more; count objects": (x, {"weights": [1, 1, -1, 1, 1]}),
        "weights must be a finite number": (x, {"weights": [1, 1, np.inf, 1, 1]}),
        "window='tsc' must be 'nearest', 'cloud-in-cell' or 'triangular'": (x, {"window": "tsc"}),
        "positions.dtype=.* must be a type of numbers": ("text", {}),
        "interlaced='no' must be True or False": (np.ones((2, 3)), {"interlaced": "no"}),
    }
    for message, (positions, options) in refused.items():
        with pytest.raises(ValueError, match=message):
            pmd.observe.counts_from_catalogue(positions, config, **options)


@pytest.mark.parametrize(("unit", "span"), [(0.04, "0.04"), (1000.0, r"1e\+03")])
def test_positions_in_another_unit_are_warned_of(unit: float, span: str) -> None:
    corners = np.asarray([*itertools.product((0, 1), repeat=3)] * 2) * unit * np.asarray(BOX)
    with pytest.warns(UserWarning, match=rf"positions: 16 objects span {span} of the sides .* in Mpc/h"):
        pmd.observe.counts_from_catalogue(corners, configure())
    pmd.observe.counts_from_catalogue(corners[:8], configure())


@pytest.mark.parametrize("sites", [5 / 8, 3 / 4, 1, 5 / 4, 2, 7 / 2])
def test_particles_near_their_sites_are_warned_of(sites: float) -> None:
    """Sites in a cell along x and y; galaxies at particles of 10 Mpc/h at a = 0.5 had 0.3 and 2.4 times their P."""
    config, rng = configure(), np.random.default_rng(5)
    spacing = np.asarray(config.cell_size[:2]) / sites
    x = rng.uniform(0, config.box_size, (20_000, 3))
    pmd.observe.counts_from_catalogue(x, config)
    groups = rng.choice(x[:20], len(x)) + rng.normal(0, 0.05, x.shape)  # no lattice
    pmd.observe.counts_from_catalogue(groups, config)
    rounded = config.cell_size[0] / 10  # ten sites a cell
    pmd.observe.counts_from_catalogue(np.round(x / rounded) * rounded, config)
    pmd.observe.counts_from_catalogue(x, pmd.Config(BOX, 2, decomposition=(1, 1)))
    x[:, :2] = spacing * (np.round(x[:, :2] / spacing) + rng.normal(0, 0.25, (len(x), 2)))  # exp(-(2 pi / 4)^2 / 2)
    with pytest.warns(UserWarning, match=r"objects keep to a lattice .amplitude 0.[23]\d*.*; use window"):
        pmd.observe.counts_from_catalogue(x, config)
    for window in ("cloud-in-cell", "triangular"):
        pmd.observe.counts_from_catalogue(x, config, window=window, interlaced=True)
        with pytest.warns(UserWarning, match=rf"window {window} change P.k., by up to a factor of 3 at 0.2"):
            pmd.observe.counts_from_catalogue(x, config, window=window)
