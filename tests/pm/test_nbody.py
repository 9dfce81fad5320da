"""The simulation as a whole: step times, snapshots, and the host's loop against the one function."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm.particles import exact
from pmwd_dist.pm.saves import as_saveat, planned_steps
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.time_steps import step_times


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    return pmd.Config(
        **({"box_size": 32.0, "mesh_shape": 8, "decomposition": decomposition, "steps": 6, "halo": 4} | changes)
    )


def initial(config: pmd.Config, cosmo: Any) -> pmd.Particles:
    noise = pmd.white_noise(jax.random.key(2), config)
    return pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)


# --- step times --------------------------------------------------------------------------------------------------


def test_steps_are_uniform_in_growth(single: pmd.Decomposition, cosmo: Any) -> None:
    times = np.asarray(step_times(cosmo, configure(single)))
    assert times.shape == (7,)
    assert (times[0], times[-1]) == (0.1, 1.0)
    growth = np.diff(pmd.growth(times, cosmo))
    np.testing.assert_allclose(growth, growth[0], rtol=1e-10)


def test_save_times_are_step_times_exactly(single: pmd.Decomposition, cosmo: Any) -> None:
    saves = (0.123456789, 1 / 3, 0.5, 1.0)
    times = np.asarray(step_times(cosmo, configure(single, steps=12), save=saves))
    assert set(saves) <= set(times.tolist())
    assert len(times) == 13
    assert (np.diff(times) > 0).all()
    inner = times[(times >= 0.5)]
    growth = np.diff(pmd.growth(inner, cosmo))
    np.testing.assert_allclose(growth, growth[0], rtol=1e-9)  # uniform within a segment
    assert np.diff(times).max() < 2 * (0.9 / 12)  # and shared out evenly between them
    assert len(step_times(cosmo, configure(single, steps=1), save=saves)) == 5  # one a segment at least


def test_the_number_of_steps_does_not_depend_on_the_cosmology(single: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(single)

    @jax.jit
    def times(omega: Any) -> Any:
        import jax_cosmo

        return step_times(jax_cosmo.Planck15(Omega_c=omega), config, save=(0.4,))

    low, high = times(0.1), times(0.5)
    assert low.shape == high.shape
    assert (low != high).any()


# --- snapshots ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_end_of_a_run_that_stops_there(single: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(single)
    particles, table = initial(config, cosmo), pmd.growth_table(cosmo)
    solution = pmd.nbody(particles, table, config, saveat=diffrax.SaveAt(ts=[0.3, 1.0])).raise_if_failed()
    np.testing.assert_allclose(solution.times, (0.3, 1.0), rtol=1e-7)
    times = np.asarray(step_times(table, config, save=(0.3, 1.0)))
    times = times[: times.tolist().index(0.3) + 1]
    controller = diffrax.StepTo(times)
    alone = pmd.nbody(
        particles, table, configure(single, a_stop=0.3), stepsize_controller=controller, max_steps=len(times)
    )
    alone.raise_if_failed()
    # Another program: rounding may differ, by a few steps of the grid (2e-14 Mpc/h).
    np.testing.assert_allclose(solution.snapshots.disp[0], alone.particles.disp, rtol=0, atol=1e-11)
    np.testing.assert_allclose(solution.snapshots.vel[0], alone.particles.vel, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(solution.snapshots.disp[1], solution.particles.disp)
    assert not np.array_equal(solution.snapshots.disp[0], solution.snapshots.disp[1])


def test_save_times_may_be_a_list_inside_jit() -> None:
    seen: list[Any] = []
    jax.jit(lambda x: seen.append(as_saveat([0.3, 1.0])) or x)(1.0)
    np.testing.assert_allclose(seen[0].subs.ts, [0.3, 1.0])


# --- the host's loop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pdims", [(1, 1), (4, 1)])
@pytest.mark.parametrize("x64", [False, True])
def test_steps_from_the_host_are_those_of_nbody_to_the_bit(pdims: tuple[int, int], x64: bool, cosmo: Any) -> None:
    """Also where the particles rest after each step, as for an output or a checkpoint."""
    with jax.enable_x64(x64):
        config = configure(pmd.Decomposition(pdims=pdims), steps=3)
        table, solver, saves = pmd.growth_table(cosmo), pmd.BullFrog(), (0.5, 1.0)
        start, times, factor = initial(config, cosmo), step_times(table, config, save=saves), lambda k, a: 1 + a * k
        expected = pmd.nbody(start, table, config, saveat=saves, potential_factor=factor).raise_if_failed()
        schedule = host.make_schedule(table, times, config, solver.coefficients, factor)
        for rests in (False, True):
            particles = exact(initial(config, cosmo), config)
            moved = host.half_drift(particles, successful(schedule.times.dtype), schedule, 0, config)
            for done in (1, 2, 3):
                moved = host.advance(moved, schedule, done - 1, config)
                index = np.flatnonzero(np.isclose(expected.times, schedule.times[done], rtol=1e-6))
                if rests or done == 3:
                    rest = host.undo_half_drift(moved, config)
                    particles = host.with_units(rest, schedule, done)
                    for saved in index:
                        np.testing.assert_array_equal(particles.disp, expected.snapshots.disp[saved])
                        np.testing.assert_array_equal(particles.vel, expected.snapshots.vel[saved])
                    moved = host.half_drift(rest, moved.status, schedule, done, config)
            np.testing.assert_array_equal(particles.disp, expected.particles.disp)
            np.testing.assert_array_equal(particles.vel, expected.particles.vel)
            assert particles.vel.dtype == schedule.times.dtype
            assert int(moved.status.step) == int(expected.status.step) == 3
            assert float(moved.status.halo) == float(expected.status.halo)


def test_given_steps_are_planned_where_saves_are_known(single: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(single, steps=4)
    times = jnp.asarray(step_times(cosmo, config))
    controller = diffrax.StepTo(times)
    at = diffrax.SubSaveAt(t0=True, ts=times[2:3], t1=True)
    assert planned_steps([at], (), controller, config) == ((0, 2, 4),)
    assert planned_steps([diffrax.SubSaveAt(ts=jnp.asarray([0.45]))], (), controller, config) is None
    assert planned_steps([at], (), diffrax.PIDController(rtol=1e-3, atol=1e-3), config) is None
    with pytest.raises(ValueError, match=r"stepsize_controller.ts=.* must rise from a_start=0.1 to a_stop=1.0"):
        planned_steps([at], (), diffrax.StepTo(times[:-1]), config)
