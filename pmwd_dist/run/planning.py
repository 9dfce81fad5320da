"""Plans for devices that are not at hand: how to divide a mesh, what fits, and how long a step takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AbstractMesh

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.run.halo_width import MARGIN, halo_width
from pmwd_dist.run.memory import RUN, Kind, Stage, stages
from pmwd_dist.run.settings import Simulation
from pmwd_dist.run.speed import Machine, step_seconds

_MOST_DEVICES, _LONGEST = 1 << 20, 1 << 16  # devices, and sites along an axis
_COHERENCE = 10.0  # side of a cube whose displacement is independent of others [Mpc/h]


@dataclass(frozen=True)
class Division:
    """A way to divide a simulation over devices.

    Args:
      pdims: devices along x and along y.
      halo: width [cells].
      bytes: of memory of each device in the stages of a run and in a gradient.
      seconds: of a step; None where the devices' speed is not known.
    """

    pdims: tuple[int, int]
    halo: int
    bytes: dict[Stage, int]
    seconds: float | None

    @property
    def peak(self) -> int:
        """Largest memory of a run [bytes]."""
        return max(self.bytes[stage] for stage in RUN)


def linear_displacement(simulation: Simulation) -> float:
    """Largest displacement that linear theory lets expect at the end of a run [Mpc/h].

    The largest of as many normal numbers as there are independent cubes, with the variance of the displacement along an
    axis.
    """
    config = simulation.config
    k = power_nodes(config)
    power = simulation.linear_power(k)
    growth = float(growth_table(simulation.cosmo).D1(np.asarray(config.a_stop)))
    rms = growth * math.sqrt(np.trapezoid(k * power, np.log(k)) / (6 * math.pi**2))
    count = max(3.0, 3 * math.prod(config.box_size) / _COHERENCE**3)
    return MARGIN * rms * math.sqrt(2 * math.log(count))


def on_devices(config: Config, pdims: tuple[int, int]) -> Config:
    """The simulation on devices that need not exist.

    Raises:
      ValueError: its shapes don't divide over them.
    """
    alone = math.prod(pdims) == 1
    mesh = AbstractMesh(pdims, ("x", "y"))
    decomposition = Decomposition(mesh=mesh, spec=jax.P() if alone else jax.P("x", "y"), backend="xla")
    return dataclasses.replace(config, decomposition=decomposition)


def divisions(
    config: Config, count: int, displacement: float, kind: Kind, machine: Machine | None = None
) -> list[Division]:
    """All ways to divide a simulation over so many devices, the fastest or, where that is not known, slabs first.

    Args:
      config: the simulation.
      count: number of devices.
      displacement: the largest one, for the halos [Mpc/h].
      kind: of the devices.
      machine: their speed.
    """
    found: list[Division] = []
    for py in _divisors(count):
        try:
            divided = on_devices(config, (count // py, py))
        except ArgumentError:
            continue
        halo = expected_halo(divided, displacement)
        seconds = None if machine is None else step_seconds(divided, machine, halo=halo)
        found.append(Division((count // py, py), halo, stages(divided, kind, halo=halo), seconds))
    return sorted(found, key=lambda division: division.seconds or 0)


def expected_halo(config: Config, displacement: float) -> int:
    """Width of the halo of a run with displacements up to this one [Mpc/h], in cells."""
    if config.decomposition.size == 1:
        return 0
    return halo_width(displacement, config) if config.halo == "auto" else config.halo


def run_peak(division: Division) -> float:
    """Largest memory of a run on each device [bytes]."""
    return division.peak


def enough_devices(
    config: Config,
    displacement: float,
    kind: Kind,
    memory: float,
    need: Callable[[Division], float] = run_peak,
) -> int | None:
    """The smallest number of devices with so much memory each that do, of those that divide the run evenly.

    Args:
      config: the simulation.
      displacement: the largest one [Mpc/h].
      kind: of the devices.
      memory: of each [bytes].
      need: of it on each device; default: that of a run.
    """
    if memory <= 0:
        return None
    most = min(_MOST_DEVICES, config.mesh_shape[0] * config.mesh_shape[1])
    alone = need(Division((1, 1), 0, stages(on_devices(config, (1, 1)), kind, halo=0), None))
    for count in _even_counts(config, max(1, math.ceil(alone / memory) // 2), most):
        if any(need(division) <= memory for division in divisions(config, count, displacement, kind)):
            return count
    return None


def _even_counts(config: Config, least: int, most: int) -> Iterator[int]:
    """Numbers of devices that are products of divisors of the sides of mesh and lattice."""
    sides = [math.gcd(m, n) for m, n in zip(config.mesh_shape[:2], config.particle_shape[:2], strict=True)]
    parts = [_divisors(side) for side in sides]
    yield from sorted({x * y for x in parts[0] for y in parts[1] if least <= x * y <= most})


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def largest_mesh(config: Config, count: int, displacement: float, kind: Kind, memory: float) -> Config | None:
    """The largest simulation, of the same cells and ratio of mesh and lattice, that fits into the memory of devices.

    Args:
      config: the simulation.
      count: number of devices.
      displacement: the largest one [Mpc/h].
      kind: of the devices.
      memory: of each [bytes].
    """
    side = min(py for py in _divisors(count) if py * py >= count)
    quantum = math.lcm(16, side)  # at least the squarest pencils fit
    best, low, high = None, 1, _LONGEST // quantum
    while low <= high:
        middle = (low + high) // 2
        scaled = _scaled(config, middle * quantum)
        if any(division.peak <= memory for division in divisions(scaled, count, displacement, kind)):
            best, low = scaled, middle + 1
        else:
            high = middle - 1
    return best


def _scaled(config: Config, sites: int) -> Config:
    """The simulation with so many sites of the lattice along each axis, in a box of the same cells."""
    numbers = list(zip(config.mesh_shape, config.particle_shape, config.box_size, strict=True))
    mesh, box = [sites * m // n for m, n, _ in numbers], [b * sites / n for _, n, b in numbers]
    alone = on_devices(config, (1, 1))
    return dataclasses.replace(alone, box_size=box, mesh_shape=mesh, particle_shape=sites)
