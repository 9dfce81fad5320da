"""Power spectrum of a snapshot, ours or of another code."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import open_regular
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot.header import SnapshotHeader, read_header, snapshot_files
from pmwd_dist.io.snapshot.matter import Matter, lattice_of, matter_notes, paint_matter
from pmwd_dist.observe.power import power_spectrum
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.report.tables import write_table
from pmwd_dist.run.outputs.power import spectrum_table

_BEGINNING = 1 << 16  # bytes of a result that hold its kind


def measure_snapshot(
    path: Path, mesh: int | None, output: Path | None, types: Sequence[int] | None, length_unit: str | None
) -> tuple[list[str], list[str]]:
    """Measure P(k) of a snapshot and write it as CSV; the column of linear theory is NaN, as snapshots don't hold it.

    Returns:
      Lines about the particles and the file, and warnings.

    Raises:
      ValueError: not a snapshot, a damaged one, or a mesh that doesn't divide over the devices.
      OSError: a file can't be read or written.
    """
    files = snapshot_files(path)
    output = path.with_name(f"{path.stem}_power.csv") if output is None else output
    check_outputs(files, {output: "k [h/Mpc],"})
    with option_errors():
        header = read_header(files, length_unit)
        config = _config(path, header, mesh)
        density, matter = paint_matter(files, header, config, types)
    spectrum = power_spectrum(density, config)
    if distributed.is_main():
        write_table(output, spectrum_table(spectrum, np.full(len(spectrum.k), np.nan), matter.shot_noise))
    return [_particles_line(matter), f"wrote {output}"], matter_notes(matter, types, files[0], "--length-unit")


@contextmanager
def option_errors() -> Generator[None]:
    """Name the options of the command in errors about arguments."""
    try:
        yield
    except ArgumentError as error:
        option = f"--{error.argument.replace('_', '-')}"
        raise ArgumentError(option, error.value, error.constraint, error.remedy) from error


def check_outputs(files: Sequence[Path], outputs: Mapping[Path, str]) -> None:
    """Raise ArgumentError if a result would replace a file of the snapshot, or one of another kind.

    Args:
      files: files of the snapshot.
      outputs: paths of results, and a text near the beginning of each earlier one.
    """
    for path, mark in outputs.items():
        if path.exists() and any(map(path.samefile, files)):
            raise ArgumentError("--output", str(path), "is a file of the snapshot", "use another name")
        if path.exists():
            with open_regular(path) as file:
                if mark.encode() not in file.read(_BEGINNING):
                    raise ArgumentError("--output", str(path), "is a file of another kind", "use another name")


def _particles_line(matter: Matter) -> str:
    parts = [", ".join(f"{count} of type {kind}" for kind, count in matter.counts.items())]
    if not np.isnan(matter.omega):
        parts.append(f"their density is {matter.omega:.3g}, and Omega_m {matter.header.Omega_m:.3g}")
    if matter.left_out:
        parts.append("left out: " + ", ".join(f"type {kind}" for kind in matter.left_out))
    return f"particles: {'; '.join(parts)}"


def _config(path: Path, header: SnapshotHeader, mesh: int | None) -> Config:
    """A config of the snapshot; ValueError if its mesh can't be that."""
    cells = header.mesh_shape if mesh is None else (mesh, mesh, mesh)
    own = f"{path}: its mesh of {cells}" if mesh is None else f"--mesh {mesh}"
    try:
        lattice = lattice_of(cells, sum(header.counts))
        return Config(header.box_size, cells, lattice, decomposition=_decomposition(cells))
    except ArgumentError as error:
        raise ValueError(f"{own}: {error.constraint}") from error


def _decomposition(cells: Shape3) -> Decomposition:
    """All devices if they divide the mesh, else one; several processes must use all devices."""
    try:
        return default_decomposition((cells,), jax.device_count())
    except ArgumentError:
        if jax.process_count() > 1:
            raise
    return default_decomposition((cells,), 1)
