"""HEALPix maps of the light cone against healpy and against crossings found one by one in NumPy."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe.healpix import interpolation, nearest_pixel
from pmwd_dist.pm.stepping.forward import Epoch

COSMO = problems.cosmology()
TABLE = pmd.growth_table(COSMO)
BOX, MESH, OBSERVER = (40.0, 40.0, 60.0), (4, 4, 6), (5.0, 33.0, 20.0)
EDGES = (0.0, 40.0, 60.0, 100.0)
STEPS = np.array([0.96, 0.98, 1.0])  # scale factors
NSIDE = 16
HEALPY = np.load(Path(__file__).parent / "healpy_pixels.npz")  # made by make_healpy_pixels.py


@pytest.mark.parametrize("nside", [1, 3, 64])
def test_pixels_are_those_of_healpy(nside: int) -> None:
    vectors, weights = HEALPY[f"vectors_{nside}"], HEALPY[f"weights_{nside}"]
    np.testing.assert_array_equal(nearest_pixel(nside, vectors), HEALPY[f"nearest_{nside}"])
    around, ours = map(np.asarray, interpolation(nside, vectors))
    rows = np.arange(len(vectors))[:, None]
    maps = np.zeros((2, len(vectors), 12 * nside**2))
    np.add.at(maps[0], (rows, around), ours)
    np.add.at(maps[1], (rows, HEALPY[f"pixels_{nside}"]), weights)
    np.testing.assert_allclose(maps[0], maps[1], rtol=0, atol=1e-10)
    slopes = jax.grad(lambda x: jnp.sum(interpolation(nside, x)[1] ** 2))(vectors)
    assert np.isfinite(slopes).all()  # at the poles, too


def psi() -> np.ndarray:
    """Displacements at D1 = 1: up to 16 Mpc/h."""
    rng = np.random.default_rng(0)
    return np.stack([4 * problems.smooth_field(rng, MESH, largest=2) for _ in range(3)], -1)


def epoch(a: Any, move: Any) -> Epoch:
    return Epoch(jnp.asarray(a), pmd.Particles(TABLE.D1(a) * move, TABLE.momentum(a) * move))


@pytest.fixture(scope="module")
def crossings() -> tuple[np.ndarray, np.ndarray]:
    return crossings_around(OBSERVER)


def crossings_around(observer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Distances and positions at which particles on straight lines in D1 are seen, each image found by bisection."""
    grid = np.linspace(0.955, 1.0, 2001)
    chi, D1 = np.asarray(pmd.comoving_distance(grid, TABLE)), np.asarray(TABLE.D1(grid))
    move, found = psi(), []
    for image in itertools.product(range(-4, 4), range(-5, 4), range(-3, 3)):
        x = problems.lattice(MESH, BOX) + np.asarray(image) * np.asarray(BOX) - np.asarray(observer)

        def at(a: Any, x: Any = x) -> Any:
            return x + np.interp(a, grid, D1)[..., None] * move

        def excess(a: Any, at: Any = at) -> Any:
            return np.linalg.norm(at(a), axis=-1) - np.interp(a, grid, chi)

        low, high = np.full(MESH, STEPS[0]), np.full(MESH, STEPS[-1])
        passed = (excess(low) < 0) & (excess(high) >= 0)
        if not passed.any():
            continue
        for _ in range(40):
            middle = (low + high) / 2
            before = excess(middle) < 0
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        x = np.interp(low, grid, chi)
        seen = passed & (x < EDGES[-1])
        found.append((x[seen], at(low)[seen]))
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))  # type: ignore[return-value]


def expected(crossings: tuple[np.ndarray, np.ndarray], assignment: str = "nearest") -> np.ndarray:
    """Maps of the shells."""
    x, positions = crossings
    pixels, weights = map(np.asarray, interpolation(NSIDE, positions))
    edges = np.asarray(EDGES)
    nodes = 0.75 * np.diff(edges**4) / np.diff(edges**3)
    if assignment == "nearest":
        shares = [(x >= low) & (x < high) for low, high in itertools.pairwise(EDGES)]
    else:
        fading = np.interp(x, [EDGES[0], nodes[0], nodes[-1], EDGES[-1]], [0, 1, 1, 0])
        shares = [fading * np.interp(x, nodes, row) for row in np.eye(len(nodes))]
    maps = np.zeros((len(nodes), 12 * NSIDE**2))
    for one, share in zip(maps, shares, strict=True):
        np.add.at(one, pixels, share[:, None] * weights)
    return maps


