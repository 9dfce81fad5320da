"""A survey of galaxies: number density by redshift, angular mask, completeness, redshift errors, and its randoms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._checks import check_callable, check_number, check_seen, check_shares, check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import on_host
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import distances_at, transverse_distance
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.catalogue import Catalogue
from pmwd_dist.observe.healpix import nearest_pixel, nside_of, rings_of
from pmwd_dist.observe.shells import checked_observer
from pmwd_dist.parallel.distributed import to_devices
from pmwd_dist.parallel.inputs import check_on_host, numbers, whole_number
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.noise import check_key, key_words

UNITS = {"RA": "deg", "DEC": "deg", "Z": "", "Z_COSMO": "", "WEIGHT": "", "NZ": "(h/Mpc)^3"}
_MOST_NODES, _NODES = 4000, 4096  # of n(z): as many as an attribute in HDF5 holds; of tables of distances

Columns = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Survey:
    """The galaxies that a survey observes, around an observer whose axes x and y are RA = 0 and 90, and z is DEC = 90.

    Args:
      n_z: redshifts, which ascend, and comoving number densities at them [(h/Mpc)^3], linear in between and 0 beyond.
        They are observed redshifts, which peculiar velocities shift, before redshift errors.
      mask: share of the galaxies that is observed in each pixel of the sky, from 0 to 1: a HEALPix map in RING order by
        RA and DEC; default: 1.
      completeness: share of the galaxies that is observed everywhere.
      redshift_error: standard deviation of the Gaussian errors of Z / (1 + Z).
      losses: function of the columns of a catalogue that returns the share of each galaxy that is kept, 0 to 1, such as
        by collisions of fibres. Kept galaxies have the inverse of it as `WEIGHT`.

    Raises:
      ValueError: an argument is out of its range, or nothing is observed.

    Examples:
      >>> survey = observe.Survey(n_z=([0.2, 0.4, 0.6], [3e-4, 3e-4, 1e-4]), mask=footprint, completeness=0.9)
    """

    n_z: Any
    mask: Any = None
    completeness: float = 1.0
    redshift_error: float = 0.0
    losses: Callable[[Columns], Any] | None = None

    def __post_init__(self):
        object.__setattr__(self, "n_z", _checked_n_z(self.n_z))
        object.__setattr__(self, "mask", None if self.mask is None else _checked_mask(self.mask))
        check_number(self.completeness, "completeness", 1e-9, 1)
        check_number(self.redshift_error, "redshift_error", 0, 0.2)
        if self.losses is not None:
            check_callable(self.losses, "losses", "lambda columns: columns['Z'] > 0.1")

    @property
    def z_range(self) -> tuple[float, float]:
        """First and last redshift between which there are galaxies."""
        z, n = self.n_z
        seen = np.flatnonzero(n)
        return float(z[max(seen[0] - 1, 0)]), float(z[min(seen[-1] + 1, len(z) - 1)])

    @property
    def sky_share(self) -> float:
        """Observed share of the sky."""
        return 1.0 if self.mask is None else float(np.mean(self.mask))

    def density(self, z: Any) -> np.ndarray:
        """Number density at redshifts, where the sky is observed [(h/Mpc)^3]."""
        return self.completeness * np.interp(z, *self.n_z, left=0, right=0)

    def number(self, cosmo: Cosmology | GrowthTable) -> float:
        """Expected number of galaxies: the integral of n(z) over the comoving volume that the mask shows."""
        return float(self._cumulative(cosmo)[1][-1])

    def _cumulative(self, cosmo: Cosmology | GrowthTable) -> tuple[np.ndarray, np.ndarray]:
        """Redshifts, and the expected number of galaxies up to them."""
        low, high = self.z_range
        z = np.union1d(np.linspace(low, high, _NODES), self.n_z[0][(self.n_z[0] > low) & (self.n_z[0] < high)])
        x = distances_at(z, cosmo)
        y = self.density(z) * on_host(lambda x: transverse_distance(x, cosmo), x, 2 * _NODES) ** 2
        pieces = 4 * math.pi * self.sky_share * np.diff(x) * (y[1:] + y[:-1]) / 2
        return z, np.concatenate([[0.0], np.cumsum(pieces)])

    def numbers_between(self, redshifts: np.ndarray, cosmo: Cosmology | GrowthTable) -> np.ndarray:
        """Expected number of galaxies between redshifts, which ascend."""
        return np.diff(np.interp(redshifts, *self._cumulative(cosmo)))

    def observed(self, columns: Columns, rng: np.random.Generator, losses: Any) -> Columns:
        """Columns of galaxies with redshift errors and number density, of those that losses leave."""
        z = columns["Z"]
        nz = self.density(z)
        if self.redshift_error:
            z = z + self.redshift_error * (1 + z) * rng.standard_normal(len(z))
        columns = columns | {"Z": z, "WEIGHT": np.ones(len(z)), "NZ": nz}
        if losses is None:
            return columns
        share = np.asarray(numbers(losses({name: x.copy() for name, x in columns.items()}), "losses(columns)"), float)
        if share.shape != z.shape:
            raise ArgumentError("losses(columns).shape", share.shape, f"must be {z.shape}, one for each galaxy")
        if len(z):
            check_shares(share, "losses(columns)")
        kept = rng.random(len(z)) < share
        columns["WEIGHT"] = 1 / np.where(kept, share, 1)
        return {name: values[kept] for name, values in columns.items()}


def _checked_n_z(n_z: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(n_z, tuple | list | np.ndarray) or len(n_z) != 2:
        constraint = "must be a pair: redshifts, and number densities at them"
        raise ArgumentError("n_z", n_z, constraint, "for example ([0.2, 0.6], [3e-4, 1e-4])", show_value=False)
    z, n = (np.asarray(numbers(x, "n_z"), float) for x in n_z)
    if z.ndim != 1 or z.shape != n.shape or not 2 <= len(z) <= _MOST_NODES:
        constraint = f"must hold as many redshifts as densities, 2 to {_MOST_NODES}"
        raise ArgumentError("n_z", n_z, f"{constraint}, and has the shapes {z.shape} and {n.shape}", show_value=False)
    if not (np.isfinite(z).all() and z[0] >= 0 and (np.diff(z) > 0).all()):
        i = next((i for i, (a, b) in enumerate(itertools.pairwise(z)) if not b > a), 0)
        constraint = f"must have redshifts of 0 or more that ascend, and has {z[i]:g}, {z[i + 1]:g}"
        raise ArgumentError("n_z", n_z, constraint, "sort them", show_value=False)
    if not (np.isfinite(n).all() and n.min() >= 0):
        raise ArgumentError("n_z", n_z, "must have finite number densities of 0 or more", show_value=False)
    if not n.any():
        raise ArgumentError("n_z", n_z, "has no galaxies: all densities are 0", show_value=False)
    return z, n


def _checked_mask(mask: Any) -> np.ndarray:
    values = np.asarray(numbers(mask, "mask"), float)
    if values.ndim != 1 or not nside_of(values.size):
        constraint = "must be a HEALPix map of 12 nside^2 pixels in RING order"
        raise ArgumentError("mask.shape", values.shape, constraint)
    check_seen(values, "mask", "set them to 0")
    check_shares(values, "mask")
    if not values.any():
        raise ArgumentError("mask", mask, "has no galaxies: it is 0 in every pixel", show_value=False)
    return values


def redshift_table(cosmo: Cosmology | GrowthTable, last: float) -> tuple[np.ndarray, np.ndarray]:
    """Distances, and redshifts at them, out to a last redshift, for linear interpolation."""
    z = np.expm1(np.linspace(0, math.log1p(last), _NODES))
    return distances_at(z, cosmo), z


def sky(x: np.ndarray) -> Columns:
    """RA and DEC of directions, shape (galaxies, 3) [deg]."""
    ra = np.degrees(np.arctan2(x[:, 1], x[:, 0])) % 360
    return {"RA": np.where(ra < 360, ra, 0), "DEC": np.degrees(np.arctan2(x[:, 2], np.hypot(x[:, 0], x[:, 1])))}


def comoving_positions(
    columns: Columns, cosmo: Cosmology | GrowthTable, *, observer: Sequence[float] = (0.0, 0.0, 0.0)
) -> np.ndarray:
    """Positions of galaxies, shape (galaxies, 3), from `RA`, `DEC` [deg] and `Z` in a cosmology [Mpc/h].

    Raises:
      ValueError: a column is missing, too short or out of its range, such as a Z below 0 by errors of redshifts, or the
        observer has not got three coordinates.

    Examples:
      >>> positions = observe.comoving_positions(galaxies.columns, cosmo, observer=(256.0, 256.0, 256.0))
      >>> counts = observe.counts_from_catalogue(positions, config)
    """
    check_on_host("comoving_positions", (dict(columns), cosmo))
    if missing := {"RA", "DEC", "Z"} - {*columns}:
        constraint = f"lacks {', '.join(sorted(missing))}"
        raise ArgumentError("columns", list(columns), constraint, "pass catalogue.columns")
    if np.shape(observer) != (3,):
        raise ArgumentError("observer", observer, "must be three coordinates [Mpc/h]")
    check_number(observer, "observer", unit="Mpc/h", several=True)
    ra, dec, z = (np.asarray(columns[name], float) for name in ("RA", "DEC", "Z"))
    if z.ndim != 1 or not ra.shape == dec.shape == z.shape:
        shapes = f"{ra.shape}, {dec.shape} and {z.shape}"
        raise ArgumentError("columns", columns, f"have RA, DEC and Z of the shapes {shapes}", show_value=False)
    check_number(ra, "columns['RA']", unit="deg", several=True)
    check_number(dec, "columns['DEC']", -90, 90, unit="deg", several=True)
    check_number(z, "columns['Z']", 0, remedy="leave galaxies out whose errors reach below", several=True)
    ra, dec, distance = np.radians(ra), np.radians(dec), distances_at(z, cosmo)
    x = np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], -1)
    return distance[:, None] * x + np.asarray(observer, float)


def survey_selection(
    survey: Survey, cosmo: Cosmology | GrowthTable, config: Config, *, observer: Sequence[float] | None = None
) -> Float[Array, "nx ny nz"]:
    """Selection of a survey on the mesh: n(z) at the fiducial redshift of each cell, per its maximum, times the mask.

    It is a `selection` of `infer.Poisson` for a `Simulation` with an observer. `nbar` is then the largest n(z) times
    completeness and the volume of a cell.

    Args:
      survey: the survey.
      cosmo: fiducial cosmology, or its `growth_table`.
      config: configuration of the simulation.
      observer: position of the observer in the box [Mpc/h]; default: the centre.

    Returns:
      Selection from 0 to 1.

    Raises:
      ValueError: an argument is out of its range, the cosmology is curved, or the survey sees no cell of the mesh.

    Examples:
      >>> selection = observe.survey_selection(survey, cosmo, config)
    """
    check_on_host("survey_selection", cosmo)
    check_survey(survey)
    check_config(config)
    observer = checked_observer(observer, config.box_size)
    sides = zip(config.mesh_shape, config.cell_size, observer, strict=True)
    axes = [np.arange(n) * cell - o for n, cell, o in sides]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    distance = np.linalg.norm(x, axis=-1)
    table = growth_table_to(2, cosmo)
    if float(table.cosmo.Omega_k) != 0:
        constraint = f"has Omega_k = {float(table.cosmo.Omega_k):g}, and cells of the box are those of a flat space"
        raise ArgumentError("cosmo", cosmo, constraint, "use a flat fiducial cosmology", show_value=False)
    distances, redshifts = redshift_table(table, 1 / config.a_start - 1)
    z = np.interp(distance, distances, redshifts, right=math.inf)  # beyond the first redshift of the simulation
    selection = survey.density(z) / (survey.completeness * survey.n_z[1].max())
    if survey.mask is not None:
        direction = np.where(distance[..., None] > 0, x, 1)
        selection *= survey.mask[np.asarray(nearest_pixel(nside_of(len(survey.mask)), direction))]
    if not selection.any():
        farthest = z.max(where=np.isfinite(z), initial=0)
        constraint = f"sees no cell of the mesh, whose farthest one with particles is at z = {farthest:.3g}"
        raise ArgumentError("survey", survey, constraint, "use a larger box", show_value=False)
    return to_devices(selection.astype(jnp.result_type(float)), config.decomposition.sharding)


def generator(key: Array, purpose: int) -> np.random.Generator:
    """Random numbers of the host, from a key, the same in every process."""
    return np.random.default_rng([*np.ravel(np.asarray(key_words(key))).tolist(), purpose])


def random_catalogue(survey: Survey, cosmo: Cosmology | GrowthTable, *, key: Array, number: int) -> Catalogue:
    """Points without clustering, with the selection of a survey: n(z), mask and redshift errors, without losses.

    Args:
      survey: the survey.
      cosmo: cosmology, or its `growth_table`.
      key: key of the random numbers.
      number: number of points.

    Returns:
      Columns `RA`, `DEC` [deg], `Z`, `WEIGHT`, which is 1, and `NZ`, the number density at Z without its error
      [(h/Mpc)^3].

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> randoms = observe.random_catalogue(survey, cosmo, key=jax.random.key(2), number=20 * len(galaxies))
    """
    check_on_host("random_catalogue", (cosmo, key))
    check_survey(survey)
    check_key(key)
    number, table = whole_number(number, "number", least=1, most=10**9), growth_table_to(2, cosmo)
    rng = generator(key, 0)
    z, expected = survey._cumulative(table)  # pyright: ignore[reportPrivateUsage]
    points = sky(_directions(survey.mask, number, rng))
    columns = points | {"Z": np.interp(rng.random(number) * expected[-1], expected, z)}
    columns = survey.observed(columns, rng, None)
    return Catalogue(columns, {name: UNITS[name] for name in columns}, {})


def check_survey(survey: Any) -> None:
    """Raise ArgumentError unless this is a survey."""
    check_type(survey, Survey, "survey", "must be a Survey", "use observe.Survey(n_z=(z, n))")


def _directions(mask: np.ndarray | None, number: int, rng: np.random.Generator) -> np.ndarray:
    """Random directions, as many in each pixel as its share says, by rejection between its neighbours."""
    if mask is None:
        return _vectors(rng.uniform(-1, 1, number), rng.uniform(0, 2 * math.pi, number))
    first, count, shift, theta = rings_of(nside := nside_of(len(mask)))
    cosines, x = np.cos([0, *theta, math.pi]), np.empty((number, 3))
    pixels, left = rng.choice(len(mask), number, p=mask / mask.sum()), np.arange(number)
    while left.size:
        some = np.resize(left, 1 << (left.size - 1).bit_length())  # few programs
        ring = np.searchsorted(first, pixels[some], side="right") - 1
        place = pixels[some] - first[ring] + 0.5 * shift[ring] + rng.uniform(-1, 1, some.size)
        points = _vectors(rng.uniform(cosines[ring + 2], cosines[ring]), place * 2 * math.pi / count[ring])
        good = (np.asarray(nearest_pixel(nside, points)) == pixels[some])[: left.size]
        x[left[good]] = points[: left.size][good]
        left = left[~good]
    return x


def _vectors(z: np.ndarray, phi: np.ndarray) -> np.ndarray:
    across = np.sqrt(1 - z**2)
    return np.stack([across * np.cos(phi), across * np.sin(phi), z], -1)
