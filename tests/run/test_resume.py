"""What a run that was stopped continues from: its own checkpoint, with its own settings."""

from __future__ import annotations

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runs import Events, command, linear_power, make, read, resumed

from pmwd_dist.io import checkpoint
from pmwd_dist.io.arrays import ArrayFile, write_arrays
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.folder import StartError, alterations, folder_lock
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.simulation.job import SimulationJob

pytestmark = pytest.mark.usefixtures("no_figures_of_module")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, no_figures_of_module: None) -> SimulationJob:
    """The plan of a run that was interrupted after its third step of four, with an output after the second."""
    folder = tmp_path_factory.mktemp("stopped")
    linear_power(folder / "p.txt")
    plan = make(folder / "run", "output.slice_thickness=0", "cosmology.linear_power=p.txt")
    with pytest.raises(Interrupted):
        execute(plan, Events(3))
    return plan


@pytest.fixture
def copied(stopped: SimulationJob, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped.folder, tmp_path / "run"))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_second_signal_ends_the_program_at_once(copied: Path, monkeypatch, capsys, number: int, code: int):
    monkeypatch.setattr(
        "pmwd_dist.run.common.job.Log", lambda folder, listener: lambda *event, **fields: os.kill(os.getpid(), number)
    )
    assert command("resume", copied) == code
    assert capsys.readouterr().err == "pmwd-dist: " + {130: "interrupted\n", 143: "terminated\n"}[code]
    assert checkpoint.latest(copied) is not None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("box.size=64", "box.size = 64.0: .* has 32.0; set it back"),
        ("box.particles=4", "box.particles = 4: .* has 8"),
        ("noise.seed=1", "noise.seed = 1: .* has 0"),
        ("time.solver=fastpm", 'time.solver = "fastpm": .* has "bullfrog"'),
        ("time.steps=5", "time.steps = 5: .* has 4"),
        ("cosmology.h=0.7", "cosmology.h = 0.7: .* has 0.6774"),
        ("force.gradient=spectral", 'force.gradient = "spectral": .* has "finite-difference"'),
    ],
)
def test_another_simulation_does_not_resume(stopped: SimulationJob, copied: Path, override: str, words: str):
    plan = replace(stopped, folder=copied, settings=read(copied / "config.toml", [override]))
    with pytest.raises(StartError, match=words):
        execute(plan, Events(), resume=True)
    shutil.rmtree(copied / "checkpoint_000003")  # there are earlier outputs
    with pytest.raises(StartError, match=words):
        execute(plan, Events(), resume=True)
    assert (copied / "log.jsonl").read_text() == (stopped.folder / "log.jsonl").read_text()


def test_a_checkpoint_of_another_run_does_not_resume(stopped: SimulationJob, tmp_path: Path):
    plan = make(tmp_path / "run", "noise.seed=1")
    shutil.copytree(stopped.folder / "checkpoint_000003", plan.folder / "checkpoint_000003")
    with pytest.raises(StartError, match="noise.seed = 1: the checkpoint has 0"):
        execute(plan, Events(), resume=True)


@pytest.mark.parametrize("redshifts", ["[2, 1, 0]", "0"])
def test_outputs_that_are_past_may_not_change(copied: Path, redshifts: str):
    with pytest.raises(StartError, match="output.redshifts would change the 3 steps that are done, .* at z = 1;"):
        execute(resumed(copied, f"output.redshifts={redshifts}"), Events(), resume=True)


def test_an_edit_between_run_and_resume_is_shown_key_by_key(copied: Path, capsys: pytest.CaptureFixture[str]):
    config = copied / "config.toml"
    config.write_text(config.read_text().replace("size = 32.0", "size = 64.0").replace("seed = 0", "seed = 3"))
    k, power = np.loadtxt(copied / "linear_power.txt").T
    np.savetxt(copied / "linear_power.txt", np.stack([k, 2 * power], -1))
    assert command("resume", copied) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    for line, key in zip(lines[1:], ("box.size = 64.0", 'linear_power = "sha256:', "noise.seed = 3"), strict=True):
        assert key in line
        assert "set it back, or start a new run in another folder" in line


