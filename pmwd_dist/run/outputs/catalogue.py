"""The catalogue of galaxies at each output: positions and velocities."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.observe.catalogue import galaxy_catalogue
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.run.outputs.base import View
from pmwd_dist.run.outputs.galaxies import OfGalaxies
from pmwd_dist.run.settings.setup import SimulationSetup

_BYTES = 36  # a galaxy


class GalaxyCatalogue(OfGalaxies):
    """Galaxies of the section [observe.galaxies], one by one."""

    name = "catalogue"
    wanted = "catalogue"

    def names(self, z: float) -> list[str]:
        return [self.file(z, "hdf5")]

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        return int(_BYTES * count * (self.galaxies.number_density or 0) * math.prod(simulation.config.box_size))

    def write_divided(self, folder: Path, view: View) -> None:
        galaxies, simulation = self.galaxies, view.simulation
        try:
            found = galaxy_catalogue(
                view.particles,
                simulation.cosmo,
                view.config,
                key=simulation.key(np.float32(view.a).view(np.uint32), 1),  # not those of the counts
                number_density=galaxies.number_density or 0.0,
                weights=galaxies.weights(view),
                line_of_sight=galaxies.line_of_sight,
                a=view.a,
            )
        except ArgumentError as error:
            raise SimulationError(f"observe.galaxies at {view.title}: {error.argument} {error.reason}") from error
        found.save(folder / self.file(view.z, "hdf5"))
