"""The choice of a decomposition by measurement, and what is kept of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.cli import main
from pmwd_dist.parallel import autotune as tuner
from pmwd_dist.parallel.autotune import remembered
from pmwd_dist.parallel.backends.peer import Peer

SHAPE = (8, 8, 6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pmwd_dist" / "autotune.jsonl"


def test_every_fitting_division_is_measured_once(cache: Path) -> None:
    lines: list[str] = []
    best = pmd.autotune(SHAPE, repeats=1, say=lines.append)
    measured = [re.match(r"\s*\((\d), (\d)\)\s+xla((?:\s+\d+\.\d+){3})$", line) for line in lines[1:]]
    assert [(int(m[1]), int(m[2])) for m in measured if m] == [(4, 1), (2, 2), (1, 4)]
    times = [sum(map(float, m[3].split())) for m in measured if m]
    assert best.pdims == [(4, 1), (2, 2), (1, 4)][int(np.argmin(times))]
    lines.clear()
    assert pmd.autotune(SHAPE, repeats=1, say=lines.append) == best
    assert len(lines) == 1
    assert "as measured before" in lines[0]
    lines.clear()
    pmd.autotune(SHAPE, repeats=1, measure_again=True, say=lines.append)
    assert len(lines) == 4
    assert len(cache.read_text().splitlines()) == 1


@pytest.mark.parametrize("other", [{"dtype": "float64"}, {"halo": 1}, {"n_devices": 2}, {"shape": (8, 8, 12)}])
def test_another_question_is_measured_anew(other: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"shape": (8, 8, 4), "repeats": 1, "say": None, "n_devices": 1}
    pmd.autotune(**arguments)
    lines: list[str] = []
    pmd.autotune(**(arguments | other | {"say": lines.append}))
    assert len(lines) > 1


def test_a_config_reads_no_file_and_remembered_measures_nothing(cache: Path) -> None:
    assert remembered([SHAPE]) is None
    assert not cache.exists()
    pmd.autotune(SHAPE, repeats=1, say=None)
    record = json.loads(cache.read_text())
    cache.write_text(json.dumps(record | {"pdims": [2, 2]}) + "\n")
    assert remembered([SHAPE]) == pmd.Decomposition((2, 2))
    assert pmd.Config(box_size=8.0, mesh_shape=SHAPE).decomposition.pdims == (4, 1)
    assert remembered([(16, 8, 6)]) is None
    for change in ({"jax": "0.1"}, {"device": "another"}, {"driver": "another"}):
        cache.write_text(json.dumps(record | {"pdims": [2, 2], "key": record["key"] | change}) + "\n")
        assert remembered([SHAPE]) is None


def test_a_damaged_cache_is_no_obstacle(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("not json\n")
    assert tuner._records() == []
    key = tuner._machine(jax.devices()) | {"shape": list(SHAPE), "backends": ["xla"]}
    for pdims in ([3, 3], [4, 0], [2, 1]):  # not a division of four devices
        cache.write_text(json.dumps({"key": key, "pdims": pdims, "backend": "xla"}) + "\n")
        assert remembered([SHAPE]) is None
    cache.write_bytes(b"\xff\xfe\n")
    assert tuner._records() == []
    pmd.autotune(SHAPE, repeats=1, say=None, n_devices=1)
    assert len(tuner._records()) == 1


@pytest.mark.slow
def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for known in (False, True):
        with pytest.raises(SystemExit) as ended:
            main(["autotune", "8", "8", "6", "--halo", "2"])
        out = capsys.readouterr().out
        assert not ended.value.code and re.search(r'devices.pdims = \[\d, \d\]\ndevices.backend = "xla"\n', out)
        assert ("as measured before" in out) == known
    with pytest.raises(SystemExit) as ended:
        main(["autotune", "8", "8"])
    assert ended.value.code == 2
    assert "2 numbers of cells were given; give one or three" in capsys.readouterr().err


def test_a_result_that_cannot_be_kept_is_not_lost(cache: Path) -> None:
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("not a folder")
    lines: list[str] = []
    assert pmd.autotune(SHAPE, repeats=1, say=lines.append).pdims in ((4, 1), (2, 2), (1, 4))
    assert lines[-1].startswith("not kept: ")


def record_of(**changes: Any) -> dict[str, Any]:
    return {"pdims": [4, 1], "backend": "xla", "key": {"backends": ["peer", "xla"]}} | changes


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs are taken for GPUs that write into each other's memory."""
    monkeypatch.setattr(
        Peer, "unavailable_reason", lambda self, division: None if division.pdims[1] == 1 else "needs slabs"
    )


XLA_ALONE = {"backends": ["xla"]}


@pytest.mark.parametrize(
    ("record", "shapes", "default", "expected"),
    [
        (record_of(), [(8, 8, 8)], None, ((4, 1), "xla")),
        (record_of(backend="peer"), [(8, 8, 8)], None, ((4, 1), "peer")),
        (record_of(pdims=[2, 2]), [(8, 8, 8)], None, ((2, 2), "xla")),
        (record_of(key=XLA_ALONE), [(8, 8, 8)], None, None),  # from before "peer" served here
        (record_of(backend="another"), [(8, 8, 8)], None, None),
        (None, [(8, 8, 8)], None, None),
        (record_of(pdims=[1, 4]), [(8, 8, 8)], None, ((1, 4), "xla")),
        (record_of(pdims=[1, 4]), [(8, 8, 8), (8, 6, 6)], None, None),  # fits not all shapes
        (record_of(pdims=[2, 2]), [(8, 8, 8)], "peer", None),  # a default says more
        (record_of(pdims=[2, 2]), [(8, 8, 8)], "cudecomp", None),
    ],
)
def test_what_was_measured_is_remembered(
    record: Any, shapes: Any, default: str | None, expected: Any, peers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "_find", lambda key: record)
    if default is not None:
        monkeypatch.setenv("PMWD_BACKEND", default)
    found = remembered(shapes)
    assert (found and (found.pdims, found.backend.name)) == expected
