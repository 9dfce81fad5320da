"""One simulation as a resumable job: from the settings to a folder of results."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._files import atomic_write, message, remove
from pmwd_dist.cosmology.growth import GrowthTable, growth_table
from pmwd_dist.io import checkpoint
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, first_error, raise_on_all_processes
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import linear_modes, white_noise
from pmwd_dist.pm.nbody import advance, start
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.solvers import SolverState
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.run import resources
from pmwd_dist.run.output import write_output
from pmwd_dist.run.plan import Plan, describe
from pmwd_dist.run.settings import to_toml

Event = dict[str, Any]
Listener = Callable[[Event], None]

CONFIG, RUN, LOG, TABLE = "config.toml", "run.json", "log.jsonl", "linear_power.txt"
_OURS = (CONFIG, RUN, LOG, TABLE, "power.png", "power_z*.csv", "density_z*", "snapshot_z*", "checkpoint_*", ".*.part")


class Interrupted(Exception):
    """The run was asked to stop, by Ctrl-C or by the batch system; its checkpoint is written."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


@dataclass
class Progress:
    """How far a run is."""

    particles: Particles
    state: SolverState
    table: GrowthTable
    step: int


def prepare_folder(plan: Plan, *, overwrite: bool = False) -> None:
    """Make the output folder and write into it what is known before the run. Collective.

    Raises:
      ValueError: it is not empty, and overwrite is False.
      OSError: it can't be written to.
      SharedError: the same, of several processes.
    """
    folder = plan.folder
    with raise_on_all_processes():
        if not distributed.is_main():
            return
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: is a file; choose another --output")
        if folder.is_dir() and any(folder.iterdir()) and not overwrite:
            raise ValueError(f"{folder}: not empty; use --overwrite, another --output, or `pmwd-dist resume {folder}`")
        settings, table = plan.settings, plan.settings.cosmology.linear_power
        content = None if table is None else Path(table).read_bytes()
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in _OURS:
            for path in folder.glob(pattern):
                remove(path)
        if content is not None:
            _write(folder / TABLE, content)
            own = settings.cosmology.model_copy(update={"linear_power": TABLE})
            settings = settings.model_copy(update={"cosmology": own})
        _write(folder / CONFIG, to_toml(settings).encode())


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as aside:
        aside.write_bytes(content)


