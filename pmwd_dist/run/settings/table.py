"""Text files with columns of numbers: linear power spectra, and redshift distributions."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import read_text
from pmwd_dist.cosmology.linear_power import TRANSFERS
from pmwd_dist.pm.modes import check_table, wavenumber_range
from pmwd_dist.run.settings.simulation_sections import Box
from pmwd_dist.run.settings.writing import one_line, printable, reason

_EXPONENT = re.compile(r"(?<=[0-9.])[dD](?=[+-]?[0-9])")


def read_table(
    path: Path, name: str = "linear_power", needed: str = "k [h/Mpc] and P(k) [(Mpc/h)^3]", column: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """Read the first column of a text file, and another, counted from 1; # starts a comment.

    Columns are separated by blanks or, in all lines, by commas; exponents may be Fortran's, 1.0D-3. Raises OSError if
    the file can't be read, and ArgumentError if it doesn't hold these columns of numbers, which `needed` describes.
    """

    def wrong(constraint: str) -> ArgumentError:
        return ArgumentError(name, str(path), constraint)

    try:
        # Lines that hold data, without comments, with exponents as Python writes them.
        plain = (_EXPONENT.sub("e", line.split("#", 1)[0]).strip() for line in read_text(path).splitlines())
        lines = [line for line in plain if line]
    except UnicodeDecodeError:
        raise wrong("is not a text file") from None
    if not lines:
        raise wrong("holds no data")
    try:
        table = np.loadtxt(lines, ndmin=2, delimiter="," if "," in lines[0] else None)
    except ValueError as error:
        raise wrong(f"doesn't hold numbers only: {one_line(error)}") from None
    if (count := table.shape[1]) < column:
        raise wrong(f"has {count} column{'s' * (count > 1)}; {needed} are needed")
    return table[:, 0], table[:, column - 1]


def find_table_problems(file: str, box: Box) -> list[str]:
    """Problems of a table for this box."""
    low, high = wavenumber_range(box.particles or box.mesh, box.size)
    try:
        k, power = read_table(Path(file))
        check_table(k, power, low, high)
    except (OSError, ValueError) as error:
        names = f", or a name: {', '.join(TRANSFERS)}" if isinstance(error, FileNotFoundError) else ""
        return [f'cosmology.linear_power = "{printable(file)}": {reason(error)}{names}']
    return []
