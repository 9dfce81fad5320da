"""Power spectrum of a snapshot, ours or of another code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import SnapshotHeader, load_snapshot, read_header, snapshot_files
from pmwd_dist.observe.power import power_spectrum, shot_noise
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.pm.paint import density
from pmwd_dist.report.figures import Spectrum, write_spectrum
from pmwd_dist.run.resources import memory_problem


def measure_snapshot(path: Path, mesh: int | None, output: Path | None) -> Path:
    """Measure P(k) of a snapshot and write it as CSV; the column of linear theory is NaN, as snapshots don't hold it.

    Raises:
      ValueError: not a snapshot, a damaged one, or a mesh that doesn't divide over the devices.
      OSError: a file can't be read or written.
    """
    header = read_header(snapshot_files(path)[0])
    config = _config(path, header, mesh)
    particles, _ = load_snapshot(path, config)
    spectrum = power_spectrum(density(particles, config), config)
    k, power, modes = (np.asarray(x, float) for x in (spectrum.k, spectrum.power, spectrum.modes))
    if not np.isfinite(power[modes > 0]).all():
        raise ValueError(f"{path}: a displacement exceeds the widest halo between devices; run this on one device")
    output = path.with_name(f"{path.stem}_power.csv") if output is None else output
    if distributed.is_main():
        linear = np.full_like(k, np.nan)
        write_spectrum(output, Spectrum(header.redshift, k, power, modes, linear, shot_noise(config)))
    return output


def _config(path: Path, header: SnapshotHeader, mesh: int | None) -> Config:
    """A config of the snapshot; ValueError if its mesh can't be that, or doesn't fit into memory."""
    cells = header.mesh_shape if mesh is None else (mesh, mesh, mesh)
    own = f"{path}: its mesh of {cells}" if mesh is None else f"--mesh {mesh}"
    try:
        decomposition = _decomposition((cells, header.particle_shape))
        config = Config(header.box_size, cells, header.particle_shape, decomposition=decomposition)
    except ArgumentError as error:
        what = f"{path}: its lattice of {error.value}" if error.value == header.particle_shape != cells else own
        raise ValueError(f"{what}: {error.constraint}") from error
    problem, _ = memory_problem(config)
    if problem is not None:
        raise ValueError(f"{own}: {problem}, or another --mesh")
    return config


def _decomposition(shapes: Sequence[Shape3]) -> Decomposition:
    """As many devices as divide the shapes; those of several processes must all be used."""
    for count in range(jax.device_count(), 1, -1):
        try:
            return default_decomposition(shapes, count)
        except ArgumentError:
            if jax.process_count() > 1:
                raise
    return default_decomposition(shapes, 1)
