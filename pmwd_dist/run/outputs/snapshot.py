"""Snapshots of the particles at each redshift."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import jax

from pmwd_dist.io.snapshot import writer as snapshots
from pmwd_dist.io.snapshot.base import Precision
from pmwd_dist.run.outputs.base import Output, View
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.simulation_sections import Box, OutputSection
from pmwd_dist.run.settings.writing import toml_value


class Snapshot(Output):
    """Particles, at each output."""

    name = "snapshot"

    format: snapshots.Format
    precision: Precision | None
    compression: snapshots.Compression | None

    @classmethod
    def of(cls, section: OutputSection) -> Self | None:
        """The snapshots of [output], if it has any."""
        if section.snapshot == "none":
            return None
        return cls(format=section.snapshot, precision=section.precision, compression=section.compression)

    def problems(self, box: Box) -> Iterator[str]:
        if self.format == "gadget" and len(set(box.size)) > 1:
            why = f"the format holds cubic boxes only, and box.size = {toml_value(box.size)}"
            yield f'output.snapshot = "gadget": {why}; use "swift" or "none"'

    def missing(self) -> list[str]:
        if self.compression is None or find_spec("hdf5plugin") is not None:
            return []
        return ['output.compression = "zstd": needs hdf5plugin; install it with `pip install hdf5plugin`']

    def names(self, z: float) -> list[str]:
        return list(dict.fromkeys([self.file(z, "hdf5"), self.parts(z)[jax.process_index()]]))

    def all_names(self, z: float) -> list[str]:
        return list(dict.fromkeys([self.file(z, "hdf5"), *self.parts(z)]))

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        each = snapshots.FORMATS[self.format].of(self.precision).bytes_per_particle
        return count * each * math.prod(simulation.config.particle_shape)

    def write_divided(self, folder: Path, view: View) -> None:
        path, cosmo, options = folder / self.file(view.z, "hdf5"), view.simulation.cosmo, self.model_dump()
        snapshots.save_snapshot(path, view.particles, cosmo, view.config, view.a, **options)
