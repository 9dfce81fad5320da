"""Data files of an inference that are damaged or made up are refused in a sentence: the short fuzz."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import fuzz_arrays as fuzz
import h5py
import hdf5plugin
import numpy as np
import pytest

from pmwd_dist.run.common.data_files import read_array, read_files

MADE_UP = [(kind, name) for kind, changes in fuzz.MADE_UP.items() for name in changes]


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_undamaged_files_are_read(kind: str, tmp_path: Path) -> None:
    fuzz.write(tmp_path, kind)
    assert fuzz.outcome(tmp_path, kind) == "the same"


@pytest.mark.parametrize(("kind", "name"), MADE_UP)
def test_made_up_files_are_refused(kind: str, name: str, tmp_path: Path) -> None:
    fuzz.write(tmp_path, kind)
    fuzz.MADE_UP[kind][name](tmp_path)
    assert fuzz.outcome(tmp_path, kind) == "refused"
    assert fuzz.outcome(tmp_path, kind, shapes=()) in ("refused", "other values")


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_damaged_files_are_refused_or_read(kind: str, tmp_path: Path, fuzz_count: int) -> None:
    outcomes = set[str]()
    for seed in range(fuzz_count):
        fuzz.write(tmp_path, kind)
        fuzz.damage(tmp_path, kind, np.random.default_rng(seed))
        outcomes.add(fuzz.outcome(tmp_path, kind))
    assert {"refused"} < outcomes


@pytest.mark.parametrize(
    "options", [hdf5plugin.Zstd(), hdf5plugin.Blosc(), {"compression": "gzip"}, {"compression": "lzf"}]
)
def test_compressed_hdf5_is_read(tmp_path: Path, options: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=fuzz.VALUES, chunks=(3, 4, 8), shuffle=True, fletcher32=True, **options)
    np.testing.assert_array_equal(read_array(f"{tmp_path}/a.h5:/a"), fuzz.VALUES)


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_blocks_in_files_of_several_processes_are_read_as_one(tmp_path: Path, options: Any) -> None:
    values, halves = fuzz.VALUES, ((slice(0, 4), slice(0, 3)), (slice(0, 4), slice(3, 6)))
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    for i, half in enumerate(halves):
        with h5py.File(tmp_path / f"a.{i}.h5", "w") as file:
            data = file.create_dataset("a", values.shape, values.dtype, chunks=(3, 2, 8), fletcher32=True, **options)
            data[half] = values[half]
        layout[half] = h5py.VirtualSource(f"a.{i}.h5", "a", values.shape, values.dtype)[half]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("a", layout)
    np.testing.assert_array_equal(read_array(f"{tmp_path}/a.h5:/a"), values)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/b.h5").symlink_to("../a.h5")
    np.testing.assert_array_equal(read_array(f"{tmp_path}/linked/b.h5:/a"), values)
    with h5py.File(tmp_path / "a.1.h5", "w") as file:
        file.create_dataset("a", values.shape, values.dtype, chunks=(3, 2, 8), **options)[:, :3] = 1.0
    with pytest.raises(ValueError, match=r"in other files, and one can't be read: .*a.1.h5: .* holds fewer values"):
        read_array(f"{tmp_path}/a.h5:/a")
    (tmp_path / "a.1.h5").unlink()
    with pytest.raises(ValueError, match=r"in other files, and one can't be read: .* No such file .*a.1.h5"):
        read_array(f"{tmp_path}/a.h5:/a")


def test_npy_files_of_any_order_are_read(tmp_path: Path) -> None:
    for values in (np.asfortranarray(fuzz.VALUES), fuzz.VALUES.astype(">f4"), fuzz.VALUES > 0, np.float64(3)):
        np.save(tmp_path / "a.npy", values)
        np.testing.assert_array_equal(read_array(str(tmp_path / "a.npy")), values.astype(float))


def test_npy_files_are_read_where_no_file_can_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = np.load

    def unmapped(path: Path, mmap_mode: str | None = None) -> np.ndarray:
        if mmap_mode is not None:
            raise OSError(errno.ENODEV, "No such device")
        return load(path)

    np.save(tmp_path / "a.npy", fuzz.VALUES)
    monkeypatch.setattr(np, "load", unmapped)
    np.testing.assert_array_equal(read_array(str(tmp_path / "a.npy")), fuzz.VALUES)


def test_the_reason_is_named(tmp_path: Path) -> None:
    def reason(kind: str, name: str, *shapes: tuple[int, ...]) -> str:
        folder = tmp_path / f"{kind} {name}"
        folder.mkdir()
        fuzz.write(folder, kind)
        fuzz.MADE_UP[kind][name](folder)
        _, (line,) = read_files({"data.file": f"{folder}/{fuzz.KINDS[kind]}"}, *shapes)
        return line.rpartition('": ')[2]

    assert reason("npy", "pipe") == "can't be read: not a regular file"
    assert reason("npy", "zip") == "is no .npy file, or damaged: it is a zip file"
    assert reason("npy", "fewer values").startswith("is no .npy file, or damaged: mmap length is greater than file")
    assert reason("npy", "header of 4 GB").endswith("its header is larger than 64 kB")
    assert reason("hdf5", "pipe") == "not a file"
    assert reason("hdf5", "virtual") == "has group/data with its values in files of other folders: pass those"
    assert reason("hdf5", "external link") == "has a link at group/data, where the array itself must be"
    assert reason("hdf5", "committed datatype") == "has something else than an array at group/data"
    assert reason("hdf5", "other shape", fuzz.SHAPE) == "has the shape [4, 6, 9], and box.mesh is [4, 6, 8]"
    for name in ("bomb", "gzip bomb"):
        assert reason("hdf5", name).endswith(": a chunk of group/data unpacks to more than its 768 bytes")
    for name in ("short chunks", "short gzip chunks"):
        assert reason("hdf5", name).endswith(": a chunk of group/data unpacks to less than its 768 bytes")
    assert reason("hdf5", "other filters") == "has group/data with other filters than one of zlib, lzf, blosc, zstd"
    large = "in chunks of 512 MB, much more than all its values"
    assert reason("hdf5", "large chunks") == f"has group/data {large}"


def test_values_are_not_read_before_the_shape_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.zeros((2, 3))
    monkeypatch.setattr("pmwd_dist.io.snapshot.content.rows", None)
    monkeypatch.setattr("numpy.asarray", None)
    for name in ("a.npy", "a.h5:/a"):
        _, (line,) = read_files({"data.file": str(tmp_path / name)}, (3, 3, 3))
        assert line.endswith("has the shape [2, 3], and box.mesh is [3, 3, 3]")
    _, (line,) = read_files({"data.file": f"{tmp_path / 'a.h5'}:/"})
    assert line.endswith("holds no data set /; it has a")
