"""A table of settings: a TOML file, and a CSV file whose columns are keys of it."""

from __future__ import annotations

import copy
import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pmwd_dist._files import message, read_text
from pmwd_dist.run.settings.reading import SettingsError, kind_of, load_tree, read_tree
from pmwd_dist.run.settings.simulation import SimulationSettings
from pmwd_dist.run.settings.writing import Raw, printable, shown

_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class SettingsTable:
    """Settings of many simulations."""

    columns: tuple[str, ...]  # keys that the rows set, such as "noise.seed"
    cells: tuple[tuple[str, ...], ...]  # their values in each row, as text
    rows: tuple[SimulationSettings, ...]  # settings of each row

    def text(self) -> str:
        """The table as CSV, with absolute paths of files."""
        values = [row.values() for row in self.rows]
        lines = [
            [x if isinstance(x := value[key], str) else cell for key, cell in zip(self.columns, cells, strict=True)]
            for value, cells in zip(values, self.cells, strict=True)
        ]
        csv.writer(content := io.StringIO(), lineterminator="\n").writerows([self.columns, *lines])
        return content.getvalue()


def read_settings_table(
    file: Path, table: Path, overrides: Sequence[str] = (), *, replace: bool = False
) -> SettingsTable:
    """Read the settings of the rows of a CSV table, whose first line has keys of a TOML file. Figures are off.

    Overrides are values of other keys, or with `replace` of keys of the table, too. Raises SettingsError with problems
    of the columns, or of the rows, each once, with its first row and its key.
    """
    columns, lines = _cells(table)
    both = [text for text in overrides if text.partition("=")[0].strip() in columns]
    if both and not replace:
        raise SettingsError([f"--set {shown(Raw(text))}: is a column of {table}, too" for text in both])
    tree, rows, problems = load_tree(file), list[SimulationSettings](), dict[str, str]()
    if kind_of(tree) is not SimulationSettings:
        raise SettingsError([f"{file}: has the sections of an inference; rows are simulations"])
    for i, (line, cells) in enumerate(lines):
        values = [f"{key}={_toml(cell)}" for key, cell in zip(columns, cells, strict=True)]
        try:
            own = copy.deepcopy(tree)
            rows.append(read_tree(SimulationSettings, own, file, [*values, *overrides, "output.figures=false"]))
        except SettingsError as error:
            for text in error.problems:
                problems.setdefault(text, f"{table}, row {i} (line {line}): {text.removeprefix('--set ')}")
    if problems:
        raise SettingsError(list(problems.values())[:_MOST_PROBLEMS])
    return SettingsTable(columns, tuple(cells for _, cells in lines), tuple(rows))


def _cells(path: Path) -> tuple[tuple[str, ...], list[tuple[int, tuple[str, ...]]]]:
    """Columns of a table, and number of the line and cells of each row; SettingsError if they are none."""
    try:
        reader = csv.reader(io.StringIO(read_text(path, pipe=True)), skipinitialspace=True, strict=True)
        lines = [(reader.line_num, tuple(map(str.strip, cells))) for cells in reader if any(map(str.strip, cells))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = "not a text file" if isinstance(error, UnicodeDecodeError) else message(error)
        raise SettingsError([reason if str(path) in reason else f"{path}: {reason}"]) from error
    if not lines:
        raise SettingsError([f"{path}: holds no table; its first line must have keys, such as noise.seed"])
    (_, columns), *rows = lines
    columns = (columns[0].lstrip("# "), *columns[1:])  # a comment, as numpy.savetxt writes it
    problems = [text for key in dict.fromkeys(columns) if (text := _column_problem(key, columns)) is not None]
    for i, (line, cells) in enumerate(rows):
        where, empty = f"row {i} (line {line})", [key for key, cell in zip(columns, cells, strict=False) if not cell]
        if len(cells) != len(columns):
            problems.append(f"{where}: has {len(cells)} cells, not {len(columns)}; write lists in quotes")
        problems += [f"{where}: {key} is empty; write a value" for key in empty]
    if problems := problems or ([] if rows else ["has no rows below its columns"]):
        raise SettingsError([f"{path}: {text}" for text in problems[:_MOST_PROBLEMS]])
    return columns, rows


def _column_problem(key: str, columns: Sequence[str]) -> str | None:
    keys = [f"{name}.{field}" for name, model in SimulationSettings.sections.items() for field in model.model_fields]
    if key not in keys:
        if {";", "\t"} & {*key}:
            return f"column {shown(Raw(key))}: is several; separate columns by commas"
        near = difflib.get_close_matches(key, keys, 1, 0.6)
        remedy = f"did you mean {near[0]}?" if near else "`pmwd-dist template` lists all, such as noise.seed"
        return f"column {shown(Raw(key))}: no key of a simulation; {remedy}"
    if columns.count(key) > 1:
        return f"column {key}: there are {columns.count(key)} of this name"
    return f"column {key}: rows draw no figures; `pmwd-dist report` draws them" if key == "output.figures" else None


def _toml(text: str) -> str:
    """A cell as TOML: .5 as 0.5, whole numbers without the decimals of numpy.savetxt, and True and False of pandas."""
    try:
        value = float(text)
    except ValueError:
        return text.lower() if text in ("True", "False") else printable(text)
    if not value.is_integer():
        return repr(value)
    return str(int(value)) if abs(value) < 1 << 53 else text
