"""Time integrators: coefficients, exact solutions, exact reversal and their place in diffrax."""

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

import pmwd_dist as pmd
from pmwd_dist.pm.nbody import advance, start, step_times
from pmwd_dist.pm.particles import quantize_for_advance

SOLVERS = {"BullFrog": pmd.BullFrog(), "FastPM": pmd.FastPM(), "LeapFrog": pmd.LeapFrog()}
COSMO = problems.cosmology(Omega_k=0.05, w0=-0.9, wa=0.2)


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> Any:
    return SOLVERS[request.param]


def initial(config: pmd.Config, cosmo: Any = COSMO) -> pmd.Particles:
    noise = pmd.white_noise(jax.random.key(5), config)
    return pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)


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
        steps=64 if solver is SOLVERS["LeapFrog"] else 10,
    )
    delta, psi = problems.plane_wave(lattice, box, 1.1)
    particles = pmd.lpt(pmd.prfft3d(delta, decomposition), COSMO, config)
    solution = pmd.nbody(particles, COSMO, config, solver=solver).raise_if_failed()
    momentum = pmd.growth_table(COSMO).momentum(1.0)
    # The mesh smooths the forming caustic: 0.014 cells of 9 at the worst place. (With one particle a cell it is 0.25.)
    np.testing.assert_allclose(solution.particles.disp, psi, rtol=0, atol=0.002 * np.abs(psi).max())
    assert np.linalg.norm(solution.particles.vel / momentum - psi) < 0.006 * np.linalg.norm(psi)


def test_solvers_converge_at_second_order(solver: Any, single: pmd.Decomposition) -> None:
    """Twice the steps, a quarter of the error; the force is continuous but kinked, hence the margin."""
    config = pmd.Config(box_size=64.0, mesh_shape=8, decomposition=single, a_start=0.2, a_stop=0.6)
    particles, table = initial(config), pmd.growth_table(COSMO)

    @jax.jit
    def run(times: jax.Array) -> jax.Array:
        def step(carry: Any, ends: Any) -> Any:
            return advance(*carry, table, ends[0], ends[1], config, solver), None

        carry = particles, start(particles, table, config, solver)
        return jax.lax.scan(step, carry, jnp.stack([times[:-1], times[1:]], -1))[0][0].disp

    results = {}
    for steps in (4, 8, 128):
        results[steps] = run(np.linspace(0.2, 0.6, steps + 1))
    errors = [np.linalg.norm(results[n] - results[128]) for n in (4, 8)]
    assert 3 < errors[0] / errors[1] < 5.5


# --- reversal ----------------------------------------------------------------------------------------------------


def bits(particles: pmd.Particles) -> np.ndarray:
    """Every bit, but for the sign of a zero."""
    return np.stack([(np.asarray(x) + np.float32(0)).view(np.uint32) for x in (particles.disp, particles.vel)])


def test_a_hundred_steps_back_restore_every_bit() -> None:
    """By the solver that rescales momenta; all of them below, and in test_adjoint.py."""
    solver = pmd.BullFrog()
    with jax.enable_x64(False):
        decomposition = pmd.Decomposition(pdims=(2, 2))
        config = pmd.Config(box_size=16.0, mesh_shape=8, decomposition=decomposition, steps=100, halo=8)
        particles, table = quantize_for_advance(initial(config), config), pmd.growth_table(COSMO)
        times = np.asarray(step_times(COSMO, config))
        state = start(particles, table, config, solver)
        before = bits(particles)
        for a0, a1 in zip(times[:-1], times[1:], strict=True):
            particles, state = advance(particles, state, table, a0, a1, config, solver)
        state.status.raise_if_failed()
        after = bits(particles)
        for a1, a0 in zip(times[:0:-1], times[-2::-1], strict=True):
            particles, state = advance(particles, state, table, a1, a0, config, solver)
        assert (after != before).mean() > 0.9
        np.testing.assert_array_equal(bits(particles), before)
        assert state.log_scale == 0
        assert particles.disp.dtype == np.float32


def test_a_few_huge_steps_can_be_undone_too(single: pmd.Decomposition) -> None:
    """Over a large growth BullFrog's momentum factor would be negative: it is bounded."""
    with jax.enable_x64(False):
        config = pmd.Config(box_size=64.0, mesh_shape=8, decomposition=single)
        particles = quantize_for_advance(initial(config), config)
        table, solver = pmd.growth_table(COSMO), pmd.BullFrog()
        state, before = start(particles, table, config, solver), bits(particles)
        # The bound is a factor of three in growth.
        for a0, a1 in ((0.1, 0.4), (0.4, 1.0), (1.0, 0.4), (0.4, 0.1)):
            particles, state = advance(particles, state, table, a0, a1, config, solver)
        np.testing.assert_array_equal(bits(particles), before)


# --- diffrax -----------------------------------------------------------------------------------------------------


def test_diffeqsolve_takes_the_solvers_both_ways(solver: Any, single: pmd.Decomposition) -> None:
    with jax.enable_x64(False):
        config = pmd.Config(box_size=32.0, mesh_shape=8, decomposition=single, steps=4)
        particles, table = quantize_for_advance(initial(config), config), pmd.growth_table(COSMO)
        times = step_times(COSMO, config)

        # Forwards and backwards by the same compiled program: another one may round its coefficients otherwise.
        @jax.jit
        def run(particles: pmd.Particles, table: Any, times: jax.Array, state: Any) -> Any:
            solution = diffrax.diffeqsolve(
                pmd.ParticleMesh(config),
                solver,
                times[0],
                times[-1],
                None,
                particles,
                args=table,
                stepsize_controller=diffrax.StepTo(times),
                solver_state=state,
                max_steps=4,
                throw=False,
                saveat=diffrax.SaveAt(t1=True, solver_state=True),
            )
            return jax.tree.map(lambda x: x[0], solution.ys), solution.solver_state, solution.result._value

        end, state, _ = run(particles, table, times, start(particles, table, config, solver))
        back, state, result = run(end, table, times[::-1], state)
        assert result == diffrax.RESULTS.successful._value
        assert state.status.step == 8
        np.testing.assert_array_equal(bits(back), bits(particles))
        assert np.abs(np.asarray(end.disp) - np.asarray(particles.disp)).max() > 0.1


def test_an_adaptive_solver_agrees_with_many_leapfrog_steps(single: pmd.Decomposition) -> None:
    config = pmd.Config(box_size=64.0, mesh_shape=8, decomposition=single, steps=200, a_start=0.2, a_stop=0.6)
    particles = initial(config)
    many = pmd.nbody(particles, COSMO, config, solver=pmd.LeapFrog()).raise_if_failed().particles
    adaptive = diffrax.diffeqsolve(
        pmd.ParticleMesh(config),
        diffrax.Tsit5(),
        0.2,
        0.6,
        None,
        particles,
        args=pmd.growth_table(COSMO),
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
    )
    moved = np.abs(np.asarray(many.disp) - np.asarray(particles.disp)).max()
    # LeapFrog's error over 200 steps, in a force with kinks: 6e-5 and 1.3e-4 measured.
    np.testing.assert_allclose(adaptive.ys.disp[0], many.disp, rtol=0, atol=1e-4 * moved)
    np.testing.assert_allclose(adaptive.ys.vel[0], many.vel, rtol=0, atol=3e-4 * np.abs(many.vel).max())
