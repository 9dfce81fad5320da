"""Power spectrum of a snapshot, ours or of another code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import SnapshotHeader, load_snapshot, read_header, snapshot_files
from pmwd_dist.observe.power import power_spectrum
from pmwd_dist.parallel import distributed
from pmwd_dist.pm.paint import density
from pmwd_dist.report.figures import Spectrum, write_spectrum


def measure_snapshot(path: Path, mesh: int | None, output: Path | None) -> Path:
    """Measure P(k) of a snapshot and write it as CSV; the column of linear theory is NaN, as snapshots don't hold it.

    Raises:
      ValueError: not a snapshot, a damaged one, or a mesh that doesn't divide over the devices.
      OSError: a file can't be read or written.
    """
    header = read_header(snapshot_files(path)[0])
    config = _config(header, mesh)
    particles, _ = load_snapshot(path, config)
    spectrum = power_spectrum(density(particles, config), config)
    k, power, modes = (np.asarray(x, float) for x in (spectrum.k, spectrum.power, spectrum.modes))
    if not np.isfinite(power[modes > 0]).all():
        raise ValueError(f"{path}: a displacement exceeds the widest halo between devices; run this on one device")
    output = path.with_name(f"{path.stem}_power.csv") if output is None else output
    if distributed.is_main():
        write_spectrum(output, Spectrum(header.redshift, k, power, modes, np.full_like(k, np.nan)))
    return output


def _config(header: SnapshotHeader, mesh: int | None) -> Config:
    return Config(
        box_size=header.box_size,
        mesh_shape=header.mesh_shape if mesh is None else mesh,
        particle_shape=header.particle_shape,
    )
