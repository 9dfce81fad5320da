"""Arrays of the particles in the files of a snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import open_regular
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import content, units
from pmwd_dist.io.snapshot.content import GROUP, Dataset, File, Malformed, opened
from pmwd_dist.io.snapshot.header import SnapshotHeader, read_counts, snapshot_files
from pmwd_dist.io.snapshot.units import Quantity
from pmwd_dist.parallel.distributed import exchange, raise_on_all_processes

CHUNK = 1 << 18  # particles read at a time
_BEGINNING = 1 << 20  # bytes of a file that are compared between processes


class Column(NamedTuple):
    """An array of particles: its names in different codes, kinds of types, values of a particle, and its quantity."""

    names: tuple[str, ...]
    kinds: str = "f"
    columns: int | None = 3
    quantity: Quantity | None = None


POSITIONS = Column(("Coordinates",), quantity="length")
VELOCITIES = Column(("Velocities", "Velocity"), quantity="velocity")
MASSES = Column(("Masses", "Mass"), columns=None, quantity="mass")
IDS = Column(("ParticleIDs",), "iu", None)  # in snapshots of this package, the sites of particles
ORDER = Column((), "iu", None)  # places of the particles among all, in the order of the files


def shared_files(path: Path) -> list[Path]:
    """Files of a snapshot as of `snapshot_files`, the same on all processes up to their first MiB. Collective."""
    digest = hashlib.sha256()
    with raise_on_all_processes():
        files = snapshot_files(path)
        for file in files:
            with open_regular(file) as stream:
                digest.update(stream.read(_BEGINNING))
    first, *others = exchange(digest.hexdigest())
    for i, other in enumerate(others, 1):
        if other != first:
            raise ValueError(f"{path}: is another file on process {i} than on process 0; use one that they share")
    return files


def count_of(file: File, kind: int) -> int:
    """Number of particles of a type in this file."""
    counts = read_counts(file, "NumPart_ThisFile")
    return counts[kind] if kind < len(counts) else 0


def has_array(file: File, kind: int, column: Column) -> bool:
    """Whether a file has an array of particles of a type."""
    if not content.has(file, f"PartType{kind}"):
        return False
    group = content.member(file, f"PartType{kind}", GROUP)
    return any(content.has(group, name) for name in column.names)


def holds(files: Sequence[Path], kind: int, column: Column) -> bool:
    """Whether any of the files has an array of particles of a type."""
    for path in files:
        with opened(path) as file:
            if has_array(file, kind, column):
                return True
    return False


def _array(file: File, kind: int, column: Column) -> Dataset:
    group = content.member(file, f"PartType{kind}", GROUP)
    name = next((name for name in column.names if content.has(group, name)), column.names[0])
    return content.array(group, name, column.kinds, column.columns)


def check_arrays(files: Sequence[Path], header: SnapshotHeader, kind: int, wanted: Sequence[Column]) -> None:
    """Raise ValueError unless arrays of a type are as long as the headers say, in each file and in total.

    A file of a set with the first and last hundred positions of another one is a copy, and refused.
    """
    total, of_ends = 0, dict[bytes, str]()
    for path in files:
        with opened(path) as file:
            expected = count_of(file, kind)
            if expected == 0 and not content.has(file, f"PartType{kind}"):
                continue
            columns = [*wanted, IDS] if kind == 1 and header.indexed else wanted
            counts = {column.names[0]: len(_array(file, kind, column)) for column in columns}
            counts["Header:NumPart_ThisFile"] = expected
            if len(set(counts.values())) > 1:
                found = ", ".join(f"{name} {count}" for name, count in counts.items())
                raise Malformed(f"has different numbers of particles: {found}")
            if expected and POSITIONS in wanted:
                positions = _array(file, kind, POSITIONS)
                ranges = (0, min(expected, 100)), (max(expected - 100, 0), expected)
                ends = b"".join(content.rows(positions, *x).tobytes() for x in ranges)
                if (other := of_ends.setdefault(ends, path.name)) != path.name:
                    raise Malformed(f"holds the same particles as {other}; put the part of this number in its place")
            total += expected
    if total != (count := header.counts[kind]):
        raise ValueError(f"{files[0]}: the snapshot holds {total} particles of type {kind}, and by its header {count}")


def chunks(
    files: Sequence[Path], header: SnapshotHeader, kind: int, wanted: Sequence[Column]
) -> Iterator[list[np.ndarray]]:
    """Rows of arrays of a type, at most CHUNK at a time, in comoving Mpc/h, peculiar km/s and 1e10 Msun/h."""
    before = 0
    for path in files:
        with opened(path) as file:
            count = count_of(file, kind)
            for low in range(0, count, CHUNK):
                high = min(low + CHUNK, count)
                yield [
                    np.arange(before + low, before + high)
                    if column is ORDER
                    else _rows(file, header, kind, column, slice(low, high))
                    for column in wanted
                ]
            before += count


def _rows(file: File, header: SnapshotHeader, kind: int, column: Column, part: slice) -> np.ndarray:
    data = _array(file, kind, column)
    values = content.rows(data, part.start, part.stop)
    if column.quantity is None:
        return values
    scale = header.length
    if column is not POSITIONS:
        unit = units.find_unit(column.quantity, file, header.h, header.a, data)
        scale = units.factor(unit, column.quantity, header.h, header.a)
    with np.errstate(all="ignore"):  # the next lines find values that are not finite
        values = values.astype(float) * scale
    if not (np.abs(values) < np.finfo(np.float32).max).all():
        raise Malformed(f"holds {content.path_of(data)} that are not finite")
    if column is MASSES and (values < 0).any():
        raise Malformed(f"holds masses of particles of type {kind} that are negative")
    sides = np.asarray(header.box_size)
    if column is POSITIONS and not ((values >= -sides) & (values <= 2 * sides)).all():
        raise Malformed(f"holds Coordinates far beyond its box of {header.box_size} Mpc/h")
    return values


def check_box(header: SnapshotHeader, config: Config) -> None:
    """Raise ValueError unless a config has the box of a snapshot."""
    if not np.allclose(header.box_size, config.box_size, rtol=1e-5):
        there = tuple(float(f"{side:.6g}") for side in header.box_size)
        raise ArgumentError("box_size", config.box_size, f"is not that of the snapshot, {there}")
