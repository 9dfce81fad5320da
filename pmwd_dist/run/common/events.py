"""Events of a run, in the order in which they occur."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pmwd_dist.run.simulation.plan import Plan, describe

Status = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Started:
    """The run starts, from the beginning or from a checkpoint."""

    name: ClassVar = "start"
    plan: Plan
    resumed: bool


@dataclass(frozen=True)
class InitialConditions:
    """The particles are at the initial scale factor a, after so many seconds."""

    name: ClassVar = "initial"
    a: float
    seconds: float
    peak_memory: int


@dataclass(frozen=True)
class Resumed:
    """The state of a checkpoint is restored."""

    name: ClassVar = "resume"
    step: int
    steps: int
    a: float


@dataclass(frozen=True)
class HaloChosen:
    """The halo between devices has a width from now on.

    Args:
      step: number of steps that are done.
      cells: width.
      displacement: the largest one that is expected [Mpc/h].
    """

    name: ClassVar = "halo"
    step: int
    cells: int
    displacement: float


@dataclass(frozen=True)
class StepTaken:
    """A step is done.

    Args:
      step, steps: number of this step, from 1, and of all.
      a, z: scale factor and redshift at its end.
      seconds: wall-clock time of the step.
      particles_per_second: of all devices.
      displacement_cells, displacement: the largest one along an axis [mesh cells, Mpc/h].
      peak_memory: largest memory so far [bytes].
    """

    name: ClassVar = "step"
    step: int
    steps: int
    a: float
    z: float
    seconds: float
    particles_per_second: float
    displacement_cells: float
    displacement: float
    peak_memory: int


@dataclass(frozen=True)
class OutputWritten:
    """The results at redshift z are written to these files."""

    name: ClassVar = "output"
    step: int
    z: float
    files: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class CheckpointWritten:
    """The state after a step is kept under this name."""

    name: ClassVar = "checkpoint"
    step: int
    path: str
    seconds: float


@dataclass(frozen=True)
class StageDone:
    """Part of an inference before its chains is done."""

    name: ClassVar = "stage"
    what: str
    seconds: float


@dataclass(frozen=True)
class TuningBlock:
    """A block of the tuning is done.

    Args:
      share: of the tuning that is done.
      step_size, L: of the next block.
      bound: what bounds the step size (`infer.TuningProgress`).
      seconds: wall-clock time since the tuning began, or went on.
    """

    name: ClassVar = "tuning"
    share: float
    step_size: float
    L: float
    bound: str
    seconds: float


@dataclass(frozen=True)
class ChunkSampled:
    """A chunk of draws is on disk.

    Args:
      step, steps: of each chain, done and of all.
      seconds: wall-clock time of the chunk.
      compilation: seconds of it that compilation took, which later chunks don't need.
      gradients_per_second: of all chains together, without compilation.
      energy_variance: of the steps of the chunk, per dimension.
      acceptance: share of the trajectories that is accepted; None without a Metropolis step.
      failures: steps of the chunk that ended in a failed simulation.
      slowest: the parameter with the fewest effective samples so far, of all chains; empty if there are none yet.
      ess: their number.
      seconds_left: expected.
    """

    name: ClassVar = "chunk"
    step: int
    steps: int
    seconds: float
    compilation: float
    gradients_per_second: float
    energy_variance: float
    acceptance: float | None
    failures: int
    slowest: str
    ess: float
    seconds_left: float


@dataclass(frozen=True)
class Judged:
    """The chains are finished, and can be trusted unless there are reasons not to.

    Args:
      table: lines of the summary.
      reasons: why not, and what to do.
      files: that were written.
    """

    name: ClassVar = "verdict"
    table: tuple[str, ...]
    reasons: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Warned:
    """Something failed that does not end the run."""

    name: ClassVar = "warning"
    message: str


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    name: ClassVar = "end"
    status: Status
    seconds: float
    peak_memory: int


Event = (
    Started
    | InitialConditions
    | Resumed
    | HaloChosen
    | StepTaken
    | OutputWritten
    | CheckpointWritten
    | StageDone
    | TuningBlock
    | ChunkSampled
    | Judged
    | Warned
    | Ended
)
Listener = Callable[[Event], None]


def record(event: Event) -> dict[str, Any]:
    """Fields of an event as JSON holds them."""
    if isinstance(event, Started):
        return {"event": event.name, "resumed": event.resumed, **describe(event.plan)}
    return {"event": event.name, **dataclasses.asdict(event)}
