"""Runs that are killed at random moments and resumed end as others do: `python tests/run/kill_loop.py --kills 200`.

With --infer those of an inference: half of its kills come shortly after it has written its state, in the tuning and
between chunks, where there is something to go on with; most of its time it compiles.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import inferences
import numpy as np
import runs

from pmwd_dist.cli import main
from pmwd_dist.infer.chain.folder import ChainFolder
from pmwd_dist.infer.tuning import loop as tuning_loop
from pmwd_dist.io.arrays import read_arrays
from pmwd_dist.report import drawing
from pmwd_dist.run.inference import verdict

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

LIMITS: dict[str, Any] = {"seconds": 300, "memory": 1 << 36}
Kill = tuple[float, int]  # so many seconds after the start, or after the state of chains was written so many times


def program(arguments: list[str], log: Path, kill: Kill = (0, 0)) -> str:
    """Run `pmwd-dist` in this process, and return its exit code."""
    write_state, left = ChainFolder.write_state, [kill[1]]

    def write(self: ChainFolder, state: Any) -> None:
        write_state(self, state)
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(kill[0], os.kill, (os.getpid(), signal.SIGKILL)).start()

    ChainFolder.write_state = write
    with log.open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        main(arguments)
    except SystemExit as ended:
        return str(ended.code)


def begin(file: Path, folder: Path) -> list[str]:
    """The command that begins a run."""
    verb = "infer" if "[sampler]" in file.read_text() else "run"
    return [verb, str(file), "--output", str(folder), "--overwrite"]


def run(file: Path, folder: Path, kill: Kill | None = None) -> str:
    """Begin a run or go on with it, as a user does after a crash, and kill it, if asked to; return its exit code."""
    command = ["resume", str(folder)] if (folder / "config.toml").exists() else begin(file, folder)
    case = partial(program, command, folder.with_suffix(".log"), kill or (0, 0))
    after = None if kill is None else LIMITS["seconds"] if kill[1] else kill[0]
    return processes.in_own_process(case, **LIMITS, kill_after=after)


def assert_same(one: Path, other: Path) -> None:
    """Bitwise the same results."""
    if not (one / "summary.csv").exists():
        runs.assert_same(one, other)
        return
    for path in sorted(one.glob("*.npz")):
        arrays, there = read_arrays(path), read_arrays(other / path.name)
        assert arrays.keys() == there.keys()
        for name, values in arrays.items():
            np.testing.assert_array_equal(values, there[name], err_msg=f"{path.name}:{name}")
    assert (one / "summary.csv").read_text() == (other / "summary.csv").read_text()


def parse() -> argparse.Namespace:
    """The options of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--infer", action="store_true", help="an inference, if no reference is given")
    parser.add_argument("--reference", type=Path, help="folder of a finished run, whose config is run; default: made")
    parser.add_argument("--no-figures", action="store_true", help="empty files for figures, which take the most time")
    return parser.parse_args()


def loop() -> None:
    """Kill and resume, and print the counts."""
    options, counts, span = parse(), Counter[str](), 4.0
    rng = random.Random(options.seed)
    tuning_loop._CHECKPOINT_SECONDS = 0.0  # of a tuning, that there is one to go on with
    if options.no_figures:
        drawing.draw, drawing.write = lambda figures: None, lambda path, read: path.touch()
        verdict.plot, verdict.save = MagicMock(), lambda figure, path: path.touch()
    with tempfile.TemporaryDirectory() as name:
        folder, reference = Path(name), options.reference
        file = folder / "small.toml"
        if reference is None:
            reference = folder / "reference"
            file.write_text(inferences.SMALL if options.infer else runs.SMALL + "checkpoint_every = 1\n")
            for again in ("first", "reference"):  # the first one compiles
                began = time.perf_counter()
                assert run(file, folder / again) == "0", (folder / f"{again}.log").read_text()
                span = time.perf_counter() - began
        else:
            text = (reference / "config.toml").read_text()
            file.write_text(text.replace("checkpoint_every = 0", "checkpoint_every = 1"))
        infers = begin(file, folder)[0] == "infer"
        while counts["kills"] < options.kills:
            own, began, result = folder / f"run{counts['runs']}", time.perf_counter(), processes.KILLED
            counts["runs"] += 1
            kills = counts["kills"]
            while result == processes.KILLED:
                written = infers and rng.random() < 0.5
                kill = (rng.uniform(0, 0.1), rng.randint(1, 8)) if written else (rng.uniform(0, 1.2 * span), 0)
                result = run(file, own, kill if counts["kills"] < options.kills else None)
                counts["kills"] += result == processes.KILLED
            log = own.with_suffix(".log").read_text()
            if result != "0" or "Traceback" in log:
                sys.exit(f"exit code {result}:\n{log}")
            if counts["kills"] == kills:  # the moment was beyond the end of the run, which tells where that is
                span = time.perf_counter() - began
            assert_same(reference, own)
            counts["same bits"] += 1
    print(", ".join(f"{counts[what]} {what}" for what in ("runs", "kills", "same bits")))


if __name__ == "__main__":
    loop()
