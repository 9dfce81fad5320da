"""The scripts that time ops and scaling, measure accuracy and train forces: their wiring, at small sizes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from benchmarks import (
    accuracy,
    cost_table,
    halo_matching,
    loads,
    measure,
    op_timing,
    paired,
    scaling,
    stages,
    stored_power,
    train_force,
)
from benchmarks.accuracy import Case
from benchmarks.problem import FLOOR_BYTES
from pmwd_dist import observe


@pytest.fixture(autouse=True)
def quick_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bandwidth that was not measured, and rounds of one call."""
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 1e10)
    monkeypatch.setattr(op_timing, "_ROUND_SECONDS", 0.0)


@pytest.mark.slow
def test_versions_are_timed_by_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And a head that takes as long as the base is over a limit of less."""
    quick = "import sys\nfor _ in sys.stdin:\n    print('{\"forward\": 1}', flush=True)"
    small = paired.WORKER.replace("mesh_shape=64", "mesh_shape=8")
    for worker, limit, slower in ((quick, 0.9, 1), (small, 1e9, 0)):
        monkeypatch.setattr(paired, "WORKER", worker)
        monkeypatch.setattr(paired, "LIMIT", limit)
        assert paired.main(sys.executable, sys.executable, pairs=2) == slower
    assert re.search(r"forward .*\ngradient +base +[0-9.]+ ms   head/base [0-9.]+\n", capsys.readouterr().out)


def test_a_stored_spectrum_has_a_tolerance(tmp_path: Path) -> None:
    table = np.loadtxt(stored_power.STORED, delimiter=",", skiprows=1)
    for change, failed in ((1e-5, 0), (1e-3, 1)):
        rows = table * [1, 1 + change]
        np.savetxt(tmp_path / "power_z0.000.csv", rows, delimiter=",", header="k,power", comments="")
        assert stored_power.main(str(tmp_path)) == failed


@pytest.mark.slow
def test_loads_are_timed_beside_their_floors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "loads.json"
    loads.main(["--particles", "8", "--loads", "fine,random", "--rounds", "1", "--json", str(out)])
    machine, *records = json.loads(out.read_text(encoding="utf-8"))
    assert machine["bandwidth"] == 1e10
    assert [record["load"] for record in records] == 6 * ["fine"] + 6 * ["random"]
    assert all(0 < record["seconds"] < 10 for record in records)
    assert [record["plain_s"] is not None for record in records] == 2 * [True, True, True, False, False, False]
    bytes_of = {(record["load"], record["op"]): record["bytes"] for record in records}
    assert bytes_of["fine", "paint"] == 12 + 4 / 8
    assert bytes_of["fine", "force read, kick, drifts"] == 48 + 12 / 8
    assert bytes_of["random", "paint"] == 12 + 4 * 9 / 8 * 64  # one sector of eight begins with the second cell
    assert bytes_of["random", "read, three fields"] == 24 + 4 * 13 / 8 * 32
    table = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in table[2:]} == {8}


def test_halos_are_matched_by_place_and_mass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Partners are those that were moved; others are too far away, too light, or have a nearer one."""
    core, number = np.array([[0.1, 5, 5], [4, 4, 4], [8, 2, 2], [6, 8, 1]]), np.array([300, 100, 40, 30])
    one = halo_matching.Halos(number, core, np.full(3, 10.0))
    moved = np.array([[9.9, 5, 5], [4, 4.3, 4], [8, 2, 4], [6, 8, 1], [4, 4.2, 4]])
    other = halo_matching.Halos(np.array([330, 90, 40, 14, 45]), moved, one.box)
    paired, distance, ratio = halo_matching.match(one, other)
    np.testing.assert_array_equal(paired, [True, True, False, False])
    np.testing.assert_allclose(distance, [0.2, 0.3])
    np.testing.assert_allclose(ratio, [1.1, 0.9])
    for name, halos in {"one": one, "other": other}.items():
        columns = {f"halo_core_{axis}": 2 * halos.core[:, i] for i, axis in enumerate("xyz")}
        about = {"box_size [Mpc/h]": (20.0, 20.0, 20.0), "config": json.dumps({"particle_shape": [10, 10, 10]})}
        columns |= {"halo_particles": halos.number}
        observe.Catalogue(columns, dict.fromkeys(columns, ""), about).save(tmp_path / f"{name}.hdf5")
    halo_matching.main([str(tmp_path / "one.hdf5"), str(tmp_path / "other.hdf5")])
    row, *others = capsys.readouterr().out.splitlines()[2:]
    assert row == "| other | 100 to 200 | 1 | 1.000 | 0.300 | 0.900 (0.90 to 0.90) |"
    assert len(others) == 1


