"""CUDA kernels against the CPU's and the references of the ops, whole simulations and their snapshots, on one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmwd_dist as pmd

PROGRAMS = (
    "cic_on_gpu.py",
    "steps_on_gpu.py",
    "simulations_on_gpu.py",
    "canaries_on_gpu.py",
    "whole_runs_on_gpu.py",
    "wide_meshes_on_gpu.py",
    "snapshots_on_gpu.py",
)

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_gpu_agrees_with_the_cpu(program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    path = [str(Path(pmd.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"  # for wide meshes
    command = [sys.executable, str(Path(__file__).with_name(program))]
    run = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
    assert "are fine" in run.stdout
