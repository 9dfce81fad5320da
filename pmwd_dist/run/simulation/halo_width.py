"""Width of the halo of a run with halo = "auto", chosen before a step is compiled.

A program with a choice among widths, such as `nbody`, takes the memory of the widest and another copy of the particles.
The largest displacement grows almost as in linear theory, which predicts it from the initial one.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jax import Array

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.paint import halo_widths
from pmwd_dist.run.settings import SimulationSetup

# Margin over linear growth; a halo that is too narrow is widened during the run.
MARGIN = 1.2
_COHERENCE = 10.0  # side of a cube whose displacement is independent of others [Mpc/h]
_EIGHTHS = 3  # widths are rounded up to three binary digits after the leading one, so that programs are found again


def is_automatic(config: Config) -> bool:
    """Whether the mesh is divided and no width is given."""
    return config.halo == "auto" and config.decomposition.size > 1


def largest_displacement(disp: Array, config: Config) -> float:
    """Largest displacement along an axis [Mpc/h]; NaN if one is not finite. Collective."""
    run = jit(max_abs, out_shardings=config.decomposition.replicated)
    return float(run(disp))


def linear_displacement(simulation: SimulationSetup) -> float:
    """Largest displacement that linear theory lets expect at the end of a run [Mpc/h].

    The largest of as many normal numbers as there are independent cubes, with the variance of the displacement along an
    axis.
    """
    config = simulation.config
    k = power_nodes(config)
    power = simulation.linear_power(k)
    growth = float(simulation.growth.D1(np.asarray(config.a_stop)))
    rms = growth * math.sqrt(np.trapezoid(k * power, np.log(k)) / (6 * math.pi**2))
    count = max(3.0, 3 * math.prod(config.box_size) / _COHERENCE**3)
    return MARGIN * rms * math.sqrt(2 * math.log(count))


def expected_displacement(displacement: float, a: float, table: GrowthTable, config: Config) -> float:
    """Largest displacement of the rest of a run [Mpc/h], from that at scale factor a."""
    now, end = (float(table.D1(np.asarray(x, np.float32))) for x in (a, config.a_stop))
    return MARGIN * displacement * end / now


def halo_width(displacement: float, config: Config) -> int:
    """Width of a halo that holds displacements up to this one [Mpc/h] and the spacing of the lattice [cells]."""
    spacing = max(side / n for side, n in zip(config.box_size, config.particle_shape, strict=True))
    widest = max(n for n, parts in zip(config.mesh_shape, config.decomposition.pdims, strict=False) if parts > 1)
    if config.decomposition.backend.needs_opening:
        widest = halo_widths(dataclasses.replace(config, halo="auto"))[-1]  # for which it is open
    if not math.isfinite(displacement):
        return widest  # the step reports the error
    cells = math.ceil((displacement + spacing) / min(config.cell_size))
    step = 2 ** max(0, math.floor(math.log2(max(cells, 1))) - _EIGHTHS)
    return min(-(-cells // step) * step, widest)


def with_halo_of(displacement: float, config: Config) -> Config:
    """The simulation with a halo that holds displacements up to this one [Mpc/h]."""
    return dataclasses.replace(config, halo=halo_width(displacement, config))
