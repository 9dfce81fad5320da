"""Progress of a sampling as a bar of tqdm, or as lines of text where tqdm is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from pmwd_dist.infer.chain.chain import Progress
from pmwd_dist.parallel.distributed import is_main


def is_shown(progress: bool | None) -> bool:
    """Whether this process shows its progress; by default in a terminal and in a notebook."""
    return is_main() and (progress or (progress is None and (sys.stderr.isatty() or "ipykernel" in sys.modules)))


def with_bar(
    chunks: int, listener: Callable[[Progress], None] | None, tuning_listener: Callable[[Any], None] | None
) -> tuple[Callable[[Progress], None], Callable[[Any], None]]:
    """The listeners of `sample`, if any, with a display of the progress of so many chunks."""
    show = _bar() if find_spec("tqdm") else _text
    show("compiling", 0, "the first block")

    def sampled(progress: Progress) -> None:
        again = f", restart {progress.restarts}" if progress.restarts else ""
        show("sampling", round(100 * progress.chunks / chunks), f"{progress.chunks}/{chunks} chunks{again}")
        if listener is not None:
            listener(progress)

    def tuned(progress: Any) -> None:
        show("tuning", round(100 * progress.share), f"step size {progress.step_size:.3g}, L {progress.L:.3g}")
        if tuning_listener is not None:
            tuning_listener(progress)

    return sampled, tuned


def _bar() -> Callable[[str, int, str], None]:
    from tqdm.auto import tqdm

    bar = tqdm(total=100, bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}")

    def show(stage: str, percent: int, details: str) -> None:
        bar.set_description(stage, refresh=False)
        bar.set_postfix_str(details, refresh=False)
        bar.n = percent
        bar.refresh()
        if stage == "sampling" and percent == 100:
            bar.close()

    return show


def _text(stage: str, percent: int, details: str) -> None:
    print(f"{stage} {percent}%  {details}", file=sys.stderr, flush=True)  # noqa: T201