@pytest.mark.slow
def test_halos_of_runs_are_matched(capsys: pytest.CaptureFixture[str]) -> None:
    """A finer plain particle mesh has the same halos."""
    halo_matching.main(["--particles", "16", "--plain", "--least", "10"])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert {row[1].strip() for row in rows} == {"2 Mpc/h, 1 cell", "2 Mpc/h, 2 cells", "2 Mpc/h, 2 cells, corrected"}
    assert all(float(row[4]) > 0.5 and float(row[5]) < 0.5 for row in rows if int(row[3]) > 5)


@pytest.mark.parametrize("load", loads.LOADS)
def test_a_load_fits_its_mesh(load: str) -> None:
    geometry = loads.geometry_of(load, 512)
    assert geometry.mesh[0] * geometry.spacing[0][1] == 512 * geometry.spacing[0][0]


def test_what_is_carried_goes_from_call_to_call() -> None:
    x = jnp.zeros(3)

    def count(x: Any, y: Any) -> tuple[Any, Any]:
        jax.debug.callback(lambda x: seen.append(float(x[0])), x)
        return x + y, y

    seen: list[float] = []
    assert op_timing.seconds(count, (x, jnp.ones(3)), carried=1, rounds=2) > 0
    jax.effects_barrier()
    assert seen == [0.0, 1.0, 2.0, 3.0]
    assert not np.any(x)
    assert op_timing.bytes_of(count, (x, x)) == 4 * 3 * x.dtype.itemsize


@pytest.mark.slow
def test_stages_are_timed_beside_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "displacements", lambda noise, config: jnp.stack([noise, noise, noise], -1))
    monkeypatch.setattr(stages, "of_a_start", lambda noise, config: iter(()))
    out = tmp_path / "stages.json"
    stages.main(["--particles", "8", "--rounds", "1", "--json", str(out)])
    _, *records = json.loads(out.read_text(encoding="utf-8"))
    bytes_of = {record["stage"]: int(record["bytes"]) for record in records}
    assert bytes_of["paint"] == bytes_of["gradient of the potential"] == 16
    assert bytes_of["transforms and Green's function"] == 48
    assert bytes_of["paint"] + 48 + bytes_of["force read, kick, drifts"] - 8 == FLOOR_BYTES  # which reads one field
    for record in records:
        assert 0 < record["seconds"] < 10
        expected = None if record["whole"] else record["bytes"] * 8**3 / record["seconds"] / 1e10
        assert record["share"] == (None if expected is None else pytest.approx(expected))
    table = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in table[2:]} == {6}


# --- accuracy ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_suite_writes_its_records_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late, early = Case(100.0, steps=3, a_start=0.3), Case(100.0, steps=3)
    monkeypatch.setitem(accuracy.SUITES, "steps", lambda spacing: [(early, [late, early, Case(spacing, "1/8")])])
    out = tmp_path / "accuracy.json"
    accuracy.main(["steps", "--particles", "8", "--spacings", "100", "--devices", "1", "--out", str(out)])
    less, same, wrong = json.loads(out.read_text(encoding="utf-8"))
    assert less["reference"]["a_start"] == 0.1
    assert max(less["power_ratio"]) != 1
    assert max(less["decorrelation"]) > 1e-7
    assert same["power_ratio"] == [1.0] * 4
    assert same["decorrelation"] == [0.0] * 4
    assert "must be a whole number, 2 or more" in wrong["error"]
    table = capsys.readouterr().out.splitlines()
    assert table[3].count("|") == table[4].count("|") == table[5].count("|")
    assert "+0.00 (0e+00)" in table[5]


@pytest.mark.parametrize("suite", accuracy.SUITES)
def test_suites_compare_runs_of_one_spacing(suite: str) -> None:
    for reference, cases in accuracy.SUITES[suite](4.0):
        assert {case.spacing for case in cases} == {reference.spacing}
        assert len(set(cases)) == len(cases)


# --- scaling -----------------------------------------------------------------------------------------------------


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


# --- training of forces ------------------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_settings_against_a_finer_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost_table, "settings", lambda spacing: [(2, 1, 3, None)])
    size = "--plain --particles 8 --spacings 4 --judges 1"
    cost_table.main([*size.split(), "--out", str(tmp_path / "table.npz")])
    assert "4 Mpc/h, 2LPT, 1 cells, 3 steps, plain: [" in capsys.readouterr().out
    with np.load(tmp_path / "table.npz") as table:
        assert table["4 2LPT, 1 cells, 3 steps, plain power"].shape == (1, 4, len(table["4 k"]))
