"""Display of a run: a progress bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pmwd_dist._files import naming
from pmwd_dist.parallel import distributed
from pmwd_dist.run.common.folder import Event


class _Console(Console):
    """A console whose broken pipe is an error; rich's ends the program."""

    def on_broken_pipe(self) -> None:
        """Called by rich where its output is a pipe that nobody reads."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Display:
    """Shows the events of a run, on process 0. A context manager, which restores the terminal at its end."""

    def __init__(self) -> None:
        self.console = _Console(highlight=False, soft_wrap=True)  # writes to what sys.stdout is then
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self.steps = 0
        self.verdict: list[str] = []  # shown last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        fields = event.fields
        if event.name == "step" and self.bar is not None:
            text = f"z {fields['z']:.2f}  {fields['seconds']:.3g} s  {fields['particles_per_second']:.2g} particles/s"
            self.bar.update(self.task, completed=fields["step"], description=text)
            return
        if event.name == "end":
            self._close()
        self.show(event.text.splitlines())
        if event.name == "start":
            self.steps = fields["steps"]
        elif event.name in ("initial", "resume"):
            self._open(done=fields.get("step", 0))
        elif event.name == "verdict":
            reasons = [f"not converged: {reason}" for reason in fields["reasons"]]
            self.verdict = reasons or ["chains pass all checks"]
        elif event.name == "end":
            self.show(self.verdict)

    def show(self, lines: Sequence[str]) -> None:
        """Show lines about a run."""
        for line in lines if distributed.is_main() else ():
            try:
                with naming("standard output"):
                    self.console.print(line, markup=False)
                    self.console.file.flush()  # a batch job's log is read while it runs
            except OSError:  # the terminal is lost, or the reader of a pipe, which is no reason to end a run
                self.console = Console(quiet=True)
                self._close()

    def _close(self) -> None:
        if self.bar is not None:
            bar, self.bar = self.bar, None
            with suppress(OSError):
                bar.stop()

    def _open(self, done: int) -> None:
        # mpirun gives its programs a terminal, but forwards their output as a log.
        if not self.console.is_terminal or jax.process_count() > 1 or self.bar is not None:
            return
        columns = (MofNCompleteColumn(), BarColumn(16), TimeRemainingColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=self.console, refresh_per_second=4)
        self.task = self.bar.add_task("compiling", total=self.steps, completed=done)
        self.bar.start()
