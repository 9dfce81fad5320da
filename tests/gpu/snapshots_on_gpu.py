"""Run by `test_programs.py`: snapshots leave a GPU through pinned memory, whole, few chunks at a time.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/snapshots_on_gpu.py [cells along a side, a power of two, 128]

Boxes are powers of two, too: positions in units of the file are rounded once, and have the bits of NumPy's. Without a
GPU this tries the program itself.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import h5py
import jax
import jax_cosmo
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.cli import main as cli
from pmwd_dist.io.snapshot import writer
from pmwd_dist.io.snapshot.writer import FORMATS, Format, Snapshot

BOX, A = 64.0, 0.5
CONFIG = """
[box]
size = {n}
mesh = {n}
[time]
steps = 4
[output]
redshifts = [1, 0]
snapshot = "{kind}"
slice_thickness = 0
figures = false
"""


class Watched(Snapshot):
    """A snapshot that counts its chunks, and their bytes on the host.

    Attributes:
      count: number of chunks that left the devices.
      total: bytes of them.
      alive, most: bytes on the host, now and at most.
      kinds: kinds of memory from which chunks are taken.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{"precision": None, "compression": None} | options)
        self.count, self.total, self.alive, self.most = 0, 0, 0, 0
        self.kinds = set[str]()

    def chunks(self) -> Iterator[dict[str, np.ndarray]]:
        for chunk in super().chunks():
            self.kinds |= {str(x.sharding.memory_kind) for x in jax.live_arrays() if x.dtype == np.uint32}
            for words in chunk.values():
                self.alive, self.total = self.alive + words.nbytes, self.total + words.nbytes
                weakref.finalize(words, self._free, words.nbytes)
            self.count, self.most = self.count + 1, max(self.most, self.alive)
            yield chunk
            del chunk, words  # the next ones may take their place

    def _free(self, size: int) -> None:
        self.alive -= size


def particles_of(shape: tuple[int, int, int]) -> tuple[pmd.Particles, pmd.Config]:
    """Particles of random displacements of several cells on all devices."""
    rng, config = np.random.default_rng(0), pmd.Config(BOX, shape)
    disp, vel = (rng.uniform(-10, 10, (*shape, 3)).astype(np.float32) for _ in range(2))
    return pmd.Particles(*jax.device_put((disp, vel), config.decomposition.sharding)), config


def assert_holds(path: Path, particles: pmd.Particles, config: pmd.Config, kind: Format) -> None:
    """Bits of all arrays of a file."""
    with h5py.File(path) as file:
        header, h = file["Header"].attrs, float(jax_cosmo.Planck15().h)
        a = float(np.ravel(header.get("Scale-factor", header["Time"]))[0])
        found = {name: np.asarray(data) for name, data in file["PartType1"].items()}
        mass = header["MassTable"][1]
    order, units = np.argsort(found["ParticleIDs"]), FORMATS[kind]
    disp, vel = (np.asarray(x).reshape(-1, 3) for x in (particles.disp, particles.vel))
    sides = np.asarray(config.box_size)
    sites = np.stack(np.unravel_index(np.arange(len(disp)), config.particle_shape), -1)
    positions = sites * (sides / config.particle_shape) + disp.astype(float)
    positions -= sides * np.floor(positions / sides)
    positions = (positions * units.length(h)).astype(units.positions)
    positions[positions >= (sides * units.length(h)).astype(units.positions)] = 0
    expected = {
        "ParticleIDs": np.arange(len(disp)),
        "Coordinates": positions,
        "Velocities": vel * np.float32(units.momentum(a)),
        "Masses": np.full(len(disp), mass, np.float32),
    }
    for name, values in found.items():
        np.testing.assert_array_equal(values[order], expected[name], err_msg=f"{name} of {path}")


def check_chunks(shape: tuple[int, int, int], kind: Format) -> str:
    """Few chunks are on the host at a time; they come from pinned memory on a GPU."""
    particles, config = particles_of(shape)
    cosmo = jax_cosmo.Planck15()
    with tempfile.TemporaryDirectory() as folder:
        snapshot, path = Watched(particles, cosmo, config, A, format=kind), Path(folder, "s.hdf5")
        snapshot.write(path, snapshot.chunks())
        assert_holds(path, particles, config, kind)
    most = snapshot.most * snapshot.count / snapshot.total
    assert most <= 3 < snapshot.count, most
    assert snapshot.alive == 0, "chunks stay on the host"
    if config.decomposition.platform == "gpu":
        assert "pinned_host" in snapshot.kinds, snapshot.kinds
    return f"{kind}: {snapshot.count} chunks, at most {most:.1f} of them on the host"


def check_error(shape: tuple[int, int, int]) -> None:
    """A disk that fills up amid the chunks is an error, and the same particles can be written again."""
    particles, config = particles_of(shape)
    cosmo = jax_cosmo.Planck15()
    with tempfile.TemporaryDirectory() as folder:
        path, limit = Path(folder, "s.hdf5"), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * math.prod(shape), limit[1]))  # less than the snapshot
        try:
            with pytest.raises(OSError, match=r"File too large|No space left on device") as caught:
                pmd.save_snapshot(path, particles, cosmo, config, A)
            assert caught.value.filename == str(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert not list(Path(folder).iterdir())
        pmd.save_snapshot(path, particles, cosmo, config, A)
        assert list(Path(folder).iterdir()) == [path]
        assert_holds(path, particles, config, "gadget")


def command(*arguments: object) -> int:
    """Exit code of `pmwd-dist`."""
    try:
        cli([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)


class Recorded(Snapshot):
    """Keeps the particles, which reach the host by another way."""

    particles: ClassVar[list[tuple[pmd.Particles, pmd.Config]]] = []

    def __init__(self, particles: pmd.Particles, cosmo: Any, config: pmd.Config, a: float, **options: Any):
        self.particles.append((jax.device_get(particles), config))
        super().__init__(particles, cosmo, config, a, **options)


def check_run(n: int, kind: Format) -> None:
    """Files hold the particles of a run, also of one that a full disk ended and that was resumed."""
    Recorded.particles.clear()
    writer.Snapshot = Recorded  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.toml").write_text(CONFIG.format(n=n, kind=kind))
        assert command("run", folder / "run.toml", "--output", folder / "whole") == 0
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (26 * n**3, limit[1]))  # more than a checkpoint, less than a snapshot
        try:
            assert command("run", folder / "run.toml", "--output", folder / "resumed") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert not list((folder / "resumed").glob("*.hdf5")) and not list((folder / "resumed").glob(".*.part"))
        assert list((folder / "resumed").glob("checkpoint_*"))
        assert command("resume", folder / "resumed") == 0
        for (particles, config), label in zip(Recorded.particles, ("z1.000", "z0.000"), strict=False):
            for run in ("whole", "resumed"):
                assert_holds(folder / run / f"snapshot_{label}.hdf5", particles, config, kind)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    kinds: tuple[Format, ...] = ("gadget", "swift")
    for kind in kinds:
        print(check_chunks((128, 128, 128), kind))
        check_run(n, kind)
    check_error((64, 128, 128))
    print(f"snapshots of {jax.devices()[0].device_kind} are fine", flush=True)


if __name__ == "__main__":
    main()
