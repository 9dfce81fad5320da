"""Runs that are killed at random moments and resumed end as others do: `python tests/run/kill_loop.py --kills 200`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runs import SMALL, assert_same

from pmwd_dist.cli import main
from pmwd_dist.report import figures

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

LIMITS = {"seconds": 300, "memory": 1 << 36}


def program(arguments: list[str], log: Path) -> str:
    """Run `pmwd-dist` in this process, and return its exit code."""
    with log.open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        main(arguments)
    except SystemExit as ended:
        return str(ended.code)


def next_command(file: Path, folder: Path) -> list[str]:
    """The command that begins a run or goes on with it: what a user types after a crash."""
    if (folder / "config.toml").exists():
        return ["resume", str(folder)]
    return ["run", str(file), "--output", str(folder), "--overwrite"]


def kill_and_resume(file: Path, folder: Path, moments: Callable[[], float | None], counts: Counter[str]) -> bool:
    """One run, killed after the next of these times [s] until it ends, and whether it ended well."""
    log = folder.with_suffix(".log")
    while True:
        case = partial(program, next_command(file, folder), log)
        result = processes.in_own_process(case, **LIMITS, kill_after=moments())
        if result != processes.KILLED:
            break
        counts["kills"] += 1
    if result == "0" and "Traceback" not in log.read_text():
        return True
    print(f"exit code {result}:\n{log.read_text()}")
    return False


def parse() -> argparse.Namespace:
    """The options of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
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
        case = partial(program, ["run", str(file), "--output", str(folder), "--overwrite"], log)
        assert processes.in_own_process(case, **LIMITS) == "0", log.read_text()
    return time.perf_counter() - began


def loop() -> None:
    """Kill and resume, and print the counts."""
    options, counts, span = parse(), Counter[str](), 4.0
    rng = random.Random(options.seed)
    if options.no_figures:
        figures.draw_spectra = figures.draw_slab = lambda path, content: path.touch()
    with tempfile.TemporaryDirectory() as name:
        folder, reference = Path(name), options.reference
        file = folder / "small.toml"
        if reference is None:
            reference = folder / "reference"
            file.write_text(SMALL + "checkpoint_every = 1\n")
            span = make_reference(file, reference)
        else:
            text = (reference / "config.toml").read_text()
            file.write_text(text.replace("checkpoint_every = 0", "checkpoint_every = 1"))

        def moment() -> float | None:
            return rng.uniform(0, 1.2 * span) if counts["kills"] < options.kills else None

        while counts["kills"] < options.kills and not counts["failures"]:
            run = folder / f"run{counts['runs']}"
            counts["runs"] += 1
            kills, began = counts["kills"], time.perf_counter()
            ended_well = kill_and_resume(file, run, moment, counts)
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
