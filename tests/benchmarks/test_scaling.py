"""The script that measures scaling, at sizes at which only its wiring is tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure, scaling


def record(**changes: Any) -> dict[str, Any]:
    times = {"pdims": (1, 1), "backend": "xla", "seconds": 1.0, "range": (1.0, 1.0), "compile_s": 1.0, "bytes": 40.0}
    case = {"what": "forward", "kind": "strong", "n": 8, "mesh": (8, 8, 8), "devices": 1, "variance": 0.5}
    return case | times | changes


@pytest.mark.slow
def test_a_table_a_file_and_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 1e10)
    monkeypatch.setattr(measure, "_ROUND_SECONDS", 0.0)
    out, plot = tmp_path / "scaling.json", tmp_path / "scaling.png"
    sizes = ["--devices", "1,2", "--strong", "8", "--weak", "", "--halo", "8", "--rounds", "1"]
    scaling.main([*sizes, "--json", str(out), "--plot", str(plot)])
    _, one, two = json.loads(out.read_text(encoding="utf-8"))
    assert [r["devices"] for r in (one, two)] == [1, 2]
    assert one["efficiency"] == 1.0
    assert two["speed_up"] == pytest.approx(one["seconds"] / two["seconds"])
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
    assert two["variance"] == pytest.approx(one["variance"], rel=1e-3)
    assert min(one["bytes"], two["bytes"]) > 24
    assert plot.stat().st_size > 10_000
    table = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in table[2:]} == {12}


@pytest.mark.slow
def test_weak_scaling_is_the_same_time() -> None:
    weak = [record(kind="weak", devices=d, seconds=s, variance=d) for d, s in ((4, 2.0), (2, 1.0), (8, 1.0))]
    good = scaling.compared([*weak, record(kind="weak", devices=1, error="out of memory")])
    assert [r.get("speed_up") for r in good] == [None, 1.0, 1.0, 4.0]
    assert [r.get("efficiency") for r in good] == [None, 1.0, 0.5, 1.0]
    assert "out of memory" in scaling.row(good[0])
    assert scaling.row(good[0]).count("|") == scaling.row(good[1]).count("|") == 12
    assert scaling.Case("weak", 8, 4, 1, "auto", "forward").mesh == (32, 8, 8)


def test_another_density_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 1e10)
    monkeypatch.setattr(scaling, "timed", lambda case, rounds: record(devices=case.devices, variance=case.devices))
    with pytest.raises(SystemExit, match="1"):
        scaling.main(["--devices", "1,2", "--weak", ""])
    assert capsys.readouterr().out.count("the density differs") == 1
