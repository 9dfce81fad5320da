"""Mass planes of the light cone against crossings found one by one in NumPy, and lensing by them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

import pmwd_dist as pmd
from pmwd_dist.cosmology.distance import HUBBLE_DISTANCE, scale_factor_at
from pmwd_dist.pm.stepping.forward import Epoch

COSMO = problems.cosmology()
TABLE = pmd.growth_table(COSMO)
BOX, MESH, OBSERVER = (40.0, 40.0, 60.0), (8, 8, 12), 7.0
EDGES = (0.0, 130.0, 155.0, 480.0)
STEPS = np.array([0.8, 0.88, 0.95, 1.0])  # scale factors
WEIGHT = np.random.default_rng(1).standard_normal((len(EDGES) - 1, *MESH[:2]))


def configure(pdims: tuple[int, int], **options: Any) -> pmd.Config:
    defaults: dict[str, Any] = {"a_start": 0.8, "steps": 3, "halo": 5}
    return pmd.Config(BOX, MESH, decomposition=pmd.Decomposition(pdims=pdims), **(defaults | options))


def psi() -> np.ndarray:
    """Displacements at D1 = 1: up to 16 Mpc/h, where a slab of four is 10 wide."""
    rng = np.random.default_rng(0)
    return np.stack([4 * problems.smooth_field(rng, MESH, largest=2) for _ in range(3)], -1)


def distances() -> tuple[Any, Any]:
    """Comoving distance and growth factor by the scale factor, by SciPy."""
    a = np.linspace(0.75, 1, 401)
    rate = [1 / (x**2 * problems.expansion(COSMO, x)) for x in a]
    spline = CubicSpline(a, rate).antiderivative()
    return lambda x: HUBBLE_DISTANCE * (spline(1.0) - spline(x)), CubicSpline(a, problems.growth(COSMO, a)["D1"])


def shares(x: np.ndarray, assignment: str, nodes: Any = (65.0, 142.5, 317.5)) -> list[np.ndarray]:
    """What each shell has of a mass at a distance."""
    if assignment == "nearest":
        return [(x >= inner) & (x < outer) for inner, outer in zip(EDGES[:-1], EDGES[1:], strict=True)]
    fading = np.interp(x, [EDGES[0], nodes[0], nodes[-1], EDGES[-1]], [0, 1, 1, 0])
    return [fading * np.interp(x, nodes, row) for row in np.eye(len(nodes))]


def expected_planes(assignment: str = "nearest", strength: float = 1.0) -> np.ndarray:
    """Particles on straight lines in D1, each image found by bisection."""
    chi, D1 = distances()
    x, move = problems.lattice(MESH, BOX), strength * psi()
    cells = np.asarray(BOX) / np.asarray(MESH)
    planes = np.zeros((len(EDGES) - 1, *MESH[:2]))
    for image in range(-2, 11):
        near = x[..., 2] + image * BOX[2] - OBSERVER

        def excess(a: Any, near: Any = near) -> Any:
            return near + D1(a) * move[..., 2] - chi(a)

        low, high = np.full(MESH, STEPS[0]), np.full(MESH, STEPS[-1])
        passed = (excess(low) < 0) & (excess(high) >= 0)
        for _ in range(60):
            middle = (low + high) / 2
            before = excess(middle) < 0
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        position = (x + D1(low)[..., None] * move) / cells
        for i, share in enumerate(shares(chi(low), assignment)):
            mass = passed * share
            planes[i] += problems.paint(np.where(mass[..., None] > 0, position, 0), mass, MESH).sum(2)
    return planes


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return expected_planes()


def epoch(a: Any, move: Any) -> Epoch:
    return Epoch(jnp.asarray(a), pmd.Particles(TABLE.D1(a) * move, TABLE.momentum(a) * move))


# The box in another order, in which the line of sight is another one.
ORDER = {"x": (2, 1, 0), "y": (0, 2, 1), "z": (0, 1, 2)}


def all_steps(pdims: tuple[int, int], axis: Any = "z", assignment: Any = "nearest") -> tuple[Any, Any]:
    """Planes, and the gradient of a sum of them, put back in the order of the box."""
    order = ORDER[axis]
    box, mesh = (tuple(x[i] for i in order) for x in (BOX, MESH))
    config = pmd.Config(box, mesh, a_start=0.8, steps=3, halo=5, decomposition=pmd.Decomposition(pdims=pdims))
    cone = pmd.observe.FlatSkyLightCone(
        config, EDGES, observer=OBSERVER, line_of_sight=axis, shell_assignment=assignment
    )
    move = jax.device_put(psi().transpose(*order, 3)[..., order], config.decomposition.sharding)
    weight = jnp.asarray(WEIGHT)

    @jax.jit
    def step(move: Any, a0: Any, a1: Any) -> Any:
        def weighed(move: Any, a0: Any, a1: Any) -> Any:
            planes = cone(epoch(a0, move), epoch(a1, move), TABLE)
            return jnp.sum(weight * planes), planes

        return jax.value_and_grad(weighed, has_aux=True)(move, a0, a1)

    each = [step(move, *ends) for ends in zip(STEPS[:-1], STEPS[1:], strict=True)]
    (_, planes), gradient = jax.jit(lambda each: jax.tree.map(lambda *x: sum(x), *each))(each)
    assert problems.has_sharding(planes, config.decomposition.spectrum_sharding)
    return planes, np.asarray(gradient).transpose(*order, 3)[..., order]


@pytest.fixture(scope="module")
def single_device() -> tuple[Any, Any]:
    return all_steps((1, 1))


def test_every_crossing_is_painted_once_where_and_when_it_happens(
    expected: np.ndarray, single_device: tuple[Any, Any]
) -> None:
    planes, _ = single_device
    np.testing.assert_allclose(planes, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.sum(planes, (1, 2)), np.rint(expected.sum((1, 2))), rtol=1e-13)


def test_shells_share_a_mass_by_its_distance() -> None:
    planes, gradient = all_steps((2, 2), assignment="linear")
    np.testing.assert_allclose(planes, expected_planes("linear"), rtol=0, atol=1e-6)
    step = 1e-6
    ends = [expected_planes("linear", 1 + step * sign) for sign in (1, -1)]
    difference = np.sum(WEIGHT * (ends[0] - ends[1])) / (2 * step)
    np.testing.assert_allclose(np.sum(gradient * psi()), difference, rtol=1e-6)


def test_the_lensing_of_shared_shells_is_that_of_all_their_matter() -> None:
    """Weights are those of shares that are 1 together, also where the mass of the outer shells fades."""
    cosmo = problems.cosmology(Omega_k=0.05)
    cone = pmd.observe.FlatSkyLightCone(configure((1, 1), a_start=0.5), SHELLS, shell_assignment="linear")
    for z in (0.6, 0.05):
        weights = np.asarray(pmd.observe.lensing_weights(cone, cosmo, z))
        np.testing.assert_allclose(weights.sum(), expected_weights(cosmo, z, SHELLS).sum(), rtol=1e-8)
    np.testing.assert_allclose(cone.shells.volumes, [100 + 225, 225 + 250, 250 + 125], rtol=1e-12)


@pytest.mark.parametrize(("axis", "pdims"), [("x", (4, 1)), ("y", (2, 2))], ids=str)
def test_permuted_boxes_have_the_same_planes_along_other_axes(
    axis: str, pdims: tuple[int, int], single_device: tuple[Any, Any]
) -> None:
    planes, gradient = all_steps(pdims, axis)
    np.testing.assert_allclose(planes, single_device[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(gradient, single_device[1], rtol=0, atol=1e-11)


def test_a_simulation_fills_the_cone_and_its_gradient_is_that_of_differences() -> None:
    """The number in each shell is known from the particles at the times when light is at its edges."""
    config = configure((1, 1), a_start=0.6, steps=4)
    edges = (130.0, 155.0, 480.0)
    cone = pmd.observe.FlatSkyLightCone(config, edges, observer=OBSERVER, pixels=(4, 8))
    times = np.asarray(scale_factor_at(np.asarray(edges), TABLE))[::-1]
    move = jnp.asarray(psi())
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((2, 4, 8)))

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def run(strength: Any) -> Any:
        particles = epoch(0.6, move * strength).particles
        solution = pmd.nbody(particles, TABLE, config, accumulate=cone, saveat=times.tolist())
        return jnp.sum(weight * cone.overdensity(solution.accumulated)), solution

    (_, solution), gradient = run(1.0)
    solution.raise_if_failed()
    along = problems.lattice(MESH, BOX)[..., 2] + np.asarray(solution.snapshots.disp)[..., 2] - OBSERVER
    images = np.arange(-2, 12)[:, None, None, None] * BOX[2]
    far, middle, near = ((x + images < edge) for x, edge in zip(along, edges[::-1], strict=True))
    count = [np.sum(middle & ~near), np.sum(far & ~middle)]
    np.testing.assert_allclose(np.sum(solution.accumulated, (1, 2)), count, rtol=1e-13)
    step = 1e-6
    difference = (run(1 + step)[0][0] - run(1 - step)[0][0]) / (2 * step)
    np.testing.assert_allclose(gradient, difference, rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives_of_a_simulation_are_those_of_differences() -> None:
    """By the displacements and Omega_c, of the planes of shared shells that a whole run fills."""
    config = configure((2, 2), a_start=0.6, steps=4)
    cone = pmd.observe.FlatSkyLightCone(config, EDGES, observer=OBSERVER, shell_assignment="linear")

    def loss(x: Any) -> Any:
        table = pmd.growth_table(problems.cosmology(Omega_c=x[1]))
        move = psi() * x[0]
        particles = pmd.Particles(table.D1(0.6) * move, table.momentum(0.6) * move)
        planes = cone.overdensity(pmd.nbody(particles, table, config, accumulate=cone).accumulated)
        return jnp.sum(jnp.asarray(WEIGHT) * planes**2)

    x, direction, step = jnp.array([0.7, 0.25]), jnp.array([1.0, 0.3]), 1e-5
    both = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (direction,)))
    (_, change), (after, _), (before, _) = (both(x + shift * direction) for shift in (0, step, -step))
    np.testing.assert_allclose(change, (after - before) / (2 * step), rtol=1e-6)


def gradients_of_a_batch(pdims: tuple[int, int], vmap: Any) -> Any:
    """Gradients by displacements and scale factors, of a batch of two steps.

    Displacements grow faster than D1: by scale factors alone, what particles and light contribute would cancel.
    """
    config = configure(pdims, halo="auto")
    cone = pmd.observe.FlatSkyLightCone(config, EDGES, observer=OBSERVER, shell_assignment="linear")
    moves, ends = np.stack([psi(), 0.3 * psi()]), np.array([[0.88, 0.95], [0.95, 1.0]])

    def weighed(move: Any, a: Any) -> Any:
        return jnp.sum(WEIGHT**2 * cone(*(epoch(t, t * move) for t in a), TABLE) ** 2)

    return vmap(jax.jit(jax.grad(weighed, argnums=(0, 1))))(moves, ends)


@pytest.mark.slow
def test_batches_have_the_same_gradients_on_divided_particles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two halos, 1 and 4 cells wide, the second alone has all of the batch, whose parts would choose one each."""
    monkeypatch.setattr("pmwd_dist.pm.paint._AUTO_DISPLACEMENTS", (4.0, 16.0))
    one_by_one: Any = lambda f: lambda *args: jax.tree.map(lambda *x: np.stack(x), *map(f, *args))  # noqa: E731
    whole = gradients_of_a_batch((1, 1), one_by_one)
    for x, y in zip(gradients_of_a_batch((2, 2), jax.vmap), whole, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)  # sums of terms of hundreds cancel


