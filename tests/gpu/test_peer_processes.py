"""GPUs of several processes that write into each other's memory: a whole simulation, and a process that is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pmwd_dist as pmd

PROGRAM = Path(__file__).with_name("peer_processes.py")

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def start(case: str, gpus: int) -> list[subprocess.Popen[str]]:
    """Start a process for each GPU, as `srun` does."""
    path = [str(Path(pmd.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    step = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "SLURM_JOB_ID": str(random.randrange(10**6)),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": str(gpus),
        "SLURM_NTASKS": str(gpus),
    }
    processes = []
    for rank in range(gpus):
        own = os.environ | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        command = [sys.executable, str(PROGRAM), case]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, env=own, text=True, **pipes))
    return processes


def outputs(processes: list[subprocess.Popen[str]], timeout: float) -> list[tuple[str, str]]:
    try:
        return [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_a_simulation_against_one_gpu(gpus: int) -> None:
    processes = start("simulation", gpus)
    seen = outputs(processes, 300)
    assert [process.returncode for process in processes] == [0] * gpus, seen
    assert all("the simulation is fine" in out for out, _ in seen)


def test_processes_end_with_one_that_is_killed(gpus: int) -> None:
    processes = start("killed", gpus)
    processes[-1].wait(timeout=300)
    begin = time.monotonic()
    seen = outputs(processes, 60)
    assert time.monotonic() - begin < 30
    for process, (out, err) in zip(processes[:-1], seen[:-1], strict=True):
        assert process.returncode == 1, (out, err)
        assert "has ended" in err, err
