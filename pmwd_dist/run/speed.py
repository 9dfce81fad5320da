"""Time of a step by a model: passes of particles and of the mesh over memory, and what goes over the links.

    particles * (kick, drifts, paint) + cells * (transforms, Green's function) + padded cells * (gradient, sums) + links

The constants are fitted to the tables of benchmarks/RESULTS.md, which the tests compare with the model. What was not
measured is an assumption, and says so: the network between machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from pmwd_dist.config import Config
from pmwd_dist.run.memory import Load, load

# Bytes for each cell that take as long as they would in a copy.
_TRANSFORMS, _GREEN, _GRADIENT, _SUMS = 72.0, 8.0, 19.0, 20.0
_HIDDEN = 0.55  # part of a local transform that goes on while pieces are sent by GPUs of one process
_PACKING = {1: 1.5, 2: 2.0}  # by XLA's collectives, local passes take so much longer for one transpose and for two


@dataclass(frozen=True)
class Machine:
    """Speeds of one kind of device and of its links.

    Args:
      name: as the driver calls it, or a part of that.
      copy: bandwidth of a copy, read plus written [bytes/s].
      particle: kick, drifts and paint of a particle [s].
      link: to other devices of the machine, in one direction, by copies [bytes/s].
      collectives: likewise, by XLA's collectives.
      network: to devices of other machines [bytes/s]; an assumption, 400 Gbit/s a device at four fifths.
      together: devices of one machine.
      latency: of a program of one step, as `pmwd-dist run` takes it [s].
    """

    name: str
    copy: float
    particle: float
    link: float = 330e9
    collectives: float = 275e9
    network: float = 40e9
    together: int = 8
    latency: float = 0.5e-3


MACHINES = (
    Machine("H100", copy=3.0e12, particle=46e-12),
    Machine("H200", copy=4.2e12, particle=41e-12),
    # Two cores: the mesh costs more than it would by memory alone.
    Machine("cpu", copy=1.35e10, particle=14e-9, latency=0.0),
)


def machine_of(kind: str) -> Machine | None:
    """The machine with devices of this kind, None if it was not measured."""
    return next((machine for machine in MACHINES if machine.name.lower() in kind.lower()), None)


def step_seconds(config: Config, machine: Machine, *, halo: int | None = None, loop: bool = False) -> float:
    """Seconds of one step on the devices of a configuration, to a factor of 1.5.

    Args:
      config: the simulation.
      machine: the kind of its devices.
      halo: width [cells]; default: that of the configuration.
      loop: whether all steps are one program, as in `nbody`.
    """
    x = load(config, halo)
    px, py = config.decomposition.pdims
    copies = (_GREEN * x.cells + _GRADIENT * (x.padded if px * py > 1 else x.cells) + _SUMS * x.painted) / 4
    halos = (x.painted - x.cells) + (x.padded - x.cells) if px * py > 1 else 0.0
    return (
        (0.0 if loop else machine.latency)
        + x.particles / 4 * machine.particle
        + copies / machine.copy
        + transforms_seconds(x, (px, py), machine)
        + halos / (machine.link if px * py <= machine.together else machine.network)
    )


def transforms_seconds(x: Load, pdims: tuple[int, int], machine: Machine, *, collectives: bool = False) -> float:
    """Seconds of one transform of the mesh and one back.

    Args:
      x: the load of a device.
      pdims: devices along x and along y.
      machine: the kind of the devices.
      collectives: whether slabs of one machine are exchanged by XLA's collectives, as all others are.
    """
    px, py = pdims
    local = _TRANSFORMS * x.cells / 4 / machine.copy
    if px * py == 1:
        return local
    if py == 1 and px <= machine.together and not collectives:
        return (1 - _HIDDEN) * local + 2 * x.modes * (1 - 1 / px) / machine.link
    transposes = [parts for parts in pdims if parts > 1]
    # Rows of pencils lie within machines as far as they fit, columns across them.
    near = [py] if px * py > machine.together and 1 < py <= machine.together else []
    exchange = sum(_exchange(x.modes, parts, px * py, parts in near, machine) for parts in transposes)
    return _PACKING[len(transposes)] * local + 2 * exchange


def _exchange(sent: float, parts: int, devices: int, near: bool, machine: Machine) -> float:
    """Seconds in which all devices of a group of so many send parts of their spectrum to each other."""
    if devices <= machine.together or near:
        return sent * (1 - 1 / parts) / machine.collectives
    others = max(1, parts // machine.together) if parts == devices else parts
    return sent * (1 - 1 / others) / machine.network
