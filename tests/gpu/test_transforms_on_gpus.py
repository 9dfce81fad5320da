"""Every operation and its derivatives on several GPUs, driven by one process and by one process each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmwd_dist as pmd

PROGRAM = Path(__file__).with_name("transform_processes.py")

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("launcher", ["alone", "mpirun"])
def test_against_one_gpu(launcher: str, gpus: int) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    path = [str(Path(pmd.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    start = [] if launcher == "alone" else ["mpirun", "-n", str(gpus), "--bind-to", "none"]
    command = [*start, sys.executable, str(PROGRAM)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
    assert "comparisons with one GPU are fine" in run.stdout
