"""A watchdog that ends several processes where all wait for one of them, which lives and does nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import jax

from pmwd_dist._jax.program import calls
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.launcher import note
from pmwd_dist.run.common.folder import Log, StartError
from pmwd_dist.run.settings.section import duration_text

PATIENCE = "PMWD_WATCHDOG"
_SECONDS, _SLOWER = "600", 3.0  # default; longest program against the longest so far
_GRACE = 5.0  # of the other processes, so that one line is printed [s]


@contextmanager
def watchdog(folder: Path, log: Log, longer: float) -> Generator[None]:
    """End all processes, with a line, if no program ends and no event is logged for ten minutes within the body.

    The environment variable PMWD_WATCHDOG is this time in seconds; 0 switches the watchdog off. A program may take
    three times as long as the longest so far, times `longer`. Raises StartError if the variable is not a number.
    """
    try:
        patience = float(os.environ.get(PATIENCE, _SECONDS))
    except ValueError:
        raise StartError(f"{PATIENCE}={os.environ[PATIENCE]}: must be a number of seconds, or 0") from None
    ended = Event()
    if patience > 0 and jax.process_count() > 1:
        arguments = ended, lambda: (calls(), log.last), patience, _SLOWER * longer, folder
        Thread(target=_watch, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(ended: Event, state: Callable[[], tuple[int, str]], patience: float, factor: float, folder: Path) -> None:
    before, quiet, longest, grace = state(), 0.0, 0.0, 0.0 if distributed.is_main() else _GRACE
    while not ended.wait(interval := min(1.0, patience / 10)):
        quiet += interval  # not by a clock: a suspended job is quiet, too
        if (now := state()) != before:
            before, quiet, longest = now, 0.0, max(longest, quiet)
        elif quiet > max(patience, factor * longest) + grace:
            kept = max((x.name for x in folder.glob("ch*_0*")), default="nothing")  # chunks or checkpoints
            note(
                f"no sign of life for {duration_text(quiet)} after `{now[1]}`; {kept} is on disk; go on with "
                f"`pmwd-dist resume {folder}`, and wait longer with {PATIENCE}=SECONDS in the environment"
            )
            distributed.abort(1)
