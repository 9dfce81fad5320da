"""Inferences of several processes with one core each, whose programs would wait for each other forever if queued."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from test_jobs_of_processes import BEGIN, start

EXAMPLE = Path(__file__).parents[2] / "sims" / "field_level.toml"
ONE_CORE = """
import os
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(cores)]})
"""

SHORT = ["sampler.tuning_steps=40", "sampler.steps=12", "sampler.chunk=4", "time.lpt_order=1", "start.begin=prior"]
LINEAR = ["box.mesh=8", "model.gravity=linear", "model.bias=eulerian", "model.line_of_sight=none"]
FOUR_CHAINS = 'finish({"infer": command("infer", *sys.argv[1:], "--output", "run")})'
STOPPED = """
import time
os.environ["PMWD_WATCHDOG"] = "5"
before_step(1, 1, lambda: time.sleep(300))
command("infer", *sys.argv[1:], "--output", "stopped")
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(("pdims", "options"), [((2, 1), ["devices.halo=4"]), ((2, 2), LINEAR)])
def test_four_chains_of_processes_end(tmp_path: Path, pdims: tuple[int, int], options: list[str]) -> None:
    """The field-level example; where one of two processes then stops, the watchdog ends the other."""
    count = math.prod(pdims)
    sets = [x for key in (f"devices.pdims={list(pdims)}", *options, *SHORT) for x in ("--set", key)]
    script = ONE_CORE + BEGIN + FOUR_CHAINS + STOPPED * (count == 2)
    done = start(count, tmp_path, "-c", script, str(EXAMPLE), *sets, limit=600)
    assert 'codes {"infer": 0}' in done.stdout, done.stderr
    assert (tmp_path / "run" / "chunk_00002.npz").exists()
    if count == 2:
        (line,) = (text for text in done.stderr.splitlines() if "no sign of life" in text)
        assert "pmwd-dist resume stopped" in line
        assert done.returncode == 1
