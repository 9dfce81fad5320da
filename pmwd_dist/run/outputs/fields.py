"""Fields of a run that are divided over devices, as HDF5 files of process 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
from jax import Array

from pmwd_dist._files import atomic_write
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import gather, raise_on_all_processes


def write_fields(path: Path, fields: Mapping[str, tuple[Array, dict[str, Any]]], about: dict[str, Any]) -> None:
    """Write fields, each with attributes, as datasets of one file, which has attributes of its own. Collective.

    Process 0 holds all of them in the memory of the host.
    """
    arrays = {name: (gather(values), attributes) for name, (values, attributes) in fields.items()}
    with raise_on_all_processes():
        if distributed.is_main():
            with atomic_write(path) as aside, h5py.File(aside, "w", locking=False) as file:
                file.attrs.update(about)
                for name, (values, attributes) in arrays.items():
                    file.create_dataset(name, data=values).attrs.update(attributes)
