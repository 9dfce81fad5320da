"""The galaxies of a survey on the light cone of a run: gathered step by step, one catalogue at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.io.snapshot import content
from pmwd_dist.observe.galaxy_cone import ConeGalaxies, room_of, survey_extent
from pmwd_dist.observe.galaxy_draws import COLUMNS
from pmwd_dist.observe.galaxy_maps import check_bins, seen_shares
from pmwd_dist.observe.survey import Survey
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.pm.time_steps import step_times
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.run.outputs.base import Arrays, Drawing, modes_of
from pmwd_dist.run.outputs.galaxies import OfGalaxies
from pmwd_dist.run.outputs.light_cone import LightCone, place_of
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.writing import toml_value

_SKY = "observe.galaxies.sky"
_MOST_RAYS = 1024  # along a side, where the field of view is compared with the mask
_BYTES, _NUMBERS = 48, 48  # of a galaxy on disk; for each particle, with both ends of a step


class GalaxyCone(OfGalaxies):
    """Galaxies of the section [observe.galaxies] on the light cone, in one catalogue at the end of the run."""

    name = "galaxy_cone"
    wanted = "light_cone"
    figure, source = "wedge.png", "galaxies.hdf5"
    rank = 1
    of_seed = True
    stage = "the galaxies of a step on the light cone"
    lensing: LightCone | None = None  # in whose field of view the galaxies are counted
    mask: Any = None  # of the sky, once its file is read
    caption = Caption(
        "Galaxies on the light cone",
        "Galaxies of a thin slice in declination by right ascension and observed redshift.",
        "filaments and voids, whose contrast grows towards the observer, without gaps or edges where the box repeats.",
    )

    def inputs(self) -> dict[str, str]:
        return {} if self.galaxies.sky is None else {_SKY: self.galaxies.sky}

    def shapes(self, mesh: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Any, which the survey checks."""
        return ()

    def with_inputs(self, arrays: Arrays) -> Self:
        return self.model_copy(update={"mask": arrays.get(_SKY)})

    def survey(self, data: Arrays) -> Survey:
        """The survey, ArgumentError if a value is out of its range."""
        galaxies = self.galaxies
        options: Any = {"completeness": galaxies.completeness, "redshift_error": galaxies.redshift_error}
        return Survey(np.transpose(galaxies.n_z or ()), mask=data.get(_SKY), **options)

    def input_problems(self, arrays: Arrays, simulation: SimulationSetup) -> list[str]:
        table, cone, bins = simulation.growth, simulation.light_cone, self.galaxies.redshift_bins
        try:
            survey = self.survey(arrays)
            _, observer, _ = survey_extent(survey, table, simulation.config, self.galaxies.observer)
            if bins is not None and cone is not None:
                check_bins(bins, survey, table, cone)
                if (least := survey.numbers_between(np.asarray(bins), table).min()) < 1:
                    return [f"observe.galaxies.redshift_bins: must each expect a galaxy, and one expects {least:.2g}"]
                if self.lensing and (view := self.lensing.view(cone)):
                    seen_shares(survey.mask, cone, math.radians(view["field"]), min(view["pixels"], _MOST_RAYS))
                if observer != (place := place_of(cone)):
                    return [f"observe.galaxies.observer: must be {toml_value(place)}, where observe.light_cone has it"]
        except ArgumentError as error:
            key = error.argument.removeprefix("survey.").replace("mask.shape", "sky").replace("mask", "sky")
            return [f"observe.galaxies.{key.replace('bins', 'redshift_bins')}: {error.reason}"]
        return []

    def warnings(self, simulation: SimulationSetup) -> list[str]:
        """A warning that lensing maps show other structures behind the first repetition of the box."""
        if getattr(simulation.light_cone, "seed", None) is None:
            return []
        text = "rotates the repetitions of the box for the lensing, and not for galaxies"
        return [f"observe.light_cone.shift: {text}; use false for their cross-correlation"]

    def cone_galaxies(self, simulation: SimulationSetup, times: Sequence[float], data: Arrays) -> ConeGalaxies:
        modes, bins = modes_of(simulation), self.galaxies.redshift_bins
        try:
            return ConeGalaxies(
                self.survey(data),
                simulation.growth,
                times,
                simulation.config,
                key=simulation.key(1),  # not those at single times
                weights=lambda a: self.galaxies.weights_at(a, modes, simulation),
                observer=self.galaxies.observer,
                bins=None if bins is None else (bins, self.galaxies.linear_bias, self.galaxies.magnification),
            )
        except ArgumentError as error:
            raise SimulationError(f"observe.galaxies: {error.argument} {error.reason}") from error

    def last_names(self) -> list[str]:
        return [self.source, self.figure]

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        return int(_BYTES * self.survey({_SKY: self.mask}).number(simulation.growth))

    def memory(self, simulation: SimulationSetup, config: Config) -> int:
        """Both ends of a step, the path between them, the weights, and the rows of the galaxies of a step."""
        table = simulation.growth
        rows = COLUMNS * room_of(self.survey({_SKY: self.mask}), step_times(table, config), table)
        numbers = _NUMBERS * math.prod(config.particle_shape) // config.decomposition.size + rows
        return np.dtype(jax.numpy.result_type(float)).itemsize * numbers

    def write_last(
        self, folder: Path, simulation: SimulationSetup, shells: Any, cone_galaxies: ConeGalaxies | None
    ) -> None:
        assert cone_galaxies is not None
        cone_galaxies.catalogue().save(folder / self.source)

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        with content.opened(path / cls.source) as file:
            return partial(plot.wedge, content.columns(file, ("RA", "DEC", "Z")))
