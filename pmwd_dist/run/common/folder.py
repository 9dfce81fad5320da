"""The folder of a run: its configuration, its log, whether it is finished, and a lock that ends with its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pmwd_dist._files import (
    append_text,
    atomic_write,
    check_regular,
    exists,
    message,
    read_bytes,
    read_text,
    temporary,
    write_text,
)
from pmwd_dist.io.arrays import ArrayFileError
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, on_main, raise_on_all_processes
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.fingerprint import Identity, differences, identity
from pmwd_dist.run.common.plan import Plan
from pmwd_dist.run.settings import Settings, read_any, to_toml

CONFIG = "config.toml"
RUN, LOG, REPORT = "run.json", "log.jsonl", "report.html"
ROWS = "rows"  # folder of the runs of an ensemble
_COPIES = {"cosmology": ("linear_power", "linear_power.txt"), "force": ("correction", "force.json")}  # of files, by key
_COPIED = {f"{section}.{key}" for section, (key, _) in _COPIES.items()}
_OF_DEVICES = re.compile(r"\s*(devices|sampler\.chain_devices)\b")  # settings of one start
LOCK = ".pmwd-dist.lock"
_MOST = 1000  # bytes of the number of a process and its host
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def prepare_folder(job: Plan, *, overwrite: bool = False) -> None:
    """Make the output folder and write the manifest and the configuration into it. Collective.

    `overwrite` removes the files in the manifest of an earlier run; other files stay. Raises ValueError if the folder
    is in use or of something else, OSError if it can't be written, and SharedError where there are several processes.
    """
    on_main(_prepare, job, overwrite)


def _prepare(job: Plan, overwrite: bool) -> None:
    folder = job.folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; choose another --output")
    if _content(folder) and manifest.NAME not in _content(folder):
        raise ValueError(f"{folder}: not empty, and not the folder of a run; empty it, or choose another --output")
    if (folder / ROWS).is_dir():
        raise ValueError(f"{folder}: the folder of an ensemble; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        if _content(folder):
            if not overwrite:
                use = f"use --overwrite, another --output, or `pmwd-dist resume {folder}`"
                raise ValueError(f"{folder}: not empty; {use}")
            _check_content(job)
        _write_config(job)


def _content(folder: Path) -> list[str]:
    """Names in a folder, without the lock and an unfinished manifest."""
    own = {LOCK, temporary(folder / manifest.NAME).name}
    return [path.name for path in folder.iterdir() if path.name not in own] if folder.exists() else []


def _check_content(job: Plan) -> None:
    """Raise unless the files of an earlier run may be replaced: none is an input, and nothing else is in the way."""
    folder = job.folder
    of_run = {folder.resolve(), *((folder / name).resolve() for name in manifest.files(folder))}
    for key, value in job.settings.values().items():
        named = [x.partition(":/")[0] for x in (value if isinstance(value, list) else [value]) if isinstance(x, str)]
        if key not in _COPIED and any(Path(name).resolve() in of_run for name in named if name):
            raise ValueError(f"{key}: names a file of {folder}, which --overwrite would remove; use another --output")
    manifest.check_free(folder, [CONFIG, RUN, LOG, REPORT, *(name for _, name in _COPIES.values()), *job.files])


def _write_config(job: Plan) -> None:
    """Remove the files of an earlier run; write the settings, and copies of small files that they name."""
    folder, settings = job.folder, job.settings
    # Read before files are removed: perhaps they are those of the earlier run.
    copies = {section: read_bytes(Path(file)) for section, file in _files(settings).items()}
    own = identity(job)
    if _content(folder):
        manifest.remove_files(folder)
    manifest.create(folder, own, [CONFIG, RUN, LOG, *(_COPIES[section][1] for section in copies)])
    for section, content in copies.items():
        with atomic_write(folder / _COPIES[section][1]) as aside:
            aside.write_bytes(content)
    _write_settings(folder, settings)


def _files(settings: Settings) -> dict[str, str]:
    """Small files that settings name, which a run copies, by section."""
    files = {"cosmology": settings.cosmology.table, "force": settings.force.correction}
    return {section: str(file) for section, file in files.items() if file not in (None, "auto")}


def _write_settings(folder: Path, settings: Settings) -> None:
    """Write settings, in which copied files have their names in the folder."""
    for section in _files(settings):
        key, name = _COPIES[section]
        if exists(folder / name):
            changed = getattr(settings, section).model_copy(update={key: name})
            settings = settings.model_copy(update={section: changed})
    write_text(folder / CONFIG, to_toml(settings))


def keep_settings(folder: Path, changes: Sequence[str]) -> None:
    """Write changed settings of a resumed run, as in --set, for later starts; devices are of the machine of one."""
    kept = [text for text in changes if not _OF_DEVICES.match(text)]
    if kept:
        _write_settings(folder, read_any(folder / CONFIG, kept))


def finished(folder: Path) -> bool:
    """Whether the run of a folder is finished; ValueError if it is not the folder of a run."""
    manifest.identity(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: not the folder of a run, it has no {CONFIG}")
    return status_of(folder) == "finished"


def status_of(folder: Path) -> str:
    """Status of the last start of a run: running, finished, interrupted, failed, or unknown before it wrote one."""
    return ending(folder)[0]


def ending(folder: Path) -> tuple[str, str]:
    """Status of the last start of a run, and the reason of a failure."""
    try:
        content = json.loads(read_text(folder / RUN, own=True))
        status, reason = content["status"], str(content.get("error", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "unknown", ""
    return (status, reason) if status in ("running", "finished", "interrupted", "failed") else ("unknown", "")


def last_settings(folder: Path) -> dict[str, Any]:
    """Settings of the last start of a run by section; empty before a start, or where its file is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        settings = json.loads(read_text(folder / RUN, own=True))["settings"]
        return settings if isinstance(settings, dict) else {}
    return {}


