"""Text files of linear power spectra."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import read_text
from pmwd_dist.cosmology.linear_power import TRANSFERS
from pmwd_dist.pm.modes import check_table, wavenumber_range
from pmwd_dist.run.settings.simulation_sections import Box
from pmwd_dist.run.settings.writing import one_line, printable

_EXPONENT = re.compile(r"(?<=[0-9.])[dD](?=[+-]?[0-9])")


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read k [h/Mpc] and P(k) [(Mpc/h)^3] from the first two columns of a text file; # starts a comment.

    Columns are separated by blanks or, in all lines, by commas; exponents may be Fortran's, 1.0D-3.

    Raises:
      OSError: the file can't be read, or is no regular file of 64 MB or less.
      ArgumentError: the file doesn't hold two columns of numbers.
    """

    def wrong(constraint: str) -> ArgumentError:
        return ArgumentError("linear_power", str(path), constraint)

    try:
        lines = _lines(read_text(path))
    except UnicodeDecodeError:
        raise wrong("is not a text file") from None
    if not lines:
        raise wrong("holds no data")
    try:
        table = np.loadtxt(lines, ndmin=2, delimiter="," if "," in lines[0] else None)
    except ValueError as error:
        raise wrong(f"doesn't hold numbers only: {one_line(error)}") from None
    if table.shape[1] < 2:
        raise wrong(f"has {table.shape[1]} column; k [h/Mpc] and P(k) [(Mpc/h)^3] are needed")
    return table[:, 0], table[:, 1]


def _lines(text: str) -> list[str]:
    """The lines that hold data, without comments, with exponents as Python writes them."""
    lines = (_EXPONENT.sub("e", line.split("#", 1)[0]).strip() for line in text.splitlines())
    return [line for line in lines if line]


def find_table_problems(file: str, box: Box) -> list[str]:
    """Problems of a table for this box."""
    prefix = f'cosmology.linear_power = "{printable(file)}": '
    low, high = wavenumber_range(box.particles or box.mesh, box.size)
    try:
        k, power = read_table(Path(file))
        check_table(k, power, low, high)
    except FileNotFoundError:
        return [f"{prefix}no such file; give a path relative to the TOML file, or a name: {', '.join(TRANSFERS)}"]
    except OSError as error:
        return [f"{prefix}can't be read: {error.strerror}"]
    except ArgumentError as error:
        return [prefix + error.reason]
    except ValueError as error:
        return [f"{prefix}can't be read: {one_line(error)}"]
    return []
