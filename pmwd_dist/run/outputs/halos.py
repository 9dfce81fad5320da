"""Halos at each output: their catalogue and their mass function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import content
from pmwd_dist.io.snapshot.swift import write_groups
from pmwd_dist.observe.halo_cone import check_reach, halo_light_cone
from pmwd_dist.observe.halo_masses import overdensity_masses
from pmwd_dist.observe.halos import HaloCatalogue, friends_of_friends
from pmwd_dist.observe.mass_function import mass_function, tinker_mass_function
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table
from pmwd_dist.run.outputs.base import Arrays, Drawing, TableOutput, View
from pmwd_dist.run.settings.section import OBSERVER, Place, about
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.simulation_sections import Box

_HALO, _PARTICLE = 160, 200  # bytes of a halo in its file, and of a particle while halos are found
_FIT = "Tinker 2008"
_CONE = "halos_light_cone.hdf5"


class Halos(TableOutput):
    """Halos by friends of friends, at each output: a catalogue with masses, and the mass function."""

    name = "halos"
    rank = 1
    stage = "halos"
    remedy = "leave observe.halos out, or use GPUs"
    caption = Caption(
        "Mass function of halos",
        "Number of halos per volume and ln M, with Poisson errors, and for M200m the fit of Tinker et al. 2008.",
        "agreement at large masses. Halos of few particles, or smaller than some cells of the force mesh, have too low "
        "masses or are missing.",
    )

    linking_length: float = about("linking length over the mean distance of particles", 0.2, ge=0.05, le=1)
    min_particles: int = about("least number of particles of a halo", 20, ge=1)
    mass: Literal["200m", "200c", "vir", "fof"] = about(
        "mass of the mass function: within 200 times the mean (200m) or the critical density (200c), of Bryan & Norman "
        "(vir), or of all particles that are linked (fof)",
        "200m",
    )
    swift: bool = about("write SWIFT's catalogue of groups, too, which swiftsimio opens", False)

    light_cone: float | None = about(
        "largest redshift of halos on the light cone, from those of output.redshifts up to it; default: none",
        None,
        0.3,
        gt=0,
        le=1000,
    )
    observer: Place | None = OBSERVER

    def problems(self, box: Box) -> Iterator[str]:
        if self.observer is not None and self.light_cone is None:
            yield "observe.halos.observer: has no effect without a light_cone; leave it out"
        if self.min_particles > (count := math.prod(box.particles or box.mesh)):
            yield f"observe.halos.min_particles = {self.min_particles}: must be at most {count}, all particles"
        volume, least = math.prod(box.size) / count, min(box.size) / 2
        if self.linking_length * volume ** (1 / 3) >= least:
            limit = f"must be less than half of the box, {least / volume ** (1 / 3):.3g}"
            yield f"observe.halos.linking_length = {self.linking_length}: {limit}; use more box.particles"

    def input_problems(self, arrays: Arrays, simulation: SimulationSetup) -> list[str]:
        if self.light_cone is None:
            return []
        try:
            check_reach(self.light_cone, simulation.cosmo, simulation.config, self.observer)
        except ArgumentError as error:
            key = "observer" if error.argument == "observer" else f"light_cone = {self.light_cone}"
            return [f"observe.halos.{key}: {error.reason}"]
        return []

    def last_names(self) -> list[str]:
        return [] if self.light_cone is None else [_CONE]

    def names(self, z: float) -> list[str]:
        return [*super().names(z), self.file(z, "hdf5"), *([self.file(z, "swift.hdf5")] if self.swift else [])]

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        """Size of the catalogues of halos of as few particles as may be."""
        return count * _HALO * math.prod(simulation.config.particle_shape) // self.min_particles

    def memory(self, simulation: SimulationSetup, config: Config) -> int:
        """Memory of the particles on CPUs; of GPUs only what several processes send is used."""
        if config.decomposition.platform != "cpu":
            return 0
        return _PARTICLE * math.prod(config.particle_shape) // config.decomposition.size

    def measure(self, view: View) -> Any:
        simulation, config = view.simulation, view.config
        options: Any = {"linking_length": self.linking_length, "min_particles": self.min_particles, "a": view.a}
        halos = friends_of_friends(view.particles, simulation.cosmo, config, **options)
        halos = overdensity_masses(halos, view.particles, simulation.cosmo, config)
        table = halo_table(halos, self.mass, view.title)
        if self.mass == "200m":
            table.columns[_FIT] = fit_of(table["mass"], simulation, view.a)
            table.units[_FIT] = table.units["dn/dlnM"]
        return halos, table, simulation

    def write(self, folder: Path, z: float, values: Any) -> None:
        halos, table, simulation = values
        halos.write(folder / self.file(z, "hdf5"))
        if self.swift:
            write_groups(folder / self.file(z, "swift.hdf5"), halos, simulation.cosmo, simulation.config)
        super().write(folder, z, table)

    def write_last(self, folder: Path, simulation: SimulationSetup, shells: Any, cone_galaxies: Any) -> None:
        with raise_on_all_processes():
            if self.light_cone is not None and distributed.is_main():
                every = [read_halos(path.with_suffix(".hdf5")) for _, path in self.data(folder)]
                catalogues = [halos for halos in every if 1 / halos.about["a"] - 1 <= self.light_cone + 1e-5]
                found = halo_light_cone(catalogues, simulation.cosmo, simulation.config, observer=self.observer)
                found.write(folder / _CONE)

    @classmethod
    def plot(cls, table: Table) -> Drawing:
        columns = (table[name] for name in ("mass", "dn/dlnM", "error", "halos"))
        found = SimpleNamespace(**dict(zip(("mass", "density", "error", "number"), columns, strict=True)))
        return partial(plot.mass_function, found, table.columns.get(_FIT))


def fit_of(mass: np.ndarray, simulation: SimulationSetup, a: float) -> np.ndarray:
    """The fit of Tinker et al. (2008) at masses [Msun/h], without power beyond the ends of a table of P(k)."""
    return tinker_mass_function(mass, lambda k: np.nan_to_num(simulation.linear_power(k)), simulation.cosmo, a)


def read_halos(path: Path) -> HaloCatalogue:
    """Columns, scale factor and box of a catalogue of a run; ValueError if it is damaged."""
    with content.opened(path) as file:
        columns = content.columns(file, file)
        box = tuple(content.values(file, "box_size [Mpc/h]").tolist())
        units = {name: str(file[name].attrs["unit"]) for name in columns}
        return HaloCatalogue(columns, units, {"a": content.number(file, "a", 1e-3, 2), "box_size [Mpc/h]": box})


def halo_table(halos: HaloCatalogue, definition: str, title: str) -> Table:
    """Table of the mass function."""
    found = mass_function(halos, definition=definition)
    per_volume = "(h/Mpc)^3"
    units = {"mass": "Msun/h", "dn/dlnM": per_volume, "error": per_volume}
    columns = dict(zip((*units, "halos"), map(np.asarray, found), strict=True))
    return Table(f"M{definition} of halos, {title}", columns, units)
