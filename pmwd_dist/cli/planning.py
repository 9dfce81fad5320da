"""The report of `pmwd-dist check`: memory of the current devices, and plans for others."""

from __future__ import annotations

from dataclasses import dataclass

from pmwd_dist._errors import ArgumentError
from pmwd_dist._memory import bytes_of, size
from pmwd_dist.run.common.job import three
from pmwd_dist.run.simulation.plan import SimulationJob
from pmwd_dist.run.simulation.planning import (
    GPU,
    GPUS,
    Division,
    divisions,
    enough_devices,
    largest_mesh,
    linear_displacement,
)

_MOST_ROWS = 6
_HEAD = f"            {'pdims':>12} {'halo':>5} {'run':>8} {'gradient':>9} {'a step':>9}"


@dataclass(frozen=True)
class Wish:
    """Devices to plan for.

    Args:
      count: number of devices.
      memory: memory of each that arrays may take [bytes].
      gpu: their kind.
    """

    count: int
    memory: float
    gpu: GPU


def wish(count: int | None, memory: str | None, kind: str | None) -> Wish | None:
    """The devices of the options of `check`, None if there are no options.

    Raises:
      ValueError: one of them is wrong.
    """
    if count is None and memory is None and kind is None:
        return None
    gpu = GPUS.get("H100" if kind is None else kind)
    if gpu is None:
        raise ArgumentError("--device-kind", kind, "was not measured", f"use one of {', '.join(GPUS)}")
    try:
        return Wish(count or 1, bytes_of("60GB" if memory is None else memory), gpu)
    except ValueError as error:
        raise ArgumentError("--device-memory", memory, str(error)) from error


def planning_lines(plan: SimulationJob, devices: Wish) -> list[str]:
    """Divisions over devices that need not exist, and the largest mesh that fits.

    Raises:
      ValueError: the run does not fit, or can't be divided over so many devices.
    """
    config, displacement = plan.simulation.config, linear_displacement(plan.simulation)
    found = divisions(config, devices.count, displacement, devices.gpu)
    each = f"{devices.count} x {devices.gpu.name} with {size(devices.memory)}"
    fitting = [division for division in found if division.peak <= devices.memory]
    if not fitting:
        enough = enough_devices(config, displacement, devices.memory)
        remedy = "use smaller meshes" if enough is None else f"use {enough} such devices"
        if not found:
            raise ValueError(f"--devices {devices.count}: mesh and particles can't be divided over so many; {remedy}")
        need = size(min(division.peak for division in found))
        raise ValueError(f"the run needs about {need} of memory a device on {each}; {remedy}, or a smaller mesh")
    lines = [f"devices     {each}, displacements of up to {displacement:.0f} Mpc/h", _HEAD]
    lines += [_row(division, devices.memory) for division in found[:_MOST_ROWS]]
    if len(found) > _MOST_ROWS:
        lines.append(f"            and {len(found) - _MOST_ROWS} slower ones")
    lines.append("best        devices.pdims = [{}, {}]".format(*fitting[0].pdims))
    most = largest_mesh(config, devices.count, displacement, devices.memory)
    return lines if most is None else [*lines, f"largest     a mesh of {three(most.mesh_shape)} with the same cells"]


def _row(division: Division, memory: float) -> str:
    px, py = division.pdims
    run, gradient = size(division.peak), size(division.bytes["gradient"])
    seconds = f"{division.seconds:.3g} s"
    row = f"            {f'[{px}, {py}]':>12} {division.halo:>5} {run:>8} {gradient:>9} {seconds:>9}"
    if division.peak > memory:
        return f"{row}  does not fit"
    return f"{row}  the gradient does not fit" if division.bytes["gradient"] > memory else row
