"""The loop of a simulation: runs the plan of `plan.py`, and resumes it from a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmwd_dist._files import message, temporary
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.profile import part
from pmwd_dist._jax.program import jit
from pmwd_dist._memory import size
from pmwd_dist.config import Config
from pmwd_dist.io import checkpoint
from pmwd_dist.io.arrays import ArrayFileError, reading
from pmwd_dist.observe.galaxy_cone import ConeGalaxies
from pmwd_dist.observe.sources import LightCone
from pmwd_dist.ops.momenta import pack, to_integers
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, from_main, on_main, raise_on_all_processes
from pmwd_dist.parallel.fft import spectrum_shape
from pmwd_dist.pm.modes import log_power, log_transfer
from pmwd_dist.pm.paint import density, halo_widths
from pmwd_dist.pm.particles import ExactParticles, Particles
from pmwd_dist.pm.solvers import FORMULAS
from pmwd_dist.pm.status import Code, SimulationError, Status, successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.host import StepSchedule
from pmwd_dist.pm.stepping.step import MidStep
from pmwd_dist.report import drawing
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Control
from pmwd_dist.run.common.fingerprint import identity
from pmwd_dist.run.common.folder import Log, check_identity, start_errors
from pmwd_dist.run.common.job import Job
from pmwd_dist.run.common.resources import peak_memory
from pmwd_dist.run.outputs import light_cone
from pmwd_dist.run.outputs.base import View
from pmwd_dist.run.outputs.registry import figures
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.simulation.halo_width import (
    expected_displacement,
    halo_width,
    is_automatic,
    largest_displacement,
    with_halo_of,
)
from pmwd_dist.run.simulation.plan import SimulationPlan
from pmwd_dist.run.simulation.programs import vectors_of

T = TypeVar("T")
Saved = tuple[Path, dict[str, Any]]  # a checkpoint and its description


@dataclass
class Progress:
    """The state of a run after a number of steps."""

    config: Config  # with the width of the halo that is in use
    position: ExactParticles | MidStep  # at the end of the step, or with the drift of the next one
    status: Status
    schedule: StepSchedule  # of all steps
    step: int  # number of steps so far
    shells: Array | None = None  # of the light cone
    cone_galaxies: ConeGalaxies | None = None  # that light has passed

    def particles(self) -> ExactParticles:
        """The particles at the end of the step: the drift of the next one is reversed."""
        if isinstance(self.position, MidStep):
            self.position = host.undo_half_drift(self.position, self.config)
        return self.position

    def advance(self, cone: LightCone | None) -> Status:
        """Take the next step and return its status, on the host.

        A failed step changes nothing. If only the last drift of the run fails, the particles are deleted.
        """
        done = np.int32(self.step)
        moved = self.position
        if not isinstance(moved, MidStep):
            self.position = moved = host.half_drift(moved, self.status, self.schedule, done, self.config)
        gathering = self.cone_galaxies is not None and self.cone_galaxies.sees(self.step)
        before = host.copied(moved) if gathering else None
        if cone is None or self.shells is None:
            moved = host.advance(moved, self.schedule, done, self.config)
        else:
            motion: Any = moved._replace(particles=())  # type: ignore[arg-type]
            given = motion, self.schedule, done
            moved, self.shells = light_cone.advance_and_see(moved.particles, self.shells, *given, cone, self.config)
        self.position, status = moved, jax.device_get(moved.status)
        if status.code != Code.SUCCESSFUL:
            self.position = moved.particles
            return status
        if self.step == len(self.schedule.times) - 2:
            status = jax.device_get(host.final_status(moved, self.config))
            if status.code != Code.SUCCESSFUL:
                for x in jax.tree.leaves(moved.particles):
                    x.delete()  # not a state before the step: no checkpoint may hold them
                return status
        if before is not None and self.cone_galaxies is not None:
            self.cone_galaxies.add(before, moved, self.schedule, self.step, self.config)
        self.status, self.step = moved.status, self.step + 1
        return status


class SimulationJob(SimulationPlan, Job):
    """A simulation and its loop."""

    def find_checkpoint(self) -> Saved | None:
        with start_errors():
            if (path := checkpoint.latest(self.folder)) is None:
                return None
            content = checkpoint.meta(path)
            with reading(path, checkpoint.REMEDY):
                check_identity(self, content["identity"], path, "the checkpoint")
                _check_steps(self, content, path)
            return path, content

    def work(self, log: Log, control: Control, checkpoint: Saved | None) -> None:
        config = self.simulation.config
        with _communication(config):
            with log.naming("checkpoint" if checkpoint else "initial conditions"):
                progress = _restore(self, log, *checkpoint) if checkpoint else _begin(self, log)
            if is_automatic(config):
                now, a = largest_displacement(progress.particles().disp, progress.config), self.times[progress.step]
                _set_halo(self, progress, expected_displacement(now, a, progress.schedule.table, progress.config), log)
            _advance_all(self, progress, log, control)
        _keep_checkpoint(self, None)
        if distributed.is_main():
            try:
                self.draw()
            except (OSError, ValueError) as error:
                log.lack("figures are missing", error, f"; `pmwd-dist report {self.folder}` draws them")

    def draw(self) -> None:
        if self.settings.output.figures:
            with part("output: waiting"):
                drawing.finish(figures(self.folder, self.files))


def _communication(config: Config) -> AbstractContextManager[None]:
    """The communication backend, open for all fields, spectra and halos of a run. Collective."""
    decomposition = config.decomposition
    fields = {config.mesh_shape, config.particle_shape}
    spectra = {spectrum_shape(shape, decomposition) for shape in fields}
    block = decomposition.block(config.mesh_shape)
    widths = [n for n, parts in zip(block, decomposition.pdims, strict=False) if parts > 1]
    halo = min([halo_widths(config)[-1] + 1 + WIDTH, *widths])  # cuDecomp's halos end at the next neighbour
    return decomposition.opened(sorted(fields | spectra), halo=halo)


@part("initial conditions")
def _begin(plan: SimulationPlan, log: Log) -> Progress:
    """The particles at the initial time: of a snapshot, or of noise, linear modes and LPT."""
    simulation = plan.simulation
    config = simulation.config
    began = time.perf_counter()
    if simulation.start is None:
        particles = _particles_of_noise(simulation)
    else:
        with start_errors():
            read = simulation.start.read(simulation.cosmo, config, log.warn, simulation.linear_power)
        particles = host.exact_particles(read, config)
    particles = jax.block_until_ready(particles)
    a, seconds, peak = plan.times[0], time.perf_counter() - began, peak_memory()
    text = f"initial conditions at a {a:.4f}  {seconds:.2f} s  {size(peak)}"
    log("initial", text, a=a, seconds=seconds, peak_memory=peak)
    particles = jax.device_put(particles, config.decomposition.sharding)
    shells = None
    if simulation.light_cone is not None:
        like = light_cone.shells_like(simulation.light_cone)
        shells = jit(lambda: jnp.zeros(like.shape, like.dtype), out_shardings=like.sharding)()
    status = _replicated(successful(vectors_of(config).dtype), plan)
    return Progress(config, particles, status, _schedule(plan), 0, shells, plan.cone_galaxies())


def _particles_of_noise(simulation: SimulationSetup) -> ExactParticles:
    config = simulation.config
    table = simulation.growth
    power, f_nl = log_power(simulation.cosmo, config, simulation.power), simulation.f_nl
    primordial = None if f_nl is None else (jnp.asarray(f_nl), log_transfer(table, config, simulation.power))
    table, power, primordial = from_main((table, power, primordial))
    potentials = host.initial_potentials(simulation.noise, table, power, config, simulation.kind, primordial)
    potentials = jax.device_put(potentials, config.decomposition.spectrum_sharding)  # the type of the plan's program
    return host.initial_particles(potentials, table, config)


@part("checkpoint")
def _restore(plan: SimulationPlan, log: Log, path: Path, content: dict[str, Any]) -> Progress:
    """The state of a checkpoint on the current devices."""
    config, disp = plan.simulation.config, vectors_of(plan.simulation.config)
    integers = np.dtype(f"int{8 * disp.dtype.itemsize}")
    likes: dict[str, Any] = {"disp": disp, "momenta": disp.update(dtype=integers)}
    likes["status"] = _replicated(successful(disp.dtype), plan)
    if plan.simulation.light_cone is not None:
        likes["shells"] = light_cone.shells_like(plan.simulation.light_cone)
    cone_galaxies, rows = plan.cone_galaxies(), content.get("galaxies", 0)
    if cone_galaxies is not None:
        likes["galaxies"] = _replicated(np.zeros((rows, 2 * cone_galaxies.rows.shape[1]), np.int32), plan)
    with start_errors():
        tree = checkpoint.load(path, likes)
    if cone_galaxies is not None:
        cone_galaxies.rows = np.asarray(tree["galaxies"]).view(np.float64)
    step = content["step"]
    a = plan.times[step]
    log("resume", f"resumed after step {step}/{plan.steps}, a {a:.4f}", step=step, steps=plan.steps, a=a)
    particles = ExactParticles(tree["disp"], jit(pack)(tree["momenta"], 0.0))
    return Progress(config, particles, tree["status"], _schedule(plan), step, tree.get("shells"), cone_galaxies)


def _set_halo(plan: SimulationPlan, progress: Progress, displacement: float, log: Log) -> None:
    """Take a halo that holds displacements up to this one [Mpc/h]."""
    displacement = float(from_main(displacement))
    progress.config = with_halo_of(displacement, plan.simulation.config)
    cells = int(progress.config.halo)
    text = f"halo of {cells} cells, for displacements of up to {displacement:.3g} Mpc/h"
    log("halo", text, step=progress.step, cells=cells, displacement=displacement)


def _schedule(plan: SimulationPlan) -> StepSchedule:
    """The steps of the whole run."""
    simulation = plan.simulation
    times, formula, factor = as_array(np.asarray(plan.times)), FORMULAS[simulation.solver], simulation.potential_factor
    schedule = host.make_schedule(simulation.growth, times, simulation.config, formula, factor)
    return _replicated(from_main(schedule), plan)


def _replicated(tree: T, plan: SimulationPlan) -> T:
    """A copy on each device, as a step returns it: with another sharding the first step would compile twice."""
    return jax.device_put(jax.tree.map(np.asarray, tree), plan.simulation.config.decomposition.replicated)


def _advance_all(plan: SimulationPlan, progress: Progress, log: Log, control: Control) -> None:
    """Take all remaining steps and write their outputs; write a checkpoint if one of them fails."""
    every = plan.settings.output.checkpoint_every
    try:
        _output_if_due(plan, progress, log)  # also on resuming: the output may be what failed
        while progress.step < plan.steps:
            control.raise_if_stopped(f"after step {progress.step} of {plan.steps}")
            with log.naming(f"step {progress.step + 1}/{plan.steps}"):
                _step(plan, progress, log)
            _output_if_due(plan, progress, log)
            if progress.step < plan.steps and control.checkpoint_due(progress.step, every):
                _checkpoint(plan, progress, log)
    except Exception as error:
        # After an error of one process alone, the others would wait in the checkpoint's collectives forever.
        if jax.process_count() == 1 or isinstance(error, SharedError | SimulationError):
            _checkpoint_after_failure(plan, progress, log)
        raise


@part("steps")
def _step(plan: SimulationPlan, progress: Progress, log: Log) -> None:
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
    a, seconds, cells = plan.times[i + 1], time.perf_counter() - began, float(status.max_displacement)
    speed, displacement = math.prod(config.particle_shape) / seconds, cells * min(config.cell_size)
    z, peak = 1 / a - 1, peak_memory()
    log(
        "step",
        f"step {i + 1}/{plan.steps}  a {a:.4f}  z {z:.3f}  {seconds:.3g} s  {speed:.3g} particles/s  "
        f"displacement {cells:.2f} cells, {displacement:.2f} Mpc/h  {size(peak)}",
        step=i + 1,
        steps=plan.steps,
        a=a,
        z=z,
        seconds=seconds,
        particles_per_second=speed,
        displacement_cells=cells,
        displacement=displacement,
        peak_memory=peak,
    )


@part("output: computing")
def _output_if_due(plan: SimulationPlan, progress: Progress, log: Log) -> None:
    began, step = time.perf_counter(), progress.step
    if step in plan.outputs:
        if is_automatic(plan.simulation.config):
            displacement = largest_displacement(progress.particles().disp, progress.config)
            if halo_width(displacement, progress.config) > int(progress.config.halo):
                _set_halo(plan, progress, displacement, log)
        z = plan.outputs[step]
        _log_output(log, step, z, _write_output(plan, progress, z, log), began)
    if plan.last_names and step == plan.steps:
        began = time.perf_counter()
        with log.naming("light cone: maps, angular power spectra or galaxies"):
            on_main(manifest.claim, plan.folder, plan.last_names)
            for output in plan.results:
                output.write_last(plan.folder, plan.simulation, progress.shells, progress.cone_galaxies)
            on_main(lambda: drawing.draw(figures(plan.folder, plan.last_names)))
            _log_output(log, step, 1 / plan.times[-1] - 1, plan.last_names, began)


def _write_output(plan: SimulationPlan, progress: Progress, z: float, log: Log) -> list[str]:
    """Measure all outputs at a redshift and write them; return the names of the files of this process. Collective."""
    folder, config, names, rest = plan.folder, progress.config, plan.names_at(z), progress.particles()
    moving = partial(host.with_units, rest, progress.schedule, np.int32(progress.step))
    at_rest = Particles(rest.disp, rest.momenta)
    field = density(at_rest, config)
    view = View(plan.simulation, config, at_rest, moving, plan.times[progress.step], z, plan.data, field)
    measured = []
    for output in plan.results:
        with log.naming(f"output at z {z:.3f}: {output.name}"):
            measured.append((output, output.measure(view)))
    view.density = field = None  # the mesh is free for what is divided
    with part("output: writing"), raise_on_all_processes():
        if distributed.is_main():
            manifest.claim(folder, plan.names_at(z, every=True))
            for output, values in measured:
                output.write(folder, z, values)
            drawing.draw(figures(folder, names))
    with part("output: writing"):
        for output in plan.results:
            with log.naming(f"output at z {z:.3f}: {output.name}"):
                output.write_divided(folder, view)
    return names


def _log_output(log: Log, step: int, z: float, files: Sequence[str], began: float) -> None:
    seconds = time.perf_counter() - began
    text = f"output at z {z:.3f}  {seconds:.2f} s  {', '.join(files)}"
    log("output", text, step=step, z=z, files=files, seconds=seconds)


@part("checkpoint")
def _checkpoint(plan: SimulationPlan, progress: Progress, log: Log) -> None:
    began = time.perf_counter()
    particles = progress.particles()
    tree: dict[str, Any] = {
        "disp": particles.disp,
        "momenta": jit(to_integers)(particles.momenta),
        "status": progress.status,
    }
    if progress.shells is not None:
        tree["shells"] = progress.shells
    path = checkpoint.path_of(plan.folder, progress.step)
    on_main(manifest.claim, plan.folder, [path.name])
    outputs = [[i, z] for i, z in sorted(plan.outputs.items()) if i <= progress.step]
    description: dict[str, Any] = {"identity": identity(plan), "times": list(plan.times), "outputs": outputs}
    if progress.cone_galaxies is not None:
        rows = np.ascontiguousarray(progress.cone_galaxies.rows)
        tree["galaxies"] = _replicated(rows.view(np.int32), plan)  # as words: JAX may have no type of 64 bits
        description["galaxies"] = len(rows)
    checkpoint.save(plan.folder, progress.step, tree, description)
    _keep_checkpoint(plan, path)
    log("checkpoint", step=progress.step, path=path.name, seconds=time.perf_counter() - began)


def _keep_checkpoint(plan: SimulationPlan, kept: Path | None) -> None:
    """Remove all checkpoints but one, and unfinished ones."""
    if distributed.is_main():
        for path in manifest.checkpoints(plan.folder):
            checkpoint.discard(temporary(path))
            if path != kept:
                checkpoint.discard(path)


def _checkpoint_after_failure(plan: SimulationPlan, progress: Progress, log: Log) -> None:
    """Write a checkpoint if any step is done and its particles are finite; warn if it can't be written."""
    has_particles = not any(x.is_deleted() for x in jax.tree.leaves(progress.position))  # or an error left none
    try:
        if has_particles and progress.step > 0 and bool(jnp.isfinite(progress.particles().disp).all()):
            _checkpoint(plan, progress, log)
    except (OSError, RuntimeError) as error:
        log.warn(f"no checkpoint of step {progress.step} could be written: {message(error)}")


def _check_steps(plan: SimulationPlan, content: dict[str, Any], path: Path) -> None:
    """Raise unless the plan has the steps and outputs up to the checkpoint."""
    step = content["step"]
    done = [z for i, z in content["outputs"] if i < step]
    planned = [z for i, z in sorted(plan.outputs.items()) if i < step]
    before, times = content["times"][: step + 1], plan.times[: step + 1]
    # Rounding of the growth function depends on the device.
    same = len(before) == len(times) and np.allclose(before, times, rtol=1e-5)
    if same and len(done) == len(planned) and np.allclose(done, planned):
        return
    raise ArrayFileError(
        f"{path}: output.redshifts would change the {step} steps that are done, to z = {1 / before[-1] - 1:.4g}, with "
        f"outputs at z = {', '.join(f'{z:.4g}' for z in done) or 'none'}; "
        "set it back, or start a new run in another folder"
    )
