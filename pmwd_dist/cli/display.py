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
from pmwd_dist._jax.native import native_available
from pmwd_dist.config import Config
from pmwd_dist.parallel import distributed
from pmwd_dist.run.common import events
from pmwd_dist.run.common.events import Event, StepTaken
from pmwd_dist.run.common.resources import expected_disk, size
from pmwd_dist.run.inference.plan import InferencePlan
from pmwd_dist.run.settings.duration import duration_text
from pmwd_dist.run.settings.writing import toml_value
from pmwd_dist.run.simulation.accuracy import accuracy_line, resolution_line
from pmwd_dist.run.simulation.plan import Plan, power_name


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
            case events.Started(plan=plan):
                self.show(inference_lines(plan) if isinstance(plan, InferencePlan) else plan_lines(plan))
                self.steps = plan.steps
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
        # mpirun gives its programs a terminal, but what it passes on is a log.
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
    """Whether a result can be trusted."""
    return [f"not to be trusted yet: {reason}" for reason in reasons] or ["chains pass all checks"]


def inference_lines(plan: InferencePlan) -> list[str]:
    """Lines that describe an inference."""
    config, settings = plan.simulation.config, plan.settings
    model, sampler, likelihood = settings.model, settings.sampler, settings.likelihood
    numbers = {"gaussian": likelihood.sigma, "poisson": likelihood.nbar, "lensing": likelihood.density}
    noise = numbers[likelihood.kind]
    sampled = ", ".join(f"{name} {prior}" for name, prior in plan.model.priors.items()) or "none"
    return [
        f"box         {_three(config.box_size)} Mpc/h, {_three(config.mesh_shape)} cells: {plan.dimensions} dimensions",
        f"model       {model.gravity} to a {config.a_stop:g}, {model.bias} bias, line of sight {model.line_of_sight}",
        f"resolution  {resolution_line(plan.simulation, plan.largest_wavenumber)}",
        f"data        {settings.data.file}, {likelihood.kind} noise "
        f"{'sampled' if noise is None else toml_value(noise)}",
        f"parameters  {sampled}",
        f"chains      {sampler.chains} of {sampler.method} from {settings.start.begin}, {sampler.tune} steps to tune "
        f"and {sampler.steps}, preconditioned: {sampler.precondition}; seed {settings.noise.seed}",
        f"output      {plan.folder}: {plan.chunks} chunks of {sampler.chunk} draws",
        _device_line(config),
        f"expected    {_memory(plan)}: {plan.memory.parts}",
    ]


def plan_lines(plan: Plan, *, here: bool = True) -> list[str]:
    """Lines that describe a run, on the current devices if it is to run here."""
    config, settings = plan.simulation.config, plan.settings
    redshifts = ", ".join(f"{z:.4g}" for z in sorted(plan.outputs.values(), reverse=True))
    disk = expected_disk(settings, plan.simulation.light_cone)
    snapshots = "no" if settings.output.snapshot == "none" else settings.output.snapshot
    return [
        f"box         {_three(config.box_size)} Mpc/h",
        f"mesh        {_three(config.mesh_shape)} cells, {_three(config.particle_shape)} particles",
        f"cosmology   linear P(k): {power_name(settings)}; seed {settings.noise.seed}",
        f"time        a {config.a_start:g} to {config.a_stop:g}, {config.lpt_order}LPT, "
        f"{plan.steps} {settings.time.solver} steps, {config.gradient} gradient",
        f"accuracy    {accuracy_line(plan.simulation, plan.times)}",
        f"output      {plan.folder}: z {redshifts}; {snapshots} snapshots",
        *_observables(plan),
        *([_device_line(config), f"expected    {_memory(plan)}, {size(disk)} of disk"] if here else []),
    ]


def _memory(plan: Plan) -> str:
    where = "process" if plan.simulation.config.decomposition.platform == "cpu" else "device"
    return f"{size(plan.expected_memory)} of memory a {where}"


def _observables(plan: Plan) -> list[str]:
    """A line about what is observed, if anything is."""
    names = [name for name, section in plan.settings.observe if section is not None and name != "light_cone"]
    cone = plan.simulation.light_cone
    if cone is not None:
        count, (near, far) = len(cone.edges) - 1, (cone.edges[0], cone.edges[-1])
        names.append(f"light cone of {count} shell{'s' * (count > 1)} from {near:.4g} to {far:.4g} Mpc/h")
    return [f"observe     {', '.join(names)}"] if names else []


def _device_line(config: Config) -> str:
    decomposition, processes = config.decomposition, jax.process_count()
    px, py = decomposition.pdims
    blocks = "one block" if px * py == 1 else f"{px} slabs" if py == 1 else f"{px} x {py} pencils"
    kind, count = decomposition.mesh.devices.flat[0].device_kind, decomposition.mesh.size
    groups = "" if count == px * py else f"chains in {count // (px * py)} groups, each "
    return (
        f"devices     {count} x {kind} in {processes} process{'es' * (processes > 1)}, {groups}mesh as {blocks}, "
        f"halo {config.halo}, native ops {'on' if native_available() else 'off'}"
    )


def _three(values: Sequence[float]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}^3" if isinstance(values[0], int) else f"{values[0]:g}"
    return " x ".join(f"{value:g}" for value in values)
