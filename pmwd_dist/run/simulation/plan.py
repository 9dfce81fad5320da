"""The plan of a run: its settings, steps and outputs, and whether memory and disk suffice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from pmwd_dist._files import free_space, message
from pmwd_dist._jax.profile import part
from pmwd_dist._memory import available_memory, size
from pmwd_dist.io.snapshot.writer import FORMATS
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import from_main
from pmwd_dist.pm.noise import NoiseKind
from pmwd_dist.pm.time_steps import step_times
from pmwd_dist.report import drawing, results
from pmwd_dist.run.common import resources
from pmwd_dist.run.common.control import Control
from pmwd_dist.run.common.data_files import NOISE, read_files, read_noise
from pmwd_dist.run.common.folder import Log
from pmwd_dist.run.common.job import Job, three
from pmwd_dist.run.settings import SettingsError, SimulationSettings, SimulationSetup, build, observables
from pmwd_dist.run.settings.light_cone import coverage_warnings
from pmwd_dist.run.settings.observables import MASK
from pmwd_dist.run.settings.physics import cosmology_warnings
from pmwd_dist.run.settings.simulation_sections import redshift_label
from pmwd_dist.run.settings.writing import toml_value
from pmwd_dist.run.simulation import accuracy, light_cone
from pmwd_dist.run.simulation.halo_width import is_automatic, with_halo_of
from pmwd_dist.run.simulation.light_cone import shells_like
from pmwd_dist.run.simulation.observables import shares_seen, wanted
from pmwd_dist.run.simulation.planning import enough_devices, linear_displacement
from pmwd_dist.run.simulation.programs import Stage, least_memory, run_memory

_GPU_BUFFER = 1 << 29  # of an output [bytes]: chunks that are written soon are still in the caches


@dataclass(frozen=True)
class SimulationJob(Job):
    """A simulation that writes its results into a folder.

    Args:
      times: scale factors at which steps begin and end.
    """

    settings: SimulationSettings
    times: tuple[float, ...]

    @classmethod
    def of(cls, settings: SimulationSettings, folder: Path) -> Self:
        """The run of these settings.

        Raises:
          SettingsError: the settings don't fit the devices or the files.
        """
        simulation = build(settings)
        data = _read_masks(settings, simulation) | read_noise(settings)
        simulation = replace(simulation, field=data.get(NOISE))
        times = np.asarray(step_times(simulation.cosmo, simulation.config, save=settings.scale_factors))
        return cls(settings, simulation, folder, tuple(times.tolist()), data=data)

    def of_main(self) -> Self:
        """The run with the time steps of process 0. Collective."""
        return replace(self, times=tuple(np.asarray(from_main(np.asarray(self.times))).tolist()))

    @cached_property
    def outputs(self) -> dict[int, float]:
        """Redshift of each output, by the number of steps before it."""
        times = np.asarray(self.times)
        return {int(np.argmin(np.abs(times - a))): 1 / a - 1 for a in self.settings.scale_factors}

    @property
    def steps(self) -> int:
        """Number of steps; more than time.steps if there are more outputs than that."""
        return len(self.times) - 1

    @cached_property
    def stages(self) -> dict[Stage, int]:
        """Memory of each device by stage of the run [bytes], from the compiled programs."""
        config, triangles = self.simulation.config, self.settings.observe.bispectrum
        if is_automatic(config):
            config = with_halo_of(linear_displacement(self.simulation), config)
        return run_memory(self.simulation, self.times, config, None if triangles is None else triangles.shells)

    @property
    def expected_disk(self) -> int:
        """Expected size of all files [bytes]: snapshots, fields, and two checkpoints, since one may be unfinished."""
        settings, output, cone = self.settings, self.settings.output, self.simulation.light_cone
        counts = 0 if self.counted is None else 4 * math.prod(settings.box.mesh)
        maps = 0 if cone is None else 4 * shells_like(cone).size
        checkpoints = 2 * self.checkpoint_size if output.checkpoint_every else 0
        return (self.snapshot_size + counts) * len(settings.scale_factors) + maps + checkpoints + 10_000_000

    @property
    def checkpoint_size(self) -> int:
        """Size of a checkpoint [bytes]."""
        return 24 * self.settings.particle_count

    @property
    def expected_memory(self) -> int:
        """Expected peak of host memory of one process [bytes]; on GPUs, of the memory of each device."""
        return self._needed + resources.room().processes * self.output_buffer

    @property
    def _needed(self) -> int:
        return resources.room().needed(max(self.stages.values()), self.simulation.config)

    @cached_property
    def output_buffer(self) -> int:
        """Host memory of a process for a snapshot that is written beside steps [bytes].

        At most half of the rest; less on GPUs, whose steps take far less time than a snapshot.
        """
        if not resources.room().processes:
            return min(self.snapshot_size // jax.process_count(), _GPU_BUFFER)
        rest = available_memory()[0] - self._needed
        return max(0, min(self.snapshot_size, rest // 2)) // jax.process_count()

    @property
    def snapshot_size(self) -> int:
        """Size of a snapshot without compression, at most [bytes]."""
        output = self.settings.output
        if output.snapshot == "none":
            return 0
        return FORMATS[output.snapshot].of(output.precision).bytes_per_particle * self.settings.particle_count

    @property
    def files(self) -> list[str]:
        """Names of the results."""
        each = [name for z in self.outputs.values() for name in self.names_at(z) + self.snapshots_at(z)]
        return each + self.light_cone_files

    @property
    def light_cone_files(self) -> list[str]:
        """Names of the files of the light cone, if there is one."""
        return self._drawn(light_cone.files(self.simulation.light_cone))

    def _drawn(self, names: list[str]) -> list[str]:
        """Names without figures that are not drawn."""
        return [name for name in names if self.settings.output.figures or not name.endswith(".png")]

    def names_at(self, z: float) -> list[str]:
        """Names of the files at a redshift, without snapshots."""
        label = redshift_label(z)
        slab = [f"density_{label}.npz", f"density_{label}.png"] if self.settings.output.slice_thickness else []
        tables = [f"{name}_{label}.{kind}" for name in wanted(self.settings) for kind in ("csv", "png")]
        counts = [] if self.counted is None else [f"counts_{label}.hdf5"]
        return self._drawn([f"power_{label}.csv", results.POWER, *slab, *tables, *counts])

    def snapshots_at(self, z: float) -> list[str]:
        """Names of the snapshots of all processes at a redshift."""
        if self.settings.output.snapshot == "none":
            return []
        processes = jax.process_count()
        numbers = [""] if processes == 1 else [f".{i}" for i in range(processes)]
        return [f"snapshot_{redshift_label(z)}{number}.hdf5" for number in numbers]

    @property
    def counted(self) -> observables.Galaxies | None:
        """Galaxies whose counts are drawn, if any."""
        galaxies = self.settings.observe.galaxies
        return None if galaxies is None or galaxies.number_density is None else galaxies

    def check(self) -> list[str]:
        """Warnings that memory or disk may not suffice, or that the time steps lose growth."""
        problem, *warnings = memory_problem(self)
        problems = [problem] if problem else []
        if self.settings.output.compression is not None and find_spec("hdf5plugin") is None:
            problems.append('output.compression = "zstd": needs hdf5plugin; install it with `pip install hdf5plugin`')
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
        warnings += cosmology_warnings(self.settings, simulation)
        warnings += accuracy.bias_warnings(self.settings) + accuracy.counts_warnings(self.settings, simulation)
        warnings += [] if simulation.start is None else [simulation.start.lattice_warning(simulation.config)]
        warnings += coverage_warnings(self.settings, simulation.light_cone, simulation.cosmo)
        return [f"warning: {text}" for text in (*warnings, accuracy.growth_warning(simulation, self.times)) if text]

    def lines(self, *, here: bool = True) -> list[str]:
        """Description of the run, with the current devices if it is to run here."""
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
        if names := _observed(self):
            lines.append(f"observe     {', '.join(names)}")
        if here:
            lines += [self.device_line, f"expected    {self.memory_text}, {size(self.expected_disk)} of disk"]
        return lines

    def memory_lines(self) -> list[str]:
        """Memory on the current devices in the stage that needs most, and the largest mesh that fits."""
        config, limit = self.simulation.config, resources.room().for_arrays(self.simulation.config)
        stage, need = max(self.stages.items(), key=lambda item: item[1])
        factor = (limit / need) ** (1 / 3)
        cells = " x ".join(str(int(factor * n)) for n in config.mesh_shape)
        return [f"memory      a device: {size(need)}, in {stage}; a mesh of about {cells} fits into {size(limit)}"]

    def describe(self) -> dict[str, Any]:
        """Fields of the log as JSON holds them."""
        redshifts = sorted(self.outputs.values(), reverse=True)
        own = {"snapshot": self.settings.output.snapshot, "expected_disk": self.expected_disk}
        if self.simulation.start is not None:
            own["start"] = self.simulation.start.digest
        return super().describe() | {"redshifts": redshifts, **own}

    def find_checkpoint(self) -> Any:
        """The last checkpoint and its description; None if there is none. Collective."""
        from pmwd_dist.run.simulation.job import find_checkpoint

        return find_checkpoint(self)

    def work(self, log: Log, control: Control, checkpoint: Any) -> None:
        """Take all steps from a checkpoint, or from the initial conditions. Collective."""
        from pmwd_dist.run.simulation.job import run

        run(self, log, control, checkpoint)
        if distributed.is_main():
            try:
                self.draw()
            except (OSError, ValueError) as error:
                log.warn(f"figures are missing: {message(error)}; `pmwd-dist report {self.folder}` draws them")

    def draw(self) -> None:
        """Wait for the figures, and draw the ones that are missing."""
        if self.settings.output.figures:
            with part("output: waiting"):
                drawing.finish(self.folder, self.files)


def _read_masks(settings: SimulationSettings, simulation: SimulationSetup) -> dict[str, np.ndarray]:
    """Masks of observables, by their keys.

    Raises:
      SettingsError: a file can't be read or is no mask, or the survey of galaxies covers nothing of the box.
    """
    galaxies = settings.observe.galaxies
    if galaxies is None:
        return {}
    files = {} if galaxies.mask is None else {MASK: galaxies.mask}
    arrays, problems = read_files(files, settings.box.mesh)
    for key, values in arrays.items():
        if not problems and not (values.min() >= 0 and 0 < values.max() <= 1):
            problems.append(f"{key} = {toml_value(files[key])}: must hold shares from 0 to 1, and some above 0")
    shares = None if problems else shares_seen(galaxies, simulation.config, arrays)
    if shares is not None and not shares.max() > 0:
        problems.append("observe.galaxies.selection: nothing is left of it in the box, times the mask; change one")
    if problems:
        raise SettingsError(problems)
    return arrays


def _noise_text(settings: SimulationSettings) -> str:
    noise, start = settings.noise, settings.start.snapshot
    if start is not None:
        return f"particles of {start}"
    options = [name for name in NoiseKind._fields if getattr(noise, name)]
    return ", ".join([f"seed {noise.seed}" if noise.file is None else f"noise {noise.file}", *options])


def memory_problem(plan: SimulationJob) -> tuple[str | None, str | None]:
    """Error message if the run can't fit into memory, and warning if it may not."""
    config, cone, memory = plan.simulation.config, plan.simulation.light_cone, resources.room()
    stage, arrays = "particles and mesh", least_memory(config)
    if memory.needed(arrays, config) <= memory.total:  # else nothing is compiled
        stage, arrays = max(plan.stages.items(), key=itemgetter(1))
    need = memory.needed(arrays, config)
    text = f"the run needs about {size(need)} of memory in {stage} and {memory.where} has "
    if need <= memory.total:
        return None, None if need <= memory.free else f"{text}{size(memory.free)} free: it may be killed"
    remedies = [f"set {pool}"] if (pool := resources.larger_pool(arrays)) else []
    count = None
    if stage == "a step" and cone is not None:
        remedies.append("use fewer edges or pixels of observe.light_cone")
    elif stage == "the bispectrum":
        remedies.append("use fewer observe.bispectrum.shells")
    else:
        remedies += ["use time.lpt_order = 2"] if stage == "the initial conditions" and config.lpt_order == 3 else []
        if not memory.processes:
            displacement, least = linear_displacement(plan.simulation), config.decomposition.size + 1
            count = enough_devices(config, displacement, memory.total, least)
    remedies.append("use a smaller mesh")
    remedies.append(f"{count} such devices" if count else f"more {'machines' if memory.processes else 'devices'}")
    return f"box.mesh: {text}{size(memory.total)}; {', '.join(remedies[:-1])}, or {remedies[-1]}", None


def _observed(plan: SimulationJob) -> list[str]:
    """Names of the observables."""
    names = [name for name, section in plan.settings.observe if section is not None and name != "light_cone"]
    if (cone := plan.simulation.light_cone) is not None:
        count, (near, far) = len(cone.edges) - 1, (cone.edges[0], cone.edges[-1])
        names.append(f"light cone of {count} shell{'s' * (count > 1)} from {near:.4g} to {far:.4g} Mpc/h")
    return names
