"""A job: a simulation or an inference that writes into a folder and can be resumed.

Functions marked "Collective" communicate: all processes must call them, in the same order.
"""

from __future__ import annotations

import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np

from pmwd_dist._files import message
from pmwd_dist._jax.native import native_available
from pmwd_dist._jax.profile import recording
from pmwd_dist._memory import size
from pmwd_dist.parallel import distributed
from pmwd_dist.run.common.control import Control
from pmwd_dist.run.common.fingerprint import versions
from pmwd_dist.run.common.folder import REPORT, Listener, Log, hold_folder, status_of
from pmwd_dist.run.common.report import write_report
from pmwd_dist.run.common.resources import peak_memory
from pmwd_dist.run.common.signals import Interrupted, stop_requests
from pmwd_dist.run.settings import Settings, SimulationSetup
from pmwd_dist.run.settings.table import power_name


@dataclass(frozen=True)
class Job(ABC):
    """A simulation or an inference, as its settings describe it, on the current devices.

    Args:
      settings: sections of the TOML file.
      simulation: configuration, cosmology and solver of the settings.
      folder: output folder.
      data: arrays of other files that the settings name, by their keys.
    """

    settings: Settings
    simulation: SimulationSetup
    folder: Path
    data: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], kw_only=True)

    extending: ClassVar[tuple[str, ...]] = ()  # beginnings of the keys with which a finished job can be resumed

    @classmethod
    @abstractmethod
    def of(cls, settings: Any, folder: Path) -> Self:
        """The job of these settings.

        Raises:
          SettingsError: the settings don't fit the devices, the files or each other.
        """

    def of_main(self) -> Self:
        """The job with the numbers of process 0 where processes may round differently. Collective."""
        return self

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps."""

    @property
    @abstractmethod
    def files(self) -> list[str]:
        """Names of the results."""

    @property
    @abstractmethod
    def expected_memory(self) -> int:
        """Expected peak of host memory of one process [bytes]; on GPUs, of the memory of each device."""

    @abstractmethod
    def check(self) -> list[str]:
        """Warnings about memory, disk and accuracy.

        Raises:
          SettingsError: memory or disk can't suffice.
        """

    @abstractmethod
    def lines(self) -> list[str]:
        """Description of the job."""

    def memory_lines(self) -> list[str]:
        """Further lines on memory."""
        return []

    def find_checkpoint(self) -> Any:
        """The checkpoint to resume from; None if there is none. Collective.

        Raises:
          StartError: it is damaged, or of another job.
        """
        return None

    @abstractmethod
    def work(self, log: Log, control: Control, checkpoint: Any) -> None:
        """Do the job from a checkpoint, or from the beginning if that is None. Collective."""

    @abstractmethod
    def draw(self) -> None:
        """Draw the results so far of a job that did not finish, if it has any."""

    def describe(self) -> dict[str, Any]:
        """Fields of the log as JSON holds them."""
        decomposition = self.simulation.config.decomposition
        return {
            "folder": str(self.folder),
            "settings": self.settings.model_dump(mode="json", exclude_none=True),
            "steps": self.steps,
            "sigma8": self.simulation.sigma8,
            "devices": decomposition.mesh.size,
            "device_kind": decomposition.mesh.devices.flat[0].device_kind,
            "pdims": list(decomposition.pdims),
            "processes": jax.process_count(),
            "native": native_available(),
            "machine": f"{platform.node()}, {platform.platform()}",
            "lines": self.lines(),
            "versions": versions(),
        }

    @property
    def device_line(self) -> str:
        """Description of the devices."""
        config, processes = self.simulation.config, jax.process_count()
        px, py = config.decomposition.pdims
        blocks = "one block" if px * py == 1 else f"{px} slabs" if py == 1 else f"{px} x {py} pencils"
        kind, count = config.decomposition.mesh.devices.flat[0].device_kind, config.decomposition.mesh.size
        groups = "" if count == px * py else f"chains in {count // (px * py)} groups, each "
        return (
            f"devices     {count} x {kind} in {processes} process{'es' * (processes > 1)}, {groups}mesh as {blocks}, "
            f"halo {config.halo}, native ops {'on' if native_available() else 'off: slower, see `pmwd-dist doctor`'}"
        )

    @property
    def power_text(self) -> str:
        """Linear power spectrum."""
        power = power_name(self.settings.cosmology.linear_power) + self.simulation.power_error
        return f"linear P(k): {power}, sigma8 = {self.simulation.sigma8:.4g}"

    @property
    def memory_text(self) -> str:
        """Expected memory."""
        where = "process" if self.simulation.config.decomposition.platform == "cpu" else "device"
        return f"{size(self.expected_memory)} of memory a {where}"


def execute(
    job: Job,
    listener: Listener,
    *,
    resume: bool = False,
    time_limit: float | None = None,
) -> None:
    """Do a job with a prepared folder, from the beginning or from its last checkpoint. Collective.

    A job that is stopped at any time, and then resumed, has the same bits.

    Args:
      job: simulation or inference.
      listener: called with every event, on process 0.
      resume: continue from the last checkpoint, or from the beginning if there is none.
      time_limit: seconds from the start of the program after which the job is over. It stops before a step that may end
        later, but takes at least one step.

    Raises:
      StartError: the folder is in use or of another job, the job to resume is finished, or a file of it is damaged.
      SimulationError: the simulation failed on its data; earlier results are kept.
      Interrupted: a signal asked the job to stop, or its time is over; a checkpoint is kept.
      OSError, SharedError: a file can't be written.
    """
    with recording(time.perf_counter()) as profile, stop_requests() as stop, hold_folder(job, resume=resume):
        checkpoint = job.find_checkpoint() if resume else None
        killed = resume and status_of(job.folder) == "running"  # and nobody holds the folder
        log = Log(job.folder, listener)
        log("start", "\n".join(job.lines()), resumed=resume, **job.describe())
        if killed:
            log.warn("the last start was killed; this one goes on from its last checkpoint or chunk, if there is one")
        status, reason = "failed", dict[str, str]()
        try:
            job.work(log, Control(job.folder, stop, profile, time_limit), checkpoint)
            status = "finished"
        except (Interrupted, KeyboardInterrupt, SystemExit):
            status = "interrupted"
            raise
        except Exception as error:
            reason = {"error": " ".join(str(error).split())}
            raise
        finally:
            seconds, peak = time.perf_counter() - profile.began, peak_memory()
            text = f"{status} after {seconds:.1f} s, at most {size(peak)}; see {job.folder / REPORT}"
            log("end", text, status=status, seconds=seconds, peak_memory=peak, profile=profile.record(), **reason)
            if distributed.is_main():
                _report(job, log, status)


def _report(job: Job, log: Log, status: str) -> None:
    try:
        if status != "finished":
            job.draw()
    except (OSError, ValueError) as error:
        log.warn(f"figures are missing: {message(error)}")
    try:
        write_report(job.folder)
    except (OSError, ValueError) as error:
        log.warn(f"{job.folder / REPORT} is not written: {message(error)}")


def three(values: Sequence[float]) -> str:
    """Three numbers, or one if they are equal."""
    if len(set(values)) == 1:
        return f"{values[0]:g}^3" if isinstance(values[0], int) else f"{values[0]:g}"
    return " x ".join(f"{value:g}" for value in values)