def test_another_version_or_precision_does_not_resume(stopped: SimulationJob, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pmwd_dist.run.common.fingerprint.versions", lambda: {"pmwd-dist": "99.0"})
    monkeypatch.setattr("pmwd_dist.run.common.fingerprint._precision", lambda: "float32")
    with pytest.raises(StartError) as caught:
        execute(stopped, Events(), resume=True)
    precision, version = str(caught.value).splitlines()[1:]
    assert re.fullmatch('precision = "float32": .* has "float64"; set JAX_ENABLE_X64 as it was, or .*', precision)
    assert re.fullmatch('version = "99.0": .* has ".*"; install that version of pmwd-dist, or .*', version)


def test_devices_outputs_to_come_and_checkpoints_may_change(copied: Path):
    changed = ("devices.pdims=[2, 1]", "output.redshifts=1", "output.snapshot=gadget", "output.checkpoint_every=1")
    before = read(copied / "config.toml").devices
    execute(resumed(copied, *changed), Events(), resume=True, changes=changed)
    assert not (copied / "power_z0.000.csv").exists()
    assert checkpoint.latest(copied) is None
    kept = read(copied / "config.toml")  # all but the devices
    assert kept.output.redshifts == (1.0,) and kept.output.checkpoint_every == 1 and kept.devices == before
    assert alterations(copied) == []  # and nobody has edited it


def test_set_obeys_the_rule_of_the_file(copied: Path, capsys: pytest.CaptureFixture[str]):
    for override, words in (
        ("box.size=64", "--set box.size=64: resume keeps this setting of the run; leave it out, or start a new run"),
        ("observe.light_cone.nside=4", "--set observe.light_cone.nside=4: resume keeps this setting"),
        ("output.redshift=1", "did you mean output.redshifts?"),
    ):
        assert command("resume", copied, "--set", override) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert command("resume", copied, "--set", "output.redshifts=1", "--set", "output.snapshot=none") == 0
    assert not (copied / "power_z0.000.csv").exists()


def test_damaged_checkpoints_are_one_line(copied: Path, capsys: pytest.CaptureFixture[str]):
    path = copied / "checkpoint_000003"
    part = path / "0.npz"
    whole = part.read_bytes()
    content = bytearray(whole)
    content[len(content) // 2] ^= 1
    part.write_bytes(content)

    def fails() -> None:
        assert command("resume", copied) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "remove this checkpoint to start over" in line

    fails()
    part.write_bytes(whole)
    with ArrayFile(part) as file:
        arrays, about = file.arrays(), file.about
    write_arrays(part, arrays, about | {"step": 2})
    fails()
    kept = about["identity"]
    write_arrays(part, arrays, about | {"identity": kept | {"noise.seed": 5}})
    assert command("resume", copied) == 2
    assert "noise.seed = 0: the checkpoint has 5" in capsys.readouterr().err


def test_a_run_in_use_does_not_resume(copied: Path, capsys: pytest.CaptureFixture[str]):
    with folder_lock(copied):
        assert command("resume", copied) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"process {os.getpid()} on " in line
    assert checkpoint.latest(copied) is not None


def test_a_run_that_was_killed_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plan = make(tmp_path / "run", "output.redshifts=0", "output.slice_thickness=0", 'output.snapshot="none"')
    with pytest.raises(Interrupted) as ended:
        execute(plan, Events(1, signal.SIGUSR1))  # as a launcher forwards it
    assert ended.value.signal_number == signal.SIGUSR1
    assert command("doctor", plan.folder) == 0
    assert f"run         {plan.folder}: interrupted; go on with" in capsys.readouterr().out
    run = plan.folder / "run.json"
    run.write_text(run.read_text().replace('"interrupted"', '"running"'))  # it could not write its end
    assert command("doctor", plan.folder) == 0
    assert ": was killed; go on with `pmwd-dist resume" in capsys.readouterr().out
    with folder_lock(plan.folder):
        assert command("doctor", plan.folder) == 0
        assert f"process {os.getpid()} on" in capsys.readouterr().out
    events = Events()
    execute(resumed(plan.folder), events, resume=True)
    assert any("the last start was killed" in event.text for event in events)
    assert command("doctor", plan.folder) == 0
    assert ": finished" in capsys.readouterr().out
