"""The files of a snapshot: one, or a set with an index in each name."""

from __future__ import annotations

import re
from pathlib import Path

from pmwd_dist.io.snapshot.content import opened
from pmwd_dist.io.snapshot.header import number_of_files

_ENDINGS = (".hdf5", ".h5")


def snapshot_files(path: Path) -> list[Path]:
    """All files of the snapshot to which this path belongs.

    Args:
      path: a file, any of a set (name.0.hdf5), the common name of a set, with or without its ending, or a folder that
        holds one snapshot.

    Raises:
      ValueError: a folder holds several snapshots, or a file is not a snapshot.
      OSError: the snapshot, or one of its files, is missing.
    """
    first = _in_folder(path) if path.is_dir() else _named(path)
    with opened(first) as file:
        count = number_of_files(file)
    if count == 1:
        return [first]
    stem = _common(first.stem)
    files: list[Path] = []
    while len(files) < count:  # a wrong number ends at the first file that is missing
        files.append(first.with_name(f"{stem}.{len(files)}{first.suffix}"))
        if not files[-1].exists():
            raise FileNotFoundError(2, f"the snapshot has {count} files, and one is missing", str(files[-1]))
    return files


def _named(path: Path) -> Path:
    """A file with this name, or the first of a set."""
    names = [path.name, f"{path.stem}.0{path.suffix}"]
    names += [f"{path.name}{number}{ending}" for number in ("", ".0") for ending in _ENDINGS]
    for name in names:
        if (file := path.with_name(name)).exists():
            return file
    raise FileNotFoundError(2, "no such snapshot", str(path))


def _in_folder(folder: Path) -> Path:
    """The file, or the first of the set, that a folder holds."""
    names = {path.name for path in folder.iterdir() if path.suffix in _ENDINGS}
    first: dict[str, str] = {}
    for name in sorted(names):
        path = Path(name)
        zeroth = f"{_common(path.stem)}.0{path.suffix}"
        found = zeroth if zeroth in names else f"{path.stem}.0{path.suffix}"
        first.setdefault(found, found if found in names else name)
    if not first:
        raise FileNotFoundError(2, f"no snapshot (*{', *'.join(_ENDINGS)}) in this folder", str(folder))
    if len(first) > 1:
        some = ", ".join(sorted(first.values())[:4]) + (", ..." if len(first) > 4 else "")
        raise ValueError(f"{folder}: holds {len(first)} snapshots, {some}: pass one of them")
    return folder / next(iter(first.values()))


def _common(stem: str) -> str:
    """The common name of a set, from the name of one of its files."""
    return re.sub(r"\.\d+$", "", stem)
