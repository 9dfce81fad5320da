"""Fields of a run that are divided over devices, as HDF5 files of process 0."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pmwd_dist._files import atomic_write
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes


class Field(NamedTuple):
    """A field to write.

    Args:
      values: values on any devices.
      axis: an axis that is not divided over devices.
      about: attributes of the dataset.
    """

    values: Array
    axis: int
    about: dict[str, Any]


def write_fields(path: Path, fields: dict[str, Field], about: dict[str, Any]) -> None:
    """Write fields as datasets of one file, with attributes of the file. Collective.

    Process 0 holds all of them in the memory of the host.
    """
    arrays = {name: _on_host(field.values, field.axis) for name, field in fields.items()}
    with raise_on_all_processes():
        if distributed.is_main():
            with atomic_write(path) as aside, h5py.File(aside, "w") as file:
                file.attrs.update(about)
                for name, values in arrays.items():
                    file.create_dataset(name, data=values).attrs.update(fields[name].about)


def _on_host(values: Array, axis: int) -> np.ndarray:
    """A whole field on process 0; each device holds a plane of it at a time."""
    sharding = values.sharding
    if values.is_fully_addressable or not isinstance(sharding, NamedSharding):
        return np.asarray(values)
    planes: list[np.ndarray] = []
    for i in range(values.shape[axis]):
        plane = np.asarray(_plane(values, i, axis=axis, mesh=sharding.mesh))
        planes += [plane] if distributed.is_main() else []
    return np.stack(planes, axis) if planes else np.zeros(())


@partial(jax.jit, static_argnames=("axis", "mesh"))
def _plane(values: Array, index: int, *, axis: int, mesh: Mesh | AbstractMesh) -> Array:
    """A plane of a field, on every device."""
    plane = jax.lax.dynamic_index_in_dim(values, index, axis, keepdims=False)
    return jax.lax.with_sharding_constraint(plane, NamedSharding(mesh, PartitionSpec()))