def alterations(folder: Path) -> list[str]:
    """Sentences on keys of the configuration that differ from the last start, and on lost files of a finished run."""
    found, had = list[str](), last_settings(folder)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a damaged file
        now = read_any(folder / CONFIG).model_dump(mode="json", exclude_none=True)
        had, now = ({f"{n}.{key}": x for n, part in tree.items() for key, x in part.items()} for tree in (had, now))
        edited = {key for key in had | now if had.get(key) != now.get(key) and not _OF_DEVICES.match(key)} - _COPIED
        found += [f"{CONFIG} is not that of the last start, which had another {key}" for key in sorted(edited)]
    made = ("checkpoint_", ".png", ".html", "summary.csv")  # removed at the end, or written by `report`
    results = [name for name in manifest.files(folder) if not any(part in name for part in made)]
    lost = [name for name in results if not exists(folder / name)] if status_of(folder) == "finished" else []
    return found + [f"{name} is missing; only another run writes it again" for name in lost]


def state(folder: Path) -> str:
    """State of a run, with the remedy where it has ended early; ValueError if the folder is not the one of a run."""
    if finished(folder):
        return "finished"
    try:
        with folder_lock(folder):
            status = status_of(folder)
    except ValueError as error:
        return str(error).removeprefix(f"{folder}: ").split(";")[0]
    ended = "was killed" if status == "running" else status
    return f"{ended}; go on with `pmwd-dist resume {folder}`"


class Event(NamedTuple):
    """Something that happened in a run: lines for people, none if it is only logged, and fields as JSON holds them."""

    name: str
    text: str
    fields: Mapping[str, Any]


Listener = Callable[[Event], None]


_SILENCE, MINUTE = 5.0, 60.0  # longest times without a line, at first and later [s]


