"""Plans for GPUs that are not at hand: divisions of a mesh, and memory by stage.

Memory is counted in arrays of single precision that a stage holds, since XLA plans programs for present devices only
(`programs.py`). docs/howto/planning.md compares both.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh

from pmwd_dist._errors import ArgumentError
from pmwd_dist._memory import bytes_of, size
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.stepping.potential_cache import num_force_meshes, stored_potentials
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.simulation.halo_width import MARGIN, halo_width

MOST_DEVICES, WIDEST = 1 << 20, 1 << 16  # devices to plan for; sites along a side of a mesh
_COHERENCE = 10.0  # side of a cube whose displacement is independent of others [Mpc/h]


class Division(NamedTuple):
    """A division of a simulation over devices.

    Args:
      pdims: devices along x and along y.
      halo: width [cells].
      bytes: memory of each device by stage.
    """

    pdims: tuple[int, int]
    halo: int
    bytes: dict[str, int]

    @property
    def peak(self) -> int:
        """Largest memory of a run [bytes]."""
        return max(need for stage, need in self.bytes.items() if stage != "gradient")


def _blocks(config: Config, halo: int) -> tuple[float, float, float, float]:
    """Bytes of a number for each particle and cell of a device, and for each cell with the halo of a paint.

    The last one has the halo of the potential, whose gradient reads two cells more.
    """
    parts = (*config.decomposition.pdims, 1)

    def cells(pad: int) -> float:
        return 4 * math.prod(n / p + 2 * pad * (p > 1) for n, p in zip(config.mesh_shape, parts, strict=True))

    particles = 4 * math.prod(config.particle_shape) / config.decomposition.size
    return particles, cells(0), cells(halo + 1), cells(halo + 3)


def memory(config: Config, halo: int) -> dict[str, int]:
    """Memory of each GPU by stage of a run, and of a gradient with respect to the white noise [bytes].

    Args:
      config: the simulation, whose halo is at most as wide as `halo` [cells].
      halo: width of the halo [cells].
    """
    particle, cell, painted, padded = _blocks(config, halo)
    divided, pencils, order = config.decomposition.size > 1, config.decomposition.pdims[1] > 1, config.lpt_order
    state = 6 * particle  # displacements and momenta
    # By order: modes and fields of the initial conditions beside the particles; potentials of LPT beside others of a
    # gradient; and the gradient of LPT itself.
    fields, kept, backwards = {1: (3, 0, 10), 2: (4, 1, 20), 3: (23, 2, 43)}[order]
    stored = stored_potentials("auto", config.steps, config, np.float32, "gpu") * num_force_meshes(config) * cell
    force = 3 * painted + padded if divided else 4 * cell
    fine = 1.2 * (cell > particle) + pencils
    transpose = 4 * painted + fine * cell + stored if divided else max(3 * cell + stored, force)
    counts = {
        "initial": state + (fields + divided) * particle,
        "step": state + force,
        "output": state + cell + max((2 + divided) * painted, (1.5 + 0.5 * divided + pencils) * cell),
        "gradient": max(2 * state + (2 + 0.5 * divided + kept) * particle + transpose, backwards * particle),
    }
    return {stage: math.ceil(count) for stage, count in counts.items()}


def linear_displacement(simulation: SimulationSetup) -> float:
    """Largest displacement that linear theory lets expect at the end of a run [Mpc/h].

    The largest of as many normal numbers as there are independent cubes, with the variance of the displacement along an
    axis.
    """
    config = simulation.config
    k = power_nodes(config)
    power = simulation.linear_power(k)
    growth = float(growth_table_to(config.lpt_order, simulation.cosmo).D1(np.asarray(config.a_stop)))
    rms = growth * math.sqrt(np.trapezoid(k * power, np.log(k)) / (6 * math.pi**2))
    count = max(3.0, 3 * math.prod(config.box_size) / _COHERENCE**3)
    return MARGIN * rms * math.sqrt(2 * math.log(count))


def on_devices(config: Config, pdims: tuple[int, int]) -> Config:
    """The simulation on devices that need not exist.

    Raises:
      ValueError: its shapes don't divide over them.
    """
    spec = jax.P() if math.prod(pdims) == 1 else jax.P("x", "y")
    decomposition = Decomposition(mesh=AbstractMesh(pdims, ("x", "y")), spec=spec, backend="xla")
    return dataclasses.replace(config, decomposition=decomposition)


def divisions(config: Config, count: int, displacement: float) -> list[Division]:
    """All divisions of a simulation over a number of GPUs, those of least memory first.

    `displacement` is the largest one, for the halos [Mpc/h].
    """
    found: list[Division] = []
    for py in _divisors(count):
        try:
            divided = on_devices(config, (count // py, py))
        except ArgumentError:
            continue
        halo = 0 if count == 1 else config.halo
        halo = halo_width(displacement, divided) if halo == "auto" else halo
        divided = dataclasses.replace(divided, halo=halo)
        found.append(Division((count // py, py), halo, memory(divided, halo)))
    return sorted(found, key=lambda division: division.peak)


def enough_devices(config: Config, displacement: float, limit: float, least: int = 1) -> int | None:
    """The smallest power of two of GPUs with this memory each [bytes] that holds a run."""
    for count in (1 << i for i in range(MOST_DEVICES.bit_length())):
        if count >= least and any(division.peak <= limit for division in divisions(config, count, displacement)):
            return count
    return None


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def planning_lines(simulation: SimulationSetup, count: int, memory: str) -> list[str]:
    """Divisions over devices that need not exist.

    `memory` is the memory of each device that arrays may take, as text.

    Raises:
      ValueError: the text is no size, the run does not fit, or it can't be divided over so many devices.
    """
    try:
        available = bytes_of(memory)
    except ValueError as error:
        raise ArgumentError("--device-memory", memory, str(error)) from error
    config, displacement = simulation.config, linear_displacement(simulation)
    found = divisions(config, count, displacement)
    devices = f"{count} x {size(available)}"
    if not found or found[0].peak > available:
        enough = enough_devices(config, displacement, available)
        remedy = "use smaller meshes" if enough is None else f"use {enough} such devices"
        if not found:
            raise ValueError(f"--devices {count}: mesh and particles can't be divided over so many; {remedy}")
        need = size(found[0].peak)
        raise ValueError(f"the run needs about {need} of memory a device on {devices}; {remedy}, or a smaller mesh")
    lines = [
        f"devices     {devices}, displacements of up to {displacement:.0f} Mpc/h",
        f"            {'pdims':>12} {'halo':>5} {'run':>8} {'gradient':>9}",
    ]
    return lines + [_row(division, available) for division in found]


def _row(division: Division, available: float) -> str:
    px, py = division.pdims
    gradient = division.bytes["gradient"]
    row = f"            {f'[{px}, {py}]':>12} {division.halo:>5} {size(division.peak):>8} {size(gradient):>9}"
    if division.peak > available:
        return f"{row}  does not fit"
    return f"{row}  the gradient does not fit" if gradient > available else row
