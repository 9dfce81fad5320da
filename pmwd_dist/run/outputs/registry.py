"""The outputs of a run; a new one is a line of `Observe`."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict

from pmwd_dist.report import drawing
from pmwd_dist.run.outputs.base import Figures, Output
from pmwd_dist.run.outputs.bispectrum import Bispectrum
from pmwd_dist.run.outputs.catalogue import GalaxyCatalogue
from pmwd_dist.run.outputs.cross import Cross
from pmwd_dist.run.outputs.fields import Fields
from pmwd_dist.run.outputs.galaxies import Counts, Galaxies
from pmwd_dist.run.outputs.galaxy_cone import GalaxyCone
from pmwd_dist.run.outputs.halos import Halos
from pmwd_dist.run.outputs.light_cone import LightCone
from pmwd_dist.run.outputs.multipoles import Multipoles
from pmwd_dist.run.outputs.pdf import PDF
from pmwd_dist.run.outputs.power import Power
from pmwd_dist.run.outputs.slices import Slices
from pmwd_dist.run.outputs.snapshot import Snapshot
from pmwd_dist.run.settings.simulation_sections import OutputSection


class Observe(BaseModel):
    """The sections of outputs, in the order of their files; None for those that a run does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    multipoles: Multipoles | None = None
    galaxies: Galaxies | None = None
    bispectrum: Bispectrum | None = None
    cross: Cross | None = None
    pdf: PDF | None = None
    halos: Halos | None = None
    fields: Fields | None = None
    light_cone: LightCone | None = None

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that have a section."""
        return tuple(section for _, section in self if section is not None)


SECTIONS: dict[str, type[Output]] = {
    name: get_args(field.annotation)[0] for name, field in Observe.model_fields.items()
}
KINDS: tuple[type[Output], ...] = (Power, Slices, *SECTIONS.values(), Counts, GalaxyCatalogue, GalaxyCone, Snapshot)


def outputs_of(output: OutputSection, observe: Observe) -> tuple[Output, ...]:
    """The outputs of a simulation, in the order in which they are measured and written."""
    galaxies = [kind.of(observe.galaxies) for kind in (Counts, GalaxyCatalogue)]
    cone = GalaxyCone.of(observe.galaxies, lensing=observe.light_cone)
    found = [Power(), Slices.of(output), *observe.outputs, *galaxies, cone, Snapshot.of(output)]
    return tuple(x for x in found if x is not None)


def figures(folder: Path, names: Container[str] | None = None) -> Figures:
    """Figures of the data in a folder, of these names."""
    found = {path: draw for kind in KINDS for path, draw in kind.figures(folder).items()}
    return {path: draw for path, draw in found.items() if names is None or path.name in names}


def redraw(folder: Path) -> list[Path]:
    """Draw all figures of a folder from its data, and return their paths; ValueError if the data are damaged."""
    found = figures(folder)
    for path, draw in found.items():
        drawing.write(path, draw)
    return list(found)
