"""Small runs: settings, a listener, and comparisons of their folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import h5py
import jax
import numpy as np
import pytest

from pmwd_dist.cli import main
from pmwd_dist.run.common.folder import Event, prepare_folder
from pmwd_dist.run.settings import SimulationSettings, read_as
from pmwd_dist.run.simulation.job import SimulationJob

SMALL = """
[box]
size = 32
mesh = 8
[time]
steps = 4
lpt_order = 1
[devices]
pdims = [1, 1]
[output]
redshifts = [1, 0]
snapshot = "swift"
"""


class Events(list[Event]):
    """A listener that remembers, and sends a signal to this process after a step."""

    def __init__(self, stop_after: int | None = None, number: int = signal.SIGINT):
        super().__init__()
        self.stop_after, self.number = stop_after, number

    def __call__(self, event: Event) -> None:
        self.append(event)
        if event.name == "step" and event.fields["step"] == self.stop_after:
            os.kill(os.getpid(), self.number)

    def of(self, name: str) -> list[SimpleNamespace]:
        """Fields of the events of this name."""
        return [SimpleNamespace(**event.fields) for event in self if event.name == name]


def read(path: Path, overrides: Iterable[str] = ()) -> SimulationSettings:
    return read_as(SimulationSettings, path, overrides)


def make(folder: Path, *overrides: str) -> SimulationJob:
    """A plan with a folder that is ready."""
    file = folder.with_suffix(".toml")
    file.write_text(SMALL)
    plan = SimulationJob.of(read(file, overrides), folder)
    prepare_folder(plan)
    return plan


def linear_power(path: Path) -> None:
    k = np.geomspace(1e-3, 10, 50)
    np.savetxt(path, np.stack([k, 1e4 * k / (1 + (k / 0.02) ** 2.5)], -1))


def resumed(folder: Path, *overrides: str) -> SimulationJob:
    return SimulationJob.of(read(folder / "config.toml", overrides), folder)


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def environment() -> dict[str, str]:
    """The environment of programs with the compiled programs, the precision and the devices of the tests."""
    return os.environ | {
        # JAX's keys hold the name of the folder. Nothing is added to it: what is killed may leave half a program.
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e6",
        "JAX_ENABLE_X64": "1",
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_PLATFORMS": "cpu",
    }


def kill_loop(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The program of this name, with the programs that the tests have compiled."""
    script = [sys.executable, Path(__file__).with_name("kill_loop.py"), *map(str, arguments)]
    return subprocess.run(script, env=environment(), capture_output=True, text=True, timeout=200, check=False)


def particles(folder: Path, label: str = "z0.000") -> dict[str, np.ndarray]:
    with h5py.File(folder / f"snapshot_{label}.hdf5") as file:
        return {name: data[:] for name, data in file["PartType1"].items()}


def assert_same(one: Path, other: Path) -> None:
    """Bitwise the same results."""
    for label in ("z1.000", "z0.000"):
        for name, values in particles(one, label).items():
            np.testing.assert_array_equal(values, particles(other, label)[name])
        csv = f"power_{label}.csv"
        assert (one / csv).read_text() == (other / csv).read_text()
