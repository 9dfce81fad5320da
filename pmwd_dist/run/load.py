"""The simulation of a config file, for Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.parameters import Parameters, parameters
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.noise import noise_of
from pmwd_dist.run.common.data_files import NOISE, read_noise
from pmwd_dist.run.common.folder import CONFIG
from pmwd_dist.run.settings import SimulationSettings, build, read_any


class LoadedConfig(NamedTuple):
    """The simulation of a config file.

    Args:
      config: configuration on the devices of this program.
      cosmo: cosmology.
      noise: white noise of the seed or of the file; None where the file starts from a snapshot.
      linear_power: linear P(k), for `linear_modes`.
      f_nl: local primordial non-Gaussianity, for `linear_modes`; None for Gaussian modes.
      solver: name of the solver, for `nbody`.
      saveat: scale factors of the outputs, at which steps end, for `nbody`; None for an inference.
      potential_factor: correction of the force, for `nbody`; None without one.
    """

    config: Config
    cosmo: Parameters
    noise: Float[Array, "nx ny nz"] | None
    linear_power: tuple[np.ndarray, np.ndarray] | str
    f_nl: float | None
    solver: str
    saveat: tuple[float, ...] | None
    potential_factor: ForceCorrection | None

    def __repr__(self) -> str:
        times = "" if self.saveat is None else f", to a = {', '.join(f'{a:.4g}' for a in self.saveat)}"
        return f"LoadedConfig: {self.solver}{times}, {self.config!r}"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read the simulation of a TOML file of `pmwd-dist run` or `infer`, also of the `config.toml` of a run. Collective.

    The same steps follow in Python, with the numbers of the run up to rounding.

    Args:
      path: TOML file, or folder of a run.
      overrides: values of keys, such as "box.size=500".

    Raises:
      ValueError: problems of the file, one line each, or overrides that are no list.

    Examples:
      >>> run = pmd.load_config("runs/first/config.toml")
      >>> modes = pmd.linear_modes(run.noise, run.cosmo, run.config, linear_power=run.linear_power, f_nl=run.f_nl)
      >>> particles = pmd.lpt(modes, run.cosmo, run.config)
      >>> factor, times = run.potential_factor, run.saveat
      >>> made = pmd.nbody(particles, run.cosmo, run.config, solver=run.solver, saveat=times, potential_factor=factor)
    """
    if isinstance(overrides, str):
        raise ArgumentError("overrides", overrides, "must be a list", f"pass [{overrides!r}]")
    path = Path(path)
    settings = read_any(path / CONFIG if path.is_dir() else path, overrides)
    simulation = build(settings)
    simulation = replace(simulation, field=read_noise(settings).get(NOISE))
    noise: Any = None if simulation.start else noise_of(simulation.noise, simulation.config, simulation.kind)
    saveat = settings.scale_factors if isinstance(settings, SimulationSettings) else None
    cosmo, options = parameters(simulation.cosmo), (simulation.f_nl, simulation.solver, saveat)
    return LoadedConfig(simulation.config, cosmo, noise, simulation.power, *options, simulation.potential_factor)
