"""Programs of this folder on GPUs: against a CPU, one GPU against several, and cuDecomp against XLA's collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmwd_dist as pmd

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def run(program: str, *arguments: str, processes: int = 1) -> str:
    """Standard output of a program, in one process or under mpirun with a process a GPU."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    path = [str(Path(pmd.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"  # for wide meshes
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    start = [] if processes == 1 else ["mpirun", "-n", str(processes), "--bind-to", "none"]
    command = [*start, sys.executable, str(Path(__file__).with_name(program)), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "program",
    ["cic", "steps", "simulations", "whole_runs", "wide_meshes", "snapshots"],
)
def test_a_gpu_agrees_with_the_cpu(program: str) -> None:
    assert "are fine" in run(f"{program}_on_gpu.py")


@pytest.mark.usefixtures("gpus")
def test_every_division_paints_the_same_bits() -> None:
    assert "are fine" in run("paint_on_gpus.py")


@pytest.mark.parametrize("launcher", ["alone", "mpirun"])
def test_operations_and_derivatives_are_those_of_one_gpu(launcher: str, gpus: int) -> None:
    out = run("transform_processes.py", processes=1 if launcher == "alone" else gpus)
    assert "comparisons with one GPU are fine" in out


@pytest.mark.mpi
@pytest.mark.usefixtures("cudecomp_library")
@pytest.mark.parametrize("backend", os.environ.get("PMWD_CUDECOMP_BACKENDS", "nccl nccl_pl").split())
def test_cudecomp_moves_the_bits_of_xla(backend: str, gpus: int) -> None:
    out = run("cudecomp_processes.py", backend, processes=gpus)
    assert f"{backend}: " in out and "comparisons agree" in out
    assert "refused" not in out
