"""Progress of a sampling, as a line of text that each report replaces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from pmwd_dist.infer.chain.chain import Progress
from pmwd_dist.parallel.distributed import is_main


def is_shown(progress: bool | None) -> bool:
    """Whether this process shows its progress; by default in a terminal and in a notebook."""
    return is_main() and (progress or (progress is None and (sys.stderr.isatty() or "ipykernel" in sys.modules)))


@contextmanager
def displayed(
    done: int, chunks: int, listener: Callable[[Progress], None], tuning_listener: Callable[[Any], None]
) -> Generator[tuple[Callable[[Progress], None], Callable[[Any], None]]]:
    """The listeners of `sample`, with a display of the progress of the body from `done` chunks on."""

    def show(text: str) -> None:
        print(f"\r{text:<72}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def sampled(progress: Progress) -> None:
        again = f", restart {progress.restarts}" if progress.restarts else ""
        show(f"sampling {progress.chunks / chunks:.0%}, {progress.chunks} of {chunks} chunks{again}")
        listener(progress)

    def tuned(progress: Any) -> None:
        show(f"tuning {progress.share:.0%}, step size {progress.step_size:.3g}, L {progress.L:.3g}")
        tuning_listener(progress)

    show(f"{done} of {chunks} chunks are on disk" if done else "compiling the first block")
    try:
        yield sampled, tuned
    finally:
        print(file=sys.stderr)  # noqa: T201
