"""Plans for GPUs that are not at hand: divisions of a mesh, bytes a particle by stage, and a model of the time.

Memory is counted in arrays of single precision that a stage holds; `programs.py` compiles. The time of a step is

  particles * (kick, drifts, paint) + cells * (transforms, Green's function) + padded cells * (gradient, sums) + links

with each GPU's bandwidth of a copy. docs/howto/planning.md compares both with measurements, but for the network.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.fft import spectrum_shape
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.stepping.potential_cache import num_force_meshes, stored_potentials
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.simulation.halo_width import MARGIN, halo_width

Stage = Literal["initial", "step", "output", "gradient"]
RUN: tuple[Stage, ...] = ("initial", "step", "output")  # the stages of a run

_MOST_DEVICES, _LONGEST = 1 << 20, 1 << 16  # devices, and sites along an axis
_COHERENCE = 10.0  # side of a cube whose displacement is independent of others [Mpc/h]

# Bytes through memory for each cell: transforms, Green's function, gradient of the potential, sums of a paint.
_TRANSFORMS, _GREEN, _GRADIENT, _SUMS = 72.0, 8.0, 19.0, 20.0
_HIDDEN = 0.55  # part of a local transform that goes on while GPUs of one host send pieces
_PACKING = (0.0, 1.5, 2.0)  # factor of local passes by the number of transposes, by XLA's collectives


class GPU(NamedTuple):
    """Speeds of a kind of GPU and of its links.

    Args:
      name: name of the kind.
      copy: bandwidth of a copy, read plus written [bytes/s].
      particle: time of kick, drifts and paint of a particle [s].
      link, collectives: bandwidth to GPUs of the same machine, by copies and by XLA's collectives [bytes/s].
      network: bandwidth to GPUs of other machines [bytes/s]; assumed: four fifths of 400 Gbit/s.
      message: latency of a message to another machine [s]; assumed.
      together: number of GPUs of a machine.
      latency: time of the program of a step on the host [s].
    """

    name: str
    copy: float
    particle: float
    link: float = 330e9
    collectives: float = 275e9
    network: float = 40e9
    message: float = 5e-6
    together: int = 8
    latency: float = 0.5e-3


GPUS = {gpu.name: gpu for gpu in (GPU("H100", 3.0e12, 46e-12), GPU("H200", 4.2e12, 41e-12))}


class Division(NamedTuple):
    """A division of a simulation over devices.

    Args:
      pdims: devices along x and along y.
      halo: width [cells].
      bytes: memory of each device by stage.
      seconds: time of a step.
    """

    pdims: tuple[int, int]
    halo: int
    bytes: dict[Stage, int]
    seconds: float

    @property
    def peak(self) -> int:
        """Largest memory of a run [bytes]."""
        return max(self.bytes[stage] for stage in RUN)


def _blocks(config: Config, halo: int) -> tuple[float, float, float, float]:
    """Bytes of a number for each particle and cell of a device, and for each cell with the halo of a paint.

    The last one has the halo of the potential, whose gradient reads two cells more.
    """
    parts = (*config.decomposition.pdims, 1)

    def cells(pad: int) -> float:
        return 4 * math.prod(n / p + 2 * pad * (p > 1) for n, p in zip(config.mesh_shape, parts, strict=True))

    particles = 4 * math.prod(config.particle_shape) / config.decomposition.size
    return particles, cells(0), cells(halo + 1), cells(halo + 3)


def memory(config: Config, halo: int) -> dict[Stage, int]:
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
    return {stage: math.ceil(count) for stage, count in counts.items()}  # pyright: ignore[reportReturnType]


def step_seconds(config: Config, gpu: GPU, halo: int) -> float:
    """Time of a step of `pmwd-dist run` [s]."""
    particle, cell, painted, padded = _blocks(config, halo)
    pdims = config.decomposition.pdims
    size = math.prod(pdims)
    passes = (_GREEN * cell + _GRADIENT * (padded if size > 1 else cell) + _SUMS * painted) / 4
    halos = painted + padded - 2 * cell if size > 1 else 0.0
    link = gpu.link if size <= gpu.together else gpu.network
    sent = 8 * math.prod(spectrum_shape(config.mesh_shape, config.decomposition)) / size
    moved = particle / 4 * gpu.particle + passes / gpu.copy + halos / link
    return gpu.latency + moved + _transforms_seconds(cell, sent, pdims, gpu)


def _transforms_seconds(cell: float, sent: float, pdims: tuple[int, int], gpu: GPU) -> float:
    """Time of a transform of the mesh and one back [s]."""
    px, py = pdims
    local = _TRANSFORMS * cell / 4 / gpu.copy
    if px * py == 1:
        return local
    if py == 1 and px <= gpu.together:
        return (1 - _HIDDEN) * local + 2 * sent * (1 - 1 / px) / gpu.link
    transposes = [parts for parts in pdims if parts > 1]
    exchange = 0.0
    for parts in transposes:
        # Rows of pencils lie within machines as far as they fit, columns across them.
        if px * py <= gpu.together or (parts == py and 1 < py <= gpu.together):
            exchange += sent * (1 - 1 / parts) / gpu.collectives
        else:
            others = max(1, parts // gpu.together) if parts == px * py else parts
            exchange += sent * (1 - 1 / others) / gpu.network + (others - 1) * gpu.message
    return _PACKING[len(transposes)] * local + 2 * exchange


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


def divisions(config: Config, count: int, displacement: float, gpu: GPU = GPUS["H100"]) -> list[Division]:
    """All divisions of a simulation over a number of GPUs, the fastest first.

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
        found.append(Division((count // py, py), halo, memory(divided, halo), step_seconds(divided, gpu, halo)))
    return sorted(found, key=lambda division: division.seconds)


def enough_devices(config: Config, displacement: float, limit: float, least: int = 1) -> int | None:
    """The smallest number of GPUs with this memory each [bytes] that hold a run, of those that divide it evenly."""
    least = max(least, int(memory(on_devices(config, (1, 1)), 0)["initial"] / limit) // 2)
    most = min(_MOST_DEVICES, config.mesh_shape[0] * config.mesh_shape[1])
    sides = [math.gcd(m, n) for m, n in zip(config.mesh_shape[:2], config.particle_shape[:2], strict=True)]
    for count in sorted({x * y for x in _divisors(sides[0]) for y in _divisors(sides[1]) if least <= x * y <= most}):
        if any(division.peak <= limit for division in divisions(config, count, displacement)):
            return count
    return None


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def largest_mesh(config: Config, count: int, displacement: float, limit: float) -> Config | None:
    """The largest simulation of the same cells and ratio of mesh and lattice that fits into so many GPUs.

    `displacement` is the largest one [Mpc/h], `limit` the memory of each GPU [bytes].
    """
    quantum = math.lcm(16, min(py for py in _divisors(count) if py * py >= count))  # the squarest pencils divide it

    def scaled(multiple: int) -> Config:
        sites, alone = multiple * quantum, on_devices(config, (1, 1))
        numbers = list(zip(config.mesh_shape, config.particle_shape, config.box_size, strict=True))
        mesh, box = [sites * m // n for m, n, _ in numbers], [b * sites / n for _, n, b in numbers]
        return dataclasses.replace(alone, box_size=box, mesh_shape=mesh, particle_shape=sites)

    def fails(multiple: int) -> bool:
        return all(division.peak > limit for division in divisions(scaled(multiple), count, displacement))

    most = bisect.bisect(range(1, _LONGEST // quantum + 1), False, key=fails)
    return scaled(most) if most else None
