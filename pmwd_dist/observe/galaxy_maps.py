"""Maps of galaxies in bins of redshift, in the pixels of lensing maps of the same light cone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from pmwd_dist._checks import check_ascending, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.distance import transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import nearest_pixel, nside_of, pixel_centres, pixel_count
from pmwd_dist.observe.sources import LightCone
from pmwd_dist.observe.survey import Columns, Survey, check_survey, comoving_positions, distances_at
from pmwd_dist.parallel.inputs import check_on_host, whole_number

_NODES = 4096  # of n(z)
_SHARPEST = 1e-9  # error of redshifts
_SLACK = 1e-4  # relative tolerance of distances in single precision


class GalaxyMaps(NamedTuple):
    """Maps of galaxies in bins of redshift.

    Args:
      overdensity: N / mean - seen, with the number N of galaxies in a pixel, and its mean where the survey sees all.
      seen: share of the galaxies that the survey sees in each pixel, per its largest value.
      shot_noise: C_l of each overdensity by the Poisson numbers of galaxies [steradian].
      n_z: redshifts without peculiar velocities and errors, and relative numbers of galaxies per redshift, in each bin.
    """

    overdensity: Float[np.ndarray, "bins ..."]
    seen: Float[np.ndarray, "*pixels"]
    shot_noise: Float[np.ndarray, " bins"]
    n_z: list[tuple[np.ndarray, np.ndarray]]


def galaxy_maps(
    columns: Columns,
    survey: Survey,
    cosmo: Cosmology | GrowthTable,
    cone: LightCone,
    bins: Sequence[float],
    *,
    field: float | None = None,
    pixels: int | None = None,
) -> GalaxyMaps:
    """Overdensity of the galaxies of a survey in bins of Z, in the pixels of `convergence` of the same simulation.

    A galaxy counts as its `WEIGHT` in the nearest pixel. On a flat sky it is where `convergence` has the mass at its
    distance, of `Z_COSMO` if there is such a column, at the distance of its shell. C_l of the maps of a part of the sky
    are to be divided by the mean of `seen`, with the convergence, or of `seen**2`, among each other.

    Args:
      columns: `RA`, `DEC` [deg] and `Z` of galaxies, as of `galaxy_light_cone`, whose observer is that of the cone: on
        a flat sky at 0 across the line of sight.
      survey: the survey of the galaxies.
      cosmo: cosmology, or its `growth_table`.
      cone: light cone, without a seed; `convergence` has no `offsets` then, either.
      bins: edges of the bins, which ascend.
      field: side of the field of view of a flat sky [degrees].
      pixels: number of pixels along each side of the field of view.

    Raises:
      ValueError: an argument is out of its range, the cone has a seed, or a bin has no galaxies in the maps.

    Examples:
      >>> maps = observe.galaxy_maps(galaxies.columns, survey, cosmo, cone, [0.2, 0.3, 0.4], field=5.0, pixels=128)
      >>> cross = observe.angular_power(maps.overdensity[0], kappa, side=5.0)
    """
    check_on_host("galaxy_maps", (dict(columns), cosmo))
    check_survey(survey)
    table = growth_table_to(2, cosmo)
    edges = check_bins(bins, survey, table, cone)
    true = {"Z": columns["Z_COSMO"]} if {"Z", "Z_COSMO"} <= {*columns} else {}
    place = comoving_positions(columns | true, table)
    z, weight = (np.asarray(columns.get(name, np.ones(len(place))), float) for name in ("Z", "WEIGHT"))
    for name, values, least in (("Z", z, -math.inf), ("WEIGHT", weight, 0.0)):
        check_number(values, f"columns[{name!r}]", least, several=True)
        if values.shape != place.shape[:1]:
            raise ArgumentError(f"columns[{name!r}].shape", values.shape, f"must be {place.shape[:1]}")
    if isinstance(cone, FlatSkyLightCone):
        check_number(field, "field", 1e-3, 90, unit="degrees")
        angle, n = math.radians(field or 0.0), whole_number(pixels, "pixels", least=1)
        shape, area, pixel = (n, n), angle**2, _rays(place, cone, table, angle, n)
    else:
        if not (field is None and pixels is None):
            raise ArgumentError("field", field, "is for flat skies", "leave field and pixels out")
        n, shape, area = cone.nside, (pixel_count(cone.nside),), 4 * math.pi
        angle, pixel = 0.0, np.asarray(nearest_pixel(n, place))
    seen = seen_shares(survey.mask, cone, angle, n)
    maps, noise = [], []
    for low, high in pairwise(edges):
        inside = (pixel >= 0) & (z >= low) & (z < high)
        number = np.bincount(pixel[inside], weight[inside], seen.size)
        if not number.any():
            constraint = f"from {low:g} to {high:g} have no galaxies in the maps"
            raise ArgumentError("bins", None, constraint, "use wider bins, or more galaxies", show_value=False)
        mean = number.sum() / seen.sum()
        maps.append((number / mean - seen).reshape(shape))
        noise.append(area * np.sum(weight[inside] ** 2) / (seen.size * mean) ** 2)
    return GalaxyMaps(np.stack(maps), seen.reshape(shape), np.stack(noise), _in_bins(survey, table, edges))


def check_bins(bins: Any, survey: Survey, table: GrowthTable, cone: LightCone) -> tuple[float, ...]:
    """Edges of bins of redshift; ArgumentError unless each has galaxies of the survey, where the cone has shells."""
    edges, (first, last) = check_ascending(bins, "bins"), survey.z_range
    if getattr(cone, "seed", None) is not None:
        raise ArgumentError("cone", cone, "rotates the box, and galaxies do not", "use no seed", show_value=False)
    if edges[1] <= first or edges[-2] >= last:
        raise ArgumentError("bins", list(edges), f"must each hold redshifts of the survey, {first:g} to {last:g}")
    near, *_, far = distances_at(edges, table)
    if near < cone.edges[0] * (1 - _SLACK) or far > cone.edges[-1] * (1 + _SLACK):
        shells = f"the shells, {cone.edges[0]:.5g} to {cone.edges[-1]:.5g} Mpc/h"
        raise ArgumentError("bins", list(edges), f"reach from {near:.5g} to {far:.5g} Mpc/h, beyond {shells}")
    return edges


def _rays(place: np.ndarray, cone: FlatSkyLightCone, table: GrowthTable, angle: float, n: int) -> np.ndarray:
    """Index of the ray of each galaxy; -1 outside of the shells and of the field of view."""
    along, nodes, distance = place[:, cone.along], cone.shells.nodes, cone.distances
    if cone.shell_assignment == "linear":
        distance = np.interp(along, nodes, distance)
    else:
        distance = distance[np.clip(np.searchsorted(cone.edges, along, side="right") - 1, 0, len(nodes) - 1)]
    across = place[:, cone.across] / np.asarray(transverse_distance(distance, table), float)[:, None]
    index = np.floor((across / angle + 0.5) * n).astype(int)
    inside = ((index >= 0) & (index < n)).all(axis=1) & (along >= cone.edges[0]) & (along < cone.edges[-1])
    return np.where(inside, index @ [n, 1], -1)


def seen_shares(mask: np.ndarray | None, cone: LightCone, angle: float, n: int) -> np.ndarray:
    """Share of the galaxies that are seen in each pixel, as a mean over parts of it, per the maximum.

    Raises ArgumentError if the mask is 0 in all of them.
    """
    finest = 0 if mask is None else nside_of(len(mask))
    if isinstance(cone, FlatSkyLightCone):
        parts = max(1, math.ceil(angle / n * finest))
        across = ((np.arange(n * parts) + 0.5) / (n * parts) - 0.5) * angle
        direction = np.ones((n * parts, n * parts, 3))
        direction[..., cone.across[0]], direction[..., cone.across[1]] = across[:, None], across
        row = np.arange(n * parts) // parts
        pixel, direction = (row[:, None] * n + row).ravel(), direction.reshape(-1, 3)
    else:
        direction = pixel_centres(n * max(1, math.ceil(finest / n)))
        pixel = np.asarray(nearest_pixel(n, direction))
    share = np.sum(direction**2, axis=1) ** -1.5  # cos^3: a bin ends in spheres, and pixels are parts of planes
    if mask is not None:
        share *= mask[np.asarray(nearest_pixel(finest, direction))]
    share = np.bincount(pixel, share)
    if not share.any():
        raise ArgumentError("survey.mask", mask, "is 0 in the whole field of view", show_value=False)
    return share / share.max()


def _in_bins(survey: Survey, table: GrowthTable, bins: Sequence[float]) -> Any:
    """Redshifts and relative numbers of galaxies per redshift, in each bin of redshifts with errors."""
    from scipy.special import ndtr

    z = np.union1d(np.linspace(*survey.z_range, _NODES), [*survey.n_z[0], *bins])
    z = np.unique(np.float32(z)).astype(float)  # ascends in single precision, too
    across, rate = transverse_distance(distances_at(z, table), table), table.E(1 / (1 + z))
    number = survey.density(z) * np.asarray(across, float) ** 2 / np.asarray(rate, float)
    below = ndtr((np.asarray(bins)[:, None] - z) / np.maximum(survey.redshift_error * (1 + z), _SHARPEST))
    return [(z, number * part) for part in np.diff(below, axis=0)]