def test_positions_that_are_not_finite_show() -> None:
    cone = pmd.observe.FlatSkyLightCone(configure((1, 1)), EDGES, observer=OBSERVER)
    move = jnp.asarray(psi()).at[0, 0, 0].set(jnp.nan)
    see = jax.jit(lambda move: cone(epoch(0.95, move), epoch(1.0, move), TABLE))
    assert np.isnan(np.asarray(see(move))).any()


def test_shells_that_the_simulation_does_not_reach_are_refused_or_not_a_number() -> None:
    config = configure((1, 1), a_start=0.9, a_stop=0.95, steps=1)
    cone = pmd.observe.FlatSkyLightCone(config, (100.0, 200.0, 250.0, 400.0), observer=OBSERVER)
    particles = jax.tree.map(lambda x: 0 * x.astype(jnp.float32), epoch(0.9, psi()).particles)
    with pytest.raises(
        ValueError, match=r"edges=\[100.0, .* 155.8.*[.][.]324.* Mpc/h .* use other shells, or an earlier"
    ):
        pmd.nbody(particles, TABLE, config, accumulate=cone)
    for name, value in {"box_size": (80.0, 80.0, 120.0), "a_start": 0.8}.items():
        other = replace(config, **{name: value})
        stray = pmd.observe.FlatSkyLightCone(other, (200.0, 250.0), observer=OBSERVER)
        with pytest.raises(ValueError, match=rf"accumulate.config.{name}=.* is not that of the simulation"):
            pmd.nbody(particles, TABLE, config, accumulate=stray)
    planes = jax.jit(lambda p, t: pmd.nbody(p, t, config, accumulate=cone).accumulated)(particles, TABLE)
    np.testing.assert_array_equal(np.isnan(planes).all((1, 2)), [True, False, True])
    shared = pmd.observe.FlatSkyLightCone(config, (100.0, 160.0, 200.0, 250.0, 300.0), shell_assignment="linear")
    np.testing.assert_array_equal(shared.shells.covered(TABLE, config), [False, False, True, True])  # from 155.8 on
    np.testing.assert_allclose(planes[1], 10, rtol=1e-5)  # lattice planes, 5 Mpc/h apart, from 203 to 248


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"observer": 61.0}, r"observer=61.0 must lie in the box of 60 Mpc/h; positions are periodic"),
        ({"edges": (5.0, 3.0)}, r"edges=\[5.0, 3.0\] must ascend"),
        ({"edges": 5.0}, "must be two or more finite numbers"),
        ({"edges": (0.0, 1e8)}, r"take \d+ repetitions of a box of 40 x 40 x 60 Mpc/h, more than .* use nearer shells"),
        ({"pixels": (4, 6)}, r"pixels\[1\]=6 is not divisible by 4"),
        ({"line_of_sight": (1, 1, 0)}, r"line_of_sight=\(1, 1, 0\) must be 'x', 'y' or 'z'"),
        ({"pixels": (4, 4, 4)}, "must be one number or two"),
        ({"pixels": 10**20}, "must be a whole number from 1 to 65536"),
    ],
)
def test_bad_light_cones_are_refused(options: dict[str, Any], error: str) -> None:
    config = configure((1, 4))
    with pytest.raises(ValueError, match=error):
        pmd.observe.FlatSkyLightCone(config, **({"edges": EDGES} | options))


