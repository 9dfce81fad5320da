"""Times of checkpoints, and the time limit of a run."""

from __future__ import annotations

import time

from pmwd_dist._jax.profile import Profile
from pmwd_dist.parallel.distributed import from_main
from pmwd_dist.run.settings.section import duration


class Clock:
    """Clock of a run; all processes use the clock of process 0.

    Args:
      every: steps between checkpoints, or a duration; 0 for none.
      limit: seconds from the start of the program until the run has to be over, or None.
      profile: profile of the program; later steps don't need its compilation.
    """

    def __init__(self, every: int | str, limit: float | None, profile: Profile):
        self.limit, self._profile = limit, profile
        self._every = every
        self._interval = duration(every) if isinstance(every, str) else None
        self._last_checkpoint = time.perf_counter()
        self._asked: tuple[float, float] | None = None
        self._longest = 0.0

    def checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint is due after so many steps. Collective."""
        if self._interval is None:
            return isinstance(self._every, int) and self._every > 0 and step % self._every == 0
        now = time.perf_counter()
        due = bool(from_main(now - self._last_checkpoint >= self._interval))
        if due:
            self._last_checkpoint = now
        return due

    def time_is_over(self) -> bool:
        """Whether a step as long as the longest so far may end after the limit. Called before each step. Collective."""
        if self.limit is None:
            return False
        now, compiled, before = time.perf_counter(), self._profile.compilation, self._asked
        self._asked = now, compiled
        if before is None:
            return False  # each start takes one step, however short the limit is
        self._longest = max(self._longest, now - before[0] - (compiled - before[1]))
        return bool(from_main(now - self._profile.began + self._longest > self.limit))
