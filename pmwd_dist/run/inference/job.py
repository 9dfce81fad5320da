"""The course of an inference: samples the plan of `plan.py`, and resumes it from its last chunk.

Data and starts are written before the chains, and each chunk with the state after it. A kill loses a chunk, or ten
seconds and a block of the tuning.
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from pmwd_dist import infer
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.profile import part
from pmwd_dist.infer.chain.folder import chain_files, load_chain
from pmwd_dist.io.arrays import ArrayFileError, Arrays
from pmwd_dist.parallel.distributed import on_main
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Control
from pmwd_dist.run.common.folder import MINUTE, Log, StartError, start_errors
from pmwd_dist.run.common.job import Job
from pmwd_dist.run.inference.inputs import data_of, starts_of, tuning_of
from pmwd_dist.run.inference.plan import InferencePlan
from pmwd_dist.run.inference.verdict import make_verdict, redraw_chains
from pmwd_dist.run.settings.section import duration_text

_BETWEEN_LINES = 10.0  # about a tuning [seconds]


class InferenceJob(InferencePlan, Job):
    """An inference and its course."""

    def draw(self) -> None:
        redraw_chains(self.folder)

    def work(self, log: Log, control: Control, checkpoint: Any) -> None:
        del checkpoint  # the chains find their own
        try:
            data = data_of(self, log)
            posterior = condition_on(self, data, log)
            starts = starts_of(self, posterior, log)
            watch = _Watch(self, log, control)
            log.begin("chains: compiling")
            with part("chains"), watch.running:
                _sample(self, posterior, starts, watch)
            log.begin("verdict")
            with log.naming("verdict", MINUTE):
                with start_errors():
                    chain = load_chain(self.folder)
                verdict = make_verdict(self, posterior, chain, data, log)
            log("verdict", "\n".join([*verdict.table, f"wrote {', '.join(verdict.files)}"]), **verdict._asdict())
        except ArrayFileError as error:
            raise StartError(str(error)) from error


def condition_on(plan: InferencePlan, data: Arrays, log: Log) -> infer.Posterior:
    """The posterior, with a warning about a constant mock; data of a file were checked before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = plan.model.condition(data["data"])
    for warning in caught:
        if plan.settings.data.file == "mock":
            log.warn(str(warning.message))
    return posterior


