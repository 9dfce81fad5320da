"""A job: a plan with its work, which can be resumed."""

from __future__ import annotations

import platform
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from pmwd_dist._files import exists
from pmwd_dist._jax.native import native_available
from pmwd_dist._jax.profile import recording
from pmwd_dist._memory import size
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import check_shared, on_main, raise_on_all_processes
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Control, Interrupted, stop_requests, watchdog
from pmwd_dist.run.common.fingerprint import versions
from pmwd_dist.run.common.folder import CONFIG, LOG, REPORT, RUN, Listener, Log, hold_folder, keep_settings, status_of
from pmwd_dist.run.common.plan import Plan
from pmwd_dist.run.common.report import write_report
from pmwd_dist.run.common.resources import peak_memory


class Job(Plan):
    """A simulation or an inference, and its work."""

    def find_checkpoint(self) -> Any:
        """The checkpoint to resume from, or None; StartError if it is damaged, or of another job. Collective."""
        return None

    @abstractmethod
    def work(self, log: Log, control: Control, checkpoint: Any) -> None:
        """Do the job from a checkpoint, or from the beginning if that is None. Collective."""

    @property
    def slowest(self) -> float:
        """Expected time of the slowest program, in times of the slowest of its beginning."""
        return 1.0

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


def execute(
    job: Job,
    listener: Listener,
    *,
    resume: bool = False,
    time_limit: float | None = None,
    warnings: Sequence[str] = (),
    changes: Sequence[str] = (),
) -> None:
    """Do a job with a prepared folder, from the beginning or from its last checkpoint. Collective.

    A job that is stopped at any time, and then resumed, has the same bits. The listener is called with every event, on
    process 0. With a time limit, in seconds from the start of the program, the job stops before a step that may end
    later, but takes at least one step. Warnings of `Plan.check` are kept for the report, and changes of settings for
    later starts.

    Raises:
      StartError: the folder is in use or of another job, the job to resume is finished, or a file of it is damaged.
      SimulationError: the simulation failed on its data; earlier results are kept.
      Interrupted: a signal asked the job to stop, or its time is over; a checkpoint is kept.
      OSError, SharedError: processes share no folder, or a file can't be written; figures and the report
        alone are left out until the end.
    """
    with recording(time.perf_counter()) as profile, stop_requests() as stop, hold_folder(job, resume=resume):
        check_shared(job.folder, "output")
        checkpoint = job.find_checkpoint() if resume else None
        if resume:
            on_main(manifest.forget, job.folder, [CONFIG, RUN, LOG, *job.files])
            on_main(keep_settings, job.folder, changes)
        killed = resume and status_of(job.folder) == "running"  # and nobody holds the folder
        log = Log(job.folder, listener)
        log("start", "\n".join(job.lines()), resumed=resume, warnings=[*warnings], **job.describe())
        if killed:
            log.warn("the last start was killed; this one goes on from its last checkpoint or chunk, if there is one")
        status, reason = "failed", dict[str, str]()
        try:
            with watchdog(job.folder, log, job.slowest):
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
        with raise_on_all_processes():
            if log.unwritten is not None:
                _raise_unwritten(job.folder, log.unwritten)


def _report(job: Job, log: Log, status: str) -> None:
    try:
        if status != "finished":
            job.draw()
    except (OSError, ValueError) as error:
        log.lack("figures are missing", error)
    try:
        write_report(job.folder)
    except (OSError, ValueError) as error:
        log.lack(f"{job.folder / REPORT} is not written", error)


def _raise_unwritten(folder: Path, error: OSError) -> None:
    """Raise OSError with the names of the figures and the report that are missing, as by a full disk."""
    files = dict.fromkeys([*manifest.files(folder), REPORT])
    missing = [name for name in files if name.endswith((".png", ".html")) and not exists(folder / name)]
    text = f"{folder}: {error.strerror}; all data are kept, but not {', '.join(missing or [REPORT])}"
    raise OSError(error.errno, f"{text}: free space, and use `pmwd-dist report {folder}`")
