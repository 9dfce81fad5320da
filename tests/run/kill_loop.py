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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
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

LIMITS = {"seconds": 300, "memory": 1 << 36}


class Kill(NamedTuple):
    """So many seconds after the start, or after the state of chains was written so many times."""

    seconds: float
    writes: int = 0


def program(arguments: list[str], log: Path, kill: Kill | None = None) -> str:
    """Run `pmwd-dist` in this process, and return its exit code."""
    if kill is not None and kill.writes:
        kill_after_writes(kill)
    with log.open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        main(arguments)
    except SystemExit as ended:
        return str(ended.code)


def kill_after_writes(kill: Kill) -> None:
    """Kill this process some time after the state of its chains was written; it goes on until then."""
    write_state, left = ChainFolder.write_state, [kill.writes]

    def write(self: ChainFolder, state: Any) -> None:
        write_state(self, state)
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(kill.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    ChainFolder.write_state = write


def is_inference(file: Path) -> bool:
    """Whether a config file is one."""
    return "[sampler]" in file.read_text()


def first_command(file: Path, folder: Path) -> list[str]:
    """The command that begins a run."""
    return ["infer" if is_inference(file) else "run", str(file), "--output", str(folder), "--overwrite"]


def next_command(file: Path, folder: Path) -> list[str]:
    """The command that begins a run or goes on with it: what a user types after a crash."""
    return ["resume", str(folder)] if (folder / "config.toml").exists() else first_command(file, folder)


def kill_and_resume(file: Path, folder: Path, kills: Callable[[], Kill | None], counts: Counter[str]) -> bool:
    """One run, killed again and again until it ends, and whether it ended well."""
    log = folder.with_suffix(".log")
    while True:
        kill = kills()
        seconds = None if kill is None else LIMITS["seconds"] if kill.writes else kill.seconds
        case = partial(program, next_command(file, folder), log, kill)
        result = processes.in_own_process(case, **LIMITS, kill_after=seconds)
        if result != processes.KILLED:
            break
        counts["kills"] += 1
    if result == "0" and "Traceback" not in log.read_text():
        return True
    print(f"exit code {result}:\n{log.read_text()}")
    return False


def assert_same(one: Path, other: Path) -> None:
    """Bitwise the same results."""
    if not is_inference(one / "config.toml"):
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
    parser.add_argument(
        "--no-figures", action="store_true", help="empty files for figures, which take most of the time"
    )
    return parser.parse_args()


def make_reference(file: Path, folder: Path) -> float:
    """Run the simulation undisturbed, for its results and its time [s]."""
    log = folder.with_suffix(".log")
    for _ in range(2):  # the first time compiles
        began = time.perf_counter()
        case = partial(program, first_command(file, folder), log)
        assert processes.in_own_process(case, **LIMITS) == "0", log.read_text()
    return time.perf_counter() - began


def leave_out_figures() -> None:
    """Write empty files in their place."""
    drawing.draw, drawing.write = lambda figures: None, lambda path, read: path.touch()
    verdict.plot = MagicMock()
    verdict.save = lambda figure, path: path.touch()


def loop() -> None:
    """Kill and resume, and print the counts."""
    options, counts, span = parse(), Counter[str](), 4.0
    rng = random.Random(options.seed)
    tuning_loop._CHECKPOINT_SECONDS = 0.0  # of a tuning, that there is one to go on with
    if options.no_figures:
        leave_out_figures()
    with tempfile.TemporaryDirectory() as name:
        folder, reference = Path(name), options.reference
        file = folder / "small.toml"
        if reference is None:
            reference = folder / "reference"
            file.write_text(inferences.SMALL if options.infer else runs.SMALL + "checkpoint_every = 1\n")
            span = make_reference(file, reference)
        else:
            text = (reference / "config.toml").read_text()
            file.write_text(text.replace("checkpoint_every = 0", "checkpoint_every = 1"))

        def kill() -> Kill | None:
            if counts["kills"] >= options.kills:
                return None
            if is_inference(file) and rng.random() < 0.5:
                return Kill(rng.uniform(0, 0.1), rng.randint(1, 8))
            return Kill(rng.uniform(0, 1.2 * span))

        while counts["kills"] < options.kills and not counts["failures"]:
            run = folder / f"run{counts['runs']}"
            counts["runs"] += 1
            kills, began = counts["kills"], time.perf_counter()
            ended_well = kill_and_resume(file, run, kill, counts)
            if counts["kills"] == kills:  # the moment was beyond the end of the run, which tells where that is
                span = time.perf_counter() - began
            if ended_well:
                assert_same(reference, run)
                counts["same bits"] += 1
            else:
                counts["failures"] += 1
    print(", ".join(f"{counts[what]} {what}" for what in ("runs", "kills", "same bits", "failures") if counts[what]))
    sys.exit(bool(counts["failures"]))


if __name__ == "__main__":
    loop()
