"""The folder of a run: its configuration, its log, and whether it is finished."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pmwd_dist._files import atomic_write, remove
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.run.events import Ended, Event, Listener, Started, Warned, record
from pmwd_dist.run.plan import Plan
from pmwd_dist.run.settings import Settings, to_toml

CONFIG = "config.toml"
_RUN, _LOG, _TABLE = "run.json", "log.jsonl", "linear_power.txt"
_RESULTS = ("power.png", "power_z*.csv", "density_z*", "snapshot_z*", "checkpoint_*", ".*.part")


def prepare_folder(plan: Plan, *, overwrite: bool = False) -> None:
    """Make the output folder and write the configuration into it. Collective.

    Args:
      plan: of the run.
      overwrite: remove the results of an earlier run; other files stay.

    Raises:
      ValueError: the folder is not empty, and overwrite is False.
      OSError: the folder or a file can't be written.
      SharedError: one of these, where there are several processes.
    """
    with raise_on_all_processes():
        if distributed.is_main():
            _check_folder(plan.folder, overwrite=overwrite)
            _write_config(plan.folder, plan.settings)


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; choose another --output")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"{folder}: not empty; use --overwrite, another --output, or `pmwd-dist resume {folder}`")


def _write_config(folder: Path, settings: Settings) -> None:
    """Write the settings, and the table of P(k) if they name one, in place of what an earlier run left."""
    table = settings.cosmology.linear_power
    content = None if table is None else Path(table).read_bytes()  # perhaps the table of the earlier run
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in (CONFIG, _RUN, _LOG, _TABLE, *_RESULTS):
        for path in folder.glob(pattern):
            remove(path)
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
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: not the folder of a run, it has no {CONFIG}")
    try:
        return bool(json.loads((folder / _RUN).read_text(encoding="utf-8"))["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False  # it was stopped before it wrote a whole one


class Log:
    """Calls the listener with each event and appends it to log.jsonl; run.json holds the first and the last."""

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
            with path.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"time": now, **fields}) + "\n")
            if isinstance(event, Started):
                self._summarise({"status": "running", "started": now, **fields})
            elif isinstance(event, Ended):
                self._summarise({**fields, "ended": now})
        except OSError as error:  # a full disk ends the run at its next output, not at a line of the log
            self._listener(Warned(f"{path}: {error.strerror}"))
        self._listener(event)

    def _summarise(self, fields: dict[str, Any]) -> None:
        self._summary |= {name: value for name, value in fields.items() if name not in ("event", "folder")}
        _write(self._folder / _RUN, (json.dumps(self._summary, indent=1) + "\n").encode())
