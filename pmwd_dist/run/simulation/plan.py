"""The plan of a run: its settings, steps and outputs, and whether memory and disk suffice."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Self

import numpy as np

from pmwd_dist._files import free_space
from pmwd_dist._memory import size
from pmwd_dist.observe.galaxy_cone import ConeGalaxies
from pmwd_dist.parallel.distributed import from_main
from pmwd_dist.pm.noise import NoiseKind
from pmwd_dist.pm.time_steps import step_times
from pmwd_dist.run.common import resources
from pmwd_dist.run.common.data_files import NOISE, read_files, read_noise
from pmwd_dist.run.common.plan import Plan, three
from pmwd_dist.run.outputs.base import Output
from pmwd_dist.run.outputs.registry import outputs_of
from pmwd_dist.run.settings import SettingsError, SimulationSettings, SimulationSetup, build
from pmwd_dist.run.simulation import accuracy
from pmwd_dist.run.simulation.halo_width import is_automatic, linear_displacement, with_halo_of
from pmwd_dist.run.simulation.programs import least_memory, run_memory


@dataclass(frozen=True)
class SimulationPlan(Plan):
    """A simulation that writes its results into a folder."""

    settings: SimulationSettings
    times: tuple[float, ...]  # scale factors at which steps begin and end

    @classmethod
    def of(cls, settings: SimulationSettings, folder: Path) -> Self:
        simulation = build(settings)
        data = _read_inputs(settings, simulation) | read_noise(settings)
        simulation = replace(simulation, field=data.get(NOISE))
        times = np.asarray(step_times(simulation.growth, simulation.config, save=settings.scale_factors))
        return cls(settings, simulation, folder, tuple(times.tolist()), data=data)

    def of_main(self) -> Self:
        return replace(self, times=tuple(np.asarray(from_main(np.asarray(self.times))).tolist()))

    @cached_property
    def outputs(self) -> dict[int, float]:
        """Redshift of each output, by the number of steps before it."""
        times = np.asarray(self.times)
        return {int(np.argmin(np.abs(times - a))): 1 / a - 1 for a in self.settings.scale_factors}

    @cached_property
    def results(self) -> tuple[Output, ...]:
        """Kinds of files that are written."""
        found = outputs_of(self.settings.output, self.settings.observe)
        return tuple(output.with_inputs(self.data) for output in found)

    def cone_galaxies(self) -> ConeGalaxies | None:
        """Galaxies that light passes during the run, none so far; None without any."""
        found = (output.cone_galaxies(self.simulation, self.times, self.data) for output in self.results)
        return next((x for x in found if x is not None), None)

    @property
    def steps(self) -> int:
        """Number of steps; more than time.steps if there are more outputs than that."""
        return len(self.times) - 1

    @cached_property
    def stages(self) -> dict[str, int]:
        """Memory of each device by stage of the run [bytes], from the compiled programs."""
        config = self.simulation.config
        if is_automatic(config):
            config = with_halo_of(linear_displacement(self.simulation), config)
        return run_memory(self.simulation, len(self.times), config, self.results)

    @property
    def expected_disk(self) -> int:
        """Expected size of all files [bytes]: snapshots, fields, and two checkpoints, since one may be unfinished."""
        count = len(self.settings.scale_factors)
        checkpoints = 2 * self.checkpoint_size if self.settings.output.checkpoint_every else 0
        return sum(output.disk(self.simulation, count) for output in self.results) + checkpoints + 10_000_000

    @property
    def checkpoint_size(self) -> int:
        """Size of a checkpoint [bytes]."""
        return 24 * self.settings.particle_count

    @property
    def expected_memory(self) -> int:
        return resources.room().needed(max(self.stages.values()), self.simulation.config)

    @property
    def files(self) -> list[str]:
        return [name for z in self.outputs.values() for name in self.names_at(z, every=True)] + self.last_names

    def names_at(self, z: float, *, every: bool = False) -> list[str]:
        """Names of the files of this process, or of every one, at a redshift."""
        names = (output.all_names(z) if every else output.names(z) for output in self.results)
        return self._drawn(list(itertools.chain(*names)))

    @property
    def last_names(self) -> list[str]:
        """Names of the files at the end."""
        return self._drawn([name for output in self.results for name in output.last_names()])

    def _drawn(self, names: list[str]) -> list[str]:
        """Names without figures that are not drawn."""
        return [name for name in names if self.settings.output.figures or not name.endswith(".png")]

    def check(self) -> list[str]:
        problem, *warnings = memory_problem(self)
        problems = [problem] if problem else []
        problems += [text for output in self.results for text in output.missing()]
        need, free = self.expected_disk, free_space(self.folder)
        if need > free:
            problems.append(
                f"{self.folder}: the run writes about {size(need)} and the disk has {size(free)} free; "
                'use another --output, or output.snapshot = "none"'
            )
        elif need + self.checkpoint_size > free:
            warnings.append(f"{self.folder}: a checkpoint, if the run is interrupted, does not fit into {size(free)}")
        if problems:
            raise SettingsError(problems)
        simulation = self.simulation
        warnings += simulation.cosmology_warnings()
        warnings += [text for output in self.results for text in output.warnings(simulation)]
        warnings += [] if simulation.start is None else [simulation.start.lattice_warning(simulation.config)]
        warnings += [accuracy.growth_warning(simulation, self.times), accuracy.coarse_warning(simulation.config)]
        return [f"warning: {text}" for text in warnings if text]

    def lines(self) -> list[str]:
        config, settings = self.simulation.config, self.settings
        redshifts = ", ".join(f"{z:.4g}" for z in sorted(self.outputs.values(), reverse=True))
        snapshots = "no" if settings.output.snapshot == "none" else settings.output.snapshot
        lpt = "" if self.simulation.start else f"{config.lpt_order}LPT, "
        lines = [
            f"box         {three(config.box_size)} Mpc/h",
            f"mesh        {three(config.mesh_shape)} cells, {three(config.particle_shape)} particles",
            f"cosmology   {self.power_text}; {_noise_text(settings)}",
            f"time        a {config.a_start:g} to {config.a_stop:g}, {lpt}"
            f"{self.steps} {settings.time.solver} steps, {config.gradient} gradient",
            f"accuracy    {accuracy.accuracy_line(self.simulation, self.times)}",
            f"growth      {accuracy.growth_line(self.simulation)}",
            f"output      {self.folder}: z {redshifts}; {snapshots} snapshots",
        ]
        if names := [output.description(self.simulation) for output in settings.observe.outputs]:
            lines.append(f"observe     {', '.join(names)}")
        return [*lines, self.device_line, f"expected    {self.memory_text}, {size(self.expected_disk)} of disk"]

    def memory_lines(self) -> list[str]:
        config, limit = self.simulation.config, resources.room().for_arrays(self.simulation.config)
        stage, need = max(self.stages.items(), key=lambda item: item[1])
        factor = (limit / need) ** (1 / 3)
        cells = " x ".join(str(int(factor * n)) for n in config.mesh_shape)
        return [f"memory      a device: {size(need)}, in {stage}; a mesh of about {cells} fits into {size(limit)}"]


def _read_inputs(settings: SimulationSettings, simulation: SimulationSetup) -> dict[str, np.ndarray]:
    """Arrays of the files that outputs need, by their keys; SettingsError for files that are not those."""
    found = dict[str, np.ndarray]()
    for output in outputs_of(settings.output, settings.observe):
        arrays, problems = read_files(output.inputs(), *output.shapes(settings.box.mesh))
        if problems := problems or output.input_problems(arrays, simulation):
            raise SettingsError(problems)
        found |= arrays
    return found


def _noise_text(settings: SimulationSettings) -> str:
    noise, start = settings.noise, settings.start.snapshot
    if start is not None:
        return f"particles of {start}"
    options = [name for name in NoiseKind._fields if getattr(noise, name)]
    return ", ".join([f"seed {noise.seed}" if noise.file is None else f"noise {noise.file}", *options])


def memory_problem(plan: SimulationPlan) -> tuple[str | None, str | None]:
    """Error message if the run can't fit into memory, and warning if it may not."""
    config, memory = plan.simulation.config, resources.room()
    stage, arrays = "particles and mesh", least_memory(config)
    if memory.needed(arrays, config) <= memory.total:  # else nothing is compiled
        stage, arrays = max(plan.stages.items(), key=itemgetter(1))
    remedies = [output.remedy for output in plan.results if output.stage == stage]
    if not remedies and stage == "the initial conditions" and config.lpt_order == 3:
        remedies.append("use time.lpt_order = 2")
    need, more = memory.needed(arrays, config), f"more {'machines' if memory.processes else 'devices'}"
    return memory.problem(need, f"the run needs about {size(need)} of memory in {stage}", remedies, more)
