"""Fields of a run that are divided over devices, as HDF5 files of process 0."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from pmwd_dist._files import atomic_write
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes


@dataclass(frozen=True)
class Field:
    """A field to write.

    Args:
      values: on any devices.
      axis: one that is not divided over devices, along which it is written piece by piece.
      size: entries of a piece along that axis.
      about: attributes of the dataset.
    """

    values: Array
    axis: int
    size: int
    about: dict[str, Any]


def write_fields(path: Path, fields: dict[str, Field], about: dict[str, Any]) -> None:
    """Write fields as datasets of one file, with attributes of the file. Collective.

    Each device holds one piece of one field at a time.

    Raises:
      OSError, SharedError: the file can't be written.
    """
    with ExitStack() as stack:
        datasets: dict[str, Any] = {}
        with raise_on_all_processes():
            if distributed.is_main():
                file = stack.enter_context(_file(path))
                file.attrs.update(about)
                for name, field in fields.items():
                    datasets[name] = file.create_dataset(name, field.values.shape, field.values.dtype)
                    datasets[name].attrs.update(field.about)
        errors: list[OSError] = []
        for name, field in fields.items():
            for place, piece in _pieces(field):
                try:
                    if datasets and not errors:
                        datasets[name][place] = piece
                except OSError as error:
                    errors.append(error)  # the other processes go on with the pieces, and so must this one
        with raise_on_all_processes():
            if errors:
                raise errors[0]
            stack.close()


@contextmanager
def _file(path: Path) -> Generator[Any]:
    with atomic_write(path) as aside, h5py.File(aside, "w") as file:
        yield file


def _pieces(field: Field) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    count, sharding = field.values.shape[field.axis], field.values.sharding
    size = min(field.size, count)
    whole = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
    for first in range(0, count, size):
        start = min(first, count - size)  # the last one may repeat some of the one before
        place = [slice(None)] * field.values.ndim
        place[field.axis] = slice(start, start + size)
        yield tuple(place), np.asarray(_piece(field.values, start, axis=field.axis, size=size, whole=whole))


@partial(jax.jit, static_argnames=("axis", "size", "whole"))
def _piece(values: Array, start: int, *, axis: int, size: int, whole: NamedSharding | None) -> Array:
    """A piece of a field, on every device."""
    piece = jax.lax.dynamic_slice_in_dim(values, start, size, axis)
    return piece if whole is None else jax.lax.with_sharding_constraint(piece, whole)
