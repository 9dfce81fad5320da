"""GPUs, where there are some: skipped without, a failure with PMWD_REQUIRE_GPU=1."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def _count() -> int:
    """Number of GPUs that JAX may see."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return sum(name not in ("", "-1") for name in visible.split(","))
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    return listing.count("GPU ")


@pytest.fixture
def gpu() -> None:
    """Need one GPU."""
    if _count() < 1:
        lacking("a GPU is needed, and there is none")


@pytest.fixture
def gpus() -> int:
    """Number of GPUs, two or more, with mpirun to start a process on each."""
    count = _count()
    if count < 2:
        lacking(f"two GPUs are needed, and there are {count}")
    if shutil.which("mpirun") is None:
        lacking("mpirun is not installed")
    return count


@pytest.fixture
def cudecomp_library(gpus: int) -> str:
    """Path of libcudecomp."""
    del gpus
    if "PMWD_CUDECOMP_LIBRARY" not in os.environ:
        lacking("PMWD_CUDECOMP_LIBRARY is not set")
    return os.environ["PMWD_CUDECOMP_LIBRARY"]


def lacking(reason: str) -> None:
    if os.environ.get("PMWD_REQUIRE_GPU") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
