"""cuDecomp moves the same bits to the same places as XLA's collectives: one process a GPU, under mpirun.

Needs two GPUs or more, mpirun, and libcudecomp (PMWD_CUDECOMP_LIBRARY).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmwd_dist as pmd

PROGRAM = Path(__file__).with_name("cudecomp_processes.py")
BACKENDS = os.environ.get("PMWD_CUDECOMP_BACKENDS", "nccl nccl_pl").split()

pytestmark = [pytest.mark.gpu, pytest.mark.mpi, pytest.mark.slow]


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_xla_bit_by_bit(backend: str, gpus: int, cudecomp_library: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    path = [str(Path(pmd.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PMWD_CUDECOMP_LIBRARY": cudecomp_library,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = ["mpirun", "-n", str(gpus), "--bind-to", "none", sys.executable, str(PROGRAM), backend]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
    assert f"{backend}: " in run.stdout and "comparisons are bitwise equal" in run.stdout
    assert "refused" not in run.stdout
