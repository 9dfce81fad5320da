"""Memory of runs and inferences: plans of their programs, what does not fit, and what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import inferences
import jax
import numpy as np
import pytest
from inferences import plan_of
from runs import SMALL, Events, command, environment, make, read

from pmwd_dist._memory import size
from pmwd_dist.run.common import resources
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.settings import SettingsError
from pmwd_dist.run.simulation.job import SimulationJob


def test_programs_whose_memory_is_planned_are_those_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None
):
    """What check compiles a run does not compile again."""
    from jax._src import compiler

    compiled: list[str] = []
    compile_ = compiler.compile_or_get_cached

    def count(backend: Any, module: Any, *arguments: Any, **options: Any) -> Any:
        compiled.append(str(module.operation.attributes["sym_name"]).strip('"'))
        return compile_(backend, module, *arguments, **options)

    plan = make(tmp_path / "run", "box.size=33")  # programs of no other test
    monkeypatch.setattr(compiler, "compile_or_get_cached", count)
    assert set(plan.stages) == {"the initial conditions", "the initial particles", "a step", "P(k)"}
    planned = set(compiled)
    compiled.clear()
    execute(plan, Events())
    large = {name for name in planned if "initial_p" in name or "advance" in name or "half_drift" in name}
    assert len(large) == 4 and not large & set(compiled)
    assert len(compiled) <= 15, compiled  # each takes tenths of a second on a GPU


@pytest.mark.slow
def test_galaxies_on_a_light_cone_compile_few_programs(tmp_path: Path):
    """In a process of its own, in which no other test has compiled some."""
    galaxies = "[observe.galaxies]\nb1 = 0.5\nsmoothing = 8.0\nlight_cone = true\nn_z = [[0, 0.05], [0.01, 0.05]]"
    (tmp_path / "run.toml").write_text(f"[box]\nsize = 64\nmesh = 16\n{galaxies}\n[time]\nsteps = 3\nlpt_order = 2\n")
    command = [sys.executable, "-m", "pmwd_dist", "run", "run.toml", "--output", "run", "--set", "output.figures=false"]
    variables = environment() | {"JAX_NUM_CPU_DEVICES": "1"}
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, timeout=200, stdout=subprocess.DEVNULL)
    assert json.loads((tmp_path / "run/run.json").read_text())["profile"]["programs"] <= 45


def test_plans_hold_what_a_stage_must(tmp_path: Path):
    count, number = 32**3, np.dtype(jax.numpy.result_type(float)).itemsize
    plan = make(tmp_path / "run", "box.mesh=32", "box.size=64", "time.lpt_order=2")
    state = 6 * number * count
    assert all(need < 6 * state for need in plan.stages.values())
    assert all(need > state for stage, need in plan.stages.items() if stage != "the initial conditions")
    shells = make(tmp_path / "cone", "box.mesh=32", "box.size=64", CONE).stages
    assert shells["a step"] > plan.stages["a step"] + 8 * 12 * 512**2 * 2


CONE = "observe.light_cone={sky='sphere', nside=512, sources=0.02, edges=[0, 10, 20]}"


def test_what_does_not_fit_is_said_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = make(tmp_path / "run", "box.mesh=32", "box.size=64", "time.lpt_order=3")
    need = plan.stages["the initial conditions"]
    assert need == max(plan.stages.values())

    def problem(limit: float) -> str:
        monkeypatch.setattr(resources, "device_limit", lambda: int(limit))
        with pytest.raises(SettingsError) as error:
            plan.check()
        return str(error.value)

    text = problem(need / 1.21)
    assert "of memory in the initial conditions and a device has" in text
    fraction = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert f"; use time.lpt_order = 2, set {fraction}=0.91, use a smaller mesh, or more devices" in text
    assert fraction not in problem(need / 1.3)
    monkeypatch.setenv(fraction, "0.5")
    assert f"set {fraction}=0.65, " in problem(need / 1.29)
    assert resources.larger_fraction() == [f"set {fraction}=0.95"]
    monkeypatch.setenv(fraction, "0.95")
    assert resources.larger_fraction() == []
    monkeypatch.setattr(resources, "device_limit", lambda: need)
    plan.check()


def test_disk_is_that_of_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def disk(*overrides: str) -> float:
        return _plan(tmp_path, "box.mesh=512", *overrides).expected_disk

    assert disk("output.snapshot=none") < 2e7
    assert disk("output.snapshot=none", "output.checkpoint_every=2") == pytest.approx(48 * 512**3, rel=0.01)
    assert disk("output.snapshot=gadget") == pytest.approx(2 * 32 * 512**3, rel=0.01)
    fields = "observe.fields={mesh=256, precision='float16', quantities=['density', 'momentum']}"
    assert disk("output.snapshot=none", fields) == pytest.approx(1e7 + 2 * 2 * 4 * 256**3, rel=0.01)
    assert disk("output.snapshot=none", CONE) == pytest.approx(2e7 + 4 * 2 * 12 * 512**2, rel=0.5)
    counts = "observe.galaxies={b1=0, number_density=1e-4, selection=[[0, 1], [64, 0.5]]}"
    assert disk("output.snapshot=none", counts) == pytest.approx(2 * 2 * 4 * 512**3, rel=0.01)
    plan = _plan(tmp_path, "box.mesh=64", "output.snapshot=none")
    monkeypatch.setattr("pmwd_dist.run.simulation.plan.free_space", lambda path: 1.2e7)
    assert any("a checkpoint, if the run is interrupted" in line for line in plan.check())


def _plan(folder: Path, *overrides: str) -> Any:
    file = folder / "run.toml"
    file.write_text(SMALL)
    return SimulationJob.of(read(file, overrides), folder / "out")


# --- inferences --------------------------------------------------------------------------------------------------

TIGHT = inferences.SMALL.replace("mesh = 4", "mesh = 32").replace("chains = 2", "chains = 4")


def test_gradients_are_those_of_all_chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    field = 32**3 * np.dtype(jax.numpy.result_type(float)).itemsize
    one, four = (plan_of(tmp_path / "run", f"sampler.chains={n}", text=TIGHT).memory for n in (1, 4))
    assert 4 * field < one.gradients < 40 * field
    assert four.gradients == pytest.approx(4 * one.gradients, rel=0.5)
    assert four.sampler == pytest.approx((12 * 4 + 7) * field)
    monkeypatch.setattr("pmwd_dist.run.inference.memory.RUNTIME", 0)
    text = TIGHT.replace('gravity = "linear"', 'gravity = "lpt"').replace("eulerian", "lagrangian")
    small, large = (plan_of(tmp_path / "run", text=text).memory.programs for text in (TIGHT, text))
    assert large > 1.2 * small > 1e7


def test_what_does_not_fit_is_said_with_what_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tight.toml"
    file.write_text(TIGHT)
    assert command("check", file) == 0
    assert " for states of all chains, then " in capsys.readouterr().out
    memory = plan_of(tmp_path / "run", text=TIGHT).memory
    little = int(memory.programs + 0.9 * memory.peak)
    monkeypatch.setattr(resources, "available_memory", lambda: (little, little))
    assert command("check", file) == 2
    (line,) = capsys.readouterr().err.splitlines()
    need = size(memory.programs + memory.peak)
    assert line.startswith(f"pmwd-dist: box.mesh: the inference needs about {need} of memory")  # and the key once
    assert line.endswith("; use a smaller mesh, or fewer sampler.chains")
    monkeypatch.setattr(resources, "available_memory", lambda: (little, 2 * little))
    assert f"has {size(little)} free: it may be killed" in plan_of(tmp_path / "run", text=TIGHT).check()[0]
    monkeypatch.setattr(resources, "device_limit", lambda: 1000)
    with pytest.raises(SettingsError, match="the inference needs about .* and a device has 1 kB; use a smaller mesh"):
        plan_of(tmp_path / "run", text=TIGHT)


def test_draws_that_are_kept_may_need_most(tmp_path: Path) -> None:
    many = plan_of(tmp_path / "run", "sampler.chunk=4", "sampler.steps=4000")
    few = plan_of(tmp_path / "run", "sampler.chunk=2000", "sampler.steps=4000")
    assert many.memory.peak == many.memory.verdict > few.memory.peak > few.memory.verdict
