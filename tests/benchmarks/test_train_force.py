"""Training of a correction of the force, with a finer particle mesh as the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

import pmwd_dist as pmd
from benchmarks import train_force


@pytest.mark.slow
def test_training_lowers_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = "--plain --particles 8 --spacing 4 --cells 1 --steps 3"
    train_force.main([*f"{size} --train 1 --judge 1 --iterations 10 --out".split(), str(tmp_path)])
    correction = pmd.ForceCorrection.load(tmp_path / "force_4_1_3.json")
    assert (correction.spacing, correction.cells, correction.steps) == (4.0, 1, (3, 3))
    report = capsys.readouterr().out
    before, after = (float(x) for x in report.partition("loss ")[2].partition(",")[0].split(" -> "))
    assert after < 0.8 * before
    assert "| 1 cells, 3 steps, with, 0 | 1 |" in report
