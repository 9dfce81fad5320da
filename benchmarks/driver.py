"""Start the workers, run them in rounds, and collect their records."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pmwd_dist as pmd
from benchmarks.codes import CODES
from benchmarks.problem import CELL

CASES = ("forward", "gradient", "paint", "force")
_KERNELS_ONLY = ("pure-jax",)  # codes without time steps
_LARGE_SCALES = 0.15  # [h/Mpc]: up to here P(k) is compared
_SMALLEST = 32  # cells along a side, from which on there are enough large scales


class Worker:
    """A worker process with a protocol of lines."""

    def __init__(self, name: str, case: str, n: int, folder: Path, python: Mapping[str, str]):
        self.name, self.case, self.n = name, case, n
        self._log = folder / f"{case}-{name}-{n}.log"
        root = str(Path(pmd.__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [python.get(name, sys.executable), "-m", "benchmarks.worker", name, case, str(n), str(folder)]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send a line; return the next answer, {"error": …} if the process ended with one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: its output ends, and the log says why
        for answer in self._process.stdout:
            if answer.startswith("{"):  # libraries print, too
                return dict(json.loads(answer))
        code = self.end()
        return {} if code == 0 else {"error": "killed: out of memory?" if code < 0 else self._last_error()}

    def _last_error(self) -> str:
        """The last line of a traceback in the log."""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return (errors or lines or ["died"])[-1].replace("|", "/")[:200]

    def end(self) -> int:
        """End the process; its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        return code


def run(
    sizes: Sequence[int] = (64, 128),
    cases: Sequence[str] = CASES[:2],
    only: Sequence[str] = tuple(CODES),
    *,
    repeat: int = 3,
    python: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Run the benchmark: the machine first, then a record for each code, case and size.

    Args:
      sizes: n of each mesh n^3.
      cases: of CASES.
      only: codes.
      repeat: rounds after the warm-up.
      python: interpreter for a code, where the peers need another environment; pmwd_dist must be importable there.
      progress: called with a line now and then.

    Raises:
      ValueError: an unknown case or code, or no repetition.
      RuntimeError: the inputs could not be made.
    """
    codes = tuple(CODES)
    for kind, given, known in (("cases", cases, CASES), ("only", only, codes), ("python", python or (), codes)):
        if wrong := [name for name in given if name not in known]:
            raise ValueError(f"{kind} has {', '.join(wrong)}; known are {', '.join(known)}")
    if repeat < 1:
        raise ValueError(f"repeat={repeat} must be 1 or more")
    plan = _Plan(only, repeat, python or {}, progress or (lambda _: None))
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            machine = plan.inputs(n, Path(folder), cases)
            records = records or [machine]
            for case in cases:
                records += plan.compare(case, n, Path(folder), together=machine["backend"] == "cpu")
    return records


@dataclass(frozen=True)
class _Plan:
    only: Sequence[str]
    repeat: int
    python: Mapping[str, str]
    progress: Callable[[str], None]

    def inputs(self, n: int, folder: Path, cases: Sequence[str]) -> dict[str, Any]:
        """Write the inputs of a size, and return the description of the machine."""
        self.progress(f"{n}^3: inputs")
        machine = self._write("ours", "inputs-final" if {"paint", "force"} & set(cases) else "inputs", n, folder)
        if "error" in machine:
            raise RuntimeError(f"the inputs of {n}^3 could not be made: {machine['error']}")
        for name in self.only if "forward" in cases else ():
            if not name.startswith("ours") and name not in _KERNELS_ONLY and not self._missing(name):
                self._write(name, "inputs", n, folder)
        return machine

    def _write(self, name: str, case: str, n: int, folder: Path) -> dict[str, Any]:
        worker = Worker(name, case, n, folder, self.python)
        answer = worker.ask()
        worker.end()
        return answer

    def compare(self, case: str, n: int, folder: Path, *, together: bool) -> list[dict[str, Any]]:
        """Records of all codes for one case and size; together: each round has a turn of every code."""
        names = [name for name in self.only if case in ("paint", "force") or name not in _KERNELS_ONLY]
        records: dict[str, dict[str, Any]] = {
            name: {"code": name, "case": case, "n": n, "seconds": []} for name in names
        }
        workers = []
        for name in names:
            if missing := self._missing(name):
                records[name]["error"] = missing
                continue
            self.progress(f"{n}^3: {case}, {name}")
            worker = Worker(name, case, n, folder, self.python)
            records[name].update(worker.ask())
            workers.append(worker)
            if not together:
                self._rounds([workers.pop()], records)
        self._rounds(workers, records)
        for record in records.values():
            if record["seconds"]:
                record["median_s"] = statistics.median(record["seconds"])
                record["agreement"] = _agreement(record, folder)
                record["agrees"] = agrees(record)
        return list(records.values())

    def _rounds(self, workers: list[Worker], records: dict[str, dict[str, Any]]) -> None:
        alive = [worker for worker in workers if "error" not in records[worker.name]]
        for _ in range(self.repeat):
            for worker in alive:
                answer = worker.ask("run\n")
                records[worker.name]["seconds"] += answer.pop("seconds", [])
                records[worker.name].update(answer)
        for worker in alive:
            worker.end()

    def _missing(self, name: str) -> str | None:
        if name in self.python:
            return None
        absent = [package for package in CODES[name].packages if importlib.util.find_spec(package) is None]
        return f"not installed: {', '.join(absent)}" if absent else None


def agrees(record: Mapping[str, Any]) -> bool | None:
    """Whether P(k) at a = 1 is ours within the tolerance of a code; None where none is compared."""
    power = record.get("agreement", {}).get("power")
    return None if power is None or record["n"] < _SMALLEST else abs(power - 1) <= CODES[record["code"]].tolerance


def _agreement(record: dict[str, Any], folder: Path) -> dict[str, float]:
    """Agreement of a result with ours: P(k) on large scales for forward, the cosine of the two for other cases."""
    case, n = record["case"], record["n"]
    files = [folder / f"{case}-{name}-{n}.npy" for name in (record["code"], "ours")]
    if not all(file.exists() for file in files):
        return {}
    field, ours = (np.load(file).astype(float) for file in files)
    if case != "forward":
        return {"cosine": float(field.ravel() @ ours.ravel() / np.linalg.norm(field) / np.linalg.norm(ours))}
    index = np.fft.fftfreq(n, 1 / n)
    k = np.sqrt(index[:, None, None] ** 2 + index[None, :, None] ** 2 + np.arange(n // 2 + 1) ** 2)
    large = (k > 0) & (k < max(_LARGE_SCALES * n * CELL / (2 * np.pi), 3))  # in units of the fundamental mode
    modes = [np.fft.rfftn(x)[large] for x in (field, ours)]
    power, reference, cross = (np.sum((a * b.conj()).real) for a, b in ((modes[0],) * 2, (modes[1],) * 2, modes))
    return {"power": float(power / reference), "correlation": float(cross / np.sqrt(power * reference))}
