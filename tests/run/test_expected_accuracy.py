"""What `check` says of a configuration: growth that steps lose, and errors from the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax_cosmo
import numpy as np
import problems
import pytest
from runs import read

import pmwd_dist as pmd
from pmwd_dist.pm.solvers import FORMULAS, INTEGRATORS
from pmwd_dist.pm.solvers.diffrax_solvers import SOLVERS
from pmwd_dist.pm.time_steps import step_times
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.simulation.accuracy import (
    accuracy_line,
    convergence_warning,
    expected_error,
    growth_warning,
    long_wave_growth,
    resolution_line,
)
from pmwd_dist.run.simulation.job import SimulationJob

COSMO = jax_cosmo.Planck15()


def simulate(steps: int = 20, solver: str = "bullfrog", **changes: Any) -> tuple[SimulationSetup, np.ndarray]:
    """A simulation of 32^3 particles over 128 Mpc/h, and as many times as it has steps."""
    settings = {"box_size": 128.0, "mesh_shape": 32, "lpt_order": 3, "decomposition": pmd.Decomposition((1, 1))}
    config = pmd.Config(**(settings | changes))
    return SimulationSetup(config, COSMO, solver, "eisenstein-hu", 0), np.arange(steps + 1)


@pytest.mark.slow
def test_growth_that_steps_lose_is_that_of_a_run() -> None:
    """Measured in runs of 128^3 particles over 512 Mpc/h: P at 0.05 k_Ny."""
    simulation, _ = simulate(solver="leapfrog", a_start=0.02)
    table = pmd.growth_table(COSMO)
    times = np.asarray(step_times(table, simulation.config))
    assert long_wave_growth(FORMULAS[simulation.solver], table, times) ** 2 == pytest.approx(1 - 0.2156, abs=0.01)
    assert SOLVERS.keys() == INTEGRATORS.keys()
    for name, solver in SOLVERS.items():
        exact = long_wave_growth(solver().coefficients, table, times) == pytest.approx(1, abs=1e-6)
        assert exact == INTEGRATORS[name].exact_growth
        assert long_wave_growth(FORMULAS[name], table, times) == long_wave_growth(solver().coefficients, table, times)
    warning = growth_warning(simulation, times)
    assert warning is not None
    assert "20 steps of leapfrog from a = 0.02 change P(k) by -22" in warning
    error = expected_error(simulation, times)
    assert error is not None
    assert error[0] > 22


def test_errors_follow_the_tables() -> None:
    def error(steps: int = 40, **changes: Any) -> tuple[float, float]:
        found = expected_error(*simulate(steps, **changes))
        assert found is not None
        return found

    assert error() == pytest.approx((0.4, 2.8))
    assert error(mesh_shape=64, particle_shape=32) == pytest.approx((1.0, 3.6))
    assert error(box_size=2048.0) == error(box_size=512.0)
    assert error(box_size=64.0) == pytest.approx((2.3, 10.8))
    assert error(lpt_order=2)[0] == pytest.approx(0.8)
    assert error(gradient="spectral")[0] == pytest.approx(9.3)
    assert error(compensated=True) == pytest.approx((0.4 + 1.2, 2.8 + 2.1))
    assert error(mesh_shape=64, particle_shape=32, compensated=True)[0] == pytest.approx(1.0 + 0.5)
    assert error(5, box_size=32.0)[1] == pytest.approx(18.7 + 38.2)
    assert expected_error(*simulate(particle_shape=64)) is None


def test_a_correction_has_its_own_error_and_cosmologies() -> None:
    simulation, times = simulate()
    corrected = replace(simulation, potential_factor=pmd.ForceCorrection(4.0, error=(0.7, 1.21)))
    assert "about 0.7 % to k = 0.2 and 2 % to k = 0.39 h/Mpc" in accuracy_line(corrected, times)
    trained = replace(simulation, potential_factor=pmd.ForceCorrection(4.0, cosmologies={"sigma8": (0.6, 0.9)}))
    assert trained.training_warnings(problems.cosmology(sigma8=0.8)) == []
    (text,) = trained.training_warnings(problems.cosmology(sigma8=1.0))
    assert text == "sigma8 = 1 is outside of 0.6 to 0.9, the training of the correction of the force"
    assert expected_error(replace(corrected, potential_factor=pmd.ForceCorrection(4.0)), times) is None
    late = replace(corrected, config=replace(simulation.config, a_start=0.2, lpt_order=1))
    error, uncorrected = expected_error(late, times), expected_error(replace(late, potential_factor=None), times)
    assert error is not None
    assert uncorrected is not None
    # Errors of the start are those of a run without correction; the mesh's are in 0.7 and 0.3.
    assert error[0] == pytest.approx(uncorrected[0], abs=0.5)
    assert error[0] > 5


def test_errors_in_words() -> None:
    simulation, times = simulate()
    assert growth_warning(simulation, times) is None
    line = accuracy_line(simulation, times)
    about = "P(k) at z = 0 right to about 0.5 % to k = 0.2 and 3 % to k = 0.39 h/Mpc, 1 - r about 0.6 % at the "
    about += "latter, 0.9 times the halos of N-body (100 particles)"
    assert line == f"{about}; see docs/explanation/accuracy.md"
    started, beside = (replace(simulation, start=Mock(lattice_warning=lambda _, x=x: x)) for x in (None, "beside"))
    unknown = ", if start.snapshot, of unknown order, is as good as 3LPT"
    assert accuracy_line(started, times) == f"{about}{unknown}; see docs/explanation/accuracy.md"
    assert accuracy_line(beside, times).startswith("P(k) not measured for a lattice beside the mesh")
    compensated = accuracy_line(*simulate(compensated=True))
    assert "2 % to k = 0.2 and 5 % to k = 0.39 h/Mpc, 1 - r" in compensated
    assert "; linear waves feel the true force to k = 0.39 h/Mpc" in compensated
    assert "not measured" in accuracy_line(*simulate(particle_shape=64))
    assert "1 - r about 0.3 %" in accuracy_line(*simulate(particle_shape=32, mesh_shape=64))
    assert "1 - r" not in accuracy_line(*simulate(10, box_size=32.0))  # 1 Mpc/h
    for changes, beyond in (
        ({"box_size": 2048.0}, "64 Mpc/h between particles, but from 1 to 16"),
        ({"a_start": 0.01}, "0.01 as time.a_start, but from 0.02 to 0.2"),
        ({"steps": 3}, "3 steps, but from 5 to 40"),
    ):
        assert accuracy_line(*simulate(**changes)).startswith(f"P(k) not measured for {beyond}; see")
    assert "right to about" in accuracy_line(*simulate(80))
    ours = replace(simulation, potential_factor=replace(pmd.ForceCorrection(4.0, error=(1.0, 2.0)), cells=1))
    assert "1 - r about 0.8 % at the latter, 1.0 times" in accuracy_line(ours, times)


def test_check_warns_of_steps_that_lose_growth(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[box]\nsize = 128\nmesh = 8\n[time]\nsolver = "leapfrog"\nsteps = 10\n[devices]\npdims = [1, 1]\n')
    (warning,) = SimulationJob.of(read(file), tmp_path / "out").check()
    assert warning.startswith("warning: 10 steps of leapfrog from a = 0.1 change P(k) by -4.2 %")


@pytest.mark.parametrize(
    ("size", "a_start", "mesh", "warned"),
    [(128, 0.1, 8, False), (128, 0.04, 8, True), (280, 0.1, 8, True), (280, 0.1, 16, False), (280, 0.02, 16, True)],
)
def test_check_warns_of_cold_coarse_lattices(
    tmp_path: Path, size: float, a_start: float, mesh: int, warned: bool
) -> None:
    """Of 8^3 particles. P(k) to k_Ny / 2, at 17 to 40 Mpc/h: 8 to 12 % off with one cell from a = 0.1, 2 % with two."""
    file = tmp_path / "a.toml"
    text = (
        f"[box]\nsize = {size}\nmesh = {mesh}\nparticles = 8\n[time]\na_start = {a_start}\n[devices]\npdims = [1, 1]\n"
    )
    file.write_text(text)
    found = [x for x in SimulationJob.of(read(file), tmp_path / "out").check() if "are displaced by far less" in x]
    assert len(found) == warned
    assert all(("box.mesh of twice" in x) == (mesh == 8) for x in found)


@pytest.mark.slow
def test_check_warns_of_shells_that_end_before_the_sources(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    text = "[box]\nsize = 128\nmesh = 8\n[devices]\npdims = [1, 1]\n[observe.light_cone]\nsources = [0.05, 0.2]\n"
    file.write_text(text + "edges = [0, 200]\nrays = 4\nfield = 5.0\n")
    short, thick = (x for x in SimulationJob.of(read(file), tmp_path / "out").check() if "growth" not in x)
    assert short.startswith("warning: observe.light_cone.edges: shells of 0 to 200 Mpc/h leave out ")
    assert thick.startswith("warning: observe.light_cone.edges: a shell is thicker than the box")
    galaxies = "[observe.galaxies]\nlight_cone = true\nsmoothing = 64\nn_z = [[0.0, 0.01], [0.012, 0.01]]\n"
    file.write_text(text.replace("[0.05, 0.2]", "0.05") + 'sky = "sphere"\nnside = 4\n' + galaxies)
    assert any("observe.light_cone.shift: rotates the rep" in x for x in SimulationJob.of(read(file), tmp_path).check())


def test_scales_that_a_likelihood_compares_are_converged_or_warned_of() -> None:
    """Particles 4 Mpc/h apart: a Nyquist frequency of 0.785 h/Mpc."""
    simulation, _ = simulate(a_start=0.1)
    line = "particles 4 Mpc/h apart, Nyquist frequency 0.79 h/Mpc; the likelihood compares up to k = 0.5 h/Mpc"
    assert resolution_line(simulation, 0.5) == line
    for gravity in ("lpt", "nbody"):
        warning = convergence_warning(simulation, gravity, 0.5)
        assert warning is not None
        assert "compares up to k = 0.5 h/Mpc, and the model has converged at most up to k = 0.39 h/Mpc" in warning
        assert "finer box.particles" in warning
        assert convergence_warning(simulation, gravity, np.pi / 8) is None
    assert convergence_warning(simulation, "linear", 0.785) is None
    finer, _ = simulate(particle_shape=64)  # lattice finer than the mesh, which limits forces
    assert convergence_warning(finer, "lpt", 0.7) is None
    assert "at most up to k = 0.39" in str(convergence_warning(finer, "nbody", 0.7))
    early, _ = simulate(a_start=0.02, box_size=32.0, mesh_shape=32)  # 1 Mpc/h: errors of 2.7 and 16.3 %
    assert "error of P(k) of the model there is about 17 %" in str(convergence_warning(early, "nbody", 1.5))
    assert convergence_warning(early, "nbody", 0.7) is None
