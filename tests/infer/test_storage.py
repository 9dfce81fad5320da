"""Files of a chain that are damaged, missing or of something else: named in one line, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmwd_dist import infer
from pmwd_dist.infer.chain.folder import ChainFolder
from pmwd_dist.io.arrays import ArrayFile, read_arrays, write_arrays

RNG = np.random.default_rng(0)


def chunk() -> dict[str, np.ndarray]:
    per_step = {name: RNG.random((2, 8)) for name in ("energy_change", "acceptance_rate", "gradients")}
    per_draw = {name: RNG.random((2, 4)) for name in ("logdensity", "density_shift", "parameter/b1")}
    return per_step | per_draw | {"nonans": np.ones((2, 8), bool)}


@pytest.fixture
def folder(tmp_path: Path) -> ChainFolder:
    """A chain of two chunks."""
    folder = ChainFolder(tmp_path / "run", {"model": "a", "thin": "2"})
    state = {"moments/mean": np.ones((2, 2, 2)), "moments/square": np.ones((2, 2, 2)), "moments/draws": np.ones(())}
    state["restarts/gradients"] = np.asarray(0)
    for i in range(2):
        folder.write(i, chunk(), state | {"chunks": np.asarray(i + 1)})
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def drop(path: Path) -> None:
    """A state without a field, with its description and right checksums."""
    with ArrayFile(path) as file:
        about = file.about
    write_arrays(path, {k: x for k, x in read_arrays(path).items() if k != "moments/mean"}, about)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is damaged"),
    "half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "is damaged"),
    "missing": (lambda path: path.unlink(), "is missing"),
    "flipped": (flip, "is damaged"),
    "dropped": (drop, "lacks 'moments/mean'"),
}
CASES = [("state.npz", kind) for kind in DAMAGE] + [("chunk_00001.npz", kind) for kind in [*DAMAGE][:4]]


def continued(path: Path) -> infer.Chain:
    """As `sample` goes on."""
    folder = ChainFolder(path, {"model": "a", "thin": "2"})
    folder.read(noise=False)
    return folder.load()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_file_is_named(folder: ChainFolder, name: str, kind: str) -> None:
    damage, words = DAMAGE[kind]
    damage(folder.path / name)
    with pytest.raises(infer.ArrayFileError, match=f"run/{name}: {words}; restore it from a copy, or") as caught:
        infer.load_chain(folder.path)
    assert "\n" not in str(caught.value)
    with pytest.raises(infer.ArrayFileError, match=f"run/{name}: "):
        continued(folder.path)


@pytest.mark.parametrize("about", [{}, {"identity": 3}, {"identity": ["a"]}])
def test_a_description_of_something_else_is_damaged(folder: ChainFolder, about: dict[str, Any]) -> None:
    write_arrays(folder.path / "state.npz", read_arrays(folder.path / "state.npz"), about)
    with pytest.raises(infer.ArrayFileError, match=r"state\.npz: (is damaged|lacks 'identity')"):
        infer.load_chain(folder.path)


def test_chunks_of_another_run_or_place_are_refused(folder: ChainFolder, tmp_path: Path) -> None:
    """With their checksums intact: swapped chunks, those of another run, and of one that took another course."""
    paths = [folder.path / f"chunk_{i:05d}.npz" for i in range(2)]
    contents = [path.read_bytes() for path in paths]

    def refused(words: str) -> None:
        for read in (infer.load_chain, continued):
            with pytest.raises(infer.ArrayFileError, match=f"{words}[^\n]*$"):
                read(folder.path)
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)

    paths[0].write_bytes(contents[1])
    paths[1].write_bytes(contents[0])
    refused("chunk_00000.npz: is of another run or place: it has chunk = 1, not 0; restore")
    other = ChainFolder(tmp_path / "other", {"model": "b", "thin": "2"})
    again = ChainFolder(tmp_path / "again", {"model": "a", "thin": "2"})
    for i in range(2):
        for each in (other, again):
            each.write(i, chunk(), read_arrays(folder.path / "state.npz") | {"chunks": np.asarray(i + 1)})
    paths[1].write_bytes((other.path / paths[1].name).read_bytes())
    refused("chunk_00001.npz: is of another run or place: it has run = ")
    paths[1].write_bytes((again.path / paths[1].name).read_bytes())
    refused("chunk_00001.npz: is of another run or place: it has after = ")
    (folder.path / "state.npz").write_bytes((again.path / "state.npz").read_bytes())
    refused("state.npz: is of another run or place: it has last = ")


def test_a_folder_in_the_way_is_no_damage(folder: ChainFolder) -> None:
    (folder.path / "state.npz").unlink()
    (folder.path / "state.npz").mkdir()
    with pytest.raises(OSError, match="not a regular file: .*run/state.npz"):
        infer.load_chain(folder.path)
    with pytest.raises(ValueError, match=r"output=.*chunk_00000.npz' is a file; name a folder"):
        ChainFolder(folder.path / "chunk_00000.npz", {})


def test_a_start_that_failed_leaves_the_folder_free(tmp_path: Path) -> None:
    ChainFolder(tmp_path, {"start": "a"})  # and no state
    ChainFolder(tmp_path, {"start": "b"}).write_state({"chunks": np.asarray(0)})
    with pytest.raises(ValueError, match="has a chain with start=b, not a"):
        ChainFolder(tmp_path, {"start": "a"})
