"""Progress of a sampling as a bar of tqdm, or as lines of text where tqdm is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

from pmwd_dist.infer.chain.chain import Progress
from pmwd_dist.parallel.distributed import is_main


def is_shown(progress: bool | None) -> bool:
    """Whether this process shows its progress; by default in a terminal and in a notebook."""
    return is_main() and (progress or (progress is None and (sys.stderr.isatty() or "ipykernel" in sys.modules)))


@contextmanager
def with_bar(
    done: int, chunks: int, listener: Callable[[Progress], None] | None, tuning_listener: Callable[[Any], None] | None
) -> Generator[tuple[Callable[[Progress], None], Callable[[Any], None]]]:
    """The listeners of `sample`, if any, with a display of the progress of the body from `done` chunks on."""

    def show_chunks(done: int, again: str = "") -> None:
        show("sampling", min(100, round(100 * done / chunks)), f"{done}/{chunks} chunks{again}")

    def sampled(progress: Progress) -> None:
        show_chunks(progress.chunks, f", restart {progress.restarts}" if progress.restarts else "")
        if listener is not None:
            listener(progress)

    def tuned(progress: Any) -> None:
        show("tuning", round(100 * progress.share), f"step size {progress.step_size:.3g}, L {progress.L:.3g}")
        if tuning_listener is not None:
            tuning_listener(progress)

    with _bar() if find_spec("tqdm") else nullcontext(_text) as show:
        if done:
            show_chunks(done)
        else:
            show("compiling", 0, "the first block")
        yield sampled, tuned


@contextmanager
def _bar() -> Generator[Callable[[str, int, str], None]]:
    from tqdm.auto import tqdm

    def show(stage: str, percent: int, details: str) -> None:
        bar.set_description(stage, refresh=False)
        bar.set_postfix_str(details, refresh=False)
        if percent < bar.n:
            bar.reset()  # times are those of a stage
        bar.n = percent
        bar.refresh()

    with tqdm(total=100, bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}") as bar:
        yield show


def _text(stage: str, percent: int, details: str) -> None:
    print(f"{stage} {percent}%  {details}", file=sys.stderr, flush=True)  # noqa: T201
