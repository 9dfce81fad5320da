"""An inference as a resumable job: from a plan to a folder with chains, pictures and a verdict."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist import infer
from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.chain.folder import chain_files, load_chain
from pmwd_dist.io.arrays import ArrayFileError, Arrays
from pmwd_dist.run.common import events, manifest
from pmwd_dist.run.common.deadline import Clock, CompilationTime
from pmwd_dist.run.common.events import Listener, Status
from pmwd_dist.run.common.folder import Log
from pmwd_dist.run.common.preflight import StartError, hold_folder
from pmwd_dist.run.common.resources import peak_memory
from pmwd_dist.run.common.signals import Interrupted, StopRequest, stop_requests
from pmwd_dist.run.inference.inputs import data_of, key_of, starts_of
from pmwd_dist.run.inference.plan import InferencePlan
from pmwd_dist.run.inference.verdict import judge
from pmwd_dist.run.settings.duration import duration_text

_BETWEEN_LINES = 10.0  # about a tuning [seconds]


def execute_inference(
    plan: InferencePlan,
    listener: Listener,
    *,
    resume: bool = False,
    began: float | None = None,
    time_limit: float | None = None,
) -> None:
    """Sample the posterior of a plan, from the beginning or from the last chunk on disk.

    Data and starts are written before the chains, and each chunk with the state after it: a run that is stopped at any
    time goes on to the same bits. What it loses by a kill is a chunk, or of the tuning ten seconds and a block.

    Args:
      plan: with a prepared folder.
      listener: called with every event.
      resume: go on.
      began: time.perf_counter() at the start of the program, from which its time counts; default: now.
      time_limit: seconds after which the run is over; it stops after the chunk, or the block of steps of the tuning,
        after which another one may end later.

    Raises:
      StartError: the folder is in use or of another run, or a file of it is damaged.
      SimulationError: the start, or too many steps, failed.
      Interrupted: a signal asked the run to stop, or its time is over.
      OSError: a file can't be written.
    """
    began = time.perf_counter() if began is None else began
    with stop_requests() as stop, CompilationTime() as compilation, hold_folder(plan):  # a finished one may go on
        log = Log(plan.folder, listener)
        log(events.Started(plan, resume))
        status: Status = "failed"
        try:
            data = data_of(plan, log)
            posterior = condition_on(plan, data, log)
            watch = _Watch(plan, log, stop, (began, time_limit), compilation)
            _sample(plan, posterior, starts_of(plan, posterior, log), watch)
            log(judge(plan, posterior, load_chain(plan.folder), data))
            status = "finished"
        except ArrayFileError as error:
            raise StartError(str(error)) from error
        except (Interrupted, KeyboardInterrupt, SystemExit):
            status = "interrupted"
            raise
        finally:
            log(events.Ended(status, time.perf_counter() - began, peak_memory()))


def condition_on(plan: InferencePlan, data: Arrays, log: Log) -> infer.Posterior:
    """The posterior, with a warning of a mock that shows nothing; data of a file were looked at before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = plan.model.condition(data["data"], precondition=plan.precondition)
    for warning in caught:
        if plan.settings.data.file == "mock":
            log(events.Warned(str(warning.message)))
    return posterior


