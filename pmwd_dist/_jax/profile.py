"""Seconds that a program spends, by part; JAX's tracing and compilation are parts of their own."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compilation",
}
_BESIDE = ", beside"  # end of the names of parts of other threads than the first


class Profile:
    """Seconds of a program by part, each without the parts within it.

    Args:
      began: time.perf_counter() at the start of the program.
    """

    def __init__(self, began: float):
        self.began, self.seconds = began, defaultdict[str, float](float)
        self.programs = self.loaded = 0  # compiled programs, and those among them from the persistent cache
        self._thread = threading.local()

    @property
    def compilation(self) -> float:
        """Seconds of tracing, lowering and compilation in the first thread."""
        return sum(self.seconds[name] for name in _EVENTS.values())

    def record(self) -> dict[str, Any]:
        """The profile as JSON holds it; the seconds of the first thread add up to the total so far."""
        total = time.perf_counter() - self.began
        seconds = self.seconds.copy()  # other threads may still add to it
        seconds["rest"] = total - sum(x for name, x in seconds.items() if not name.endswith(_BESIDE))
        seconds = {name: round(x, 4) for name, x in seconds.items()}
        return {"total": round(total, 4), "seconds": seconds, "programs": self.programs, "loaded": self.loaded}

    def add(self, name: str, start: float, end: float) -> None:
        """Add a part between two times of perf_counter(), without the parts within it: they were added before."""
        spans, within = self._thread.__dict__.setdefault("spans", list[tuple[float, float]]()), 0.0
        while spans and spans[-1][0] >= start:
            inner = spans.pop()
            within += inner[1] - inner[0]
        spans.append((start, end))
        name += "" if threading.current_thread() is threading.main_thread() else _BESIDE
        self.seconds[name] += end - start - within

    def on_span(self, event: str, start_time: float, end_time: float, **_: Any) -> None:
        """Add a span of JAX that ends now; a function is traced with the functions that it calls.

        JAX takes the time of day, which may be set back.
        """
        if event in _EVENTS:
            end = time.perf_counter()
            self.add(_EVENTS[event], end - max(end_time - start_time, 0), end)
            self.programs += event.endswith("backend_compile_duration")

    def on_event(self, event: str, **_: Any) -> None:
        """Count a program that was found in the persistent cache."""
        self.loaded += event == "/jax/compilation_cache/cache_hits"


_current: Profile | None = None


@contextmanager
def recording(began: float, *, anew: bool = False) -> Generator[Profile]:
    """Record a profile in the body; within another recording, yield its profile, or begin another one.

    Args:
      began: time.perf_counter() at the start of the program.
      anew: begin another profile, which the outer one does not have.
    """
    global _current
    if (outer := _current) is not None and not anew:
        yield outer
        return
    _current = profile = Profile(began)
    jax.monitoring.register_event_time_span_listener(profile.on_span)
    jax.monitoring.register_event_listener(profile.on_event)
    try:
        yield profile
    finally:
        _current = outer
        jax.monitoring.unregister_event_time_span_listener(profile.on_span)
        jax.monitoring.unregister_event_listener(profile.on_event)


@contextmanager
def part(name: str) -> Generator[None]:
    """Count the seconds of the body as a part of the profile, if one is recorded. Also a decorator."""
    if (profile := _current) is None:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        profile.add(name, start, time.perf_counter())
