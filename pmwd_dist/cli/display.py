"""What a run shows: a progress bar on a terminal, a plain line a step elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pmwd_dist.parallel import distributed
from pmwd_dist.run.resources import size

Event = dict[str, Any]


class Display:
    """Shows the events of a run, on process 0. A context manager: it leaves the terminal as it was."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        getattr(self, f"_{event['event']}")(event)

    def warn(self, messages: list[str]) -> None:
        """Show warnings about the run to come."""
        if distributed.is_main():
            for message in messages:
                self._line(message)

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False)
        self.console.file.flush()  # a batch job's log is read while it runs

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _open(self, steps: int, done: int) -> None:
        # mpirun gives its programs a terminal, but what it passes on is a log.
        if not self.console.is_terminal or jax.process_count() > 1 or self.bar is not None:
            return
        columns = (MofNCompleteColumn(), BarColumn(16), TimeRemainingColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=self.console, refresh_per_second=4)
        self.task = self.bar.add_task("compiling", total=steps, completed=done)
        self.bar.start()

    def _start(self, event: Event) -> None:
        for line in plan_lines(event):
            self._line(line)
        self.steps = event["steps"]

    def _initial(self, event: Event) -> None:
        self._line(f"initial conditions at a {event['a']:.4f}  {event['seconds']:.2f} s  {size(event['peak_memory'])}")
        self._open(self.steps, 0)

    def _resume(self, event: Event) -> None:
        self._line(f"going on from step {event['step']}/{event['steps']}, a {event['a']:.4f}")
        self._open(self.steps, event["step"])

    def _step(self, event: Event) -> None:
        z, seconds, rate = event["z"], event["seconds"], event["particles_per_second"]
        if self.bar is not None:
            text = f"z {z:.2f}  {seconds:.3g} s  {rate:.2g} particles/s"
            self.bar.update(self.task, completed=event["step"], description=text)
            return
        self._line(
            f"step {event['step']}/{event['steps']}  a {event['a']:.4f}  z {z:.3f}  {seconds:.3g} s  "
            f"{rate:.3g} particles/s  displacement {event['displacement_cells']:.2f} cells, "
            f"{event['displacement']:.2f} Mpc/h  {size(event['peak_memory'])}"
        )

    def _output(self, event: Event) -> None:
        self._line(f"output at z {event['z']:.3f}  {event['seconds']:.2f} s  {', '.join(event['files'])}")

    def _checkpoint(self, event: Event) -> None:
        self._line(f"checkpoint of step {event['step']}  {event['seconds']:.2f} s")

    def _warning(self, event: Event) -> None:
        self._line(f"warning: {event['message']}")

    def _end(self, event: Event) -> None:
        self._close()
        self._line(f"{event['status']} after {event['seconds']:.1f} s, at most {size(event['peak_memory'])}")


def plan_lines(event: Event) -> list[str]:
    """What a run is about to do, for people."""
    devices, pdims = event["devices"], event["pdims"]
    cut = "whole" if devices == 1 else f"{pdims[0]} slabs" if pdims[1] == 1 else f"{pdims[0]} x {pdims[1]} pencils"
    redshifts = ", ".join(f"{z:.4g}" for z in event["redshifts"])
    return [
        f"box         {_three(event['box_size'])} Mpc/h",
        f"mesh        {_three(event['mesh_shape'])} cells, {_three(event['particle_shape'])} particles",
        f"cosmology   linear P(k): {event['linear_power']}; seed {event['seed']}",
        f"time        a {event['a_start']:g} to {event['a_stop']:g}, {event['lpt_order']}LPT, "
        f"{event['steps']} {event['solver']} steps, {event['gradient']} gradient",
        f"output      {event['folder']}: z {redshifts}; "
        + ("no snapshots" if event["snapshot"] == "none" else f"{event['snapshot']} snapshots"),
        f"devices     {devices} x {event['device_kind']} in {event['processes']} "
        f"process{'es' * (event['processes'] > 1)}, mesh {cut}, halo {event['halo']}, "
        f"native ops {'on' if event['native'] else 'off'}",
        f"expected    {size(event['expected_memory'])} of memory a {_memory_of(event)}, "
        f"{size(event['expected_disk'])} of disk",
    ]


def _memory_of(event: Event) -> str:
    return "device" if "cpu" not in event["device_kind"].lower() else "process"


def _three(values: list[float]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}^3" if isinstance(values[0], int) else f"{values[0]:g}"
    return " x ".join(f"{value:g}" for value in values)
