"""The folder of a run: its manifest, its configuration, its log, and whether it is finished."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pmwd_dist._files import append_text, atomic_write, temporary
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.run.common import lock, manifest
from pmwd_dist.run.common.events import Ended, Event, Judged, Listener, Started, Warned, record
from pmwd_dist.run.common.fingerprint import identity
from pmwd_dist.run.common.lock import folder_lock
from pmwd_dist.run.inference.plan import InferencePlan
from pmwd_dist.run.settings import to_toml
from pmwd_dist.run.simulation import light_cone
from pmwd_dist.run.simulation.output import output_names
from pmwd_dist.run.simulation.plan import Plan

CONFIG = "config.toml"
_RUN, _LOG, _TABLE = "run.json", "log.jsonl", "linear_power.txt"


def prepare_folder(plan: Plan, *, overwrite: bool = False) -> None:
    """Make the output folder and write the manifest and the configuration into it. Collective.

    Args:
      plan: of the run.
      overwrite: remove the files of an earlier run, which its manifest names; other files stay.

    Raises:
      ValueError: the folder is in use, or not empty and overwrite is False or it is not the folder of a run.
      OSError: the folder or a file can't be written.
      SharedError: one of these, where there are several processes.
    """
    with raise_on_all_processes():
        if distributed.is_main():
            folder = plan.folder
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"{folder}: is a file; choose another --output")
            if _content(folder) and manifest.NAME not in _content(folder):
                raise ValueError(f"{folder}: not empty, and not the folder of a run; choose another --output")
            folder.mkdir(parents=True, exist_ok=True)
            with folder_lock(folder):
                _check_content(plan, overwrite=overwrite)
                _write_config(plan)


def _content(folder: Path) -> list[str]:
    """Names in a folder, without those that a run of this moment, or one that was killed early, has put there."""
    own = {lock.NAME, temporary(folder / manifest.NAME).name}
    return [path.name for path in folder.iterdir() if path.name not in own] if folder.exists() else []


def _check_content(plan: Plan, *, overwrite: bool) -> None:
    folder = plan.folder
    if not _content(folder):
        return
    if not overwrite:
        raise ValueError(f"{folder}: not empty; use --overwrite, another --output, or `pmwd-dist resume {folder}`")
    outputs = [name for z in plan.outputs.values() for name in output_names(plan, z)]
    outputs += plan.files if isinstance(plan, InferencePlan) else light_cone.files(plan)
    manifest.check_free(folder, [CONFIG, _RUN, _LOG, _TABLE, *outputs])
    manifest.check_removable(folder)


def _write_config(plan: Plan) -> None:
    """Write the settings, and the table of P(k) if they name one, in place of what an earlier run left."""
    folder, settings = plan.folder, plan.settings
    table = settings.cosmology.linear_power
    content = None if table is None else Path(table).read_bytes()  # perhaps the table of the earlier run
    own = identity(plan)
    if _content(folder):
        manifest.remove_files(folder)
    manifest.create(folder, own, [CONFIG, _RUN, _LOG, *([] if content is None else [_TABLE])])
    if content is not None:
        _write(folder / _TABLE, content)
        own = settings.cosmology.model_copy(update={"linear_power": _TABLE})
        settings = settings.model_copy(update={"cosmology": own})
    _write(folder / CONFIG, to_toml(settings).encode())


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as aside:
        aside.write_bytes(content)


def finished(folder: Path) -> bool:
    """Whether the run of a folder is finished.

    Raises:
      ValueError: the folder is not one of a run.
    """
    manifest.identity(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: not the folder of a run, it has no {CONFIG}")
    try:
        return bool(json.loads((folder / _RUN).read_text(encoding="utf-8"))["status"] == "finished")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # it was stopped before it wrote a whole one


class Log:
    """Calls the listener with each event and appends it to log.jsonl; run.json holds start, verdict and end."""

    def __init__(self, folder: Path, listener: Listener):
        self._folder, self._listener = folder, listener
        self._summary: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        """Log an event; only process 0 does."""
        if not distributed.is_main():
            return
        path, now = self._folder / _LOG, time.strftime("%Y-%m-%dT%H:%M:%S%z")
        fields = record(event)
        try:
            append_text(path, json.dumps({"time": now, **fields}) + "\n")
            if isinstance(event, Started):
                self._summarise({"status": "running", "started": now, **fields})
            elif isinstance(event, Judged):
                self._summarise({"trusted": not event.reasons, "reasons": list(event.reasons)})
            elif isinstance(event, Ended):
                self._summarise({**fields, "ended": now})
        except OSError as error:  # a full disk ends the run at its next output, not at a line of the log
            self._listener(Warned(f"{path}: {error.strerror}"))
        self._listener(event)

    def _summarise(self, fields: dict[str, Any]) -> None:
        self._summary |= {name: value for name, value in fields.items() if name not in ("event", "folder")}
        _write(self._folder / _RUN, (json.dumps(self._summary, indent=1) + "\n").encode())
