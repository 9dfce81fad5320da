"""CUDA paint and read against the CPU's, bit by bit, on one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmwd_dist as pmd

PROGRAM = Path(__file__).with_name("cic_on_gpu.py")

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.usefixtures("gpu")
def test_against_the_cpu() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    path = [str(Path(pmd.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
    assert "are fine" in run.stdout
