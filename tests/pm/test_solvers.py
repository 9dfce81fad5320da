"""Time integrators: coefficients, exact solutions and their place in diffrax."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy.integrate import quad
from simulations import configure, initial

import pmwd_dist as pmd
from pmwd_dist.pm.solvers import INTEGRATORS, diffrax_solvers
from pmwd_dist.pm.time_steps import step_times

SOLVERS = {solver.__name__: solver() for solver in diffrax_solvers.SOLVERS.values()}
COSMO = problems.cosmology(Omega_k=0.05, w0=-0.9, wa=0.2)


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> Any:
    return SOLVERS[request.param]


# --- coefficients ------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def coefficients(solver: Any, table: Any, lower: Any, upper: Any) -> Any:
    return solver.coefficients(table, jnp.asarray(lower), jnp.asarray(upper))


@pytest.mark.parametrize("ends", [(0.1, 0.15), (0.5, 0.6), (0.95, 1.0)])
def test_bullfrog_step_follows_second_order_perturbation_theory(ends: tuple[float, float]) -> None:
    """x = q + D1 psi1 + D2 psi2 feels D1 psi1 + (x2 - D1^2) psi2, x2 the coefficient of psi2: so must end the step."""
    table = pmd.growth_table(COSMO)
    lower, upper = map(jnp.asarray, ends)
    c = coefficients(pmd.BullFrog(), table, lower, upper)

    @jax.jit
    def growth(a: Any) -> Any:
        return table.E(a), (table.D1(a), table.D2(a)), (table.dD1(a), table.dD2(a))

    def exact(a: Any) -> tuple[np.ndarray, np.ndarray]:
        E, D, dD = map(np.asarray, growth(a))
        return D, np.asarray(a) ** 2 * E * dD

    (x, p), (_, p1) = exact(lower), exact(upper)
    x = x + np.asarray(c.drift_before) * p
    acceleration = np.array([x[0], x[1] - x[0] ** 2])
    p = 2 ** np.asarray(c.log_scale) * p + np.asarray(c.kick) * acceleration
    np.testing.assert_allclose(p, p1, rtol=1e-12)
    x = x + np.asarray(c.drift_after) * p
    np.testing.assert_allclose(x[0], table.D1(upper), rtol=1e-14)


def test_fastpm_step_follows_zeldovich_motion() -> None:
    table = pmd.growth_table(COSMO)
    lower, upper = jnp.asarray(0.3), jnp.asarray(0.4)
    c = coefficients(pmd.FastPM(), table, lower, upper)
    x, p = table.D1(lower), table.momentum(lower)
    x = x + c.drift_before * p
    p = p + c.kick * x
    np.testing.assert_allclose(p, table.momentum(upper), rtol=1e-14)
    np.testing.assert_allclose(x + c.drift_after * p, table.D1(upper), rtol=1e-14)
    assert c.log_scale == 0


def test_leapfrog_coefficients_are_the_integrals() -> None:
    table = pmd.growth_table(COSMO)
    c = coefficients(pmd.LeapFrog(), table, 0.3, 0.5)
    E = lambda a: problems.expansion(COSMO, a)  # noqa: E731
    matter = COSMO.Omega_c + COSMO.Omega_b
    middle = float(table.scale_factor((table.D1(0.3) + table.D1(0.5)) / 2))
    np.testing.assert_allclose(c.drift_before, quad(lambda a: 1 / (a**3 * E(a)), 0.3, middle)[0], rtol=1e-12)
    np.testing.assert_allclose(c.drift_after, quad(lambda a: 1 / (a**3 * E(a)), middle, 0.5)[0], rtol=1e-12)
    np.testing.assert_allclose(c.kick, quad(lambda a: 1.5 * matter / (a**2 * E(a)), 0.3, 0.5)[0], rtol=1e-12)
    assert c.log_scale == 0


# --- exact solutions ---------------------------------------------------------------------------------------------


def test_a_plane_wave_follows_zeldovich_until_near_shell_crossing(solver: Any) -> None:
    """The exact solution in one dimension, at D1 = 1 of sheets that cross at 1.1; over two slabs."""
    mesh, lattice = (64, 4, 4), (256, 4, 4)
    box = tuple(2.0 * n for n in mesh)
    decomposition = pmd.Decomposition(pdims=(2, 1))
    config = pmd.Config(
        box_size=box,
        mesh_shape=mesh,
        particle_shape=lattice,
        decomposition=decomposition,
        halo=12,
        steps=10 if INTEGRATORS[type(solver).__name__.lower()].exact_growth else 64,
    )
    delta, psi = problems.plane_wave(lattice, box, 1.1)
    particles = pmd.lpt(pmd.prfft3d(delta, decomposition), COSMO, config)
    solution = pmd.nbody(particles, COSMO, config, solver=solver).raise_if_failed()
    momentum = pmd.growth_table(COSMO).momentum(1.0)
    # The mesh smooths the forming caustic: 0.014 cells of 9 at the worst place. (With one particle a cell it is 0.25.)
    np.testing.assert_allclose(solution.particles.disp, psi, rtol=0, atol=0.002 * np.abs(psi).max())
    assert np.linalg.norm(solution.particles.vel / momentum - psi) < 0.006 * np.linalg.norm(psi)


@pytest.mark.slow
def test_solvers_converge_at_second_order(solver: Any) -> None:
    """Twice the steps, a quarter of the error; the force is continuous but kinked, hence the margin."""
    config = configure(box_size=64.0, a_start=0.2, a_stop=0.6)
    particles, table = initial(config, COSMO), pmd.growth_table(COSMO)

    results = {}
    for steps in (4, 8, 128):
        controller = diffrax.StepTo(jnp.linspace(0.2, 0.6, steps + 1))
        solution = pmd.nbody(particles, table, config, solver=solver, stepsize_controller=controller)
        results[steps] = np.asarray(solution.raise_if_failed().particles.disp)
    errors = [np.linalg.norm(results[n] - results[128]) for n in (4, 8)]
    assert 3 < errors[0] / errors[1] < 5.5


class Weaker(pmd.FastPM):
    """FastPM with kicks that are weaker by a factor."""

    factor: Any

    def coefficients(self, table: Any, lower: Any, upper: Any) -> Any:
        c = super().coefficients(table, lower, upper)
        return c._replace(kick=self.factor * c.kick)


def test_a_solver_may_hold_parameters_by_which_runs_are_differentiated() -> None:
    config = configure(box_size=64.0, steps=2)
    particles, table = initial(config, COSMO), pmd.growth_table(COSMO)

    def end(factor: Any) -> Any:
        return pmd.nbody(particles, table, config, solver=Weaker(factor)).particles.disp

    x = jnp.asarray(0.9)
    _, slope = jax.jvp(end, (x,), (jnp.ones(()),))
    h = 1e-6
    difference = (end(x + h) - end(x - h)) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=0, atol=1e-4 * np.abs(difference).max())


# --- diffrax -----------------------------------------------------------------------------------------------------


def test_diffeqsolve_takes_the_solvers_both_ways(solver: Any) -> None:
    """In floating-point numbers: with the end of `nbody`, and back to the start, to rounding."""
    config = configure()
    particles, table = initial(config, COSMO), pmd.growth_table(COSMO)
    times, factor = step_times(COSMO, config), lambda k, a: 1 + a * k

    @jax.jit
    def run(particles: pmd.Particles, times: jax.Array) -> Any:
        solution = diffrax.diffeqsolve(
            pmd.ParticleMesh(config, potential_factor=factor),
            solver,
            times[0],
            times[-1],
            None,
            particles,
            args=table,
            stepsize_controller=diffrax.StepTo(times),
            max_steps=4,
            throw=False,
            saveat=diffrax.SaveAt(t1=True, solver_state=True),
        )
        return jax.tree.map(lambda x: x[0], solution.ys), solution.solver_state, solution.result._value

    end, status, _ = run(particles, times)
    back, status_back, result = run(end, times[::-1])
    assert result == diffrax.RESULTS.successful._value
    assert status.step == status_back.step == 4
    expected = pmd.nbody(particles, table, config, solver=solver, potential_factor=factor).particles
    for got, wanted in ((end, expected), (back, particles)):
        np.testing.assert_allclose(got.disp, wanted.disp, rtol=0, atol=1e-11)
        np.testing.assert_allclose(got.vel, wanted.vel, rtol=0, atol=1e-11)
    assert np.abs(np.asarray(end.disp) - np.asarray(particles.disp)).max() > 0.1


@pytest.mark.slow
def test_an_adaptive_solver_agrees_with_many_leapfrog_steps() -> None:
    config = configure(box_size=64.0, steps=200, a_start=0.2, a_stop=0.6)
    particles = initial(config, COSMO)
    many = pmd.nbody(particles, COSMO, config, solver=pmd.LeapFrog()).raise_if_failed().particles
    adaptive = diffrax.diffeqsolve(
        pmd.ParticleMesh(config),
        diffrax.Tsit5(),
        0.2,
        0.6,
        None,
        particles,
        args=pmd.growth_table(COSMO),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
    )
    moved = np.abs(np.asarray(many.disp) - np.asarray(particles.disp)).max()
    # LeapFrog's error over 200 steps, in a force with kinks: 6e-6 and 9e-6 measured.
    np.testing.assert_allclose(adaptive.ys.disp[0], many.disp, rtol=0, atol=2e-5 * moved)
    np.testing.assert_allclose(adaptive.ys.vel[0], many.vel, rtol=0, atol=5e-5 * np.abs(many.vel).max())
