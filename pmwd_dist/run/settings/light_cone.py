"""The light cone that the settings describe."""

from __future__ import annotations

import math

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import comoving_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.flat_sky import ACROSS, FlatSkyLightCone
from pmwd_dist.observe.lensing import LightCone, coverage_warning
from pmwd_dist.observe.shells import checked_observer
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.run.settings import observables
from pmwd_dist.run.settings.simulation_sections import Settings
from pmwd_dist.run.settings.writing import argument_problem

_WIDEST = 10.0  # field of view that is chosen where none is given [degrees]


def build_light_cone(settings: Settings, config: Config, cosmo: Cosmology) -> LightCone | None:
    """The light cone of these settings, None without their section.

    Raises:
      ArgumentError: an argument out of its range, or shells or sources beyond the time span.
    """
    wanted = settings.observe.light_cone
    if wanted is None:
        return None
    table = growth_table(cosmo)
    if max(wanted.sources) > (first := 1 / config.a_start - 1):
        constraint = f"reach beyond the start of the run, z = {first:g}"
        raise ArgumentError(
            "sources", list(wanted.sources), constraint, "use nearer sources, or an earlier time.a_start"
        )
    edges = wanted.edges or _default_edges(wanted.sources, table, config)
    if wanted.sky == "sphere":
        cone: LightCone = SphericalLightCone(
            config, edges, wanted.nside, observer=wanted.observer, shell_assignment=settings.shell_assignment
        )
    else:
        observer = checked_observer((0.0, 0.0, 0.0) if wanted.observer is None else wanted.observer, config.box_size)
        axis = wanted.line_of_sight
        pixels = tuple(2 * config.mesh_shape[i] for i in ACROSS[axis]) if wanted.pixels is None else wanted.pixels
        place = observer["xyz".index(axis)]
        cone = FlatSkyLightCone(
            config, edges, pixels=pixels, observer=place, line_of_sight=axis, shell_assignment=settings.shell_assignment
        )
        for i, parts in enumerate(config.decomposition.pdims):
            config.decomposition.check_axis((wanted.rays, wanted.rays, 1), i, parts, "rays")
    cone.check(table)
    distance = float(comoving_distance(1 / (1 + min(wanted.sources)), table))
    if distance <= cone.edges[0]:
        constraint = f"at {distance:.4g} Mpc/h is nearer than the nearest shell, from {cone.edges[0]:g} Mpc/h on"
        raise ArgumentError("sources", min(wanted.sources), constraint, "use farther sources or nearer shells")
    return cone


def coverage_warnings(settings: Settings, cone: LightCone | None, cosmo: Cosmology) -> list[str]:
    """Warnings about sources for which the shells leave out a part of the lensing weight."""
    wanted = settings.observe.light_cone
    if wanted is None or cone is None:
        return []
    found = (coverage_warning(cone, growth_table(cosmo), z) for z in wanted.sources)
    return [f"observe.light_cone.edges: {text}" for text in found if text is not None]


def field_of_view(wanted: observables.LightCone, cone: FlatSkyLightCone) -> float:
    """Side of the field of view on a flat sky [degrees]."""
    if wanted.field is not None:
        return wanted.field
    return min(_WIDEST, math.degrees(min(cone.sides) / cone.edges[-1]))


def light_cone_problem(error: ArgumentError) -> str:
    """Message of an error of a light cone, with the key of the file in place of the argument."""
    if error.argument not in observables.LightCone.model_fields:
        return f"[observe.light_cone]: {error}"
    return argument_problem(error, f"observe.light_cone.{error.argument}")


def _default_edges(sources: tuple[float, ...], table: GrowthTable, config: Config) -> tuple[float, ...]:
    """Shells of half a box, the last one thinner, from the end of the run out to the farthest source."""
    ends = np.asarray(comoving_distance(np.array([config.a_stop, 1 / (1 + max(sources))]), table), float)
    width = min(config.box_size) / 2
    near, far = (round(max(float(end), 0.0), 3) for end in ends)  # the same on all devices, whose last digits differ
    inner = near + width * np.arange(max(1, math.ceil((far - near) / width - 0.05)))
    return (*map(float, inner), far)
