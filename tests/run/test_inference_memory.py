"""Memory of an inference: counted arrays against XLA's plans, and what is said where they don't fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from inferences import LENSING, SMALL, plan_of
from runs import command

from pmwd_dist.run import resources
from pmwd_dist.run.settings import SettingsError

GALAXIES = SMALL.replace('"linear"\nbias = "eulerian"', '"nbody"\nbias = "lagrangian"')
LPT = GALAXIES.replace("nbody", "lpt")
NUTS = "energy_variance = 2e-4", 'method = "nuts"'
LONGER = LENSING.replace("a_start = 0.9\nsteps = 1\nlpt_order = 1", "a_start = 0.1\nsteps = 10")

# Fields of the lattice in XLA's plans of a chunk for a CPU (jaxlib 0.10.2, native ops): chains, precondition, fields.
PLANS = [
    (SMALL, 1, "none", 22.7),
    (SMALL, 2, "none", 37.7),
    (SMALL, 2, "conditional", 47.4),
    (SMALL, 4, "adapted", 111.1),
    (LPT, 2, "none", 122.2),
    (GALAXIES, 2, "none", 123.7),
    (GALAXIES, 4, "adapted", 274.2),
    (LENSING, 1, "none", 95.2),
    (LENSING, 2, "none", 168.5),
    (LONGER, 2, "none", 214.6),
    (SMALL.replace(*NUTS), 2, "none", 202.8),
    (GALAXIES.replace(*NUTS), 4, "adapted", 572.5),
]


@pytest.mark.parametrize(("text", "chains", "precondition", "fields"), PLANS)
def test_counts_agree_with_plans(
    text: str, chains: int, precondition: str, fields: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "native_available", lambda: True)
    overrides = ["box.size=640", "box.mesh=48", f"sampler.chains={chains}", f"sampler.precondition={precondition}"]
    if "lensing" not in text:
        overrides.append("devices.halo=0")
    memory = plan_of(tmp_path / "run", *overrides, text=text).memory
    assert (memory.gradients + memory.sampler) / (8 * 48**3) == pytest.approx(fields, rel=0.17)


def test_what_does_not_fit_is_said_with_what_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("check", _file(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "of memory a process: " in shown and " for a gradient of 4 chains, " in shown
    assert " for their state, moments and data, 2.5 GB for the program\n" in shown
    monkeypatch.setattr(resources, "available_memory", lambda: (2_540_000_000, 2_550_000_000))
    assert command("check", _file(tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pmwd-dist: box.mesh: the inference needs about 2.56 GB of memory, ")  # and the key once
    assert line.endswith("and this machine has 2.55 GB; use a smaller mesh, or sampler.chains = 3")
    monkeypatch.setattr(resources, "available_memory", lambda: (2_540_000_000, 3_000_000_000))
    assert "2.54 GB of it free: it may be killed" in (plan_of(tmp_path / "run", text=TIGHT).tight or "")
    monkeypatch.setattr(resources, "device_limit", lambda: 20_000_000)
    remedies = "use a smaller mesh, or sampler.chains = 1, or 4 such devices"
    with pytest.raises(SettingsError, match=rf"a device has 20 MB; {remedies}$"):
        plan_of(tmp_path / "run", text=TIGHT)


TIGHT = GALAXIES.replace("mesh = 4", "mesh = 32").replace("chains = 2", "chains = 4")


def _file(folder: Path) -> Path:
    file = folder / "tight.toml"
    file.write_text(TIGHT)
    return file


def test_draws_that_are_kept_may_need_most(tmp_path: Path) -> None:
    many = plan_of(tmp_path / "run", "sampler.chunk=4", "sampler.steps=4000")
    few = plan_of(tmp_path / "run", "sampler.chunk=2000", "sampler.steps=4000")
    assert many.memory.peak == many.memory.verdict > few.memory.peak > few.memory.verdict
    assert many.memory.parts.endswith("for the kept draws of the noise in the verdict, 2.5 GB for the program")
