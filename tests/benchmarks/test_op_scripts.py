"""The scripts that time single ops, at sizes at which only their wiring is tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import loads, measure, op_timing, stages
from benchmarks.problem import FLOOR_BYTES


@pytest.fixture(autouse=True)
def quick_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bandwidth that was not measured, and rounds of one call."""
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 1e10)
    monkeypatch.setattr(op_timing, "_ROUND_SECONDS", 0.0)


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
