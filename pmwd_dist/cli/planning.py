"""The report of `pmwd-dist check`: memory of the current devices, and plans for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pmwd_dist._errors import ArgumentError
from pmwd_dist._memory import bytes_of, size
from pmwd_dist.config import Config
from pmwd_dist.run.memory import Kind
from pmwd_dist.run.plan import Plan
from pmwd_dist.run.planning import (
    Division,
    divisions,
    enough_devices,
    expected_halo,
    largest_mesh,
    linear_displacement,
)
from pmwd_dist.run.resources import available_for_arrays, expected_memory, light_cone_memory
from pmwd_dist.run.speed import MACHINES, machine_of

_MOST_ROWS = 6


@dataclass(frozen=True)
class Wish:
    """Devices to plan for.

    Args:
      count: number of devices.
      memory: of each that arrays may take [bytes].
      kind: their name.
    """

    count: int
    memory: float
    kind: str


def wish(count: int | None, memory: str | None, kind: str | None) -> Wish | None:
    """The devices of the options of `check`, None if there are no options.

    Raises:
      ValueError: one of them is wrong.
    """
    if count is None and memory is None and kind is None:
        return None
    name = "H100" if kind is None else kind
    if machine_of(name) is None:
        known = ", ".join(machine.name for machine in MACHINES)
        raise ArgumentError("--device-kind", kind, "was not measured", f"use one of {known}")
    try:
        return Wish(count or 1, bytes_of("80GB" if memory is None else memory), name)
    except ValueError as error:
        raise ArgumentError("--device-memory", memory, str(error)) from error


def memory_lines(plan: Plan) -> list[str]:
    """Memory of a run on the current devices by stage, and the largest mesh that fits."""
    config = plan.simulation.config
    displacement = linear_displacement(plan.simulation)
    memory = expected_memory(config, expected_halo(config, displacement))
    limit, count = (
        available_for_arrays(config) - light_cone_memory(plan.simulation.light_cone),
        config.decomposition.size,
    )
    most = largest_mesh(config, count, displacement, _kind(config), limit)
    fits = "no such mesh fits" if most is None else f"meshes up to {_cells(most)} fit"
    return [
        f"memory      a device: {size(memory.run)} in {memory.stage}, {size(memory.gradient)} for a gradient; "
        f"{fits} into {size(limit)}"
    ]


def planning_lines(plan: Plan, devices: Wish) -> list[str]:
    """Divisions over devices that need not exist, and the largest mesh that fits.

    Raises:
      ValueError: the run does not fit, or can't be divided over so many devices.
    """
    config, displacement = plan.simulation.config, linear_displacement(plan.simulation)
    kind: Kind = "cpu" if devices.kind == "cpu" else "gpu"
    found = divisions(config, devices.count, displacement, kind, machine_of(devices.kind))
    each = f"{devices.count} x {devices.kind} with {size(devices.memory)}"
    if not any(division.peak <= devices.memory for division in found):
        raise ValueError(_too_few(config, displacement, kind, devices, found, each))
    lines = [f"devices     {each}, displacements of up to {displacement:.0f} Mpc/h", _HEAD]
    lines += [_row(division, devices.memory) for division in found[:_MOST_ROWS]]
    if len(found) > _MOST_ROWS:
        lines.append(f"            and {len(found) - _MOST_ROWS} slower ones")
    best = next(division for division in found if division.peak <= devices.memory)
    lines.append(f"best        devices.pdims = [{best.pdims[0]}, {best.pdims[1]}]")
    most = largest_mesh(config, devices.count, displacement, kind, devices.memory)
    return lines if most is None else [*lines, f"largest     a mesh of {_cells(most)} with the same cells"]


def _too_few(
    config: Config, displacement: float, kind: Kind, devices: Wish, found: Sequence[Division], each: str
) -> str:
    enough = enough_devices(config, displacement, kind, devices.memory)
    remedy = "use smaller meshes" if enough is None else f"use {enough} such devices"
    if not found:
        return f"--devices {devices.count}: mesh and particles can't be divided over so many; {remedy}"
    need = min(division.peak for division in found)
    return f"the run needs about {size(need)} of memory a device on {each}; {remedy}, or a smaller mesh"


_HEAD = f"            {'pdims':>12} {'halo':>5} {'run':>8} {'gradient':>9} {'a step':>9}"


def _row(division: Division, memory: float) -> str:
    px, py = division.pdims
    seconds = "" if division.seconds is None else f"{division.seconds:.3g} s"
    run, gradient = size(division.peak), size(division.bytes["gradient"])
    row = f"            {f'[{px}, {py}]':>12} {division.halo:>5} {run:>8} {gradient:>9} {seconds:>9}"
    if division.peak > memory:
        return f"{row}  does not fit"
    return f"{row}  the gradient does not fit" if division.bytes["gradient"] > memory else row


def _kind(config: Config) -> Kind:
    return "gpu" if config.decomposition.platform == "gpu" else "cpu"


def _cells(config: Config) -> str:
    shape = config.mesh_shape
    return f"{shape[0]}^3" if len(set(shape)) == 1 else " x ".join(map(str, shape))
