"""The lattice site of each particle of a snapshot: by its ID, by its place in the file, or by its position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.io.snapshot.header import SnapshotHeader
from pmwd_dist.io.snapshot.particles import CHUNK, IDS, ORDER, POSITIONS, Column, chunks, holds

FARTHEST = 0.25  # largest displacement of particles whose numbers follow a lattice [side of the box]


class Sites(NamedTuple):
    """Rule for the lattice sites of particles.

    Args:
      column: numbers of the particles along the lattice, IDS or ORDER; None to round positions to the nearest site.
      first: number of the first site.
      axes: axes of the lattice, the slowest one first.
      origin: position of the first site, for rounded positions [spacings of the lattice].
    """

    column: Column | None
    first: int = 0
    axes: tuple[int, ...] = (0, 1, 2)
    origin: tuple[float, ...] = (0.0, 0.0, 0.0)

    def of(self, numbers: np.ndarray, x: np.ndarray, config: Config) -> list[np.ndarray]:
        """Indices of the sites of particles with these numbers, or at positions x [Mpc/h]."""
        shape = config.particle_shape
        if self.column is None:
            nearest = np.rint(x * np.divide(shape, config.box_size) - self.origin).astype(np.int64)
            return list((nearest % shape).T)
        along = (numbers.astype(np.int64) - self.first) % math.prod(shape)
        index = np.unravel_index(along, [shape[axis] for axis in self.axes])
        return [index[self.axes.index(axis)] for axis in range(3)]


OWN = Sites(IDS)  # in snapshots of this package


def displacements(x: np.ndarray, sites: Sequence[np.ndarray], config: Config) -> np.ndarray:
    """Displacements from lattice sites to positions x in the periodic box [Mpc/h]; changes x."""
    for axis, (site, box, n) in enumerate(zip(sites, config.box_size, config.particle_shape, strict=True)):
        x[:, axis] -= site * (box / n)
        x[:, axis] -= box * np.rint(x[:, axis] / box)
    return x


def find_sites(files: Sequence[Path], header: SnapshotHeader, config: Config) -> Sites:
    """The rule that leaves small displacements: IDs before the order of the file, before rounded positions.

    IDs and places count from 0 or 1, along the axes in any order. They are tried on the first particles. A lattice
    beside ours has a mean displacement.
    """
    if header.indexed:
        return OWN
    numbers, x = _sample(files, header)
    for column, values in numbers.items():
        tried = [Sites(column, first, axes) for first in (0, 1) for axes in itertools.permutations(range(3))]
        moved = (displacements(x.copy(), sites.of(values, x, config), config) for sites in tried)
        shares = [float((np.abs(each - each.mean(0)) / config.box_size).max()) for each in moved]
        if min(shares) < FARTHEST:
            return tried[int(np.argmin(shares))]
    return Sites(None, origin=tuple((np.angle(_phases(x, config)) / (2 * math.pi)).tolist()))


def beside_mesh(files: Sequence[Path], header: SnapshotHeader, config: Config) -> float:
    """Largest distance of the lattice from mesh points along an axis [cells]; 0 where displacements hide it."""
    phases = _phases(_sample(files, header)[1], config)
    shift = np.angle(phases) / (2 * math.pi) * np.divide(config.mesh_shape, config.particle_shape)
    return float(np.where(np.abs(phases) > 0.5, np.abs(shift - np.rint(shift)), 0).max())


def _phases(x: np.ndarray, config: Config) -> np.ndarray:
    """Mean phases of waves with the spacing of the lattice, at positions x [Mpc/h]."""
    return np.exp(2j * math.pi * x * np.divide(config.particle_shape, config.box_size)).mean(0)


def _sample(files: Sequence[Path], header: SnapshotHeader) -> tuple[dict[Column, np.ndarray], np.ndarray]:
    """IDs, if there are any, and places of the first particles, and their positions [Mpc/h]."""
    columns = [IDS, ORDER] if holds(files, 1, IDS) else [ORDER]
    rows: list[list[np.ndarray]] = []
    for row in chunks(files, header, 1, (*columns, POSITIONS)):
        rows.append(row)
        if sum(len(x) for *_, x in rows) >= CHUNK:
            break
    *numbers, x = (np.concatenate(values) for values in zip(*rows, strict=True))
    return dict(zip(columns, numbers, strict=True)), x
