"""The mesh force against numpy step by step, its symmetries, and its exact response to a single mode."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm.gravity import acceleration
from pmwd_dist.pm.potential_factor import tabulate

# "compensated": two sites in a cell along z, and 3 to 2 along x, where aliases are left as they are.
SETTINGS: dict[str, dict[str, Any]] = {
    "one-to-one": {"mesh_shape": (8, 8, 7), "particle_shape": (8, 8, 7)},
    "finer mesh": {"mesh_shape": (12, 8, 8), "particle_shape": (8, 8, 4)},
    "compensated": {"mesh_shape": (12, 8, 4), "particle_shape": (8, 8, 8), "compensated": True},
}


def configure(decomposition: pmd.Decomposition, setting: str = "one-to-one", **changes: Any) -> pmd.Config:
    settings = SETTINGS[setting] | {"box_size": (10.0, 12.0, 7.0), "halo": 2, "decomposition": decomposition} | changes
    return pmd.Config(**settings)


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max())


# The ops themselves are tested on every division in test_paint.py.
DIVISIONS = [
    *((pdims, "native") for pdims in ((1, 1), (4, 1), (2, 2))),
    pytest.param((2, 2), "jax", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("decomposition", "native"), DIVISIONS, indirect=True, ids=str)
def test_force_and_its_derivatives_match_numpy(decomposition: pmd.Decomposition, native: bool) -> None:
    setting = "compensated"
    config = configure(decomposition, setting)
    rng = np.random.default_rng(0)
    disp = problems.inside_cells(rng, config, 2.0)
    ddisp, ct = rng.standard_normal((2, *disp.shape))

    @jax.jit
    def run(disp: jax.Array) -> Any:
        force, pull, max_displacement = jax.vjp(lambda x: acceleration(x, config), disp, has_aux=True)
        return force, max_displacement, jax.jvp(lambda x: acceleration(x, config)[0], (disp,), (ddisp,))[1], pull(ct)[0]

    force, max_displacement, tangent, cotangent = run(disp)
    close(force, problems.acceleration(disp, config))
    np.testing.assert_allclose(max_displacement, np.abs(disp).max() / min(config.cell_size), rtol=1e-15)
    step = 1e-4 / np.abs(ddisp).max() * min(config.cell_size)  # margin to the next cell: 0.04

    def difference(h: float) -> np.ndarray:
        return (problems.acceleration(disp + h * ddisp, config) - problems.acceleration(disp - h * ddisp, config)) / (
            2 * h
        )

    # Two steps cancel the error of order h^2; what is left is rounding, 1e-16 / 1e-4.
    close(tangent, (4 * difference(step) - difference(2 * step)) / 3, 1e-10)
    left, right = np.vdot(tangent, ct), np.vdot(ddisp, cotangent)
    assert abs(left - right) < 1e-13 * np.linalg.norm(tangent) * np.linalg.norm(ct)
    close(cotangent, single_device_cotangent(setting, disp, ct))
    assert problems.has_sharding(force, decomposition.sharding)
    assert problems.has_sharding(cotangent, decomposition.sharding)


@pytest.mark.parametrize(
    ("decomposition", "setting", "gradient"),
    [
        ((4, 1), "one-to-one", "finite-difference"),
        ((1, 4), "finer mesh", "finite-difference"),
        ((2, 2), "one-to-one", "spectral"),
        ((2, 2), "compensated", "finite-difference"),
        ((1, 1), "finer mesh", "spectral"),
    ],
    indirect=["decomposition"],
    ids=str,
)
def test_force_matches_numpy_at_random_displacements(
    decomposition: pmd.Decomposition, setting: str, gradient: str
) -> None:
    config = configure(decomposition, setting, halo="auto", gradient=gradient)
    disp = np.random.default_rng(5).uniform(-7, 7, (*config.particle_shape, 3))
    close(acceleration(disp, config, table(config))[0], problems.acceleration(disp, config, factor))


def factor(k: Any, a: Any = 0.5) -> Any:
    """A factor of the potential that is linear between the nodes of a table."""
    return 1 + a * k**0.5


def table(config: pmd.Config) -> jax.Array:
    return tabulate(factor, jnp.asarray(0.5), config)


_COTANGENTS: dict[str, np.ndarray] = {}


def single_device_cotangent(setting: str, disp: np.ndarray, ct: np.ndarray) -> np.ndarray:
    """The cotangent on one device; the same random numbers in every test."""
    if setting not in _COTANGENTS:
        config = configure(pmd.Decomposition(pdims=(1, 1)), setting)
        pull = jax.jit(lambda x: jax.vjp(lambda x: acceleration(x, config)[0], x)[1](ct)[0])
        _COTANGENTS[setting] = np.asarray(pull(disp))
    return _COTANGENTS[setting]


def test_compensated_meshes_give_right_forces(single: pmd.Decomposition) -> None:
    """To half the Nyquist frequency of the lattice, or of a coarser mesh, which holds no more."""
    n = 12
    for mesh, numbers in ((12, (1, 2, 3)), (24, (2, 3)), (36, (3,)), (6, (1,)), (4, (1,)), (18, (1, 2, 3))):
        error = 0.02 if mesh == 18 else 1e-6
        config = pmd.Config(float(n), mesh, n, compensated=True, decomposition=single)
        assert (np.abs(response(config, numbers) - 1) < error).all()


# Largest error of the response of a cold lattice, as a mean over its places on the mesh, to longitudinal waves along
# axes and diagonals whose components are 1/12, 1/4 and 1/2 of the lattice's Nyquist frequency.
ERRORS = {
    (1, 1): (3e-4, 0.014, 0.18),
    (3, 2): (1e-4, 0.015, 0.006),
    (2, 1): (1e-4, 1e-3, 0.014),
    (3, 1): (1e-4, 3e-4, 3e-3),
    (1, 2): (0.003, 0.16, 1.01),
    (1, 3): (0.015, 0.55, 1.04),
}


@pytest.mark.parametrize("ratio", ERRORS, ids=lambda ratio: f"{ratio[0]}to{ratio[1]}")
def test_every_admitted_mesh_gives_right_forces(ratio: tuple[int, int], single: pmd.Decomposition) -> None:
    n = 24
    config = pmd.Config(box_size=float(n), mesh_shape=n * ratio[0] // ratio[1], particle_shape=n, decomposition=single)
    found = response(config, (1, 3, 6))
    assert (np.abs(found - 1).max(1) <= ERRORS[ratio]).all(), found


def response(config: pmd.Config, numbers: tuple[int, ...]) -> np.ndarray:
    """Response of a cold lattice, as a mean over its places on the mesh, to longitudinal waves: (numbers, directions).

    Waves along axes and diagonals whose components have these numbers of waves in the box.
    """
    n, box = config.particle_shape[0], config.box_size[0]
    sites = problems.lattice(config.particle_shape, config.box_size)
    waves = []
    for number, direction in itertools.product(numbers, ((1, 0, 0), (0, 1, 1), (1, 1, 1))):
        k = np.roll(direction, number) * (2 * math.pi * number / box)
        waves.append(np.sin(sites @ k)[..., None] * k / np.linalg.norm(k))
    waves = np.stack(waves)
    force = jax.jit(lambda disp: acceleration(disp, config)[0])
    assert np.abs(force(np.zeros_like(sites))).max() < 1e-13
    # The force is linear in the wave, and quadratic in the place of the lattice along each axis as long as no particle
    # leaves its cell: two nodes of Gauss and Legendre in each such piece give the mean exactly.
    total, step = np.zeros_like(sites), 1e-6 * waves.sum(0)
    pieces = n // math.gcd(n, config.mesh_shape[0])
    nodes = np.add.outer(np.arange(pieces), (0.5 - 12**-0.5, 0.5 + 12**-0.5)).ravel() / pieces
    places = list(itertools.product(nodes, repeat=3))
    for place in places:
        rest = np.multiply(place, config.cell_size)
        total += (force(rest + step) - force(rest - step)) / (2e-6 * len(places))
    return np.array([np.vdot(total, wave) / np.vdot(wave, wave) for wave in waves]).reshape(len(numbers), 3)


@pytest.mark.parametrize(
    ("cells", "particles", "remedy"),
    [
        (10, 8, "8 or 12"),
        (21, 16, "16 or 24"),
        (6, 8, "4 or 8"),
        (16, 24, "12 or 24"),
        (65, 64, "64 or 96"),
        (40, 16, "32 or 48"),
        (3, 8, "2 or 4"),
    ],
)
def test_other_meshes_are_refused_with_the_nearest_right_ones(
    cells: int, particles: int, remedy: str, single: pmd.Decomposition
) -> None:
    config = pmd.Config(8.0, (particles, cells, particles), particles, decomposition=single)
    disp = np.zeros((particles,) * 3 + (3,))
    message = rf"mesh_shape\[1\]={cells} with {particles} particles .* wrong forces: .* 3/2; use {remedy}(\n|$)"
    for run in (acceleration, lambda disp, config: pmd.nbody(pmd.Particles(disp, disp), None, config)):
        with pytest.raises(ValueError, match=message):
            run(disp, config)


def test_second_order_force_is_that_of_perturbation_theory(single: pmd.Decomposition) -> None:
    """A Zel'dovich displacement eps psi1 feels eps psi1 - eps^2 psi2: where 2LPT and the mesh force must agree."""
    n, box, eps = 24, 24.0, 0.1
    config = pmd.Config(box_size=box, mesh_shape=n, decomposition=single)
    delta = problems.smooth_field(np.random.default_rng(3), (n, n, n))
    psi1, psi2 = problems.displacement(delta, (box,) * 3), problems.second_order(delta, (box,) * 3)
    # A cold lattice sees cloud-in-cell's curvature only where particles cross cells: average over its place.
    shifts = (np.stack(np.meshgrid(*(np.arange(3),) * 3), -1).reshape(-1, 1, 1, 1, 3) + 0.5) / 3 * box / n
    ahead, behind = (sum(acceleration(s + sign * eps * psi1, config)[0] for s in shifts) / 27 for sign in (1, -1))
    odd, even = (ahead - behind) / (2 * eps), (ahead + behind) / (2 * eps**2)
    # Measured: third order is 0.4 % of the odd part; the even part keeps noise of the lattice, none along psi2.
    assert np.linalg.norm(odd - psi1) < 0.01 * np.linalg.norm(psi1)
    assert abs(np.vdot(even, psi2) / np.vdot(psi2, psi2) + 1) < 0.05
