"""Display of a run: a progress bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pmwd_dist._files import naming
from pmwd_dist._memory import size
from pmwd_dist.parallel import distributed
from pmwd_dist.run.common import events
from pmwd_dist.run.common.events import Event, StepTaken
from pmwd_dist.run.settings.section import duration_text


class _Console(Console):
    """A console whose broken pipe is an error; rich's ends the program."""

    def on_broken_pipe(self) -> None:
        """Called by rich where its output is a pipe that nobody reads."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Display:
    """Shows the events of a run, on process 0. A context manager, which restores the terminal at its end."""

    def __init__(self) -> None:
        self.console = _Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self.steps = 0
        self.verdict: list[str] = []  # shown last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case events.Started(job=job):
                self.show(job.lines())
                self.steps = job.steps
            case events.InitialConditions(a=a, seconds=seconds, peak_memory=memory):
                self._line(f"initial conditions at a {a:.4f}  {seconds:.2f} s  {size(memory)}")
                self._open(done=0)
            case events.Resumed(step=step, steps=steps, a=a):
                self._line(f"resumed after step {step}/{steps}, a {a:.4f}")
                self._open(done=step)
            case events.HaloChosen(cells=cells, displacement=displacement):
                self._line(f"halo of {cells} cells, for displacements of up to {displacement:.3g} Mpc/h")
            case events.StepTaken():
                self._step(event)
            case events.OutputWritten(z=z, files=files, seconds=seconds):
                self._line(f"output at z {z:.3f}  {seconds:.2f} s  {', '.join(files)}")
            case events.CheckpointWritten():
                pass  # the log has them; one that was asked for is named by the message of the interruption
            case events.StageDone(what=what, seconds=seconds):
                self._line(f"{what}  {seconds:.1f} s")
            case events.TuningBlock() | events.ChunkSampled():
                self._line(_chain_line(event))
            case events.Judged(table=table, reasons=reasons, files=files):
                self.show([*table, f"wrote {', '.join(files)}"])
                self.verdict = verdict_lines(reasons)
            case events.Warned(message=message):
                self._line(f"warning: {message}")
            case events.Ended(status=status, seconds=seconds, peak_memory=memory):
                self._close()
                self.show([f"{status} after {seconds:.1f} s, at most {size(memory)}", *self.verdict])

    def show(self, lines: Sequence[str]) -> None:
        """Show lines about a run."""
        if distributed.is_main():
            for line in lines:
                self._line(line)

    def _line(self, text: str) -> None:
        try:
            with naming("standard output"):
                self.console.print(text, markup=False)
                self.console.file.flush()  # a batch job's log is read while it runs
        except OSError:
            self._go_dark()

    def _go_dark(self) -> None:
        """Show nothing from now on: the terminal is lost, or the reader of a pipe, which is no reason to end a run."""
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

    def _step(self, event: StepTaken) -> None:
        if self.bar is not None:
            text = f"z {event.z:.2f}  {event.seconds:.3g} s  {event.particles_per_second:.2g} particles/s"
            self.bar.update(self.task, completed=event.step, description=text)
            return
        self._line(
            f"step {event.step}/{event.steps}  a {event.a:.4f}  z {event.z:.3f}  {event.seconds:.3g} s  "
            f"{event.particles_per_second:.3g} particles/s  displacement {event.displacement_cells:.2f} cells, "
            f"{event.displacement:.2f} Mpc/h  {size(event.peak_memory)}"
        )


def _chain_line(event: events.TuningBlock | events.ChunkSampled) -> str:
    if isinstance(event, events.TuningBlock):
        sizes = f"step size {event.step_size:.3g} (bounded by {event.bound}), L {event.L:.3g}"
        return f"tuning {event.share:.0%}  {sizes}  {event.seconds:.1f} s"
    sizes = f"ESS {event.ess:.0f} ({event.slowest})" if event.slowest else "ESS of no parameter"
    failed = f", {event.failures} steps failed" if event.failures else ""
    error = f"energy error {event.energy_variance:.1e} a dimension"
    quality = error if event.acceptance is None else f"{event.acceptance:.0%} accepted"
    left = f"  {duration_text(event.seconds_left)} left" if event.step < event.steps else ""
    speed = f"{event.gradients_per_second:.3g} gradients/s"
    return f"step {event.step}/{event.steps}  {speed}  {quality}{failed}  {sizes}{left}"


def verdict_lines(reasons: Sequence[str]) -> list[str]:
    """Lines on the convergence of the chains."""
    return [f"not converged: {reason}" for reason in reasons] or ["chains pass all checks"]
