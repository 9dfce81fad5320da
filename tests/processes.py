"""Functions in processes of their own, with limits of time and memory, programs under mpirun, and damage of files."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import problems
import pytest

SECONDS, BYTES = 60, 6 << 30
KILLED = "killed"


def in_own_process(
    function: Callable[[], Any], *, seconds: int = SECONDS, memory: int = BYTES, kill_after: float | None = None
) -> str:
    """What a function returns, as text, or "wrong: " and why it returned nothing; KILLED after a time for that.

    The process is forked: the parent must not have used JAX before.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _limit(seconds, memory)
        try:
            said = str(function())
        except BaseException:  # noqa: BLE001
            said = "wrong: " + traceback.format_exc()
        os.write(write, said.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        if kill_after is not None and not select.select([pipe], [], [], kill_after)[0]:
            os.kill(child, signal.SIGKILL)
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and kill_after is not None:
            return KILLED
        return f"wrong: no answer in {seconds} s" if number == signal.SIGALRM else f"wrong: ended by signal {number}"
    return said


def _limit(seconds: int, memory: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def mpirun(processes: int, folder: Path, *command: str, limit: int = 150) -> subprocess.CompletedProcess[str]:
    """Run Python with a command in several processes of one device, with the modules of the tests.

    For so many seconds at most.
    """
    program = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip("mpirun is not installed")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    environment |= {"XLA_FLAGS": problems.XLA_FLAGS, "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
    environment |= {"MPIEXEC_TIMEOUT": str(limit), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = [program, "-n", str(processes), "--oversubscribe", "--bind-to", "none", sys.executable, *command]
    return subprocess.run(
        run, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit + 30, check=False
    )


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The content of a file with flipped bits, or with a part cut, repeated, or replaced by zeros or noise."""
    out = bytearray(content)
    low, high = sorted(rng.integers(len(content) + 1, size=2).tolist())
    place = slice(low, min(low + int(rng.integers(1, 64)), len(content)))
    match int(rng.integers(8)):
        case 0 | 1 | 2:
            for _ in range(int(rng.choice((1, 1, 8)))):
                out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
        case 3:
            out[place] = rng.bytes(place.stop - place.start)
        case 4:
            out[place] = bytes(place.stop - place.start)
        case 5:
            del out[low:]
        case 6:
            del out[low:high]
        case _:
            out[high:] = content[low:]
    return bytes(out)
