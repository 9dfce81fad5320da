"""The plan of a run: its settings, steps and outputs, and whether memory and disk suffice."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmwd_dist._files import free_space
from pmwd_dist._jax.native import native_available, native_version
from pmwd_dist._memory import size
from pmwd_dist.config import Config
from pmwd_dist.pm.nbody import step_times
from pmwd_dist.run.common import resources
from pmwd_dist.run.common.data_files import read_files
from pmwd_dist.run.settings import Settings, SettingsError, Simulation, build
from pmwd_dist.run.settings.observables import MASK
from pmwd_dist.run.settings.table import columns_used
from pmwd_dist.run.settings.writing import toml_value
from pmwd_dist.run.simulation import accuracy
from pmwd_dist.run.simulation.halo_width import is_automatic, with_halo_of
from pmwd_dist.run.simulation.light_cone import shells_like
from pmwd_dist.run.simulation.memory import Stage, least_memory, run_memory
from pmwd_dist.run.simulation.observables import shares_seen
from pmwd_dist.run.simulation.planning import enough_devices, linear_displacement

PACKAGES = ("pmwd-dist", "jax", "jaxlib", "diffrax", "jax-cosmo", "numpy", "h5py")


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Args:
      settings: of the run.
      simulation: that of the settings, on the current devices.
      folder: of the output.
      times: scale factors at which steps begin and end.
      outputs: number of steps done at each output, and its redshift.
      data: arrays of other files that the settings name, by their keys.
    """

    settings: Settings
    simulation: Simulation
    folder: Path
    times: tuple[float, ...]
    outputs: dict[int, float]
    data: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @property
    def steps(self) -> int:
        """Number of steps; more than time.steps if there are more outputs than that."""
        return len(self.times) - 1

    @cached_property
    def stages(self) -> dict[Stage, int]:
        """Memory of each device by stage of the run [bytes], from its programs, which are compiled first."""
        return run_memory(self.simulation, self.times, self.config_of_steps)

    @property
    def config_of_steps(self) -> Config:
        """The simulation with the halo that linear theory asks for."""
        config = self.simulation.config
        return with_halo_of(linear_displacement(self.simulation), config) if is_automatic(config) else config

    @property
    def expected_memory(self) -> int:
        """Expected peak of host memory of one process [bytes]; on GPUs, of the memory of each device."""
        return resources.room().needed(max(self.stages.values()), self.simulation.config)


def make_plan(settings: Settings, folder: Path) -> Plan:
    """Plan the run of these settings.

    Raises:
      SettingsError: the settings don't fit the devices.
    """
    simulation = build(settings)
    data = _read_masks(settings)
    _check_seen(settings, simulation, data)
    targets = settings.scale_factors
    times = np.asarray(step_times(simulation.cosmo, simulation.config, save=targets), float)
    outputs = {int(np.argmin(np.abs(times - a))): 1 / a - 1 for a in targets}
    return Plan(settings, simulation, folder, tuple(map(float, times)), outputs, data)


def _read_masks(settings: Settings) -> dict[str, np.ndarray]:
    """Masks of observables, by their keys.

    Raises:
      SettingsError: a file can't be read, or holds something else.
    """
    galaxies = settings.observe.galaxies
    if galaxies is None or galaxies.mask is None:
        return {}
    arrays, problems = read_files({MASK: galaxies.mask}, settings.box.mesh)
    for key, values in arrays.items():
        if not problems and not (np.isfinite(values).all() and values.min() >= 0 and values.max() > 0):
            problems.append(f"{key} = {toml_value(galaxies.mask)}: must hold shares of 0 or more, and some above 0")
    if problems:
        raise SettingsError(problems)
    return arrays


def _check_seen(settings: Settings, simulation: Simulation, data: Mapping[str, np.ndarray]) -> None:
    """SettingsError if the survey of galaxies sees nothing of the box."""
    galaxies = settings.observe.galaxies
    shares = None if galaxies is None else shares_seen(galaxies, simulation.config, data)
    if shares is not None and not shares.max() > 0:
        raise SettingsError(
            ["observe.galaxies.selection: nothing is left of it in the box, times the mask; change one"]
        )