def finished(folder: Path) -> bool:
    """Whether a run has come to its end.

    Raises:
      ValueError: the folder is not one of a run.
    """
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: not the folder of a run, it has no {CONFIG}")
    try:
        return bool(json.loads((folder / RUN).read_text(encoding="utf-8"))["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False  # it was stopped before it wrote a whole one


def execute(plan: Plan, listener: Listener, *, resume: bool = False) -> None:
    """Run a simulation, or go on from its last checkpoint. Collective.

    Args:
      plan: with a prepared folder.
      listener: is told of every event on process 0.
      resume: go on from the last checkpoint; from the beginning if there is none.

    Raises:
      SimulationError: the simulation failed on its data; what was computed before is kept.
      Interrupted: it was asked to stop; a checkpoint is kept.
      OSError, SharedError: a file can't be written.
    """
    began = time.perf_counter()
    record = _Record(plan, listener)
    with _stop_requests() as stop:
        record.event("start", resumed=resume, **describe(plan))
        status = "failed"
        try:
            with resources.communication(plan.simulation.config):
                progress = _restore(plan, record) if resume else None
                if progress is None:
                    progress = _begin(plan, record)
                _advance_all(plan, progress, record, stop)
            status = "finished"
            checkpoint.clear(plan.folder)
        except (Interrupted, KeyboardInterrupt):
            status = "interrupted"
            raise
        finally:
            seconds = time.perf_counter() - began
            record.event("end", status=status, seconds=seconds, peak_memory=resources.peak_memory())


def _begin(plan: Plan, record: _Record) -> Progress:
    """Noise, linear modes and LPT: particles at the start."""
    simulation = plan.simulation
    config, cosmo = simulation.config, simulation.cosmo
    began = time.perf_counter()
    noise = white_noise(jax.random.key(simulation.seed), config)
    modes = linear_modes(noise, cosmo, config, linear_power=simulation.table)
    particles = jax.block_until_ready(lpt(modes, cosmo, config))
    del noise, modes
    record.event("initial", a=plan.times[0], seconds=time.perf_counter() - began, peak_memory=resources.peak_memory())
    table = _table(plan)
    particles = jax.device_put(particles, config.decomposition.sharding)
    return Progress(particles, _first_state(plan, table), table, 0)


def _restore(plan: Plan, record: _Record) -> Progress | None:
    """The state of the last checkpoint, on today's devices."""
    with raise_on_all_processes():
        path = checkpoint.latest(plan.folder)
    if path is None:
        return None
    config, table = plan.simulation.config, _table(plan)
    like = jax.ShapeDtypeStruct((*config.particle_shape, 3), _dtype(), sharding=config.decomposition.sharding)
    try:
        with raise_on_all_processes():
            content = checkpoint.meta(path)
            _check_steps(path, content, plan)
            tree = checkpoint.load(path, {"disp": like, "vel": like, "state": _first_state(plan, table)})
    except ValueError as error:
        raise SharedError(str(error)) from error
    step = content["step"]
    record.event("resume", step=step, steps=plan.steps, a=plan.times[step])
    return Progress(Particles(tree["disp"], tree["vel"]), tree["state"], table, step)


def _check_steps(path: Path, content: dict[str, Any], plan: Plan) -> None:
    if content.get("times") != list(plan.times):
        raise ValueError(f"{path}: its steps are not those of {CONFIG}; run the simulation anew")


def _dtype() -> np.dtype:
    return np.dtype(jnp.result_type(float))


def _table(plan: Plan) -> GrowthTable:
    return _everywhere(growth_table(plan.simulation.cosmo), plan)


def _first_state(plan: Plan, table: GrowthTable) -> SolverState:
    one = jnp.zeros((1, 1, 1, 3), _dtype())  # the state knows the particles' precision only
    return _everywhere(start(Particles(one, one), table, plan.simulation.config, plan.simulation.solver), plan)


def _everywhere(tree: Any, plan: Plan) -> Any:
    """A copy on each device, as the steps leave it: else the first step would be compiled for itself."""
    return jax.device_put(jax.tree.map(np.asarray, tree), plan.simulation.config.decomposition.replicated)


def _advance_all(plan: Plan, progress: Progress, record: _Record, stop: _Stop) -> None:
    """All steps that remain, with their outputs; a checkpoint if they can't all be taken."""
    every = plan.settings.output.checkpoint_every
    try:
        # On resuming, too: the output may be what failed.
        _output_if_due(plan, progress, record)
        while progress.step < plan.steps:
            _raise_if_stopped(plan, progress, stop)
            _step(plan, progress, record)
            _output_if_due(plan, progress, record)
            if every and progress.step % every == 0 and progress.step < plan.steps:
                _checkpoint(plan, progress, record)
    except Exception as error:
        # What only this process of several knows of can't be followed by anything that all take part in.
        if jax.process_count() == 1 or isinstance(error, Interrupted | SharedError | SimulationError):
            _keep(plan, progress, record)
        raise


def _step(plan: Plan, progress: Progress, record: _Record) -> None:
    simulation, i = plan.simulation, progress.step
    config = simulation.config
    began = time.perf_counter()
    a0, a1 = np.asarray(plan.times[i : i + 2], progress.particles.disp.dtype)
    particles, state = advance(progress.particles, progress.state, progress.table, a0, a1, config, simulation.solver)
    progress.particles = particles  # those given are gone
    jax.block_until_ready((particles, state))
    # After a failure the particles are as they were before the step: with the state of then they can go on.
    state.status.raise_if_failed()
    progress.state, progress.step = state, i + 1
    seconds, max_displacement = time.perf_counter() - began, float(state.status.max_displacement)
    record.event(
        "step",
        step=i + 1,
        steps=plan.steps,
        a=plan.times[i + 1],
        z=1 / plan.times[i + 1] - 1,
        seconds=seconds,
        particles_per_second=np.prod(config.particle_shape, dtype=float) / seconds,
        displacement_cells=max_displacement,
        displacement=max_displacement * min(config.cell_size),
        peak_memory=resources.peak_memory(),
    )


def _output_if_due(plan: Plan, progress: Progress, record: _Record) -> None:
    if progress.step in plan.outputs:
        began = time.perf_counter()
        z = plan.outputs[progress.step]
        files = write_output(plan, progress.particles, plan.times[progress.step], z)
        record.event("output", step=progress.step, z=z, files=files, seconds=time.perf_counter() - began)


def _checkpoint(plan: Plan, progress: Progress, record: _Record) -> None:
    began = time.perf_counter()
    tree = {"disp": progress.particles.disp, "vel": progress.particles.vel, "state": progress.state}
    path = checkpoint.save(plan.folder, progress.step, tree, {"times": list(plan.times)})
    record.event("checkpoint", step=progress.step, path=path.name, seconds=time.perf_counter() - began)


def _keep(plan: Plan, progress: Progress, record: _Record) -> None:
    """Write a checkpoint after a failure, if there is something to keep and that is possible."""
    if progress.step == 0 or progress.particles.disp.is_deleted() or not bool(_all_finite(progress.particles)):
        return
    try:
        _checkpoint(plan, progress, record)
    except (OSError, SharedError) as failure:
        why = message(failure) if isinstance(failure, OSError) else str(failure)
        record.event("warning", message=f"no checkpoint of step {progress.step} could be written: {why}")


@jax.jit
def _all_finite(particles: Particles) -> jax.Array:
    return jnp.isfinite(particles.disp).all() & jnp.isfinite(particles.vel).all()


class _Record:
    """Tells the listener of events and appends them to the log; on process 0."""

    def __init__(self, plan: Plan, listener: Listener):
        self.path = plan.folder / LOG
        self.listener = listener
        self.summary: Event = {}

    def event(self, name: str, **fields: Any) -> None:
        if not distributed.is_main():
            return
        event = {"event": name, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **fields}
        try:
            with self.path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(event) + "\n")
            self._summarise(event)
        except OSError as error:  # a full disk stops the run at its next output, not for a line of the log
            self.listener({"event": "warning", "message": f"{self.path}: {error.strerror}"})
        self.listener(event)

    def _summarise(self, event: Event) -> None:
        """Keep run.json: what ran, and how it ended."""
        if event["event"] not in ("start", "end"):
            return
        if event["event"] == "start":
            self.summary = {"status": "running", "started": event["time"], **event}
        else:
            ended = {name: event[name] for name in ("status", "seconds", "peak_memory")}
            self.summary |= {**ended, "ended": event["time"]}
        summary = {name: value for name, value in self.summary.items() if name not in ("event", "time", "folder")}
        _write(self.path.with_name(RUN), (json.dumps(summary, indent=1) + "\n").encode())


class _Stop:
    """The first request to stop is remembered until the step is done; the second stops at once."""

    signal_number = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal_number:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    """Remember Ctrl-C and the batch system's SIGTERM instead of dying from them. Only the main thread can."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop.handle) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _raise_if_stopped(plan: Plan, progress: Progress, stop: _Stop) -> None:
    wanted = first_error(str(stop.signal_number) if stop.signal_number else None)
    if wanted:
        kept = f"go on with `pmwd-dist resume {plan.folder}`"
        raise Interrupted(f"interrupted after step {progress.step} of {plan.steps}; {kept}", int(wanted))
