"""Tables of observables: columns with names and units, as CSV files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmwd_dist._files import atomic_write, read_text


@dataclass(frozen=True)
class Table:
    """Columns of numbers."""

    title: str  # of the table and its figure; may be empty
    columns: dict[str, np.ndarray]  # of one length, in order
    units: dict[str, str]  # by name of the column; columns without a unit are absent
    note: str = ""  # explanation of columns, which is written but not read

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]


def write_table(path: Path, table: Table) -> None:
    """Write a table as CSV: comments with its title and note, if any, a row of names and units, rows of numbers."""
    names = [f"{name} [{table.units[name]}]" if name in table.units else name for name in table.columns]
    header = "".join(f"# {text}\n" for text in (table.title, table.note) if text) + ",".join(names)
    rows = np.stack(list(table.columns.values()), -1)
    with atomic_write(path) as aside:
        np.savetxt(aside, rows, delimiter=",", header=header, comments="", fmt="%.7e")


def read_table(path: Path) -> Table:
    """Read a table from its CSV file; ValueError if it does not hold one, OSError if it can't be read."""
    try:
        text = read_text(path, own=True)
        names, *lines = text.splitlines()
        if not text.endswith("\n"):
            raise ValueError("its end is missing")
        title = ""
        if names.startswith("# "):
            title, (names, *lines) = names[2:], [line for line in lines if not line.startswith("# ")]
        found = [re.fullmatch(r"([^\[\]]+?)(?: \[(.*)\])?", name) for name in names.split(",")]
        pairs = [(match.group(1), match.group(2)) for match in found if match]
        if not any(map(str.strip, lines)):
            raise ValueError("it has no rows")
        values = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None).T
        columns = dict(zip((name for name, _ in pairs), values, strict=True))
    except ValueError as error:
        raise ValueError(f"{path}: not a table of this program ({' '.join(str(error).split())})") from error
    return Table(title, columns, {name: unit for name, unit in pairs if unit})
