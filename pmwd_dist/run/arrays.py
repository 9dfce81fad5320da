"""Arrays of files that settings name: .npy files, and data sets of HDF5 files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from pmwd_dist._files import message
from pmwd_dist.run.settings.writing import toml_value


def read_files(files: Mapping[str, str], mesh: tuple[int, ...] | None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays of the shape of the mesh, if one is given, by the keys of their files, and problems, one line each."""
    arrays: dict[str, np.ndarray] = {}
    problems: list[str] = []
    for key, value in files.items():
        try:
            arrays[key] = read_array(value)
        except OSError as error:
            problems.append(f"{key} = {toml_value(value)}: {error.strerror or 'not readable'}")
            del error
        except (ValueError, KeyError, EOFError) as error:
            problems.append(f"{key} = {toml_value(value)}: {' '.join(str(error).split())}")
        else:
            if mesh is not None and arrays[key].shape != mesh:
                shape, cells = list(arrays[key].shape), list(mesh)
                problems.append(f"{key} = {toml_value(value)}: has the shape {shape}, and box.mesh is {cells}")
    return arrays, problems


def read_array(name: str) -> np.ndarray:
    """Numbers of an .npy file, or of a data set of an HDF5 file, "file.h5:/dataset".

    Raises:
      OSError: the file can't be read.
      ValueError: it holds something else.
    """
    file, colon, dataset = name.rpartition(":")
    if colon and not name.endswith(".npy"):
        try:
            with h5py.File(file, "r") as source:
                item: Any = source.get(dataset, None)
                if item is None or not hasattr(item, "dtype"):
                    raise ValueError(f"holds no data set {dataset}; it has {', '.join(source) or 'none'}")
                values = np.asarray(item[()])
        except OSError as error:
            raise ValueError(message(error) if error.strerror else "is no HDF5 file") from error
    else:
        if not name.endswith(".npy"):
            raise ValueError('must end with .npy, or name a data set, as in "survey.h5:/counts"')
        values = np.load(name, allow_pickle=False)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"holds {values.dtype}, no real numbers")
    return values.astype(float)
