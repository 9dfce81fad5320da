"""Times of checkpoints, the time limit of a run, and the time that JAX spends on compilation."""

from __future__ import annotations

import time
from typing import Any, Self

import jax

from pmwd_dist.parallel.distributed import from_main
from pmwd_dist.run.settings.section import duration


class Clock:
    """Clock of a run; all processes use the clock of process 0.

    Args:
      every: steps between checkpoints, or a duration; 0 for none.
      began: time.perf_counter() at the start of the program.
      limit: seconds from then until the run has to be over, or None.
      compilation: time spent on compilation, which later steps don't need.
    """

    def __init__(self, every: int | str, began: float, limit: float | None, compilation: CompilationTime):
        self.limit, self._compilation = limit, compilation
        self._began, self._every = began, every
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
        now, compiled, before = time.perf_counter(), self._compilation.seconds, self._asked
        self._asked = now, compiled
        if before is None:
            return False  # each start takes one step, however short the limit is
        self._longest = max(self._longest, now - before[0] - (compiled - before[1]))
        return bool(from_main(now - self._began + self._longest > self.limit))


class CompilationTime:
    """Time that JAX spends on tracing and compilation within a `with` block."""

    def __init__(self):
        self._spans: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        jax.monitoring.register_event_time_span_listener(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_time_span_listener(self._add)

    def _add(self, event: str, start_time: float, end_time: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            while self._spans and self._spans[-1][0] >= start_time:
                self._spans.pop()  # a function within this one, traced with it
            self._spans.append((start_time, end_time))

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return sum(end - start for start, end in self._spans)