class _Watch:
    """Logs tuning and each chunk, and ends the run after a block or a chunk where it is asked to."""

    def __init__(
        self,
        plan: InferencePlan,
        log: Log,
        stop: StopRequest,
        times: tuple[float, float | None],
        compilation: CompilationTime,
    ):
        self._plan, self._log, self._stop = plan, log, stop
        self._compilation, self._compiled = compilation, 0.0
        self._of_blocks, self._of_chunks = (Clock(0, *times) for _ in range(2))
        self._before, self._shown = time.perf_counter(), -_BETWEEN_LINES
        self._bound = ""
        self._draws: list[Arrays] = _earlier(plan.folder)

    def __call__(self, progress: infer.Progress) -> None:
        now, sampler = time.perf_counter(), self._plan.settings.sampler
        seconds, self._before = now - self._before, now
        compiled, self._compiled = self._compilation.seconds - self._compiled, self._compilation.seconds
        if progress.draws:
            self._log(self._event(progress, seconds, compiled))
        else:
            numbers = f"step size {progress.step_size:.3g}{self._bound}, L {progress.L:.3g}"
            self._log(events.StageDone(f"tuned in {sampler.tune} steps: {numbers}", seconds))
        if progress.chunks < self._plan.chunks:
            self._raise_if_stopped(f"after chunk {progress.chunks} of {self._plan.chunks}", self._of_chunks)

    def tuned(self, progress: infer.TuningProgress) -> None:
        """A block of the tuning is over, of which there may be hundreds."""
        now, self._bound = time.perf_counter(), f" (bounded by {progress.bound})"
        if now - self._shown >= _BETWEEN_LINES:
            self._shown = now
            self._log(events.TuningBlock(*progress, now - self._before))
        self._raise_if_stopped(f"{progress.share:.0%} through the tuning", self._of_blocks)

    def _event(self, progress: infer.Progress, seconds: float, compiled: float) -> events.ChunkSampled:
        sampler, draws, sampled = self._plan.settings.sampler, progress.draws, max(seconds - compiled, 1e-6)
        steps = sampler.thin * sampler.chunk
        self._draws.append({name: x for name, x in draws.items() if name.startswith("parameter/")})
        sizes = {
            name.removeprefix("parameter/"): infer.ess_bulk(np.concatenate([d[name] for d in self._draws], axis=1))
            for name in self._draws[-1]
        }
        slowest = min(sizes, key=lambda name: sizes[name], default="")
        return events.ChunkSampled(
            step=progress.chunks * steps,
            steps=sampler.steps,
            seconds=seconds,
            compilation=compiled,
            gradients_per_second=int(np.sum(draws["gradients"])) / sampled,
            energy_variance=infer.energy_errors(draws["energy_change"], self._plan.dimensions)["variance"],
            acceptance=None if sampler.method == "mclmc" else float(np.mean(draws["acceptance_rate"])),
            failures=int(np.sum(~draws["nonans"].astype(bool))),
            slowest=slowest,
            ess=sizes.get(slowest, 0.0),
            seconds_left=sampled * (self._plan.chunks - progress.chunks),
        )

    def _raise_if_stopped(self, done: str, clock: Clock) -> None:
        again = f"pmwd-dist resume {self._plan.folder}"
        if number := self._stop.received():
            raise Interrupted(f"interrupted {done}; go on with `{again}`", number)
        if clock.time_is_over():
            limit = duration_text(clock.limit or 0)
            raise Interrupted(f"stopped {done}, by the time limit; go on with `{again} --time-limit {limit}`", 0)


def _earlier(folder: Path) -> list[Arrays]:
    """Parameters of the draws that are on disk."""
    try:
        return [{f"parameter/{name}": x for name, x in load_chain(folder).parameters.items()}]
    except ArgumentError:  # there are none
        return []


def _sample(plan: InferencePlan, posterior: infer.Posterior, positions: Any, watch: _Watch) -> None:
    manifest.claim(plan.folder, chain_files(plan.chunks))
    try:
        _run_chains(plan, posterior, positions, watch)
    except ArgumentError as error:
        if error.argument != "output":
            raise
        # Settings are the same, or the run would not have started: another version of this program computes other bits.
        raise StartError(f"{error}; or go on with the version that began") from error


def _run_chains(plan: InferencePlan, posterior: infer.Posterior, positions: Any, watch: _Watch) -> None:
    sampler = plan.settings.sampler
    infer.sample(
        posterior,
        positions,
        key=key_of(plan, 3),
        steps=sampler.steps,
        output=plan.folder,
        method=sampler.method,
        energy_variance=sampler.energy_variance,
        most_bias=sampler.most_bias,
        tuning_steps=sampler.tune,
        thin=sampler.thin,
        chunk=sampler.chunk,
        keep_noise=True,
        most_failures=plan.settings.checks.failed_simulations,
        spmd_axis_name=plan.chain_axis,
        listener=watch,
        tuning_listener=watch.tuned,
    )
