"""Settings of a simulation: the sections of its TOML file, shared ones among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from pmwd_dist.observe.shells import Assignment
from pmwd_dist.parallel.decomposition import Decomposition, Shape3
from pmwd_dist.run.outputs.registry import SECTIONS, Observe
from pmwd_dist.run.settings.section import Section
from pmwd_dist.run.settings.simulation_sections import (
    Box,
    Cosmology,
    Devices,
    Force,
    Noise,
    OutputSection,
    SimulationStart,
    Time,
)

Sections = Mapping[str, type[Section]]
OPTIONAL = tuple(f"observe.{name}" for name in SECTIONS)


class Settings(BaseModel):
    """The sections that all files have: of simulations and of inferences."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sections: ClassVar[Sections]  # sections by their names in the file
    observables: ClassVar[tuple[str, ...]]  # names of the observables that the file may have
    shell_assignment: ClassVar[Assignment]  # assignment of particles to the shells of light cones
    example: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # values of a template in place of defaults

    box: Box
    time: Time
    cosmology: Cosmology
    noise: Noise
    force: Force
    devices: Devices
    observe: Observe

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        own: Any = {name: field.annotation for name, field in cls.model_fields.items() if name != "observe"}
        cls.sections = own | {f"observe.{name}": SECTIONS[name] for name in cls.observables}

    def section(self, name: str) -> Section | None:
        """The section of this name, such as "box" or "observe.pdf"; None if the file has not got it."""
        found: Any = reduce(getattr, name.split("."), self)
        return found

    def values(self) -> dict[str, Any]:
        """Values of all keys, such as "box.size", as JSON holds them."""
        there = {name: section for name in self.sections if (section := self.section(name)) is not None}
        return {f"{n}.{key}": x for n, section in there.items() for key, x in section.model_dump(mode="json").items()}

    @property
    def particle_count(self) -> int:
        """Number of particles."""
        return math.prod(self.box.particles or self.box.mesh)

    def divide(self, shapes: Sequence[Shape3], **options: Any) -> Decomposition | None:
        """The division of fields of these shapes over the devices; None to use devices.pdims."""
        del shapes, options
        return None


class SimulationSettings(Settings):
    """All sections of the file of a simulation."""

    observables = tuple(SECTIONS)
    shell_assignment: ClassVar[Assignment] = "nearest"

    start: SimulationStart
    output: OutputSection

    @property
    def scale_factors(self) -> tuple[float, ...]:
        """Scale factors of the outputs, rising."""
        if self.output.redshifts is None:
            return (self.time.a_stop,)
        return tuple(sorted(1 / (1 + z) for z in self.output.redshifts))