class _Watch:
    """Logs tuning and chunks, and stops the run after a block or a chunk on request."""

    def __init__(self, plan: InferencePlan, log: Log, control: Control):
        self._plan, self._log, self._control = plan, log, control
        self.running = ExitStack()  # holds the line of what runs
        self._name("chains, first steps")
        self._compiled = 0.0
        self._before, self._shown = time.perf_counter(), -_BETWEEN_LINES
        self._draws = list[Arrays]()  # parameters of the draws so far
        with start_errors(), suppress(ArgumentError):  # there are none
            earlier = load_chain(plan.folder).parameters
            self._draws.append({f"parameter/{name}": x for name, x in earlier.items()})

    def __call__(self, progress: infer.Progress) -> None:
        now, sampler = time.perf_counter(), self._plan.settings.sampler
        seconds, self._before = now - self._before, now
        total = self._control.profile.compilation
        compiled, self._compiled = total - self._compiled, total
        if progress.draws:
            self._log_chunk(progress, seconds, compiled)
        else:
            numbers = f"step size {progress.step_size:.3g}, L {progress.L:.3g}"
            text = f"{'settled' if sampler.tuning_from else 'tuned'} in {sampler.tuning_steps} steps"
            text = f"chains start over, restart {progress.restarts}" if progress.restarts else text
            self._draws.clear()
            self._log.stage(f"{text}: {numbers}", seconds)
        if progress.chunks < self._plan.chunks:
            unit, size = "trajectories" if sampler.method == "hmc" else "steps", sampler.thin * sampler.chunk
            first, last = progress.chunks * size + 1, (progress.chunks + 1) * size
            self._name(f"chunk {progress.chunks + 1}/{self._plan.chunks}, {unit} {first} to {last}")
            self._control.raise_if_stopped(f"after chunk {progress.chunks} of {self._plan.chunks}", "chunk")

    def tuned(self, progress: infer.TuningProgress) -> None:
        """Called after each block of tuning steps; there may be hundreds."""
        now = time.perf_counter()
        if now - self._shown >= _BETWEEN_LINES:
            self._shown = now
            seconds = now - self._before
            sizes = f"step size {progress.step_size:.3g}, L {progress.L:.3g}"
            text = f"tuning {progress.share:.0%}  {sizes}  {seconds:.1f} s"
            self._log("tuning", text, **progress._asdict(), seconds=seconds)
        self._name(f"tuning, {progress.share:.0%} done")
        self._control.raise_if_stopped(f"{progress.share:.0%} through the tuning", "block")

    def _name(self, what: str) -> None:
        self.running.close()
        self.running.enter_context(self._log.naming(what, MINUTE))

    def _log_chunk(self, progress: infer.Progress, seconds: float, compiled: float) -> None:
        sampler, draws = self._plan.settings.sampler, progress.draws
        sampled = seconds - compiled if compiled < seconds else seconds
        if progress.restarts and progress.chunks == 1:
            sampled /= 2  # the other half is the burn-in, as long as a chunk
        steps = sampler.thin * sampler.chunk
        self._draws.append({name: x for name, x in draws.items() if name.startswith("parameter/")})
        sizes = {
            name.removeprefix("parameter/"): infer.ess_bulk(np.concatenate([d[name] for d in self._draws], axis=1))
            for name in self._draws[-1]
        }
        slowest = min(sizes, key=lambda name: sizes[name], default="")
        step, ess = progress.chunks * steps, sizes.get(slowest, 0.0)
        speed, left = int(np.sum(draws["gradients"])) / sampled, sampled * (self._plan.chunks - progress.chunks)
        variance = infer.energy_errors(draws["energy_change"], self._plan.dimensions)["variance"]
        acceptance = None if sampler.method == "mclmc" else float(np.mean(draws["acceptance_rate"]))
        failures = int(np.sum(~draws["nonans"].astype(bool)))
        quality = f"energy error {variance:.1e} a dimension" if acceptance is None else f"{acceptance:.0%} accepted"
        failed = f", {failures} steps failed" if failures else ""
        effective = f"ESS {ess:.0f} ({slowest})" if slowest else "ESS of no parameter"
        remaining = f"  {duration_text(left)} left" if step < sampler.steps else ""
        self._log(
            "chunk",
            f"step {step}/{sampler.steps}  {speed:.3g} gradients/s  {quality}{failed}  {effective}{remaining}",
            step=step,
            steps=sampler.steps,
            seconds=seconds,
            compilation=compiled,
            gradients_per_second=speed,
            energy_variance=variance,
            acceptance=acceptance,
            failures=failures,
            slowest=slowest,
            ess=ess,
            seconds_left=left,
        )


def _sample(plan: InferencePlan, posterior: infer.Posterior, positions: Any, watch: _Watch) -> None:
    sampler = plan.settings.sampler
    on_main(manifest.claim, plan.folder, chain_files(plan.chunks))
    tuning = tuning_of(plan)
    try:
        with warnings.catch_warnings():
            # The verdict names them.
            warnings.filterwarnings("ignore", "steps of MCLMC|.* steps failed|chains have not mixed")
            infer.sample(
                posterior,
                positions,
                key=plan.simulation.key(3),
                steps=sampler.steps,
                output=plan.folder,
                method=sampler.method,
                energy_variance=sampler.energy_variance,
                tuning_steps=sampler.tuning_steps,
                tuning=tuning,
                progress=False,
                thin=sampler.thin,
                chunk=sampler.chunk,
                keep_noise=True,
                most_failures=plan.settings.checks.failed_simulations,
                spmd_axis_name=plan.chain_axis,
                listener=watch,
                tuning_listener=watch.tuned,
            )
    except ArgumentError as error:
        if error.argument != "output":
            raise
        # The settings are the same, or the run would not have started: the version of the program differs.
        raise StartError(f"{error}; or go on with the version that began") from error
