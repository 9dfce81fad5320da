"""Plans for GPUs that are not here: what fits, and the tables of docs/howto/planning.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, command

import pmwd_dist as pmd
from pmwd_dist._memory import bytes_of
from pmwd_dist.run.simulation.planning import Division, divisions, enough_devices, on_devices

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "planning.md").read_text(encoding="utf-8")


def config_of(n: int, mesh: int | None = None, lpt: int = 2, halo: Any = "auto") -> pmd.Config:
    return pmd.Config(2.0 * n, mesh or n, n, lpt_order=lpt, halo=halo, decomposition=(1, 1))


def division(config: pmd.Config, pdims: tuple[int, int]) -> Division:
    return next(x for x in divisions(config, pdims[0] * pdims[1], 40.0) if x.pdims == pdims)


def test_the_page_has_the_plans_of_the_model():
    rows = re.findall(r"\| (\d+)³ \| \[(\d+), (\d+)\] \| (\d+) \| ([\d.]+) \| ([\d.]+) \|", PAGE)
    assert len(rows) == 4
    for n, px, py, halo, run, gradient in rows:
        found = division(config_of(int(n), halo=int(halo)), (int(px), int(py)))
        assert (found.peak / 1e9, found.bytes["gradient"] / 1e9) == pytest.approx(
            (float(run), float(gradient)), rel=0.05
        )


# Particles, mesh, order of LPT, stage and bytes a particle, measured on one GPU with cells of 2 Mpc/h.
MEASURED = [
    (512, 512, 2, "initial", 40.0),
    (512, 512, 3, "initial", 116.1),
    (512, 512, 2, "step", 40.0),
    (256, 512, 2, "step", 156.0),
    (512, 512, 2, "gradient", 108.6),
    (512, 1024, 2, "gradient", 192.0),
]


def test_the_model_agrees_with_measurements_as_the_page_says():
    for n, mesh, lpt, stage, measured in MEASURED:
        found = division(config_of(n, mesh, lpt, halo=20), (1, 1)).bytes
        assert 0.96 < measured / ({**found}[stage] / n**3) < 1.04, (n, mesh, stage)


def test_enough_devices_are_the_fewest_that_hold_the_run():
    config = config_of(1024)
    count = enough_devices(config, 40.0, 16e9)
    assert count is not None
    peaks = {n: min(d.peak for d in divisions(config, n, 40.0)) for n in (count, count // 2)}
    assert peaks[count] <= 16e9 < peaks[count // 2]
    assert enough_devices(config, 40.0, 1e3) is None


def test_divisions_of_least_memory_come_first():
    peaks = [x.peak for x in divisions(config_of(1024), 64, 40.0)]
    assert len(peaks) == 7 and peaks == sorted(peaks) and peaks[0] < peaks[-1]


def test_slabs_of_few_planes_need_more_memory_than_pencils():
    slabs, pencils = (division(config_of(2048), pdims).peak for pdims in ((256, 1), (16, 16)))
    assert slabs > 1.2 * pencils


def test_devices_that_need_not_exist():
    config = on_devices(config_of(64), (4, 2))
    assert config.decomposition.size == 8 and config.decomposition.is_abstract


@pytest.mark.parametrize(("text", "number"), [("80GB", 80e9), ("1.5 GiB", 1.5 * 2**30), ("8e9", 8e9), ("100B", 100)])
def test_sizes(text: str, number: float):
    assert bytes_of(text) == number


def test_check_plans_for_other_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Nothing is compiled for them."""
    (tmp_path / "run.toml").write_text(SMALL.replace("size = 32", "size = 4096").replace("mesh = 8", "mesh = 2048"))
    check = ("check", tmp_path / "run.toml", "--device-memory", "60GB", "--devices")
    assert command(*check, 256) == 0
    out = capsys.readouterr().out.splitlines()
    rows = [line.split()[:2] for line in out[-9:]]
    assert rows[0] == ["[16,", "16]"] and ["[256,", "1]"] in rows
    assert sum("GB" in line for line in out) > 4
    assert command(*check, 2) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "memory a device on 2 x 60 GB; use 8 such devices, or a smaller mesh" in line
    assert command(*check, 3) == 2
    assert "can't be divided over so many; use 8 such devices" in capsys.readouterr().err
    assert command("check", tmp_path / "run.toml", "--devices", 8, "--device-memory", "much") == 2
    assert "--device-memory='much' must be a number of bytes, such as 80GB" in capsys.readouterr().err
