"""Events of a run, in the order in which they occur."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from pmwd_dist.run.common.job import Job

JobStatus = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Started:
    """The run starts, from the beginning or from a checkpoint."""

    name: ClassVar = "start"
    job: Job
    resumed: bool


@dataclass(frozen=True)
class InitialConditions:
    """The particles are at the initial scale factor a."""

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
      cells: width of the halo.
      displacement: largest expected displacement [Mpc/h].
    """

    name: ClassVar = "halo"
    step: int
    cells: int
    displacement: float


@dataclass(frozen=True)
class StepTaken:
    """A step is done.

    Args:
      step, steps: index of this step, from 1, and number of steps.
      a, z: scale factor and redshift at its end.
      seconds: wall-clock time of the step.
      particles_per_second: speed of all devices together.
      displacement_cells, displacement: largest displacement along an axis [mesh cells, Mpc/h].
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
    """A checkpoint is written under this name."""

    name: ClassVar = "checkpoint"
    step: int
    path: str
    seconds: float


@dataclass(frozen=True)
class StageDone:
    """A stage of an inference before its chains is done."""

    name: ClassVar = "stage"
    what: str
    seconds: float


@dataclass(frozen=True)
class TuningBlock:
    """A block of tuning steps is done.

    Args:
      share: fraction of the tuning that is done.
      step_size, L: parameters of the sampler in the next block.
      bound: constraint that limits the step size (`infer.TuningProgress`).
      seconds: wall-clock time since the tuning began, or was resumed.
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
      step, steps: number of steps done, and of all, of each chain.
      seconds: wall-clock time of the chunk.
      compilation: share of compilation in these seconds, which later chunks don't need.
      gradients_per_second: speed of all chains together, without compilation.
      energy_variance: variance of the energy error of a step, per dimension.
      acceptance: fraction of accepted trajectories; None without a Metropolis step.
      failures: number of steps that ended in a failed simulation.
      slowest: parameter with the fewest effective samples so far, of all chains; empty if there are none yet.
      ess: number of these.
      seconds_left: expected time of the remaining chunks.
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
    """The chains are finished. They are converged unless there are reasons against it.

    Args:
      table: lines of the summary.
      reasons: failed checks, with remedies.
      files: names of the files written.
    """

    name: ClassVar = "verdict"
    table: tuple[str, ...]
    reasons: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Warned:
    """A failure that does not end the run."""

    name: ClassVar = "warning"
    message: str


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    name: ClassVar = "end"
    status: JobStatus
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
        return {"event": event.name, "resumed": event.resumed, **event.job.describe()}
    return {"event": event.name, **dataclasses.asdict(event)}
