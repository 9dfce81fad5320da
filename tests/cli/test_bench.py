"""The benchmark of our own code, at a size at which nothing but its wiring is tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pmwd_dist.cli import bench as verb
from pmwd_dist.cli import main
from pmwd_dist.run.common import measure
from pmwd_dist.run.common.measure import Cost
from pmwd_dist.run.simulation.bench import Timing, bench


def test_times_floor_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (forward,) = bench([8], ["forward"], rounds=1)
    gradient = Timing("gradient", 8, (0.2, 0.1, 0.3), Cost(4.0, 0.5, None, 512 * 200))
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 1e9)
    monkeypatch.setattr(verb, "bench", lambda sizes: iter([forward, gradient]))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--sizes", "8", "--json", str(tmp_path / "b.json")])
    assert not ended.value.code
    host, first, second = capsys.readouterr().out.splitlines()
    assert "copy 1.0 GB/s" in host
    floor = 116 * 8**3 / 1e9
    assert f"{forward.median / 10 / floor:.1f} times the floor of {floor * 1e3:.3g} ms" in first
    assert f"0.2 s in all, {0.2 / forward.median:.1f} times forward; 200 bytes a particle" in second
    assert "compilation 4.0 s, first call 0.50 s" in second
    content = json.loads((tmp_path / "b.json").read_text())
    assert content["machine"]["bandwidth"] == 1e9
    assert [(row["case"], row["median_s"]) for row in content["timings"]] == [
        ("forward", forward.median),
        ("gradient", 0.2),
    ]
    assert 0 < forward.cost.first_s < 60
    assert forward.bytes_per_particle > 24  # positions and momenta alone


@pytest.mark.parametrize("sizes", ["0", "8,ten", "", "99999999", "60000"])
def test_wrong_sizes_fail(sizes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 1e9)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--sizes", sizes])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "sizes" in err
