"""Simulations of the rows of a table, each in a folder of its own, which any number of programs share.

A program claims a row by a lock, which the kernel releases when the program ends, however it ends. The status of a row
is that of its run, or a failure that a program has noted beside it, perhaps before the run began.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np

from pmwd_dist._files import atomic_write, free_space, message, read_text, remove, write_text
from pmwd_dist._jax.profile import recording
from pmwd_dist._memory import size
from pmwd_dist.io.arrays import fingerprint
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, exchange, from_main, on_main, raise_on_all_processes
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report.tables import Table, read_table
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Interrupted, StopRequest, stop_requests
from pmwd_dist.run.common.fingerprint import identity, may_change
from pmwd_dist.run.common.folder import (
    CONFIG,
    ROWS,
    Event,
    InUseError,
    Listener,
    StartError,
    check_identity,
    ending,
    folder_lock,
    last_settings,
    prepare_folder,
    start_errors,
)
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.settings import SettingsError, to_toml
from pmwd_dist.run.settings.columns import SettingsTable, read_settings_table
from pmwd_dist.run.simulation.job import SimulationJob

BASE, TABLE, SUMMARY = "base.toml", "table.csv", "summary.h5"
_SETTINGS = "settings of all rows"  # their digest, in the identity of the folder
_BAD = ("failed", "damaged")  # ends of rows with a reason
_TABLES_SIZE = 1_000_000  # of the small files of a row [bytes]


@dataclass(frozen=True)
class Ensemble:
    """Simulations of a table."""

    table: SettingsTable
    folder: Path  # of the results
    changes: Sequence[str] = ()  # of settings, for this start alone

    @classmethod
    def of_folder(cls, folder: Path, overrides: Sequence[str] = ()) -> Ensemble:
        """The ensemble of a folder, with other values of some keys; ValueError if it is none, or was edited."""
        digest = fingerprint([read_text(folder / name, own=True) for name in (BASE, TABLE)])
        if manifest.identity(folder).get(_SETTINGS) != digest:
            raise ValueError(f"{folder}: {BASE} or {TABLE} has changed since its rows began; set it back")
        return cls(read_settings_table(folder / BASE, folder / TABLE, overrides, replace=True), folder, overrides)

    def row(self, i: int) -> Path:
        """Folder of a row."""
        return self.folder / ROWS / f"{i:05d}"

    def job(self, i: int) -> SimulationJob:
        """The run of a row; SettingsError if it does not fit the devices or the files."""
        return SimulationJob.of(self.table.rows[i], self.row(i))


def is_ensemble(folder: Path) -> bool:
    """Whether a folder is the one of an ensemble."""
    return (folder / BASE).is_file() and (folder / TABLE).is_file()


def prepare_ensemble(ensemble: Ensemble) -> None:
    """Make the folder of an ensemble with its settings, or join the programs that work there already. Collective.

    Raises ValueError if a row can't be run, the disk is too small, or the folder is of other settings or something
    else.
    """
    on_main(_prepare, ensemble)


def _prepare(ensemble: Ensemble) -> None:
    folder = ensemble.folder
    texts = {BASE: to_toml(ensemble.table.rows[0]), TABLE: ensemble.table.text()}
    if folder.exists() and not _is_new(folder) and not is_ensemble(folder):  # which it may be by now
        raise ValueError(f"{folder}: not empty, and not the folder of an ensemble; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder, wait=True):
        if is_ensemble(folder):  # perhaps by a program that was started alike
            if any(read_text(folder / name, own=True) != text for name, text in texts.items()):
                raise ValueError(f"{folder}: has other rows or settings; choose another --output")
            return
        _check_rows(ensemble)
        if (folder / manifest.NAME).is_file():  # of a program that was killed here
            manifest.remove_files(folder)
        own = identity(ensemble.job(0)) | {_SETTINGS: fingerprint(list(texts.values()))}
        manifest.create(folder, own, [*texts, SUMMARY])
        (folder / ROWS).mkdir(exist_ok=True)
        for name, text in texts.items():  # the table last: it makes the folder one of an ensemble
            write_text(folder / name, text)


def _is_new(folder: Path) -> bool:
    """Whether a folder holds nothing but the first files of an ensemble."""
    names = {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.is_dir() else {""}
    return names <= {manifest.NAME, ROWS, *([BASE] if manifest.NAME in names else [])}


def _check_rows(ensemble: Ensemble) -> None:
    """Raise SettingsError unless all rows can be run."""
    problems, need = dict[str, str](), 0
    for i, settings in enumerate(ensemble.table.rows):
        try:
            job, count = ensemble.job(i), len(settings.scale_factors)
            need += _TABLES_SIZE + sum(output.disk(job.simulation, count) for output in job.results)
        except SettingsError as error:
            for text in error.problems:
                problems.setdefault(text, f"row {i}: {text}")
    if need > (free := free_space(ensemble.folder)):
        text = f"{len(ensemble.table.rows)} runs write about {size(need)} and the disk has {size(free)} free"
        problems[text] = f'{ensemble.folder}: {text}; use another --output, or output.snapshot = "none"'
    if problems:
        raise SettingsError(list(problems.values()))


def run_ensemble(
    ensemble: Ensemble, listener: Listener, *, retry: bool = False, time_limit: float | None = None
) -> list[str]:
    """Work on all rows that nobody else works on, and write the summary after the last row. Collective.

    Each row is a run of its own, of the same bits. A row that another program has left, by an interruption or because
    it was killed, goes on from its last checkpoint. With `retry`, so do those that have failed before the program
    began. Returns lines about the end.

    Raises:
      StartError: the ensemble was begun by another version, or in another precision.
      SimulationError: rows have failed; the other ones are done.
      Interrupted: a signal asked to stop, or the time is over.
      OSError, SharedError: no row can be run any more, such as on a full disk.
    """
    with recording(time.perf_counter()) as profile, stop_requests() as stop:
        with start_errors():
            if distributed.is_main():
                kept = manifest.identity(ensemble.folder)
                del kept[_SETTINGS]
                check_identity(ensemble.job(0), kept, ensemble.folder, "this ensemble")
        worker = _Worker(ensemble, listener, stop, None if time_limit is None else profile.began + time_limit, retry)
        rows: Sequence[int] = range(len(ensemble.table.rows))
        try:
            while len(taken := [i for i in rows if not worker.work_on(i)]) < len(rows):
                rows = taken  # their programs may have been killed
        except Interrupted as error:
            again = "".join(f" --set {shlex.quote(text)}" for text in ensemble.changes)
            message = f"interrupted; go on with `pmwd-dist resume {ensemble.folder}{again}`"
            raise Interrupted(message, error.signal_number) from error
    if taken:
        return [f"other programs work on {len(taken)} rows, and write {SUMMARY} at the end"]
    return write_summary(ensemble)


class _Worker:
    """Works on the rows that nobody else works on, until it has to stop or a time of perf_counter() is over."""

    def __init__(self, ensemble: Ensemble, listener: Listener, stop: StopRequest, end: float | None, retry: bool):
        self._ensemble, self._listener, self._stop, self._end = ensemble, listener, stop, end
        self._stages = dict[str, dict[str, int]]()  # memory of the programs, by what they depend on
        self._warned = set[str]()
        rows = range(len(ensemble.table.rows)) if retry else ()
        self._retried = {i: _failed_at(ensemble.row(i)) for i in rows}

    def work_on(self, i: int) -> bool:
        """Work on a row, unless it is done; False if another program works on it. Collective."""
        if number := self._stop.received():
            raise Interrupted("", number)
        if self._end is not None and from_main(self._end < time.perf_counter()):
            raise Interrupted("", 0)
        with self._claim(i) as claim:
            if claim in ("taken", "done"):
                return claim == "done"
            with recording(began := time.perf_counter(), anew=True):
                try:
                    reason = self._run(i, is_new=claim == "new")
                except StartError as error:
                    if (claim := self._state(i)) in ("taken", "done"):  # somebody has resumed its run by itself
                        return claim == "done"
                    reason = str(error)
            reason = " ".join(reason.split())
            if reason:
                on_main(write_text, _note(self._ensemble.row(i)), reason)
        text = f"{f'failed: {reason}' if reason else 'finished'} after {time.perf_counter() - began:.2f} s"
        self._say("row", f"row {i} of {len(self._ensemble.table.rows)}: {text}")
        return True

    @contextmanager
    def _claim(self, i: int) -> Generator[str]:
        """Hold a row, unless another program does; its state. Collective."""
        row, state = self._ensemble.row(i), "taken"
        with ExitStack() as stack:
            with raise_on_all_processes():
                if distributed.is_main() and _end(row)[0] == "finished":
                    state = "done"  # needs no lock, which a read-only file system has not
                elif distributed.is_main():
                    row.parent.mkdir(exist_ok=True)
                    with suppress(InUseError):
                        stack.enter_context(folder_lock(row.parent, f".{row.name}.lock"))
                        state = "held"
            state = exchange(state)[0]
            yield self._state(i) if state == "held" else state

    def _state(self, i: int) -> str:
        """State of a row that this program holds: done, new, begun, or taken if its run is resumed. Collective."""
        row, state = self._ensemble.row(i), "taken"
        with raise_on_all_processes():
            if distributed.is_main():
                with suppress(InUseError), folder_lock(row) if row.is_dir() else nullcontext():
                    state = "begun" if _has_begun(row) else "new"
                    status, _ = _end(row)
                    if status == "finished" or (status == "failed" and self._retried.get(i) != _failed_at(row)):
                        state = "done"
        return exchange(state)[0]

    def _run(self, i: int, *, is_new: bool) -> str:
        """Run a row, and return the reason of a failure. Collective.

        Raises StartError if the row can't be run, and OSError or SharedError if no other row would do better.
        """
        try:
            job, warnings = self._job(i)
            with start_errors():
                on_main(remove, _note(job.folder))
                if is_new:
                    prepare_folder(job, overwrite=True)
            left = None if self._end is None else max(self._end - time.perf_counter(), 0.0)
            execute(job, self._show_warning, resume=not is_new, time_limit=left, warnings=warnings)
        except (OSError, SharedError, StartError):
            raise
        except Exception as error:
            if jax.process_count() > 1 and not isinstance(error, SimulationError):
                raise  # the other processes may wait for this one
            return str(error) or type(error).__name__
        return ""

    def _job(self, i: int) -> tuple[SimulationJob, list[str]]:
        """The run of a row, after its checks, and its warnings. Collective."""
        with start_errors():
            job = self._ensemble.job(i)
        job = job.of_main()
        others = {"noise"} if job.cone_galaxies() else {"noise", "cosmology"}
        shapes = repr(job.settings.model_dump(exclude=others))
        if shapes in self._stages:
            vars(job)["stages"] = self._stages[shapes]  # compiled once
        with raise_on_all_processes():
            if job.expected_disk > free_space(job.folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(job.folder))
        with start_errors():
            for text in (warnings := job.check()):
                if text not in self._warned:
                    self._warned.add(text)
                    self._say("warning", text)
        self._stages[shapes] = job.stages
        return job, warnings

    def _show_warning(self, event: Event) -> None:
        if event.name == "warning":
            self._listener(event)

    def _say(self, name: str, text: str) -> None:
        if distributed.is_main():
            self._listener(Event(name, text, {}))


def write_summary(ensemble: Ensemble) -> list[str]:
    """Write the tables of all rows into one file, with their parameters and states. Collective.

    Raises SimulationError if rows have failed or are damaged; tables of the other rows are in the summary.
    """
    with raise_on_all_processes():
        if not distributed.is_main():
            return []
        ends = [_end(ensemble.row(i)) for i in range(len(ensemble.table.rows))]
        tables = dict[int, dict[str, Table]]()
        for i in (i for i, (status, _) in enumerate(ends) if status == "finished"):
            row = ensemble.row(i)
            try:
                _check_settings(row, ensemble.table.rows[i].values())
                tables[i] = {name: read_table(row / name) for name in manifest.files(row) if name.endswith(".csv")}
            except (OSError, ValueError) as error:
                ends[i] = "damaged", f"{message(error)}; remove {row} and resume to run it again"
        text = f"{ensemble.folder / SUMMARY}: {_counts(ends)}"
        try:
            with folder_lock(ensemble.folder, wait=True), atomic_write(ensemble.folder / SUMMARY) as aside:
                _write(aside, ensemble, ends, tables)
        except OSError as error:
            if error.errno != errno.EROFS or not (ensemble.folder / SUMMARY).is_file():
                raise
            text += "; the file system is read-only, and the file stays as it is"
        if failed := [f"{text}; row {i}: {reason}" for i, (status, reason) in enumerate(ends) if status in _BAD]:
            raise SimulationError(failed[0])
        return [text]


def _check_settings(row: Path, own: dict[str, Any]) -> None:
    """Raise ValueError unless the run in the folder of a row has the settings of that row; digests are of files."""
    for key, kept in manifest.identity(row).items():
        is_digest = isinstance(kept, str) and kept.startswith("sha256:")
        if not is_digest and own.get(key) is not None and json.loads(json.dumps(own[key])) != kept:
            raise ValueError(f"{row}: is the run of another row, with {key} = {kept}")


def state_of_rows(ensemble: Ensemble) -> str:
    """How many rows there are, and have ended in which way."""
    return _counts([_end(ensemble.row(i)) for i in range(len(ensemble.table.rows))])


def _counts(ends: Sequence[tuple[str, str]]) -> str:
    counts = Counter(status for status, _ in ends).most_common()
    return f"{len(ends)} rows, {', '.join(f'{n} {status}' for status, n in counts)}"


def _write(path: Path, ensemble: Ensemble, ends: Sequence[tuple[str, str]], found: dict[int, dict[str, Table]]) -> None:
    """Write HDF5: a group with the parameters, one with each table, of shape (rows, length), and how rows ended."""
    with h5py.File(path, "w", locking=False) as file:
        values = [settings.values() for settings in ensemble.table.rows]
        for key in ensemble.table.columns:
            column = [value[key] for value in values]
            if may_change(key):
                column = [_last_value(ensemble.row(i), key, value) for i, value in enumerate(column)]
            file[f"parameters/{key}"] = _array(column)
        for name, texts in zip(("status", "reason"), zip(*ends, strict=True), strict=True):
            file[name] = _array(texts)
        for name in sorted({name for tables in found.values() for name in tables}):
            tables = {i: tables[name] for i, tables in found.items() if name in tables}
            columns = {column: table.units.get(column, "") for table in tables.values() for column in table.columns}
            for column, unit in columns.items():
                values = {i: table[column] for i, table in tables.items() if column in table.columns}
                rows = np.full((len(ends), max(map(len, values.values()))), np.nan)
                for i, value in values.items():
                    rows[i, : len(value)] = value
                place = f"{Path(name).stem}/{column.replace('/', '_')}"  # HDF5 would take dn/dlnM as a group
                file[place] = rows
                file[place].attrs["unit"] = unit


def _last_value(row: Path, key: str, default: Any) -> Any:
    """Value of a setting at the last start of a row, which `--set` may have changed; the default before a start."""
    *sections, name = key.split(".")
    with suppress(KeyError, TypeError, AttributeError):
        return reduce(getitem, sections, last_settings(row)).get(name)
    return default


def _array(values: Sequence[Any]) -> Any:
    """Numbers, lists of them of one length, or texts."""
    with suppress(ValueError):  # of lists of several lengths
        if (found := np.asarray(values)).dtype.kind in "biuf":
            return found
    return np.asarray([x if isinstance(x, str) else json.dumps(x) for x in values], h5py.string_dtype())


def _end(row: Path) -> tuple[str, str]:
    """Status of a row, and the reason of a failure."""
    status, reason = ending(row) if _has_begun(row) else ("unknown", "")
    if status != "finished" and _failed_at(row):
        return "failed", read_text(_note(row), own=True)
    return "missing" if status == "unknown" else status, reason


def _has_begun(row: Path) -> bool:
    return (row / manifest.NAME).is_file() and (row / CONFIG).is_file()


def _note(row: Path) -> Path:
    """File with the reason of the last failure of a row."""
    return row.parent / f".{row.name}.failed"


def _failed_at(row: Path) -> int:
    """Time of the last failure that was noted [ns]; 0 if there is none."""
    with suppress(FileNotFoundError):
        return _note(row).stat().st_mtime_ns
    return 0