class Log:
    """Calls the listener with each event and appends it to log.jsonl; run.json holds start, verdict and end."""

    def __init__(self, folder: Path, listener: Listener):
        self._folder, self._listener = folder, listener
        self.last = ""  # line of the last event, on every process
        self.unwritten: OSError | None = None  # why figures or the report are missing
        self._summary: dict[str, Any] = {}

    def __call__(self, name: str, text: str = "", **fields: Any) -> None:
        """Log an event; only process 0 does."""
        self.last = text.splitlines()[0] if text else self.last
        if not distributed.is_main():
            return
        path, now = self._folder / LOG, time.strftime("%Y-%m-%dT%H:%M:%S%z")
        try:
            append_text(path, json.dumps({"time": now, "event": name, **fields}) + "\n")
            if name == "start":
                self._summarise({"status": "running", "started": now, **fields})
            elif name == "verdict":
                self._summarise({"trusted": not fields["reasons"], "reasons": fields["reasons"]})
            elif name == "end":
                self._summarise({**fields, "ended": now})
        except OSError as error:  # a full disk ends the run at its next output, not at a line of the log
            self._listener(Event("warning", f"warning: {path}: {error.strerror}", {}))
        self._listener(Event(name, text, fields))

    def warn(self, message: str, **fields: Any) -> None:
        """Log a failure that does not end the run."""
        self("warning", f"warning: {message}", message=message, **fields)

    def lack(self, what: str, error: Exception, remedy: str = "") -> None:
        """Log that figures or the report are missing; where they can't be written, `execute` raises OSError."""
        self.unwritten = error if isinstance(error, OSError) else self.unwritten
        self.warn(f"{what}: {message(error)}{remedy}", of_figures=True)

    def begin(self, what: str) -> None:
        """Log the beginning of a stage that may take long."""
        self("begin", f"{what} ...", stage=what)

    @contextmanager
    def naming(self, what: str, silence: float | None = None) -> Generator[None]:
        """Log the beginning of a stage that takes longer than a silence [s], and tell each minute that it lasts."""
        ended, began = threading.Event(), time.monotonic()

        def tell() -> None:
            if ended.wait(_SILENCE if silence is None else silence):
                return
            self.begin(what)
            while not ended.wait(MINUTE) and distributed.is_main():
                seconds = time.monotonic() - began  # not in `last`, which would be a sign of life
                self._listener(Event("begin", f"{what}: still running after {seconds:.0f} s", {}))

        threading.Thread(target=tell, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def stage(self, what: str, seconds: float) -> None:
        """Log the end of a stage of an inference before its chains."""
        self("stage", f"{what}  {seconds:.1f} s", what=what, seconds=seconds)

    def _summarise(self, fields: dict[str, Any]) -> None:
        self._summary |= {name: value for name, value in fields.items() if name != "folder"}
        write_text(self._folder / RUN, json.dumps(self._summary, indent=1) + "\n")


class StartError(ValueError):
    """A run can't start or resume as asked; its results and checkpoints are unchanged."""


@contextmanager
def start_errors() -> Generator[None]:
    """Raise errors of the body, on whichever process, as StartError on every process. Collective at its end."""
    try:
        with raise_on_all_processes():
            yield
    except (ValueError, SharedError) as error:
        raise StartError(str(error)) from error


@contextmanager
def hold_folder(job: Plan, *, resume: bool = False) -> Generator[None]:
    """Lock the prepared folder of a job against other processes. Collective.

    Raises StartError if another process uses it, it belongs to another run, or the run to resume is finished.
    """
    with ExitStack() as stack:
        with start_errors():
            if distributed.is_main():
                kept = manifest.identity(job.folder)
                stack.enter_context(folder_lock(job.folder))
                check_identity(job, kept, job.folder, "this folder's run")
                if resume and not job.extending and finished(job.folder):  # by another process, until a moment ago
                    raise ValueError(f"{job.folder}: the run is finished; nothing is left to do")
        yield


def check_identity(job: Plan, kept: Identity, where: Path, holder: str) -> None:
    """Raise ArrayFileError unless an earlier job had the settings of this one."""
    if lines := differences(kept, identity(job), holder):
        raise ArrayFileError("\n".join([f"{where}: made by other settings than those of {CONFIG}", *lines]))


class InUseError(ValueError):
    """Another process, or another run in this one, holds a lock."""


@contextmanager
def folder_lock(folder: Path, name: str = LOCK, *, wait: bool = False) -> Generator[None]:
    """Hold the lock of a run's folder, which has to exist, or another one of this name there.

    The kernel locks an open file (flock) and releases it when the process ends, however it ends. On NFS the server
    locks it, for all clients. A file system without locks, such as Lustre mounted without `flock`, excludes nobody. The
    file stays, and is empty while nobody holds the lock. Raises InUseError if another holds it, unless it is to wait.
    """
    path, flags = folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o666), "rb+", buffering=0) as file:
        check_regular(file.fileno(), path, own=True)  # it would be emptied
        holder = file.read(_MOST).decode(errors="replace").split()
        is_known = len(holder) == 2 and holder[0].isdecimal() and int(holder[0]) > 0  # no process is 0
        who = f"process {int(holder[0])} on {holder[1]}" if is_known else "another process"
        with _naming(path):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    in_use = f"{folder}: {who} runs in this folder; wait for its end, or use another folder"
                    raise InUseError(in_use) from error
                locked = os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() in ("TRUE", "1", "BEST_EFFORT")
                if error.errno not in _UNSUPPORTED or locked:
                    raise
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        finally:
            with _naming(path):
                os.ftruncate(file.fileno(), 0)


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Give an OSError of the body the name of the lock file, and a remedy."""
    try:
        yield
    except OSError as error:
        space = "free space there, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        remedy = f"{space}use a folder on another file system, one that locks files"
        if error.errno in _UNSUPPORTED:
            remedy = "unset HDF5_USE_FILE_LOCKING, by which HDF5 locks its files, too"
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}; {remedy}", str(path)) from error
