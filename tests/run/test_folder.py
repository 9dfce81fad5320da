"""The plan of a run and its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import make, resumed

from pmwd_dist.io import checkpoint
from pmwd_dist.run.folder import finished, prepare_folder
from pmwd_dist.run.plan import make_plan
from pmwd_dist.run.settings import read


def test_overwrite_removes_the_old_results_only(tmp_path: Path):
    plan = make(tmp_path / "run")
    (plan.folder / "power_z5.000.csv").write_text("old")
    (plan.folder / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match="not empty"):
        prepare_folder(plan)
    prepare_folder(plan, overwrite=True)
    assert {path.name for path in plan.folder.iterdir()} == {"config.toml", "mine.txt"}


def test_table_is_kept_with_the_run(tmp_path: Path):
    k = np.geomspace(1e-3, 10, 50)
    np.savetxt(tmp_path / "p.txt", np.stack([k, 1e4 * k], -1))
    plan = make(tmp_path / "run", "cosmology.linear_power=p.txt")
    (tmp_path / "p.txt").unlink()
    again = resumed(plan.folder)
    assert again.simulation.table is not None
    np.testing.assert_allclose(again.simulation.table[0], k)
    prepare_folder(make_plan(read(plan.folder / "config.toml"), plan.folder), overwrite=True)
    assert resumed(plan.folder).simulation.table is not None


def test_output_at_the_start_and_more_outputs_than_steps(tmp_path: Path):
    plan = make(tmp_path / "run", "output.redshifts=[9, 4, 2, 1, 0.5, 0]", "time.steps=2", "output.snapshot=false")
    assert plan.steps == 5
    assert sorted(plan.outputs) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose([plan.outputs[i] for i in range(6)], [9, 4, 2, 1, 0.5, 0], atol=1e-12)


def test_nothing_of_the_runner_is_left_behind(tmp_path: Path):
    plan = make(tmp_path / "run")
    (plan.folder / ".checkpoint_000001.part").mkdir()
    checkpoint.clear(plan.folder)
    assert not list(plan.folder.glob(".*"))
    assert finished(plan.folder) is False
