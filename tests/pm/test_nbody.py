"""The simulation as a whole: step times, snapshots, steps from the host, progress, and what is compiled."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from simulations import configure, initial

import pmwd_dist as pmd
from pmwd_dist.pm.particles import exact
from pmwd_dist.pm.saves import as_saveat, planned_steps
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.time_steps import step_times

# --- step times --------------------------------------------------------------------------------------------------


def test_save_times_are_step_times_exactly(cosmo: Any) -> None:
    saves = (0.123456789, 1 / 3, 0.5, 1.0)
    times = np.asarray(step_times(cosmo, configure(steps=12), save=saves))
    assert set(saves) <= set(times.tolist())
    assert len(times) == 14  # one more between the first two saves
    assert (np.diff(times) > 0).all()
    inner = times[(times >= 0.5)]
    growth = np.diff(pmd.growth(inner, cosmo))
    np.testing.assert_allclose(growth, growth[0], rtol=1e-9)  # uniform within a segment
    assert np.diff(times).max() < 2 * (0.9 / 12)  # and shared out evenly between them
    assert len(step_times(cosmo, configure(steps=1), save=saves)) == 5  # one a segment at least


@pytest.mark.parametrize(("steps", "saves"), [(20, np.arange(0.84, 1.0, 0.01)), (6, [0.1001, 0.1002, 0.9998, 0.9999])])
def test_close_save_times_take_no_steps_from_the_rest(cosmo: Any, steps: int, saves: Any) -> None:
    config = configure(steps=steps)
    growth = pmd.growth_table(cosmo).D1
    lengths = np.diff(np.asarray(growth(step_times(cosmo, config, save=saves))))
    without = np.diff(np.asarray(growth(step_times(cosmo, config))))
    assert lengths.max() < 1.3 * without.max()
    assert len(lengths) <= steps + len(saves) + 1
    own = np.asarray(step_times(cosmo, config))
    np.testing.assert_allclose(step_times(cosmo, config, save=own[1:-1].tolist()), own, rtol=1e-6)


# --- snapshots ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_end_of_a_run_that_stops_there(cosmo: Any) -> None:
    config = configure()
    particles, table = initial(config, cosmo), pmd.growth_table(cosmo)
    solution = pmd.nbody(particles, table, config, saveat=diffrax.SaveAt(ts=[0.3, 1.0])).raise_if_failed()
    np.testing.assert_allclose(solution.times, (0.3, 1.0), rtol=1e-7)
    times = np.asarray(step_times(table, config, save=(0.3, 1.0)))
    times = times[: times.tolist().index(0.3) + 1]
    controller = diffrax.StepTo(times)
    alone = pmd.nbody(particles, table, configure(a_stop=0.3), stepsize_controller=controller, max_steps=len(times))
    alone.raise_if_failed()
    # Another program: rounding may differ, by a few steps of the grid (2e-14 Mpc/h).
    np.testing.assert_allclose(solution.snapshots.disp[0], alone.particles.disp, rtol=0, atol=1e-11)
    np.testing.assert_allclose(solution.snapshots.vel[0], alone.particles.vel, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(solution.snapshots[-1].disp, solution.particles.disp)
    with pytest.raises(IndexError, match="there are 2 snapshots"):
        solution.snapshots[2]
    with pytest.raises(TypeError, match=r"such as particles.disp\[0\]"):
        solution.particles[0]
    assert not np.array_equal(solution.snapshots.disp[0], solution.snapshots.disp[1])


@pytest.mark.parametrize("solver", [None, diffrax.Tsit5()])
def test_snapshots_know_their_time_and_box(cosmo: Any, solver: Any) -> None:
    config = configure()
    steps = {} if solver is None else {"solver": solver, "adjoint": diffrax.DirectAdjoint()}
    see = partial(pmd.observe.redshift_space, config=config)
    subs = {
        "some": diffrax.SubSaveAt(t0=True, ts=[0.5]),
        "moved": diffrax.SubSaveAt(ts=[0.5], fn=lambda a, x, _: x),
        "seen": diffrax.SubSaveAt(ts=[0.5], fn=lambda a, x, table: see(x, table, a=a).disp),
    }
    solution = pmd.nbody(initial(config, cosmo), cosmo, config, saveat=diffrax.SaveAt(subs=subs), **steps)
    some, moved = solution.snapshots["some"], solution.snapshots["moved"]
    assert [x.origin.a for x in some] == [config.a_start, 0.5] == list(some.origin.times)
    assert moved[0].origin.a is None  # whatever the function did
    np.testing.assert_array_equal(some[1].velocities(), some[1].velocities(0.5))
    shifted = [see(some[1], cosmo, a=a).disp for a in (None, 0.5)]
    np.testing.assert_array_equal(*shifted)
    np.testing.assert_allclose(solution.snapshots["seen"][0], shifted[0], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"a=None is not known for these particles; pass their scale factor"):
        jax.jit(lambda x: see(x, cosmo))(some[1])
    unknown = diffrax.SaveAt(ts=[0.5], fn=lambda a, x, table: see(x, table).disp)
    with pytest.raises(ValueError, match=r"a=None is not known for these particles"):
        pmd.nbody(initial(config, cosmo), cosmo, config, saveat=unknown, **steps)
    with pytest.raises(ValueError, match="is not the box of the config"):
        some[1].positions(configure(box_size=2 * config.box_size[0]))


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
        config = configure(pdims, steps=3)
        table, solver, saves = pmd.growth_table(cosmo), pmd.BullFrog(), (0.5, 1.0)
        start, times, factor = initial(config, cosmo), step_times(table, config, save=saves), lambda k, a: 1 + a * k
        expected = pmd.nbody(start, table, config, saveat=saves, potential_factor=factor).raise_if_failed()
        schedule = host.make_schedule(table, times, config, solver.coefficients, factor)
        for rests in (False, True):
            particles = exact(initial(config, cosmo), config)
            moved = host.half_drift(particles, successful(schedule.times.dtype), schedule, 0, config)
            steps = len(times) - 1
            for done in range(1, steps + 1):
                moved = host.advance(moved, schedule, done - 1, config)
                index = np.flatnonzero(np.isclose(expected.times, schedule.times[done], rtol=1e-6))
                if rests or done == steps:
                    rest = host.undo_half_drift(moved, config)
                    particles = host.with_units(rest, schedule, done)
                    for saved in index:
                        np.testing.assert_array_equal(particles.disp, expected.snapshots.disp[saved])
                        np.testing.assert_array_equal(particles.vel, expected.snapshots.vel[saved])
                    moved = host.half_drift(rest, moved.status, schedule, done, config)
            np.testing.assert_array_equal(particles.disp, expected.particles.disp)
            np.testing.assert_array_equal(particles.vel, expected.particles.vel)
            assert particles.vel.dtype == schedule.times.dtype
            assert int(moved.status.step) == int(expected.status.step) == steps
            assert float(moved.status.halo) == float(expected.status.halo)


def test_given_steps_are_planned_where_saves_are_known(cosmo: Any) -> None:
    config = configure(steps=4)
    times = jnp.asarray(step_times(cosmo, config))
    controller = diffrax.StepTo(times)
    at = diffrax.SubSaveAt(t0=True, ts=times[2:3], t1=True)
    assert planned_steps([at], (), controller, config) == ((0, 2, 4),)
    assert planned_steps([diffrax.SubSaveAt(ts=jnp.asarray([0.45]))], (), controller, config) is None
    assert planned_steps([at], (), diffrax.PIDController(rtol=1e-3, atol=1e-3), config) is None
    with pytest.raises(ValueError, match=r"stepsize_controller.ts=.* must rise from a_start=0.1 to a_stop=1.0"):
        planned_steps([at], (), diffrax.StepTo(times[:-1]), config)


# --- progress meters -----------------------------------------------------------------------------------------------

METER = diffrax.TextProgressMeter()
SHOWN = ["0.00%", "50.00%", "100.00%"]


def started(layout: Any = (1, 1)) -> tuple[pmd.Particles, Any]:
    """Particles, and their displacement after two steps with options of `nbody`."""
    config, table = configure(layout, steps=2), pmd.growth_table(problems.cosmology())
    return initial(config), lambda start, **options: pmd.nbody(start, table, config, **options).particles.disp


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    jax.effects_barrier()
    return capsys.readouterr().out.split()


@pytest.mark.parametrize("pdims", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_each_step_is_shown_once_inside_jit_and_in_gradients(
    pdims: tuple[int, int], capsys: pytest.CaptureFixture[str]
):
    particles, evolve = started(pdims)
    disp = jax.block_until_ready(evolve(particles, progress_meter=METER))
    assert shown(capsys) == SHOWN
    np.testing.assert_array_equal(disp, evolve(particles))

    def total(particles: pmd.Particles, meter: Any) -> jax.Array:
        return (evolve(particles, progress_meter=meter) ** 2).sum()

    gradient = jax.jit(jax.value_and_grad(total), static_argnums=1)
    _, by_particles = jax.block_until_ready(gradient(particles, METER))
    assert shown(capsys) == SHOWN
    np.testing.assert_array_equal(by_particles.disp, gradient(particles, None)[1].disp)


def test_without_a_meter_the_program_is_the_same() -> None:
    particles, evolve = started()
    programs = [
        jax.jit(lambda x, options=options: evolve(x, **options)).lower(particles).as_text()
        for options in ({}, {"progress_meter": diffrax.NoProgressMeter()}, {"progress_meter": METER})
    ]
    assert programs[0] == programs[1]
    assert "callback" not in programs[0]
    assert "callback" in programs[2]


def test_other_solvers_show_their_progress(capsys: pytest.CaptureFixture[str]) -> None:
    particles, evolve = started()
    jax.block_until_ready(evolve(particles, solver=diffrax.Heun(), progress_meter=METER))
    assert shown(capsys)[::2] == ["0.00%", "100.00%"]


# --- compilation -----------------------------------------------------------------------------------------------------


def loss(noise: Any, values: dict[str, Any], config: pmd.Config) -> Any:
    table = pmd.growth_table(SimpleNamespace(**values))
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
    solution = pmd.nbody(particles, table, config, saveat=[0.5, 1.0])
    return jnp.mean(pmd.density(solution.particles, config) ** 2) + pmd.growth(0.5, table)


def test_one_table_serves_a_whole_program() -> None:
    config = configure(steps=2)
    noise = pmd.white_noise(jax.random.key(0), config)
    jaxpr = str(jax.make_jaxpr(lambda n, v: loss(n, v, config))(noise, vars(problems.cosmology())))
    assert jaxpr.count("name=_tabulate") == 1


def test_an_optimiser_on_one_device_compiles_one_program() -> None:
    config, values = configure(steps=2), vars(problems.cosmology())
    gradient = jax.jit(jax.grad(lambda x: loss(x, values, config)))
    for start in (pmd.white_noise(jax.random.key(0), config), jnp.zeros(config.particle_shape)):
        x = start
        for _ in range(2):
            x = x - 0.1 * gradient(x)
        assert x.sharding == start.sharding
    assert gradient._cache_size() == 1
