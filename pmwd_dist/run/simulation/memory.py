"""Memory of a run on the current devices, by XLA's plans of its compiled programs; `planning` counts it for others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pmwd_dist.config import Config
from pmwd_dist.run.common import resources
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.simulation.programs import lowered_initial, lowered_power, lowered_step, table_like, vectors_like

Stage = Literal["the initial conditions", "a step", "P(k)", "the bispectrum"]


def run_memory(
    simulation: SimulationSetup, times: Sequence[float], config: Config, shells: int | None
) -> dict[Stage, int]:
    """Memory of each device by stage of a run [bytes].

    `config` has the expected halo. `shells` are those of a bispectrum, if one is measured.
    """
    table, cone = table_like(config, simulation.cosmo), simulation.light_cone
    of_file, f_nl = simulation.field is not None, simulation.f_nl is not None
    step = lowered_step(config, table, simulation.solver, len(times), cone, simulation.potential_factor)
    stages: dict[Stage, int] = {"a step": resources.planned(step.compile()), "P(k)": power_memory(config)}
    if simulation.start is None:
        initial = lowered_initial(simulation.config, table, simulation.kind, of_file=of_file, f_nl=f_nl)
        stages["the initial conditions"] = resources.planned(initial.compile())
    if shells is not None:  # a field for each, beside the particles
        numbers = 6 * math.prod(config.particle_shape) + (shells + 6) * math.prod(config.mesh_shape)
        stages["the bispectrum"] = numbers * vectors_like(config).dtype.itemsize // config.decomposition.size
    return stages


def power_memory(config: Config) -> int:
    """Memory of P(k) beside the particles on each device [bytes]; painting them takes less than a step does."""
    vectors = vectors_like(config)
    particles = 2 * vectors.size * vectors.dtype.itemsize // config.decomposition.size
    return resources.planned(lowered_power(config).compile()) + particles
