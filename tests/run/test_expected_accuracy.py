"""What `check` says of a configuration: growth that steps lose, and errors from the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm.nbody import step_times
from pmwd_dist.run.accuracy import accuracy_line, expected_error, growth_warning, long_wave_growth
from pmwd_dist.run.settings import Simulation, build, read


def prepare(folder: Path, *overrides: str) -> tuple[Simulation, np.ndarray]:
    file = folder / "a.toml"
    file.write_text("[box]\nsize = 128\nmesh = 32\n")
    simulation = build(read(file, ["devices.pdims=[1, 1]", *overrides]))
    return simulation, np.asarray(step_times(simulation.cosmo, simulation.config))


def test_growth_that_steps_lose_is_that_of_a_run(tmp_path: Path) -> None:
    """Measured in runs of 128^3 particles over 512 Mpc/h: P at 0.05 k_Ny."""
    simulation, times = prepare(tmp_path, "time.solver=leapfrog", "time.a_start=0.02")
    table = pmd.growth_table(simulation.cosmo)
    assert long_wave_growth(simulation.solver, table, times) ** 2 == pytest.approx(1 - 0.2156, abs=0.01)
    for solver in (pmd.BullFrog(), pmd.FastPM()):
        assert long_wave_growth(solver, table, times) == pytest.approx(1, abs=1e-6)
    warning = growth_warning(simulation, times)
    assert warning is not None
    assert "20 steps of leapfrog from a = 0.02 change P(k) by -22" in warning
    error = expected_error(simulation, times)
    assert error is not None
    assert error[0] > 22


def test_errors_follow_the_tables(tmp_path: Path) -> None:
    def error(*overrides: str) -> tuple[float, float]:
        found = expected_error(*prepare(tmp_path, *overrides))
        assert found is not None
        return found

    usual = ("time.lpt_order=3", "time.steps=40")
    assert error(*usual) == pytest.approx((0.3, 1.5))
    assert error(*usual, "box.mesh=64", "box.particles=32") == pytest.approx((0.7, 1.4))
    assert error(*usual, "box.size=2048") == error(*usual, "box.size=512")
    assert 0.3 < error(*usual, "box.size=64")[0] < 3.6
    assert error("time.lpt_order=2", "time.steps=40")[0] == pytest.approx(0.7)
    assert error(*usual, 'force.gradient="spectral"')[0] == pytest.approx(9.2)
    assert error("time.lpt_order=3", "time.steps=5", "box.size=32")[1] == pytest.approx(13.3 + 38.2)
    assert expected_error(*prepare(tmp_path, "box.particles=64")) is None


def test_errors_in_words(tmp_path: Path) -> None:
    simulation, times = prepare(tmp_path)
    assert growth_warning(simulation, times) is None
    line = accuracy_line(simulation, times)
    assert line == "P(k) at z = 0 right to about 0.5 % to k = 0.2 and 2 % to k = 0.39 h/Mpc; see docs/accuracy.md"
    assert "not measured" in accuracy_line(*prepare(tmp_path, "box.particles=64"))
