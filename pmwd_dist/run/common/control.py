"""Requests to stop a job, its time limit, and the times of its checkpoints."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from pmwd_dist._jax.profile import Profile
from pmwd_dist.parallel.distributed import from_main
from pmwd_dist.run.common.signals import Interrupted, StopRequest
from pmwd_dist.run.settings.section import duration, duration_text


class Control:
    """Signals and clock of a job; all processes use the clock of process 0.

    Args:
      profile: profile of the program; later steps don't need its compilation.
      limit: seconds from the start of the program until the job has to be over, or None.
    """

    def __init__(self, folder: Path, stop: StopRequest, profile: Profile, limit: float | None):
        self.profile = profile
        self._folder, self._stop, self._limit = folder, stop, limit
        self._last_checkpoint = time.perf_counter()
        self._asked = dict[str, tuple[float, float]]()
        self._longest = defaultdict[str, float](float)

    def raise_if_stopped(self, done: str, what: str = "step") -> None:
        """Raise Interrupted after a signal, or if the next step, block or chunk may end after the limit. Collective."""
        if number := self._stop.received():
            raise Interrupted(f"interrupted {done}; go on with `pmwd-dist resume {self._folder}`", number)
        if self._limit is not None and self._time_is_over(self._limit, what):
            resume = f"pmwd-dist resume {self._folder} --time-limit {duration_text(self._limit)}"
            raise Interrupted(f"stopped {done}, by the time limit; go on with `{resume}`", 0)

    def _time_is_over(self, limit: float, what: str) -> bool:
        """Whether a step as long as the longest so far may end after the limit. Called before each step. Collective."""
        now, compiled, before = time.perf_counter(), self.profile.compilation, self._asked.get(what)
        self._asked[what] = now, compiled
        if before is None:
            return False  # each start takes one step, however short the limit is
        self._longest[what] = max(self._longest[what], now - before[0] - (compiled - before[1]))
        return bool(from_main(now - self.profile.began + self._longest[what] > limit))

    def checkpoint_due(self, step: int, every: int | str) -> bool:
        """Whether a checkpoint is due after so many steps, with an interval in steps or a duration. Collective."""
        if not isinstance(every, str):
            return every > 0 and step % every == 0
        now = time.perf_counter()
        due = bool(from_main(now - self._last_checkpoint >= duration(every)))
        if due:
            self._last_checkpoint = now
        return due
