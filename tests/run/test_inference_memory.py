"""Memory of an inference: what is said where it doesn't fit."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from inferences import SMALL, plan_of
from runs import command

from pmwd_dist.run.common import resources
from pmwd_dist.run.settings import SettingsError

TIGHT = SMALL.replace("mesh = 4", "mesh = 32").replace("chains = 2", "chains = 4")


def test_gradients_are_those_of_all_chains(tmp_path: Path):
    field = 32**3 * np.dtype(jax.numpy.result_type(float)).itemsize
    one, four = (plan_of(tmp_path / "run", f"sampler.chains={n}", text=TIGHT).memory for n in (1, 4))
    assert 4 * field < one.gradients < 40 * field
    assert four.gradients == pytest.approx(4 * one.gradients, rel=0.5)
    assert four.sampler == pytest.approx((12 * 4 + 7) * field)


def test_what_does_not_fit_is_said_with_what_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tight.toml"
    file.write_text(TIGHT)
    assert command("check", file) == 0
    assert " for states of all chains, then " in capsys.readouterr().out
    memory = plan_of(tmp_path / "run", text=TIGHT).memory
    monkeypatch.setattr(resources, "available_memory", lambda: (2_400_000_000, int(2.5e9 + 0.9 * memory.peak)))
    assert command("check", file) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pmwd-dist: box.mesh: the inference needs about 2.5")  # and the key once
    assert line.endswith("; use a smaller mesh, or fewer sampler.chains")
    monkeypatch.setattr(resources, "available_memory", lambda: (2_400_000_000, 3_000_000_000))
    assert "2.4 GB of it free: it may be killed" in plan_of(tmp_path / "run", text=TIGHT).check()[0]
    monkeypatch.setattr(resources, "device_limit", lambda: 1000)
    with pytest.raises(SettingsError, match="the inference needs about .* and a device has 1 kB; use a smaller mesh"):
        plan_of(tmp_path / "run", text=TIGHT)


def test_draws_that_are_kept_may_need_most(tmp_path: Path) -> None:
    many = plan_of(tmp_path / "run", "sampler.chunk=4", "sampler.steps=4000")
    few = plan_of(tmp_path / "run", "sampler.chunk=2000", "sampler.steps=4000")
    assert many.memory.peak == many.memory.verdict > few.memory.peak > few.memory.verdict
