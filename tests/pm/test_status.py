"""Failures that depend on the data are carried along, and are raised on the host with a remedy."""

from __future__ import annotations

import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from simulations import COSMO, configure, initial

import pmwd_dist as pmd
from pmwd_dist.pm.particles import exact
from pmwd_dist.pm.status import UNLIMITED, Code, Status, successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.step import all_steps, coefficients_of
from pmwd_dist.pm.time_steps import step_times

FAILED = "the simulation failed"
pytestmark = pytest.mark.filterwarnings(f"ignore:{FAILED}")


def small(layout: Any = (1, 1), **changes: Any) -> pmd.Config:
    return configure(layout, **({"box_size": 8.0, "steps": 6, "halo": 1} | changes))


def wave(config: pmd.Config) -> pmd.Particles:
    """A plane wave that displaces by 1.3 cells at a = 1, and by more than one at a = 0.7."""
    delta, _ = problems.plane_wave((8, 8, 8), config.box_size, 0.98)
    return pmd.lpt(pmd.prfft3d(delta, config.decomposition), COSMO, config)


@pytest.fixture(scope="module")
def failed() -> tuple[pmd.Config, pmd.Solution]:
    config = small((4, 1))
    return config, pmd.nbody(wave(config), COSMO, config)


def test_a_failure_outside_jit_is_warned_of() -> None:
    config = small((4, 1))
    start = wave(config)
    with pytest.warns(UserWarning, match=f"{FAILED} before a = 1: a displacement of 1"):
        pmd.nbody(start, COSMO, config)
    with pytest.warns(UserWarning, match=FAILED):
        pmd.nbody(start, COSMO, config, solver=diffrax.Tsit5())
    with warnings.catch_warnings(action="error"):
        jax.jit(lambda start: pmd.nbody(start, COSMO, config).status)(start)


def test_a_displacement_beyond_the_halo_is_reported(failed: tuple[pmd.Config, pmd.Solution]) -> None:
    _, solution = failed
    status = solution.status
    assert status.code == Code.BEYOND_HALO
    assert 0 < status.step < 6
    assert 1 < status.max_displacement < 1.5
    assert status.halo == 1
    message = (
        rf"a displacement of {float(status.max_displacement):.2f} cells exceeds the halo of 1 cells "
        rf'in step {int(status.step) + 1}; set halo to 2 or more \("auto" reaches'
    )
    with pytest.raises(pmd.SimulationError, match=message):
        solution.raise_if_failed()


def test_after_a_failure_particles_and_gradient_are_those_of_the_last_good_step(
    failed: tuple[pmd.Config, pmd.Solution],
) -> None:
    """The end of a run that stops before the step that fails."""
    config, solution = failed
    times = step_times(COSMO, config)[: int(solution.status.step) + 1]
    shorter, table = small(config.decomposition, a_stop=float(times[-1])), pmd.growth_table(COSMO)

    def run(start: pmd.Particles, config: pmd.Config, controller: Any = None) -> Any:
        end = pmd.nbody(start, table, config, stepsize_controller=controller).particles
        return jnp.sum(end.disp**2), end

    gradient, start = jax.jit(jax.value_and_grad(run, has_aux=True), static_argnums=1), wave(config)
    ours, expected = gradient(start, config), gradient(start, shorter, diffrax.StepTo(times))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * np.abs(y).max())
    np.testing.assert_allclose(solution.particles.disp, expected[0][1].disp, rtol=0, atol=1e-12)


def test_a_step_from_the_host_that_fails_leaves_the_particles(failed: tuple[pmd.Config, pmd.Solution]) -> None:
    """To the bit, and further steps change nothing; the first failure stays."""
    config, solution = failed
    schedule = host.make_schedule(
        pmd.growth_table(COSMO), step_times(COSMO, config), config, pmd.BullFrog().coefficients
    )
    moved = host.half_drift(exact(wave(config), config), successful(), schedule, 0, config)
    for done in range(6):
        if moved.status.code == Code.SUCCESSFUL:
            moved = host.advance(moved, schedule, done, config)
    assert (moved.status.code, moved.status.step) == (Code.BEYOND_HALO, solution.status.step)
    status, drift = jax.device_get((moved.status, moved.drift))
    again = host.advance(moved, schedule, 5, config)
    assert drift == again.drift == 0
    assert (again.status.code, again.status.step) == (status.code, status.step)
    particles = host.with_units(host.undo_half_drift(again, config), schedule, int(status.step))
    np.testing.assert_array_equal(particles.disp, solution.particles.disp)
    np.testing.assert_array_equal(particles.vel, solution.particles.vel)


def test_a_step_of_diffrax_that_fails_is_reported(failed: tuple[pmd.Config, pmd.Solution]) -> None:
    config, expected = failed
    solution = pmd.nbody(wave(config), COSMO, config, adjoint=diffrax.RecursiveCheckpointAdjoint())
    assert (solution.status.code, solution.status.step) == (Code.BEYOND_HALO, expected.status.step)
    np.testing.assert_allclose(solution.particles.disp, expected.particles.disp, rtol=0, atol=1e-11)


