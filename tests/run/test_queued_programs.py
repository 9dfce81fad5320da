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

SIZES = ("--set", "sampler.tuning_steps=40", "--set", "sampler.steps=12", "--set", "sampler.chunk=4")
FOUR_CHAINS = """
import sys
example, pdims, sizes = sys.argv[1], ("--set", sys.argv[2]), sys.argv[3:]
finish({"infer": command("infer", example, "--output", "run", *pdims, *sizes)})
import time
os.environ["PMWD_WATCHDOG"] = "5"
before_step(1, 1, lambda: time.sleep(300))
command("infer", example, "--output", "stopped", *pdims, *sizes)
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
@pytest.mark.parametrize("pdims", [(2, 1), (2, 2)])
def test_four_chains_of_processes_end(tmp_path: Path, pdims: tuple[int, int]) -> None:
    """The field-level example; where a process then stops, the watchdog ends the others."""
    arguments = f"devices.pdims={list(pdims)}", "--set", "devices.halo=4", *SIZES
    done = start(math.prod(pdims), tmp_path, "-c", ONE_CORE + BEGIN + FOUR_CHAINS, str(EXAMPLE), *arguments)
    assert 'codes {"infer": 0}' in done.stdout, done.stderr
    assert (tmp_path / "run" / "chunk_00002.npz").exists()
    (line,) = (text for text in done.stderr.splitlines() if "no sign of life" in text)
    assert "pmwd-dist resume stopped" in line
    assert done.returncode == 1
