"""The script that measures accuracy, at a size at which only its wiring is tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.accuracy import Case


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