# --- lensing -----------------------------------------------------------------------------------------------------

SHELLS = (0.0, 400.0, 900.0, 1400.0)


def expected_weights(cosmo: Any, z: float, shells: Sequence[float]) -> np.ndarray:
    """In a curved universe, by nested quadrature and bisection."""
    root = math.sqrt(cosmo.Omega_k) / HUBBLE_DISTANCE
    across = lambda x: math.sinh(root * x) / root  # noqa: E731
    a = np.linspace(0.4, 1, 4001)
    spline = CubicSpline(a, [1 / (x**2 * problems.expansion(cosmo, x)) for x in a]).antiderivative()
    chi = HUBBLE_DISTANCE * (spline(1.0) - spline(a))
    scale = CubicSpline(chi[::-1], a[::-1])
    source = HUBBLE_DISTANCE * float(spline(1.0) - spline(1 / (1 + z)))

    def kernel(x: float) -> float:
        return across(x) / scale(x) * across(source - x) / across(source)

    factor = 1.5 * (cosmo.Omega_c + cosmo.Omega_b) / HUBBLE_DISTANCE**2
    ends = np.minimum(shells, source)
    return factor * np.array([quad(kernel, *pair, epsrel=1e-9)[0] for pair in zip(ends[:-1], ends[1:], strict=True)])


