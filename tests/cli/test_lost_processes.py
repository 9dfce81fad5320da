"""What one process does when another of the same program is killed or stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import problems
import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

# Both processes talk to each other all the time, until one of them sends itself a signal.
TALK = """
import os, signal, sys
from pmwd_dist.cli import commands, main
from pmwd_dist.parallel import distributed

def talk():
    for i in range(10**9):
        distributed.all_processes(True)
        if i == 20 and not distributed.is_main():
            os.kill(os.getpid(), int(sys.argv[1]))

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which mpirun ends the others, perhaps before they speak
distributed.initialize(heartbeat_timeout=3)
commands.report_lines = talk
main(["doctor"])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end(number: int):
    """At once and in one line after a kill; within the time of the heartbeats where a process does not answer."""
    mpirun = shutil.which("mpirun") or str(Path(sys.executable).with_name("mpirun"))
    if not Path(mpirun).exists():
        pytest.skip("there is no mpirun")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"XLA_FLAGS": problems.XLA_FLAGS, "JAX_NUM_CPU_DEVICES": "1", "JAX_PLATFORMS": "cpu"}
    run = [mpirun, "-n", "2", "--oversubscribe", sys.executable, "-c", TALK, str(int(number))]
    began = time.perf_counter()
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "internal error" not in done.stderr
    if number == signal.SIGKILL:
        line = r"^pmwd-dist: process 0: the run failed: the connection to another process is lost .*resume DIR`$"
        assert re.search(line, done.stderr, re.MULTILINE), done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert "stopped sending heartbeats" in done.stderr
        assert time.perf_counter() - began < 60  # nearly all of it for the start
