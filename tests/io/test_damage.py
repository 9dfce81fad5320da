"""Snapshots that are damaged or made up are refused in a sentence, or loaded as they were: the short fuzz."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import fuzz_snapshots as fuzz
import h5py
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.io.snapshot import content
from pmwd_dist.io.snapshot.header import named_cosmology


@pytest.fixture(scope="module", params=fuzz.KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, fuzz.Loaded]:
    path = fuzz.write(tmp_path_factory.mktemp(request.param) / "s.hdf5", request.param)
    return request.param, path, fuzz.load(path)


def test_damaged_and_made_up_snapshots(whole: tuple[str, Path, fuzz.Loaded], tmp_path: Path, fuzz_count: int) -> None:
    kind, path, original = whole
    outcomes = []
    for case in fuzz.cases(kind, np.random.default_rng(2), fuzz_count):
        changed = tmp_path / "s.hdf5"
        shutil.copy(path, changed)
        case.change(changed)
        outcomes.append(fuzz.outcome(changed, original, case))
    assert outcomes.count("refused") > fuzz_count / 2
    assert any(outcome.startswith("loaded") for outcome in outcomes)


def set_id(path: Path, value: int) -> None:
    with h5py.File(path, "a") as file:
        file["PartType1/ParticleIDs"][0] = value


def laid(name: str, what: str) -> Any:
    return lambda path: fuzz.replace(path, name, fuzz.ARRAYS[what])


REFUSED = {
    "no HDF5": (lambda path: path.write_text("text"), "not an HDF5 file"),
    "an ID twice": (lambda path: set_id(path, 1), r"1 sites of .* lack particles, and others have several: some IDs"),
    "a large ID": (lambda path: set_id(path, 10**6), "particle IDs"),
    "no header": (lambda path: fuzz.remove(path, "Header"), "GADGET, .* or SWIFT: it has no group Header"),
    "no group": (lambda path: fuzz.remove(path, "PartType1"), "lacks the group PartType1"),
    "no array": (lambda path: fuzz.remove(path, "PartType1/Velocities"), "lacks the array PartType1/Velocities"),
    "no attribute": (lambda path: fuzz.remove(path, "Header:Redshift"), "lacks the attribute Header:Redshift"),
    "fractions": (laid("ParticleIDs", "fractions"), "ParticleIDs of type float64, which must be whole numbers"),
    "columns": (laid("Coordinates", "one column"), r"Coordinates of shape \(512, 1\), which must be \(N, 3\)"),
    "lengths": (laid("Coordinates", "shorter"), "numbers of particles: Coordinates 511, Velocities 512"),
    "no values": (laid("Coordinates", "no values, huge"), "declares .*/Coordinates of shape .* but holds fewer values"),
    "link": (laid("Coordinates", "external link"), "link at PartType1/Coordinates, where the array itself must be"),
    "virtual": (laid("Coordinates", "virtual"), "values in other files"),
    "redshift": (lambda path: fuzz.set_attribute(path, "Header", "Redshift", -1), "Redshift = -1, which must be"),
    "times": (lambda path: fuzz.set_attribute(path, "Header", "Redshift", 3), "redshift 3 and the scale factor 0.5"),
    "box": (lambda path: fuzz.set_attribute(path, "Header", "BoxSize", 1e300), "BoxSize = .* must be one side"),
    "text": (lambda path: fuzz.set_attribute(path, "Header", "BoxSize", "big"), "BoxSize that is no number"),
    "unit": (lambda path: fuzz.set_attribute(path, "Parameters", "UnitLength_in_cm", 0), "UnitLength_in_cm = 0, which"),
    "lattice": (
        lambda path: fuzz.set_attribute(path, "ParticleMesh", "LatticeShape", [10**5] * 3),
        r"a lattice of \(100000, 100000, 100000\), but 512 particles",
    ),
    "files": (lambda path: fuzz.set_attribute(path, "Header", "NumFilesPerSnapshot", 0), "must be whole numbers, 1 or"),
}


@pytest.fixture(scope="module")
def gadget(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.write(tmp_path_factory.mktemp("gadget") / "s.hdf5", "gadget")


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_named(what: str, gadget: Path, tmp_path: Path) -> None:
    change, message = REFUSED[what]
    path = tmp_path / "s.hdf5"
    shutil.copy(gadget, path)
    change(path)
    with pytest.raises(ValueError, match=message) as caught:
        pmd.load_snapshot(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_number_of_files_that_is_made_up_costs_nothing(gadget: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.0.hdf5"
    shutil.copy(gadget, path)
    fuzz.set_attribute(path, "Header", "NumFilesPerSnapshot", 2 * 10**7)
    tracemalloc.start()
    with pytest.raises(FileNotFoundError, match="has 20000000 files, and one is missing"):
        pmd.load_snapshot(path)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_files_of_two_snapshots_are_not_mixed(gadget: Path, tmp_path: Path) -> None:
    half = fuzz.COUNT // 2
    for number in range(2):
        path = tmp_path / f"s.{number}.hdf5"
        shutil.copy(gadget, path)
        with h5py.File(path, "a") as file:
            for name in ("Coordinates", "Velocities", "ParticleIDs"):
                part = file[f"PartType1/{name}"][number * half : (number + 1) * half]
                del file[f"PartType1/{name}"]
                file[f"PartType1/{name}"] = part
            file["Header"].attrs["NumPart_ThisFile"] = [0, half, 0, 0, 0, 0]
            file["Header"].attrs["NumFilesPerSnapshot"] = 2
    both, _ = pmd.load_snapshot(tmp_path / "s.hdf5")
    np.testing.assert_array_equal(both.disp, pmd.load_snapshot(gadget)[0].disp)
    shutil.copy(tmp_path / "s.1.hdf5", tmp_path / "kept")
    shutil.copy(tmp_path / "s.0.hdf5", tmp_path / "s.1.hdf5")
    with pytest.raises(ValueError, match=r"s.1.hdf5: holds the same particles as s.0.hdf5; put the part"):
        pmd.snapshot_density(tmp_path / "s.hdf5")
    shutil.copy(tmp_path / "kept", tmp_path / "s.1.hdf5")
    for name, value in (("Redshift", 0.25), ("Time", 0.8)):
        fuzz.set_attribute(tmp_path / "s.1.hdf5", "Header", name, value)
    with pytest.raises(ValueError, match=r"s.1.hdf5: is of another snapshot than s.0.hdf5: their headers differ"):
        pmd.load_snapshot(tmp_path / "s.hdf5")


def test_particles_that_do_not_fit_into_memory(gadget: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmwd_dist.io.snapshot.reader.available_memory", lambda: (1000, 2000))
    with pytest.raises(ValueError, match=r"its particles need 24.6 kB of memory, and this machine has 2 kB"):
        pmd.load_snapshot(gadget)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.hdf5")
    with pytest.raises(ValueError, match="not a file"):
        pmd.load_snapshot(tmp_path / "s.hdf5")
    with pytest.raises(FileNotFoundError, match="no such snapshot"):
        pmd.load_snapshot(tmp_path / "absent.hdf5")


def test_numbers_of_fewer_bits_that_do_not_compress_are_read(tmp_path: Path) -> None:
    """The filter is then left out, and the chunk is shorter than its values."""
    values = np.random.default_rng(0).integers(0, 2**12, 1024)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        data = file.create_dataset("x", data=values, chunks=(1024,), scaleoffset=0, compression="lzf")
        assert data.id.read_direct_chunk((0,))[0]
        np.testing.assert_array_equal(content.rows(data, 0, None), values)


def test_a_text_for_w_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_group("Cosmology").attrs["w_0"] = "text"
    with pytest.raises(ValueError, match="x.hdf5: has an attribute Cosmology:w_0 that is no number"):
        named_cosmology(tmp_path / "x.hdf5")


def test_a_lock_that_the_environment_asks_for_is_named(gadget: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by HDF5 with HDF5_USE_FILE_LOCKING=TRUE on a file system without locks."""

    def opened(*_: Any, **__: Any) -> Any:
        raise OSError(37, "Unable to synchronously open file (unable to lock file, errno = 37)")

    monkeypatch.setattr(h5py, "File", opened)
    with pytest.raises(ValueError, match=f"^{gadget}: can't be locked; unset HDF5_USE_FILE_LOCKING$"):
        pmd.load_snapshot(gadget)
