"""Plans for devices that are not here: times against measured ones, and what fits."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from runs import SMALL, command

import pmwd_dist as pmd
from pmwd_dist._memory import bytes_of
from pmwd_dist.run.memory import RUN, load, stages
from pmwd_dist.run.planning import divisions, enough_devices, largest_mesh, on_devices
from pmwd_dist.run.speed import machine_of, step_seconds, transforms_seconds

FACTOR = 1.5  # to which docs/planning.md trusts the model

# Milliseconds of a transform and its inverse (benchmarks/RESULTS.md): kind, cells along a side, devices, collectives.
TRANSFORMS = [
    ("H200", 1024, (1, 1), False, 17.95),
    ("H200", 1024, (2, 1), False, 12.18),
    ("H200", 1024, (4, 1), False, 7.17),
    ("H200", 512, (4, 1), False, 1.14),
    ("H200", 2048, (4, 1), False, 76.81),
    ("H200", 1024, (2, 1), True, 23.20),
    ("H200", 1024, (4, 1), True, 13.24),
    ("H200", 1024, (2, 2), True, 15.54),
    ("H200", 2048, (4, 1), True, 115.11),
    ("H200", 2048, (2, 2), True, 130.07),
    ("H100", 512, (1, 1), False, 2.57),
]
# Milliseconds of a step of 2 Mpc/h cells and a halo of 20 (docs/planning.md): kind, particles and cells along a side,
# devices, whether all steps are one program.
STEPS = [
    ("H100", 512, 512, (1, 1), True, 10.5),
    ("H100", 256, 256, (1, 1), True, 1.56),
    ("H100", 512, 512, (2, 1), True, 7.8),
    ("H100", 512, 512, (1, 1), False, 12.31),
    ("H100", 768, 768, (1, 1), False, 46.84),
    ("H100", 256, 512, (1, 1), False, 8.5),
    ("H100", 320, 480, (1, 1), False, 8.15),
    ("H200", 512, 512, (2, 1), False, 6.92),
    ("H200", 512, 512, (1, 2), False, 9.43),
    ("H200", 1024, 1024, (2, 1), False, 50.65),
    ("H200", 512, 512, (1, 1), True, 8.9),
    ("H200", 512, 512, (2, 1), True, 6.4),
    ("H200", 1024, 1024, (1, 1), True, 73.9),
    ("H200", 1024, 1024, (2, 1), True, 50.5),
    ("H200", 1536, 1536, (2, 1), True, 195.0),
    ("cpu", 64, 64, (1, 1), True, 5.96),
    ("cpu", 128, 128, (1, 1), True, 47.5),
]


def config_of(n: int, pdims: tuple[int, int] = (1, 1), halo: int = 20, mesh: int | None = None) -> pmd.Config:
    return on_devices(pmd.Config(2.0 * n, mesh or n, n, halo=halo, decomposition=(1, 1)), pdims)


@pytest.mark.parametrize(("kind", "n", "pdims", "collectives", "milliseconds"), TRANSFORMS)
def test_transforms_take_the_time_that_was_measured(kind, n, pdims, collectives, milliseconds):
    machine = machine_of(kind)
    seconds = transforms_seconds(load(config_of(n, pdims)), pdims, machine, collectives=collectives)
    assert 1 / FACTOR < 1e3 * seconds / milliseconds < FACTOR


@pytest.mark.parametrize(("kind", "n", "mesh", "pdims", "loop", "milliseconds"), STEPS)
def test_steps_take_the_time_that_was_measured(kind, n, mesh, pdims, loop, milliseconds):
    seconds = step_seconds(config_of(n, pdims, mesh=mesh), machine_of(kind), loop=loop)
    assert 1 / FACTOR < 1e3 * seconds / milliseconds < FACTOR


def test_the_page_of_plans_has_the_numbers_of_the_model():
    """Cells of 2 Mpc/h, the halos that `pmwd-dist check` finds there, 72 GB a device."""
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    row = r"\| (\d+)³ \| \d+ \| \[(\d+), (\d+)\] \| ([\d.]+)( .*)? \| ([\d.]+)( .*)? \| ([\d.]+) \|"
    rows = re.findall(row, page)
    assert {(n, py == "1") for n, _, py, *_ in rows} == {(n, slab) for n in ("2048", "4096", "8192") for slab in (0, 1)}
    for n, px, py, run, no_run, gradient, no_gradient, seconds in rows:
        config = pmd.Config(2.0 * int(n), int(n), lpt_order=2, decomposition=(1, 1))
        divided, halo = on_devices(config, (int(px), int(py))), 26 if n == "8192" else 24
        memory = stages(divided, "gpu", halo=halo)
        peak, most = max(memory[stage] for stage in RUN) / 1e9, memory["gradient"] / 1e9
        took = step_seconds(divided, machine_of("H100"), halo=halo)
        assert (peak, most, took) == pytest.approx((float(run), float(gradient), float(seconds)), rel=0.05)
        assert (bool(no_run), bool(no_gradient)) == (peak > 72, most > 72)


def test_enough_devices_are_the_fewest_that_hold_the_run():
    config = config_of(1024)
    count = enough_devices(config, 40.0, "gpu", 16e9)
    assert count is not None
    peaks = {n: min(d.peak for d in divisions(config, n, 40.0, "gpu")) for n in (count, count // 2)}
    assert peaks[count] <= 16e9 < peaks[count // 2]
    assert enough_devices(config, 40.0, "gpu", 1e3) is None


@pytest.mark.parametrize("count", [1, 6, 64])
def test_the_largest_mesh_fits_and_a_larger_one_does_not(count: int):
    best = largest_mesh(config_of(64), count, 40.0, "gpu", 4e9)
    assert best is not None
    n = best.mesh_shape[0]
    assert best.cell_size == (2.0, 2.0, 2.0)
    assert min(d.peak for d in divisions(best, count, 40.0, "gpu")) <= 4e9
    larger = config_of(math.ceil(1.1 * n / 192) * 192)
    assert min(d.peak for d in divisions(larger, count, 40.0, "gpu")) > 4e9


def test_slabs_of_few_planes_need_more_memory_than_pencils():
    slabs, pencils = (
        max(stages(config_of(2048, pdims, halo=24), "gpu")[stage] for stage in RUN) for pdims in ((256, 1), (16, 16))
    )
    assert slabs > 1.2 * pencils


@pytest.mark.parametrize(("text", "number"), [("80GB", 80e9), ("1.5 GiB", 1.5 * 2**30), ("8e9", 8e9), ("100B", 100)])
def test_sizes(text: str, number: float):
    assert bytes_of(text) == number


def test_check_plans_for_other_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run.toml").write_text(SMALL.replace("size = 32", "size = 4096").replace("mesh = 8", "mesh = 2048"))
    check = ("check", tmp_path / "run.toml", "--device-memory", "60GB", "--devices")
    assert command(*check, 256) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2].startswith("best        devices.pdims = [")
    assert out[-1].startswith("largest     a mesh of ")
    assert sum("GB" in line for line in out) > 4
    assert command(*check, 2) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "memory a device on 2 x H100 with 60 GB; use 8 such devices, or a smaller mesh" in line
    assert command(*check, 3) == 2
    assert "can't be divided over so many; use 8 such devices" in capsys.readouterr().err
    assert command("check", tmp_path / "run.toml", "--device-kind", "abacus") == 2
    assert "use one of H100, H200, cpu" in capsys.readouterr().err
    assert command("check", tmp_path / "run.toml", "--devices", 8, "--device-memory", "much") == 2
    assert "--device-memory='much' must be a number of bytes, such as 80GB" in capsys.readouterr().err
