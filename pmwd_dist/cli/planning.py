"""The report of `pmwd-dist check`: memory of the current devices, and plans for others."""

from __future__ import annotations

from pmwd_dist._errors import ArgumentError
from pmwd_dist._memory import bytes_of, size
from pmwd_dist.run.common.job import three
from pmwd_dist.run.simulation.plan import SimulationJob
from pmwd_dist.run.simulation.planning import (
    GPUS,
    Division,
    divisions,
    enough_devices,
    largest_mesh,
    linear_displacement,
)

_MOST_ROWS = 6
_HEAD = f"            {'pdims':>12} {'halo':>5} {'run':>8} {'gradient':>9} {'a step':>9}"


def planning_lines(plan: SimulationJob, count: int, memory: str, kind: str, network: str | None) -> list[str]:
    """Divisions over devices that need not exist, and the largest mesh that fits.

    Sizes are texts: the memory of each device that arrays may take, and its bandwidth to other machines a second.

    Raises:
      ValueError: an argument is wrong, the run does not fit, or it can't be divided over so many devices.
    """
    if (gpu := GPUS.get(kind)) is None:
        raise ArgumentError("--device-kind", kind, "was not measured", f"use one of {', '.join(GPUS)}")
    available = _bytes("--device-memory", memory)
    if network is not None:
        gpu = gpu._replace(network=_bytes("--network", network))
    config, displacement = plan.simulation.config, linear_displacement(plan.simulation)
    found = divisions(config, count, displacement, gpu)
    each = f"{count} x {gpu.name} with {size(available)}"
    fitting = [division for division in found if division.peak <= available]
    if not fitting:
        enough = enough_devices(config, displacement, available)
        remedy = "use smaller meshes" if enough is None else f"use {enough} such devices"
        if not found:
            raise ValueError(f"--devices {count}: mesh and particles can't be divided over so many; {remedy}")
        need = size(min(division.peak for division in found))
        raise ValueError(f"the run needs about {need} of memory a device on {each}; {remedy}, or a smaller mesh")
    lines = [f"devices     {each}, displacements of up to {displacement:.0f} Mpc/h", _HEAD]
    lines += [_row(division, available) for division in found[:_MOST_ROWS]]
    if len(found) > _MOST_ROWS:
        lines.append(f"            and {len(found) - _MOST_ROWS} slower ones")
    lines.append("best        devices.pdims = [{}, {}]".format(*fitting[0].pdims))
    most = largest_mesh(config, count, displacement, available)
    return lines if most is None else [*lines, f"largest     a mesh of {three(most.mesh_shape)} with the same cells"]


def _bytes(option: str, text: str) -> float:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise ArgumentError(option, text, str(error)) from error


def _row(division: Division, memory: float) -> str:
    px, py = division.pdims
    run, gradient = size(division.peak), size(division.bytes["gradient"])
    seconds = f"{division.seconds:.3g} s"
    row = f"            {f'[{px}, {py}]':>12} {division.halo:>5} {run:>8} {gradient:>9} {seconds:>9}"
    if division.peak > memory:
        return f"{row}  does not fit"
    return f"{row}  the gradient does not fit" if division.bytes["gradient"] > memory else row