def check_resources(plan: Plan) -> list[str]:
    """Warnings that memory or disk may not suffice, or that the time steps lose growth.

    Raises:
      SettingsError: memory or disk can't suffice.
    """
    config, settings = plan.simulation.config, plan.settings
    problem, *warnings = memory_problem(plan)
    problems = [problem] if problem else []
    triangles = settings.observe.bispectrum
    if not problems and triangles and (lack := resources.bispectrum_problem(config, triangles.shells)):
        problems.append(lack)
    need, free = resources.expected_disk(settings, plan.simulation.light_cone), free_space(plan.folder)
    most = need + resources.checkpoint_size(settings)
    if need > free:
        problems.append(
            f"{plan.folder}: the run writes about {size(need)} and the disk has {size(free)} free; "
            'use another --output, or output.snapshot = "none"'
        )
    elif most > free:
        warnings.append(f"{plan.folder}: a checkpoint, if the run is interrupted, does not fit into {size(free)}")
    if problems:
        raise SettingsError(problems)
    return [f"warning: {text}" for text in (*warnings, accuracy.growth_warning(plan.simulation, plan.times)) if text]


def memory_problem(plan: Plan) -> tuple[str | None, str | None]:
    """Reason why the run can't fit into memory, with the key and remedies, and warning that it may not."""
    config, cone, there = plan.simulation.config, plan.simulation.light_cone, resources.room()
    stage, arrays = "particles and mesh", least_memory(config)
    if there.needed(arrays, config) <= there.total:  # else nothing is compiled
        stage, arrays = max(plan.stages.items(), key=itemgetter(1))
    need = there.needed(arrays, config)
    text = f"the run needs about {size(need)} of memory in {stage} and {there.where} has "
    if need <= there.total:
        return None, None if need <= there.free else f"{text}{size(there.free)} free: it may be killed"
    if cone is not None and stage == "a step":
        maps = f"{shells_like(cone).shape[0]} shells of {math.prod(shells_like(cone).shape[1:])} pixels"
        remedy = "use fewer shells (edges) or pixels, or more devices"
        return f"observe.light_cone: {text}{size(there.total)}, for {maps}; {remedy}", None
    remedies = [f"set {pool}"] if (pool := resources.larger_pool(arrays)) else []
    if stage == "the initial conditions" and config.lpt_order == 3:
        remedies.append("use time.lpt_order = 2")
    remedies.append("use a smaller mesh")
    enough = partial(enough_devices, config, linear_displacement(plan.simulation), least=config.decomposition.size + 1)
    count = None if there.processes else enough(there.total)
    remedies.append(f"{count} such devices" if count else f"more {'machines' if there.processes else 'devices'}")
    return f"box.mesh: {text}{size(there.total)}; {', '.join(remedies[:-1])}, or {remedies[-1]}", None


def describe(plan: Plan) -> dict[str, Any]:
    """Fields of a plan as JSON holds them, for the log of the run."""
    config, settings = plan.simulation.config, plan.settings
    devices = list(config.decomposition.mesh.devices.flat)
    return {
        "folder": str(plan.folder),
        "box_size": list(config.box_size),
        "mesh_shape": list(config.mesh_shape),
        "particle_shape": list(config.particle_shape),
        "particles": math.prod(config.particle_shape),
        "linear_power": power_name(settings),
        "seed": settings.noise.seed,
        "a_start": config.a_start,
        "a_stop": config.a_stop,
        "lpt_order": config.lpt_order,
        "solver": settings.time.solver,
        "gradient": config.gradient,
        "sharpening": config.sharpening,
        "compensated": config.compensated,
        "steps": plan.steps,
        "redshifts": sorted(plan.outputs.values(), reverse=True),
        "snapshot": settings.output.snapshot,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "pdims": list(config.decomposition.pdims),
        "halo": config.halo,
        "processes": jax.process_count(),
        "native": native_available(),
        "observables": [name for name, section in settings.observe if section is not None],
        "expected_disk": resources.expected_disk(settings, plan.simulation.light_cone),
        "versions": versions(),
    }


def power_name(settings: Settings) -> str:
    """Name of the linear power spectrum, with the columns that are read of a table with more."""
    name = settings.cosmology.linear_power
    return name + columns_used(Path(name)) if name else "Eisenstein & Hu (1998)"


def versions(*others: str) -> dict[str, str | None]:
    """Versions of this package, of its dependencies and of other packages; None for those that are missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*PACKAGES, *others):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found | {"jaxdecomp-ops": native_version()}
