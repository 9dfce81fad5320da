"""Arrays of the particles in the files of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import content, units
from pmwd_dist.io.snapshot.content import GROUP, Dataset, File, Malformed, opened
from pmwd_dist.io.snapshot.header import SnapshotHeader, has_lattice, read_counts
from pmwd_dist.io.snapshot.units import Quantity

POSITIONS, VELOCITIES, MASSES, IDS = ("Coordinates",), ("Velocities", "Velocity"), ("Masses", "Mass"), ("ParticleIDs",)
Names = tuple[str, ...]  # names of one array in different codes

CHUNK = 1 << 21  # particles read at a time


def count_of(file: File, kind: int) -> int:
    """Number of particles of a type in this file."""
    counts = read_counts(file, "NumPart_ThisFile")
    return counts[kind] if kind < len(counts) else 0


def has_array(file: File, kind: int, names: Names) -> bool:
    """Whether a file has an array of particles of a type."""
    if not content.has(file, f"PartType{kind}"):
        return False
    group = content.member(file, f"PartType{kind}", GROUP)
    return any(content.has(group, name) for name in names)


def array_of(file: File, kind: int, names: Names) -> Dataset:
    """The array of particles of a type."""
    group: Any = content.member(file, f"PartType{kind}", GROUP)
    name = next((name for name in names if content.has(group, name)), names[0])
    if names is IDS:
        return content.array(group, name, "iu", None)
    return content.array(group, name, "f", None if names is MASSES else 3)


def check_arrays(files: Sequence[Path], header: SnapshotHeader, kind: int, wanted: Sequence[Names]) -> None:
    """Raise ValueError unless arrays of a type are as long as the headers say, in each file and in total."""
    total = 0
    for path in files:
        with opened(path) as file:
            total += _check_file(file, kind, wanted)
    if total != header.counts[kind]:
        expected = header.counts[kind]
        raise ValueError(
            f"{files[0]}: the snapshot holds {total} particles of type {kind}, and by its header {expected}"
        )


def _check_file(file: File, kind: int, wanted: Sequence[Names]) -> int:
    """Number of particles of a type in a file; the group may be missing where there are none."""
    expected = count_of(file, kind)
    if expected == 0 and not content.has(file, f"PartType{kind}"):
        return 0
    names = [*wanted, IDS] if kind == 1 and has_lattice(file) else wanted
    counts = {names[0]: len(array_of(file, kind, names)) for names in names}
    counts["Header:NumPart_ThisFile"] = expected
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise Malformed(f"has different numbers of particles: {found}")
    return expected


def scale_of(
    quantity: Quantity, file: File, header: SnapshotHeader, data: Dataset | None = None, length_unit: str | None = None
) -> float:
    """Factor from the unit of an array, or of numbers in the header, to the unit of this package."""
    unit = (units.length_unit(length_unit) if quantity == "length" else None) or units.find_unit(
        quantity, file, header.h, header.a, data
    )
    return units.factor(unit, quantity, header.h, header.a)


def scaled_rows(data: Dataset, low: int, scale: float) -> np.ndarray:
    """Rows of an array from `low` on, at most CHUNK of them, in double precision, times a factor."""
    with np.errstate(all="ignore"):  # the next lines find values that are not finite
        values = content.rows(data, low, low + CHUNK).astype(float) * scale
    if not (np.abs(values) < np.finfo(np.float32).max).all():
        raise Malformed(f"holds {content.path_of(data)} that are not finite")
    return values


def check_box(header: SnapshotHeader, config: Config) -> None:
    """Raise ValueError unless a config has the box of a snapshot."""
    if not np.allclose(header.box_size, config.box_size, rtol=1e-5):
        raise ArgumentError("box_size", config.box_size, f"is not that of the snapshot, {header.box_size}")


def check_positions(values: np.ndarray, header: SnapshotHeader) -> None:
    """Raise Malformed for positions more than a side of the box outside of it."""
    sides = np.asarray(header.box_size)
    if not ((values >= -sides) & (values <= 2 * sides)).all():
        raise Malformed(f"holds Coordinates far beyond its box of {header.box_size} Mpc/h")
