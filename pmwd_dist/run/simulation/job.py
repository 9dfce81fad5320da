"""One simulation as a resumable job: from a plan to a folder of results."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._files import message, temporary
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.io import checkpoint
from pmwd_dist.ops.momenta import count, pack
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, raise_on_all_processes
from pmwd_dist.pm.modes import log_power
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.status import Code, SimulationError, successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.host import Schedule
from pmwd_dist.run.common import events, manifest
from pmwd_dist.run.common.deadline import Clock
from pmwd_dist.run.common.events import Listener, Status
from pmwd_dist.run.common.folder import Log
from pmwd_dist.run.common.preflight import description, find_checkpoint, hold_folder, start_errors
from pmwd_dist.run.common.resources import peak_memory
from pmwd_dist.run.common.signals import Interrupted, StopRequest, stop_requests
from pmwd_dist.run.communication import communication
from pmwd_dist.run.settings.duration import duration_text
from pmwd_dist.run.simulation import light_cone
from pmwd_dist.run.simulation.halo_width import (
    expected_displacement,
    halo_width,
    is_automatic,
    largest_displacement,
    with_halo_of,
)
from pmwd_dist.run.simulation.initial import initial_particles
from pmwd_dist.run.simulation.output import write_light_cone, write_output
from pmwd_dist.run.simulation.plan import Plan
from pmwd_dist.run.simulation.progress import Progress

T = TypeVar("T")


def execute(
    plan: Plan,
    listener: Listener,
    *,
    resume: bool = False,
    began: float | None = None,
    time_limit: float | None = None,
) -> None:
    """Run a simulation, from the beginning or from its last checkpoint. Collective.

    Args:
      plan: with a prepared folder.
      listener: called with every event, on process 0.
      resume: continue from the last checkpoint, or from the beginning if there is none.
      began: time.perf_counter() at the start of the program, from which its time counts; default: now.
      time_limit: seconds after which the run is over; it stops before the step that might end later, but takes one.

    Raises:
      StartError: the folder is in use or of another run, the run to resume is finished, or its checkpoint is damaged
        or of another simulation.
      SimulationError: the simulation failed on its data; earlier results are kept.
      Interrupted: a signal asked the run to stop, or its time is over; a checkpoint is kept.
      OSError, SharedError: a file can't be written.
    """
    began = time.perf_counter() if began is None else began
    with stop_requests() as stop, hold_folder(plan, resume=resume):
        saved = find_checkpoint(plan) if resume else None
        log = Log(plan.folder, listener)
        clock = Clock(plan.settings.output.checkpoint_every, began, time_limit)
        log(events.Started(plan, resume))
        status: Status = "failed"
        try:
            with communication(plan.simulation.config):
                progress = _begin(plan, log) if saved is None else _restore(plan, log, *saved)
                _advance_all(plan, progress, log, stop, clock)
            status = "finished"
            _keep_checkpoint(plan, None)
        except (Interrupted, KeyboardInterrupt, SystemExit):
            status = "interrupted"
            raise
        finally:
            log(events.Ended(status, time.perf_counter() - began, peak_memory()))


def _begin(plan: Plan, log: Log) -> Progress:
    """Noise, linear modes and LPT: the particles at the initial time."""
    simulation = plan.simulation
    config = simulation.config
    began = time.perf_counter()
    key, table = jax.random.key(simulation.seed), growth_table_to(config.lpt_order, simulation.cosmo)
    power = log_power(simulation.cosmo, config, simulation.table)
    particles = jax.block_until_ready(initial_particles(key, table, power, config))
    log(events.InitialConditions(plan.times[0], time.perf_counter() - began, peak_memory()))
    particles = jax.device_put(particles, config.decomposition.sharding)
    shells = None if simulation.light_cone is None else light_cone.empty(simulation.light_cone)
    progress = Progress(config, particles, _replicated(successful(_dtype()), plan), _schedule(plan), 0, shells)
    _choose_halo(plan, progress, log)
    return progress


def _restore(plan: Plan, log: Log, path: Path, content: dict[str, Any]) -> Progress:
    """The state of a checkpoint on the current devices."""
    config, shape = plan.simulation.config, (*plan.simulation.config.particle_shape, 3)
    disp = jax.ShapeDtypeStruct(shape, _dtype(), sharding=config.decomposition.sharding)
    integers = np.dtype(f"int{8 * _dtype().itemsize}")
    likes: dict[str, Any] = {"disp": disp, "momenta": disp.update(dtype=integers)}
    likes["status"] = _replicated(successful(_dtype()), plan)
    if plan.simulation.light_cone is not None:
        likes["shells"] = light_cone.shells_like(plan.simulation.light_cone)
    with start_errors():
        tree = checkpoint.load(path, likes)
    step = content["step"]
    log(events.Resumed(step, plan.steps, plan.times[step]))
    particles = ExactParticles(tree["disp"], jax.jit(pack)(tree["momenta"], 0.0))
    progress = Progress(config, particles, tree["status"], _schedule(plan), step, tree.get("shells"))
    _choose_halo(plan, progress, log)
    return progress


def _choose_halo(plan: Plan, progress: Progress, log: Log) -> None:
    """Choose the width of the halo for the steps to come."""
    if is_automatic(plan.simulation.config):
        now, a = largest_displacement(progress.at_rest().disp, progress.config), plan.times[progress.step]
        _set_halo(plan, progress, expected_displacement(now, a, progress.schedule.table, progress.config), log)


def _set_halo(plan: Plan, progress: Progress, displacement: float, log: Log) -> None:
    """Take a halo that holds displacements up to this one [Mpc/h]."""
    progress.config = with_halo_of(displacement, plan.simulation.config)
    log(events.HaloChosen(progress.step, int(progress.config.halo), displacement))


def _dtype() -> np.dtype:
    return np.dtype(jnp.result_type(float))


def _schedule(plan: Plan) -> Schedule:
    """The steps of the whole run."""
    simulation = plan.simulation
    table = growth_table_to(simulation.config.lpt_order, simulation.cosmo)
    times = jnp.asarray(plan.times, _dtype())
    return _replicated(host.make_schedule(table, times, simulation.config, simulation.solver), plan)


def _replicated(tree: T, plan: Plan) -> T:
    """A copy on each device, as a step returns it: with another sharding the first step would compile twice."""
    return jax.device_put(jax.tree.map(np.asarray, tree), plan.simulation.config.decomposition.replicated)


def _advance_all(plan: Plan, progress: Progress, log: Log, stop: StopRequest, clock: Clock) -> None:
    """Take all remaining steps and write their outputs; write a checkpoint if one of them fails."""
    try:
        _output_if_due(plan, progress, log)  # also on resuming: the output may be what failed
        while progress.step < plan.steps:
            _raise_if_stopped(plan, progress, stop, clock)
            _step(plan, progress, log)
            _output_if_due(plan, progress, log)
            if progress.step < plan.steps and clock.checkpoint_due(progress.step):
                _checkpoint(plan, progress, log)
    except Exception as error:
        # After an error of one process alone, the others would wait in the checkpoint's collectives forever.
        if jax.process_count() == 1 or isinstance(error, Interrupted | SharedError | SimulationError):
            _checkpoint_after_failure(plan, progress, log)
        raise


def _raise_if_stopped(plan: Plan, progress: Progress, stop: StopRequest, clock: Clock) -> None:
    done, resume = f"after step {progress.step} of {plan.steps}", f"pmwd-dist resume {plan.folder}"
    if number := stop.received():
        raise Interrupted(f"interrupted {done}; go on with `{resume}`", number)
    if clock.time_is_over():
        limit = duration_text(clock.limit or 0)
        raise Interrupted(f"stopped {done}, by the time limit; go on with `{resume} --time-limit {limit}`", 0)


def _step(plan: Plan, progress: Progress, log: Log) -> None:
    i, config, cone = progress.step, progress.config, plan.simulation.light_cone
    began = time.perf_counter()
    status = progress.advance(cone)
    while int(status.code) == Code.BEYOND_HALO and is_automatic(plan.simulation.config):
        width, beyond = progress.config.halo, float(status.max_displacement) * min(config.cell_size)
        expected = expected_displacement(beyond, plan.times[i], progress.schedule.table, config)
        _set_halo(plan, progress, max(beyond, expected), log)
        if progress.config.halo == width:
            break  # as wide as the mesh
        status = progress.advance(cone)
    status.raise_if_failed()
    seconds, max_displacement = time.perf_counter() - began, float(status.max_displacement)
    log(
        events.StepTaken(
            step=i + 1,
            steps=plan.steps,
            a=plan.times[i + 1],
            z=1 / plan.times[i + 1] - 1,
            seconds=seconds,
            particles_per_second=float(np.prod(config.particle_shape, dtype=float)) / seconds,
            displacement_cells=max_displacement,
            displacement=max_displacement * min(config.cell_size),
            peak_memory=peak_memory(),
        )
    )


def _output_if_due(plan: Plan, progress: Progress, log: Log) -> None:
    if progress.step in plan.outputs:
        began = time.perf_counter()
        z = plan.outputs[progress.step]
        if is_automatic(plan.simulation.config):
            displacement = largest_displacement(progress.at_rest().disp, progress.config)
            if halo_width(displacement, progress.config) > int(progress.config.halo):
                _set_halo(plan, progress, displacement, log)
        simulation = replace(plan.simulation, config=progress.config)
        rest, done = progress.at_rest(), np.int32(progress.step)
        moving = partial(host.observed, rest, progress.schedule, done)
        a = plan.times[progress.step]
        files = write_output(replace(plan, simulation=simulation), rest, moving, a, z)
        log(events.OutputWritten(progress.step, z, tuple(files), time.perf_counter() - began))
    if progress.step == plan.steps and progress.shells is not None:
        began = time.perf_counter()
        files = write_light_cone(plan, progress.shells)
        log(events.OutputWritten(progress.step, 1 / plan.times[-1] - 1, tuple(files), time.perf_counter() - began))


def _checkpoint(plan: Plan, progress: Progress, log: Log) -> None:
    began = time.perf_counter()
    particles = progress.at_rest()
    tree: dict[str, Any] = {
        "disp": particles.disp,
        "momenta": jax.jit(count)(particles.momenta),
        "status": progress.status,
    }
    if progress.shells is not None:
        tree["shells"] = progress.shells
    path = checkpoint.path_of(plan.folder, progress.step)
    with raise_on_all_processes():
        if distributed.is_main():
            manifest.claim(plan.folder, [path.name])
    checkpoint.save(plan.folder, progress.step, tree, description(plan, progress.step))
    _keep_checkpoint(plan, path)
    log(events.CheckpointWritten(progress.step, path.name, time.perf_counter() - began))


def _keep_checkpoint(plan: Plan, kept: Path | None) -> None:
    """Remove all checkpoints of the run but one, and what is left of unfinished ones."""
    if distributed.is_main():
        for path in manifest.checkpoints(plan.folder):
            checkpoint.discard(temporary(path))
            if path != kept:
                checkpoint.discard(path)


def _checkpoint_after_failure(plan: Plan, progress: Progress, log: Log) -> None:
    """Write a checkpoint if any step is done and its particles are finite; warn if it can't be written."""
    if progress.step == 0 or not progress.has_particles() or not bool(jnp.isfinite(progress.at_rest().disp).all()):
        return
    try:
        _checkpoint(plan, progress, log)
    except (OSError, SharedError) as error:
        cause = message(error) if isinstance(error, OSError) else str(error)
        log(events.Warned(f"no checkpoint of step {progress.step} could be written: {cause}"))
