"""The manifest of a run: names of the files in the folder that belong to it.

Functions raise ValueError for a folder that is not one of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmwd_dist._files import exists, message, read_text, remove, temporary, write_text
from pmwd_dist.io import checkpoint
from pmwd_dist.run.common.fingerprint import Identity

NAME = "manifest.json"


def create(folder: Path, run: Identity, names: Iterable[str]) -> None:
    """Write the manifest of a new run, with the names of its first files."""
    _write(folder, run, [])
    claim(folder, names)


def identity(folder: Path) -> Identity:
    """The identity of the run to which a folder belongs."""
    return dict(_read(folder)["run"])


def files(folder: Path) -> list[str]:
    """Names of the files and checkpoints of the run to which a folder belongs."""
    return list(_read(folder)["files"])


def claim(folder: Path, names: Iterable[str]) -> None:
    """Add names of files before the run writes them; FileExistsError if one belongs to somebody else."""
    own, wanted = files(folder), list(names)
    check_free(folder, wanted)
    if not set(wanted) <= set(own):
        gone = {path.name for path in checkpoints(folder) if not (exists(path) or exists(temporary(path)))}
        _write(folder, identity(folder), sorted({*own} - gone | {*wanted}))


def forget(folder: Path, planned: Iterable[str]) -> None:
    """Remove names without a file that this start doesn't plan: outputs that an earlier one did not write."""
    own = files(folder)
    gone = {name for name in own if not (exists(folder / name) or name.startswith("checkpoint_"))} - {*planned}
    for name in gone:
        remove(temporary(folder / name))
    if gone:
        _write(folder, identity(folder), [name for name in own if name not in gone])


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Raise FileExistsError unless each of these names is free or belongs to the run."""
    own = files(folder)
    for name in names:
        if name not in own and exists(folder / name):
            raise FileExistsError(17, "is in the way, and not a file of this run; move it", str(folder / name))


def remove_files(folder: Path) -> None:
    """Remove all files of a run, its manifest last; other files stay."""
    for name in files(folder):
        for path in (folder / name, temporary(folder / name)):
            if name.startswith("checkpoint_"):
                checkpoint.discard(path)
            else:
                remove(path)
    remove(folder / NAME)


def checkpoints(folder: Path) -> list[Path]:
    """Paths of finished and unfinished checkpoints."""
    return [folder / name for name in files(folder) if name.startswith("checkpoint_")]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        content = json.loads(read_text(path, own=True))
        names = content["files"]
        if isinstance(content["run"], dict) and isinstance(names, list) and all(map(_is_name, names)):
            return dict(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{folder}: not the folder of a run, it has no {NAME}") from error
    except OSError as error:
        raise ValueError(f"{message(error)}; start a new run in another folder") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path}: damaged; start a new run in another folder")


def _is_name(name: str) -> bool:
    return name not in ("", "..") and Path(name).name == name and "\0" not in name


def _write(folder: Path, run: Identity, names: list[str]) -> None:
    write_text(folder / NAME, json.dumps({"run": run, "files": names}, indent=1) + "\n")
