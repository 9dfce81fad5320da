"""The benchmark driver, at a size at which nothing but its wiring is tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import benchmarks
import pmwd_dist as pmd
from benchmarks.__main__ import bench as verb
from benchmarks.codes import Entry
from benchmarks.plot import draw

OURS = "ours" if pmd.native_available() else "ours-jax"


@pytest.fixture
def app() -> typer.Typer:
    """The verb as a program of its own."""
    app = typer.Typer()
    app.command()(verb)
    return app


@pytest.mark.slow
def test_records_and_table(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(benchmarks.driver.CODES, "jaxpm", Entry("jaxpm", ("no_such_package",), "JaxPM", 0.2))
    out = tmp_path / "bench.jsonl"
    command = f"--sizes 8 --cases forward --only {OURS},jaxpm --repeat 2 --out {out} --plot {tmp_path / 'bench.png'}"
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    machine, *rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert machine["bandwidth"] > 1e8
    assert "jax" in machine["versions"]
    assert [(row["case"], row["code"]) for row in rows] == [("forward", code) for code in (OURS, "jaxpm")]
    for row in rows[1::2]:
        assert row["error"] == "not installed: no_such_package"
    for row in rows[::2]:
        assert "error" not in row
        assert len(row["seconds"]) >= 2
        assert min(row["seconds"]) <= row["median_s"] <= max(row["seconds"])
        assert row["peak_bytes"] > 0
        assert row["agrees"] is None  # the mesh is too small
    assert "| ms a step |" in result.output
    assert "forward, 8³" in result.output
    assert "not installed" in result.output
    assert (tmp_path / "bench.png").stat().st_size > 10_000


def test_a_spectrum_beyond_its_tolerance_is_told(tmp_path: Path):
    machine = {"backend": "cpu", "cpu": "a CPU", "date": "today", "cores": 2, "bandwidth": 1e10, "load_before": 0.0}
    costs = {"peak_bytes": 100, "compile_s": 1.0, "seconds": [1.0], "median_s": 1.0}
    rows = [
        {"code": "pmpp", "case": "forward", "n": n, "agreement": {"power": power, "correlation": 1.0}} | costs
        for n, power in ((32, 0.99), (64, 0.9))
    ]
    for row in rows:
        row["agrees"] = benchmarks.driver.agrees(row)
    assert [row["agrees"] for row in rows] == [True, False]
    table = benchmarks.markdown([machine | {"versions": {}}, *rows])
    assert table.count("beyond its tolerance of 2.0%") == 1
    draw(tmp_path / "bench.png", [machine, *rows])
    assert benchmarks.driver.agrees({"code": "pmpp"}) is None


@pytest.mark.slow
def test_failing_worker_is_reported(tmp_path: Path) -> None:
    worker = benchmarks.driver.Worker(OURS, "paint", 16, tmp_path, {})  # its inputs were never written
    assert "FileNotFoundError" in worker.ask()["error"]
