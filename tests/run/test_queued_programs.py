"""Inferences of several processes with one core each, whose programs would wait for each other forever if queued."""

from __future__ import annotations

from pathlib import Path

import pytest
from inferences import SMALL
from test_jobs_of_processes import BEGIN, start

ONE_CORE = """
import os
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(cores)]})
"""

TUNINGS = """
import jax, numpy as np
from jax_cosmo import Planck15
import pmwd_dist as pmd
from pmwd_dist import infer

pmd.distributed.initialize()
config = pmd.Config(80.0, 8, decomposition=pmd.Decomposition((2, 1)))
forward = infer.LinearField(config, Planck15(), bias="b1")
model = infer.Model(config, forward, {"b1": infer.Normal(1.0, 0.5)}, infer.Gaussian(0.5))
posterior = model.condition(1 + np.random.default_rng(0).standard_normal((8, 8, 8)))
starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(0), 2))
for i in range(10):
    options = {"steps": 5, "chunk": 5, "tuning_steps": 40, "output": f"chain{i}"}
    chain = infer.sample(posterior, starts, key=jax.random.key(i), **options)
    assert np.isfinite(chain.logdensity).all()
    print("tuned", i, flush=True)
"""

FOUR_CHAINS = """
codes = {"infer": command("infer", "small.toml", "--set", "devices.pdims=[2, 1]")}
finish(codes)
import time
os.environ["PMWD_WATCHDOG"] = "5"
before_step(1, 1, lambda: time.sleep(300))
command("infer", "small.toml", "--output", "stopped", "--set", "devices.pdims=[2, 1]")
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ten_tunings_of_two_processes_end(tmp_path: Path) -> None:
    done = start(2, tmp_path, "-c", ONE_CORE + TUNINGS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tuned 9") == 2


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_four_chains_of_processes_end(tmp_path: Path) -> None:
    """A small field-level inference; where a process then stops, the watchdog ends the others."""
    text = SMALL.replace("pdims = [1, 1]\n", "").replace("chains = 2", "chains = 4").replace("mesh = 4", "mesh = 8")
    (tmp_path / "small.toml").write_text(text)
    done = start(2, tmp_path, "-c", ONE_CORE + BEGIN + FOUR_CHAINS)
    assert 'codes {"infer": 0}' in done.stdout, done.stderr
    assert (tmp_path / "small" / "chunk_00002.npz").exists()
    (line,) = (text for text in done.stderr.splitlines() if "no sign of life" in text)
    assert "pmwd-dist resume stopped" in line
    assert done.returncode == 1
