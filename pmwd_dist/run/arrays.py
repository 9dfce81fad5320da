"""Arrays of files that settings name: .npy files, arrays of zarr stores, and data sets of HDF5 files."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
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
    """Numbers of an .npy file, of an array of a zarr store, or of a data set of an HDF5 file, "file.h5:/dataset".

    Raises:
      OSError: the file can't be read.
      ValueError: it holds something else, or zarr is not installed.
    """
    file, colon, dataset = name.rpartition(":")
    if name.endswith(".npy"):
        values = np.load(name, allow_pickle=False)
    elif store := re.fullmatch(r"(.*\.zarr)/?(?::(.*))?", name):
        values = _of_zarr(store[1], (store[2] or "").strip("/"))
    elif colon:
        values = _of_hdf5(file, dataset)
    else:
        raise ValueError('must end with .npy or .zarr, or name a data set, as in "survey.h5:/counts"')
    if values.dtype.kind not in "biuf":
        raise ValueError(f"holds {values.dtype}, no real numbers")
    return values.astype(float)


def _of_hdf5(file: str, dataset: str) -> np.ndarray:
    try:
        with h5py.File(file, "r") as source:
            item: Any = source.get(dataset, None)
            if item is None or not hasattr(item, "dtype"):
                raise ValueError(f"holds no data set {dataset}; it has {', '.join(source) or 'none'}")
            return np.asarray(item[()])
    except OSError as error:
        raise ValueError(message(error) if error.strerror else "is no HDF5 file") from error


def _of_zarr(store: str, array: str) -> np.ndarray:
    try:
        import zarr
    except ImportError as error:
        raise ValueError("zarr is not installed, which reads it; `pip install 'pmwd-dist[zarr]'`") from error
    if not Path(store).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        whole: Any = zarr.open(store, mode="r")
        if not isinstance(whole, zarr.Group):
            item = None if array else whole
            there: list[str] = []
        else:
            item, there = whole.get(array) if array else None, sorted(whole.keys())
        values = None if item is None or isinstance(item, zarr.Group) else np.asarray(item[...])
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise ValueError(f"is no zarr store, or damaged: {error}") from error
    if values is None:
        remedy = f"it has {', '.join(there)}" if there else "leave its name out" if array else "it is empty"
        raise ValueError(f"holds no array {array}; {remedy}" if array else f"is a group; name an array; {remedy}")
    return values