def test_auto_is_right_where_a_small_halo_fails() -> None:
    runs = [small((2, 2), halo="auto"), small()]
    auto, alone = (pmd.nbody(wave(config), COSMO, config).raise_if_failed() for config in runs)
    np.testing.assert_allclose(auto.particles.disp, alone.particles.disp, rtol=0, atol=1e-11)
    assert auto.status.max_displacement > 1
    assert alone.status.halo == UNLIMITED
    np.testing.assert_allclose(auto.status.max_displacement, alone.status.max_displacement, rtol=1e-11)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("field", ["disp", "vel"])
def test_what_is_not_finite_is_reported(failed: tuple[pmd.Config, pmd.Solution], bad: float, field: str) -> None:
    config, _ = failed  # the same compiled program
    arrays = {name: np.zeros((8, 8, 8, 3)) for name in ("disp", "vel")}
    arrays[field][1, 2, 3, 1] = bad
    solution = pmd.nbody(pmd.Particles(**jax.tree.map(jnp.asarray, arrays)), COSMO, config)
    assert solution.status.code == (Code.NOT_FINITE)
    assert solution.status.step == 0
    with pytest.raises(pmd.SimulationError, match="not finite in step 1; check the initial conditions"):
        solution.raise_if_failed()


def test_beyond_the_exact_grid_is_reported() -> None:
    config = small(steps=1)
    disp = jnp.full((8, 8, 8, 3), 200.0)
    solution = pmd.nbody(pmd.Particles(disp, 0 * disp), COSMO, config)
    assert solution.status.code == Code.BEYOND_GRID
    with pytest.raises(pmd.SimulationError, match="of 200.0 cells exceeds the range of the particle grid"):
        solution.raise_if_failed()
    # By the last drift alone, after which no force is taken.
    still = jnp.zeros_like(disp)
    speed = 64.2 / float(pmd.nbody(pmd.Particles(still, still + 1), COSMO, config).particles.disp[0, 0, 0, 0])
    solution = pmd.nbody(pmd.Particles(still, still + speed), COSMO, config)
    assert solution.status.code == Code.BEYOND_GRID
    assert solution.status.step == 1
    assert float(solution.status.max_displacement) == pytest.approx(64.2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_momenta_beyond_their_range_are_reported(dtype: Any) -> None:
    config = small(steps=1, a_start=0.98)
    particles = jax.tree.map(lambda x: x.astype(dtype), wave(config))
    for speed, code in ((2000.0, Code.SUCCESSFUL), (2047.99, Code.TOO_FAST), (-2047.99, Code.TOO_FAST)):
        moving = jnp.full_like(particles.vel, speed)  # 2048 at most; kicks are what takes momenta further
        solution = pmd.nbody(pmd.Particles(particles.disp, moving), COSMO, config)
        assert solution.status.code == code
    with pytest.raises(pmd.SimulationError, match="a momentum exceeds its range, 120 Mpc/h or more"):
        solution.raise_if_failed()


def test_saves_leave_momenta_their_range() -> None:
    """Corrected forces reach 56 Mpc/h at 2 Mpc/h; saves lengthen the first step, which shrinks the unit."""
    config, table = small(a_start=0.02, steps=20), pmd.growth_table(COSMO)
    for save in ((), (0.5,), (0.25, 0.5, 0.75)):
        coefficients = coefficients_of(pmd.BullFrog.coefficients, table, step_times(table, config, save=save), config)
        assert 2**62 * float(all_steps(coefficients, config).unit1.min()) > 200


def test_the_step_limit_of_an_adaptive_solver_is_reported() -> None:
    config = small(box_size=64.0)
    controller = diffrax.PIDController(rtol=1e-6, atol=1e-6)
    solution = pmd.nbody(
        initial(config), COSMO, config, solver=diffrax.Tsit5(), stepsize_controller=controller, max_steps=5
    )
    assert solution.status.code == Code.STEP_LIMIT
    assert solution.status.step <= 5
    with pytest.raises(pmd.SimulationError, match="reached its limit of steps .*raise max_steps or loosen"):
        solution.raise_if_failed()


def test_every_code_has_a_message_and_fine_has_none() -> None:
    status = successful()
    assert status.message() == ""
    status.raise_if_failed()
    for code in Code:
        changed = Status(jnp.asarray(int(code)), status.step, status.max_displacement, jnp.asarray(3.0))
        assert ("step 1" in changed.message()) == (code != Code.SUCCESSFUL)


def test_solutions_print_their_outcome(failed: tuple[pmd.Config, pmd.Solution]) -> None:
    config, solution = failed
    assert str(solution) == repr(solution) == f"Solution of 512 particles: {solution.status.message()}"
    good = pmd.nbody(wave(config), COSMO, small(config.decomposition, halo=2), saveat=[0.5, 0.75])
    cells = f"{float(good.status.max_displacement):.2f}"
    assert str(good) == (
        f"Solution of 512 particles: ok, 7 steps, largest displacement {cells} cells; snapshots at a = 0.5, 0.75"
    )


def test_traced_and_batched_solutions_print_their_shapes() -> None:
    status = successful(float)
    shapes = jax.eval_shape(lambda: successful(float))
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), status)
    assert str(shapes).startswith("Status(")
    assert str(batch).startswith("Status(")
    jax.jit(lambda x: (str(x).startswith("Status("), x)[1])(status)