def all_steps(pdims: tuple[int, int], assignment: Any = "nearest", seed: int | None = None) -> Any:
    """A function of the displacements that gives a sum of the maps, the maps, and the gradient of the sum."""
    config = pmd.Config(BOX, MESH, a_start=STEPS[0], decomposition=pmd.Decomposition(pdims=pdims))
    options: Any = {"observer": OBSERVER, "shell_assignment": assignment, "seed": seed}
    cone = pmd.observe.SphericalLightCone(config, EDGES, NSIDE, **options)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((len(EDGES) - 1, 12 * NSIDE**2)))

    @jax.jit
    def step(move: Any, a0: Any, a1: Any) -> Any:
        def weighed(move: Any, a0: Any, a1: Any) -> Any:
            maps = cone(epoch(a0, move), epoch(a1, move), TABLE)
            return jnp.sum(weight * maps), maps

        return jax.value_and_grad(weighed, has_aux=True)(move, a0, a1)

    def run(move: Any, times: Any = STEPS) -> Any:
        move = jax.device_put(move, config.decomposition.sharding)
        each = [step(move, *ends) for ends in zip(times[:-1], times[1:], strict=True)]
        return tuple(sum(part) for part in zip(*((value, maps, slope) for (value, maps), slope in each), strict=True))

    return run


@pytest.fixture(scope="module")
def single_device() -> Any:
    return all_steps((1, 1))


def test_every_crossing_is_seen_once_where_and_when_it_happens(crossings: Any, single_device: Any) -> None:
    maps = single_device(psi())[1]
    np.testing.assert_allclose(np.sum(maps, 1), np.rint(expected(crossings).sum(1)), rtol=1e-12)
    np.testing.assert_allclose(maps, expected(crossings), rtol=0, atol=1e-4)


def test_steps_beyond_the_shells_look_at_no_particles(single_device: Any) -> None:
    for out in single_device(psi() * np.nan, STEPS[:2] - 0.06):
        np.testing.assert_array_equal(out, 0)


def test_gradients_of_maps_are_those_of_differences(single_device: Any) -> None:
    move = psi()
    along, size = problems.smooth_field(np.random.default_rng(2), MESH)[..., None] * move, 1e-7
    difference = (single_device(move + size * along)[0] - single_device(move - size * along)[0]) / (2 * size)
    np.testing.assert_allclose(np.sum(single_device(move)[2] * along), difference, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1])
def test_shells_share_a_mass_by_its_distance_on_pencils(seed: int | None, crossings: Any) -> None:
    """With a seed the last two shells, beyond the first repetition, have places and symmetries of their own."""
    run, move = all_steps((2, 2), "linear", seed), psi()
    _, maps, gradient = run(move)
    shells, rng = expected(crossings, "linear"), np.random.default_rng(seed)
    for i in (1, 2) if seed else ():
        observer, symmetry = rng.uniform(0, BOX), rng.permutation(np.eye(3)) * rng.choice([-1, 1], 3)
        x, positions = crossings_around(observer)
        shells[i] = expected((x, positions @ symmetry.T), "linear")[i]
    np.testing.assert_allclose(maps, shells, rtol=0, atol=1e-4)
    assert maps.addressable_shards[0].data.shape == (3, 12 * NSIDE**2 // 4)
    along, size = problems.smooth_field(np.random.default_rng(2), MESH)[..., None] * move, 1e-7
    difference = (run(move + size * along)[0] - run(move - size * along)[0]) / (2 * size)
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * along), difference, rtol=1e-5)


def test_lensing_on_the_sphere_weighs_the_shells() -> None:
    config = pmd.Config(BOX, MESH, decomposition=(4, 1))
    cone = pmd.observe.SphericalLightCone(config, EDGES, 2, assignment="nearest")
    mean = 4 / 3 * math.pi * np.diff(np.asarray(EDGES) ** 3) / 48 * math.prod(MESH) / math.prod(BOX)
    overdensity = np.random.default_rng(0).standard_normal((3, 48))
    kappa = pmd.observe.convergence(jnp.asarray((1 + overdensity) * mean[:, None]), TABLE, cone, source=0.03)
    expected = np.asarray(pmd.observe.lensing_weights(EDGES, TABLE, 0.03)) @ overdensity
    np.testing.assert_allclose(kappa, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"observer": (1.0, 2.0, 61.0)}, r"observer=\[1.0, 2.0, 61.0\] must lie in the box of 40 x 40 x 60 Mpc/h"),
        ({"observer": (1.0, 2.0)}, "must lie in the box"),
        ({"edges": (0.0, 5000.0)}, r"take \d+ repetitions of a box of 40 x 40 x 60 Mpc/h, more than 20000"),
        ({"assignment": "cubic"}, "must be 'bilinear' or 'nearest'"),
        ({"shell_assignment": "cubic"}, "shell_assignment='cubic' must be 'linear' or 'nearest'"),
        ({"seed": -1}, "seed=-1 must be a whole number, 0 or more"),
        ({"nside": 0}, "nside=0 must be a whole number from 1 to 8192"),
        ({"nside": 1 << 14}, "nside=16384 must be a whole number from 1 to 8192"),
    ],
)
def test_bad_light_cones_are_refused(options: dict[str, Any], error: str) -> None:
    config = pmd.Config(BOX, MESH, decomposition=(4, 1))
    with pytest.raises(ValueError, match=error):
        pmd.observe.SphericalLightCone(config, **({"edges": EDGES, "nside": 4} | options))
