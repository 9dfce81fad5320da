"""Rows of arrays on the host, such as particles, brought to the processes that own their places in the box."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.division import Division


class Places:
    """Owners of the places of a periodic box: the process with the block of a field there.

    Args:
      division: division of a field over devices.
      sides: sides of the box [Mpc/h].
    """

    def __init__(self, division: Division, sides: Sequence[float]):
        self.sides, self.parts = np.asarray(sides, float), division.pdims
        shape = (*division.pdims, 1)
        self.owners = np.full(division.pdims, jax.process_count())
        sharding = NamedSharding(division.mesh, PartitionSpec(division.x_names or None, division.y_names or None))
        for device, index in sharding.devices_indices_map(shape).items():
            block = tuple(i.start or 0 for i in index[:2])
            self.owners[block] = min(self.owners[block], device.process_index)

    def owner(self, x: np.ndarray) -> np.ndarray:
        """Process that owns each position, shape (positions, 3) [Mpc/h]."""
        i, j = (self._scaled(x, axis).astype(np.int64) for axis in (0, 1))
        return self.owners[np.minimum(i, self.parts[0] - 1), np.minimum(j, self.parts[1] - 1)]

    def near(self, x: np.ndarray, reach: float) -> np.ndarray:
        """Whether each process owns a place within `reach` [Mpc/h] of each position, shape (processes, positions)."""
        along = [[self._is_near(x, axis, i, reach) for i in range(self.parts[axis])] for axis in (0, 1)]
        found = np.zeros((jax.process_count(), len(x)), bool)
        for (i, j), owner in np.ndenumerate(self.owners):
            found[owner] |= along[0][i] & along[1][j]
        return found

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Differences of positions to the nearest images, shape (differences, 3) [Mpc/h]."""
        return x - self.sides * np.rint(x / self.sides)

    def _scaled(self, x: np.ndarray, axis: int) -> np.ndarray:
        return x[:, axis] * (self.parts[axis] / self.sides[axis])

    def _is_near(self, x: np.ndarray, axis: int, block: int, reach: float) -> np.ndarray:
        """Whether positions are in a block along an axis, or near it; periodic, and generous by the rounding."""
        margin, parts = reach * (self.parts[axis] / self.sides[axis]) * (1 + 1e-6) + 1e-9, self.parts[axis]
        behind = (self._scaled(x, axis) - block) % parts
        return (behind <= 1 + margin) | (behind >= parts - margin)


def send_rows(rows: NDArray[np.void], wanted: np.ndarray) -> NDArray[np.void]:
    """Rows that all processes have for this one, in the order of the processes. Collective.

    Each process holds, beside the rows, blocks of the most rows that any process has for another one.

    Args:
      rows: array with one axis, of a structured type of 4-byte words.
      wanted: whether each process gets each row, shape (processes, rows).
    """
    if jax.process_count() == 1:
        return rows[wanted[0]]
    me, count = jax.process_index(), jax.process_count()
    own, wanted = rows[wanted[me]], wanted & (np.arange(count) != me)[:, None]
    numbers = distributed.all_rows(wanted.sum(1, dtype=np.int32)[None])
    blocks = np.zeros((count, numbers.max(), rows.dtype.itemsize // 4), np.int32)
    for block, mask in zip(blocks, wanted, strict=True):
        block[: mask.sum()] = rows[mask].view(np.int32).reshape(-1, blocks.shape[2])
    devices = [next(d for d in jax.devices() if d.process_index == i) for i in range(count)]
    mesh = Mesh(np.asarray(devices), "process")
    by_sender, by_receiver = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["process"], [None, "process"]))
    sent = jax.make_array_from_process_local_data(by_sender, blocks[None])
    with distributed.connection_errors():
        received = np.asarray(jax.device_put(sent, by_receiver).addressable_shards[0].data)[:, 0]
    parts = [block[:n].reshape(-1).view(rows.dtype) for block, n in zip(received, numbers[:, me], strict=True)]
    parts[me] = own
    return np.concatenate(parts)
