"""Arrays of files that settings name: .npy files, and data sets of HDF5 files.

Anybody may have written these files: nothing is read before its type, shape and size are known.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pmwd_dist._files import open_regular
from pmwd_dist.io.snapshot import content
from pmwd_dist.observe.sources import mean_and_width
from pmwd_dist.run.settings import Settings, SettingsError
from pmwd_dist.run.settings.writing import reason, toml_value

NOISE = "noise.file"
_MOST_NAMES = 8  # names that a message lists
Shape = tuple[int, ...]


def read_files(files: Mapping[str, str], *shapes: Shape) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays by key, of one of these shapes (first box.mesh or the maps), and problems, one line each."""
    arrays: dict[str, np.ndarray] = {}
    problems: list[str] = []
    for key, value in files.items():
        try:
            arrays[key] = read_array(value, *shapes)
        except (OSError, ValueError) as error:
            problems.append(f"{key} = {toml_value(value)}: {reason(error)}")
    return arrays, problems


def read_noise(settings: Settings) -> dict[str, np.ndarray]:
    """White noise of a file, by its key; SettingsError if it can't be read, or its variance is not one."""
    if settings.noise.file is None:
        return {}
    box = settings.box
    arrays, problems = read_files({NOISE: settings.noise.file}, box.particles or box.mesh)
    problems = [text if box.particles is None else text.replace("box.mesh", "box.particles") for text in problems]
    for values in arrays.values():
        mean, variance = float(values.mean()), float(values.var())
        if not (abs(mean) < 0.5 and 0.5 < variance < 2):
            text = f"has mean {mean:.3g} and variance {variance:.3g}, and white noise has 0 and 1"
            problems.append(f"{NOISE} = {toml_value(settings.noise.file)}: {text}")
    if problems:
        raise SettingsError(problems)
    return arrays


def read_array(name: str, *shapes: Shape) -> np.ndarray:
    """Numbers of an .npy file, or of a data set of an HDF5 file, "file.h5:/dataset"; of any shape if none is given.

    Raises OSError if the file can't be read, and ValueError if it is damaged or holds something else.
    """
    file, colon, dataset = name.rpartition(":")
    if name.endswith(".npy"):
        return _of_npy(Path(name), shapes)
    if colon:
        return _of_hdf5(Path(file), dataset, shapes)
    raise ValueError('must end with .npy, or name a data set, as in "survey.h5:/counts"')


def facts_of(name: str) -> dict[str, Any]:
    """Box [Mpc/h], redshift or light cone, and window, of data that a run has written; else none.

    Sources have the mean of their redshifts, and its standard deviation, and counts the shares that their survey sees.
    """
    file, _, dataset = name.rpartition(":")
    if name.endswith(".npy"):
        return {}
    with suppress(OSError, ValueError, KeyError), content.opened(Path(file)) as opened:
        names = "box_size", "z", "sources", "field", "observer", "shift", "smoothing"
        facts: dict[str, Any] = {name: content.values(opened, name).tolist() for name in names if name in opened.attrs}
        if "Mpc/h" not in opened.attrs["units"] or len(facts["box_size"]) != 3 or len(facts.get("z", [0])) != 1:
            return {}
        if "sources" in facts:
            bins = [opened.attrs.get(f"n(z) of bin {i + 1}") for i in range(len(facts["sources"]))]
            facts["ends of shells"] = np.ravel(opened.attrs["edges"])[[0, -1]].astype(float).tolist()
            facts["widths of n(z)"] = [0.0 if n_z is None else mean_and_width(*n_z)[1] for n_z in bins]
        if "smoothing" in facts and "selection" not in opened:
            facts["selection"] = np.ones(())
        elif "smoothing" in facts and opened["selection"].shape == opened[dataset].shape:
            facts["selection"] = read_array(f"{file}:/selection")
        words = {"window": opened[dataset].attrs.get("window")}
        words["line_of_sight"] = opened.attrs.get("line_of_sight")
        return facts | {name: word for name, word in words.items() if isinstance(word, str)}
    return {}


def _check(shape: Any, dtype: np.dtype, wanted: tuple[Shape, ...]) -> None:
    """Raise Malformed, a ValueError, unless an array has real numbers and a wanted shape."""
    if dtype.kind not in "biuf":
        raise content.Malformed(f"holds {dtype}, no real numbers")
    if wanted and tuple(shape) not in wanted:
        name = "box.mesh" if len(wanted) == 1 else "that of the maps"
        raise content.Malformed(f"has the shape {list(shape)}, and {name} is {list(wanted[0])}")


def _of_npy(path: Path, wanted: tuple[Shape, ...]) -> np.ndarray:
    with open_regular(path) as file:
        start = file.read(12)
    if start[:8] in (b"\x93NUMPY\x02\x00", b"\x93NUMPY\x03\x00") and start[10:] > b"\0\0":  # length of the header
        raise ValueError("is no .npy file, or damaged: its header is larger than 64 kB")
    try:
        with warnings.catch_warnings(action="ignore"):
            try:
                values = np.load(path, mmap_mode="r")
            except OSError:  # of file systems that have no shared mappings
                values = np.load(path)
        if not isinstance(values, np.ndarray):
            raise TypeError("it is a zip file")
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"is no .npy file, or damaged: {error}") from error
    _check(values.shape, values.dtype, wanted)
    return np.asarray(values, float)


def _of_hdf5(path: Path, dataset: str, wanted: tuple[Shape, ...]) -> np.ndarray:
    try:
        with content.opened(path) as file:
            *groups, last = [part for part in dataset.split("/") if part] or [""]
            item = file
            for part in (*groups, last):
                if not part or not isinstance(item, h5py.Group) or not content.has(item, part):
                    first = ", ".join(list(file)[:_MOST_NAMES]) + ", ..." * (len(file) > _MOST_NAMES)
                    raise content.Malformed(f"holds no data set {dataset}; it has {first or 'none'}")
                kind = h5py.Dataset if part is last else h5py.Group
                item = content.member(item, part, kind)
            _check(item.shape, item.dtype, wanted)
            if item.is_virtual:
                return content.joined(item, dataset.strip("/"))
            content.check_storage(item, dataset.strip("/"))
            return content.rows(item, 0, None).astype(float) if item.ndim else np.asarray(item[()], float)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from error