@pytest.mark.parametrize(
    ("z", "shells"),
    [(0.6, SHELLS), (0.05, SHELLS), (0.3, (0.0, 2500.0)), (0.12, (100.0, 600.0, 900.0, 2000.0))],
    ids=["behind", "inside", "inside the only one", "inside a later one"],
)
def test_lensing_weights(z: float, shells: tuple[float, ...]) -> None:
    """Also of sources inside a shell, where the kernel ends with a kink."""
    cosmo = problems.cosmology(Omega_k=0.05)
    weights = pmd.observe.lensing_weights(shells, cosmo, z)
    np.testing.assert_allclose(weights, expected_weights(cosmo, z, shells), rtol=1e-8, atol=0)


def test_lensing_weights_of_a_distribution() -> None:
    """A mean over its sources, whose number is linear in z, and their slope with one of the redshifts, in a shell."""
    cosmo, numbers = problems.cosmology(Omega_k=0.05), [1.0, 3.0, 0.0]
    find = jax.jit(lambda z: pmd.observe.lensing_weights(SHELLS, cosmo, (z, jnp.asarray(numbers))))
    for near in (0.6, 0.05):
        z = jnp.asarray([near, 0.7, 0.9])
        points, share = np.polynomial.legendre.leggauss(12)
        exact = np.ravel([low + (high - low) * (1 + points) / 2 for low, high in itertools.pairwise(map(float, z))])
        exact_share = np.ravel([(high - low) * share for low, high in itertools.pairwise(map(float, z))])
        nodes = np.interp(np.arange(65) / 32, np.arange(3), z)
        trapezoidal = np.convolve(np.diff(nodes), [0.5, 0.5])
        for every, weight, tolerance in ((nodes, trapezoidal, 1e-8), (exact, exact_share, 5e-4)):
            part = weight * np.interp(every, z, numbers)
            mean = part @ [expected_weights(cosmo, x, SHELLS) for x in every] / part.sum()
            np.testing.assert_allclose(find(z), mean, rtol=tolerance, atol=0)
        direction = jnp.asarray([1.0, 0.0, 0.0])
        difference = (find(z + 1e-5 * direction) - find(z - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose(jax.jvp(find, (z,), (direction,))[1], difference, rtol=1e-5, atol=1e-12)


def test_alignment_is_the_density_where_the_sources_are() -> None:
    """By nested quadrature, and its slopes with A, eta and a shift of the redshifts, in shells that share masses."""
    cosmo = problems.cosmology(Omega_k=0.05)
    z, number = np.linspace(0.1, 0.5, 9), np.sin(np.linspace(0, math.pi, 9))
    a = np.linspace(0.6, 1, 4001)
    rate = [problems.expansion(cosmo, x) for x in a]
    spline = CubicSpline(a, 1 / (a**2 * rate)).antiderivative()
    chi = CubicSpline(a, HUBBLE_DISTANCE * (spline(1.0) - spline(a)))
    growth = CubicSpline(a, problems.growth(cosmo, a)["D1"])

    def kernel(x: float, eta: float) -> float:
        return np.interp(x, z, number) * ((1 + x) / 1.62) ** eta / growth(1 / (1 + x))

    ends = [float(1 / brentq(lambda a, edge=edge: chi(a) - edge, 0.61, 1)) - 1 for edge in SHELLS]
    each = [quad(kernel, *pair, (1.7,), limit=200, points=z)[0] for pair in zip(ends[:-1], ends[1:], strict=True)]
    expected = -0.8 * 0.0134 * (cosmo.Omega_c + cosmo.Omega_b) * np.array(each) / np.trapezoid(number, z)
    both = [pmd.observe.lensing_weights(SHELLS, cosmo, (z, number), alignment=x) for x in (None, (0.8, 1.7))]
    np.testing.assert_allclose(both[1] - both[0], expected, rtol=1e-6)

    cone = pmd.observe.FlatSkyLightCone(configure((1, 1), a_start=0.5), SHELLS, shell_assignment="linear")

    def weights(x: Any) -> Any:
        return pmd.observe.lensing_weights(cone, cosmo, [0.3, (z + x[2], number)][1:], alignment=(x[0], x[1]))

    at, step = jnp.array([0.8, 1.7, 0.01]), 1e-6
    slopes = jax.jacfwd(weights)(at)
    assert slopes.shape == (1, 3, 3)
    for i, row in enumerate(np.eye(3)):
        difference = (weights(at + step * row) - weights(at - step * row)) / (2 * step)
        np.testing.assert_allclose(slopes[..., i], difference, rtol=1e-6, atol=1e-12)
    # Slopes have no jumps where redshifts of n(z) pass from shell to shell.
    slope = jax.jit(lambda shift: jax.jacfwd(weights)(at.at[2].set(shift))[0, :, 2])
    along = np.array([slope(shift) for shift in np.linspace(-0.03, 0.03, 61)])
    assert np.abs(np.diff(along, 2, axis=0)).max() < 0.02 * np.ptp(along, axis=0).max()


@pytest.mark.parametrize("pdims", [pytest.param((1, 1), marks=pytest.mark.slow), (2, 2)], ids=["1x1", "2x2"])
def test_convergence_and_shear_of_plane_waves(pdims: tuple[int, int]) -> None:
    cosmo = problems.cosmology(Omega_k=0.05)
    config = configure(pdims)
    cone = pmd.observe.FlatSkyLightCone(config, SHELLS, pixels=128)
    k, amplitude, phase = 2 * math.pi * 2 / BOX[0], np.array([1.0, 2.0, 3.0]), 0.3
    x = np.arange(128) / 128 * BOX[0]
    offsets = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    overdensity = amplitude[:, None, None] * np.cos(k * (x[:, None] + x[None, :]) + phase)[None]
    mean = math.prod(MESH) / 128**2 / BOX[2] * np.diff(SHELLS)
    mass = jax.device_put((1 + overdensity) * mean[:, None, None], config.decomposition.spectrum_sharding)
    bins = [0.3, ([0.599, 0.6, 0.601], [0.0, 1.0, 0.0])]
    see: Any = partial(partial, cosmo=cosmo, cone=cone, source=bins, field=5.0, pixels=16, offsets=offsets)
    near, kappa = jax.jit(see(pmd.observe.convergence))(mass)
    gamma = jax.jit(see(pmd.observe.shear))(mass)
    assert gamma.shape == (2, 2, 16, 16)
    gamma = gamma[1]

    angle = ((np.arange(16) + 0.5) / 16 - 0.5) * math.radians(5)
    root = math.sqrt(cosmo.Omega_k) / HUBBLE_DISTANCE
    expected = np.zeros((16, 16))
    for weight, height, r, (dx, dy) in zip(
        expected_weights(cosmo, 0.6, SHELLS), amplitude, cone.distances, offsets, strict=True
    ):
        along = math.sinh(root * r) / root * (angle[:, None] + angle[None, :]) + dx + dy
        expected += weight * height * np.cos(k * along + phase)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(kappa, expected, rtol=0, atol=2.5e-3 * largest)  # of linear interpolation
    alone = jax.jit(see(pmd.observe.convergence, source=0.3))(mass)
    np.testing.assert_allclose(near, alone, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(gamma[1], kappa, rtol=0, atol=1e-12 * largest)  # of waves along the diagonal
    np.testing.assert_allclose(gamma[0], 0, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize(
    ("function", "edges", "source"),
    [
        (pmd.observe.convergence, (0.0, 400.0, 900.0), jnp.asarray(0.6)),
        (pmd.observe.shear, (400.0, 900.0, 1600.0), ([0.599, 0.6, 0.601], [0.0, 1.0, 0.0])),
    ],
    ids=["short", "late"],
)
def test_shells_that_leave_out_matter_are_a_warning(function: Any, edges: tuple[float, ...], source: Any) -> None:
    """The part that is left out is the one of nested quadrature; also inside jit, where the table is known."""
    cosmo = problems.cosmology(Omega_k=0.05)
    inside, whole = (expected_weights(cosmo, 0.6, x).sum() for x in (edges, (0.0, 2000.0)))
    cone = pmd.observe.FlatSkyLightCone(configure((1, 1), a_start=0.4), edges, pixels=8)
    table, mass = pmd.growth_table(cosmo), jnp.ones((2, 8, 8))
    see = partial(function, cosmo=table, cone=cone, source=source, field=5.0, pixels=8)
    with pytest.warns(UserWarning, match=f"{edges[0]:g} to {edges[-1]:g} Mpc/h leave out {1 - inside / whole:.0%}"):
        jax.jit(see)(mass)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"source": 0.01}, r"source=0.01 at 29.\d+ Mpc/h is nearer than the nearest shell, from 130 Mpc/h on; use far"),
        ({"source": -0.5}, "must be redshifts from 0 to 1000"),
        ({"source": np.inf}, "must be redshifts from 0 to 1000"),
        ({"source": ([0.5, 0.2, 0.4], [1.0, 1.0, 1.0])}, r"source=\[0.5, 0.2, 0.4\] must ascend"),
        ({"source": ([0.2, 0.5], [0.0, 0.0])}, "source has numbers per redshift that are not finite, negative, or all"),
        ({"source": ([0.2, 0.5], [-1.0, 2.0])}, "source has numbers per redshift that are not finite, negative"),
        ({"source": ([0.2, 0.5], [1.0, np.nan])}, "source has numbers per redshift that are not finite, negative"),
        ({"source": [[0.2, 0.5], [1.0, 1.0]]}, "pass \\(z, n\\) for a distribution"),
        ({"source": ([0.1], [1.0], [2.0])}, "must be one redshift"),
        ({"source": ([0.5], [1.0])}, "must be redshifts and as many numbers"),
        ({"source": []}, "source=\\[\\] must hold the sources of each bin"),
        ({"source": [0.5, -1.0]}, "must be redshifts from 0 to 1000"),
        ({"alignment": (1.0, 0.0)}, "alignment needs sources with a distribution; pass \\(z, n\\)"),
        ({"source": ([0.2, 0.5], [1, 1]), "alignment": 1.0}, "alignment=1.0 must be an amplitude and a power"),
        ({"source": ([0.2, 0.5], [1, 1]), "alignment": (np.nan, 0)}, r"alignment\[0\]=nan must be a finite number"),
        ({"source": ([0.2, 0.5], [1, 1]), "alignment": (1, 1e3)}, r"alignment\[1\]=1000.0 must be .* from -20 to 20"),
        ({"offsets": np.full((1, 2), np.nan)}, "offsets holds 2 values that are not finite"),
        ({"field": 100.0}, "field=100.0 must be a finite number from 0.001 to 90 degrees; the sky is flat"),
        ({"field": 1e-320}, "field=1e-320 must be a finite number from 0.001 to 90 degrees"),
        ({"pixels": 6}, r"pixels\[1\]=6 is not divisible by 4"),
        ({"mass": np.zeros((3, 4, 4))}, r"mass.shape=\(3, 4, 4\) must be \(1, 8, 8\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_of_lensing_are_refused(options: dict[str, Any], error: str) -> None:
    cone = pmd.observe.FlatSkyLightCone(configure((1, 4)), (130.0, 200.0))
    arguments: dict[str, Any] = {"mass": np.ones((1, 8, 8)), "source": 0.5, "field": 5.0, "pixels": 8} | options
    with pytest.raises(ValueError, match=error):
        pmd.observe.convergence(arguments.pop("mass"), TABLE, cone, **arguments)


def test_shells_beyond_the_largest_redshift_are_refused() -> None:
    with pytest.raises(ValueError, match=r"edges reach to 100000 Mpc/h, and a redshift of 1000 is at \d+.\d Mpc/h"):
        pmd.observe.lensing_weights([0.0, 1e5], TABLE, 0.5)
