"""Files of a chain that are damaged, missing or of something else: named in one line, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from pmwd_dist import infer
from pmwd_dist.infer.chains import ChainFolder
from pmwd_dist.infer.storage import read_arrays, write_arrays

RNG = np.random.default_rng(0)


def chunk() -> dict[str, np.ndarray]:
    per_step = {name: RNG.random((2, 8)) for name in ("energy_change", "acceptance_rate", "gradients")}
    per_draw = {name: RNG.random((2, 4)) for name in ("logdensity", "density_shift", "parameter/b1")}
    return per_step | per_draw | {"nonans": np.ones((2, 8), bool)}


@pytest.fixture
def folder(tmp_path: Path) -> ChainFolder:
    """A chain of two chunks."""
    folder = ChainFolder(tmp_path / "run", {"model": "a", "thin": "2"})
    moments = {"moments/mean": np.ones((2, 2, 2)), "moments/square": np.ones((2, 2, 2)), "moments/draws": np.ones(())}
    for i in range(2):
        folder.write(i, chunk(), moments | {"chunks": np.asarray(i + 1)})
    return folder


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def rewrite(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """As versions that wrote no checksum."""
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


def drop(path: Path) -> None:
    rewrite(path, {k: x for k, x in read_arrays(path).items() if k not in ("moments/mean", "logdensity")})


def shorten(path: Path) -> None:
    rewrite(path, {k: x[:1] if k == "nonans" else x for k, x in read_arrays(path).items()})


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "half": (half, "is damaged"),
    "zeros": (zero, "is damaged"),
    "junk": (lambda path: path.write_bytes(b"\xff junk" * 100), "is damaged"),
    "missing": (lambda path: path.unlink(), "is missing"),
    "flipped": (flip, "is damaged"),
    "dropped": (drop, "lacks '(moments/mean|logdensity)'"),
    "short": (shorten, r"has 'nonans' of shape \(1, 8\), not \(2, 8\)"),
}
CASES = [
    (name, kind)
    for name in ("chain.json", "state.h5", "chunk_00000.h5", "chunk_00001.h5")
    for kind in DAMAGE
    if not (name == "chain.json" and kind in ("flipped", "dropped")) and (kind != "short" or name.startswith("chunk"))
]


def continued(path: Path) -> infer.Chain:
    """As `sample` goes on."""
    folder = ChainFolder(path, {"model": "a", "thin": "2"})
    folder.check()
    return folder.load()


def test_chains_of_versions_without_checksums_are_read(folder: ChainFolder) -> None:
    chain = continued(folder.path)
    for path in folder.path.glob("*.h5"):
        rewrite(path, read_arrays(path))
    np.testing.assert_array_equal(continued(folder.path).parameters["b1"], chain.parameters["b1"])


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_file_is_named(folder: ChainFolder, name: str, kind: str) -> None:
    damage, words = DAMAGE[kind]
    damage(folder.path / name)
    with pytest.raises(infer.ChainFileError, match=f"run/{name}: {words}; restore it from a copy, or") as caught:
        infer.load_chain(folder.path)
    assert "\n" not in str(caught.value)
    with pytest.raises(infer.ChainFileError, match=f"run/{name}: "):
        continued(folder.path)


@pytest.mark.parametrize("content", ["[1]", "null", '{"model": 3}', "[" * 100_000])
def test_a_description_of_something_else_is_damaged(folder: ChainFolder, content: str) -> None:
    (folder.path / "chain.json").write_text(content)
    with pytest.raises(infer.ChainFileError, match=r"chain\.json: is damaged"):
        infer.load_chain(folder.path)


def test_no_byte_of_a_file_can_change_an_array_unseen(tmp_path: Path) -> None:
    arrays, path = {"a/b": RNG.random((3, 2)), "chunks": np.asarray(7)}, tmp_path / "a.h5"
    write_arrays(path, arrays)
    whole, failed = path.read_bytes(), 0
    for i in range(0, len(whole), 29):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
        try:
            read = read_arrays(path)
        except infer.ChainFileError:
            failed += 1
            continue
        assert read.keys() == arrays.keys()
        assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
    assert failed > 10


def test_a_folder_in_the_way_is_no_damage(folder: ChainFolder) -> None:
    (folder.path / "state.h5").unlink()
    (folder.path / "state.h5").mkdir()
    with pytest.raises(OSError, match="Is a directory: .*run/state.h5"):
        infer.load_chain(folder.path)
    with pytest.raises(ValueError, match=r"output=.*chain.json' is a file; name a folder"):
        ChainFolder(folder.path / "chain.json", {})


def test_a_start_that_failed_leaves_the_folder_free(tmp_path: Path) -> None:
    ChainFolder(tmp_path, {"start": "a"})  # and no state
    ChainFolder(tmp_path, {"start": "b"}).write_state({"chunks": np.asarray(0)})
    with pytest.raises(ValueError, match="has a chain with start=b, not a"):
        ChainFolder(tmp_path, {"start": "a"})
