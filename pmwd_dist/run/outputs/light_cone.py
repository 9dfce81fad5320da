"""The light cone of a run: filled step by step, written with the lensing by it at the end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from pydantic import BeforeValidator, Field, model_validator

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import distances_at
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.io.snapshot import content
from pmwd_dist.observe import lensing
from pmwd_dist.observe.angular_power import UNMAGNIFIED, AngularPower, all_powers, limber_power, share_beyond_box
from pmwd_dist.observe.flat_sky import ACROSS, FlatSkyLightCone
from pmwd_dist.observe.galaxy_cone import ConeGalaxies
from pmwd_dist.observe.galaxy_maps import GalaxyMaps, galaxy_maps
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.observe.power import mean
from pmwd_dist.observe.shells import Assignment, checked_observer
from pmwd_dist.observe.sources import LightCone as ShellLightCone
from pmwd_dist.observe.sources import coverage_warning, mean_and_width
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.parallel.distributed import on_main
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.status import Code, SimulationError
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.forward import Epoch
from pmwd_dist.pm.stepping.host import StepSchedule
from pmwd_dist.pm.stepping.step import MidStep, undo_half_drift
from pmwd_dist.report.fields import lensed_maps
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table, read_table, write_table
from pmwd_dist.run.outputs.base import Axis, Drawing, Output
from pmwd_dist.run.outputs.fields import write_fields
from pmwd_dist.run.settings.section import Distance, File, Listed, Place, Section, about, one_or_several
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.table import read_table as read_columns
from pmwd_dist.run.settings.writing import reason, toml_value

_POWER = "convergence_power.csv"
_WIDEST = 10.0  # field of view that is chosen where none is given [degrees]
_SHIFTS = 1  # seed of shifts: with one for all runs, maps of a run have the rays of the model of an inference
_LARGE = np.array([10, 30])  # multipoles
_LARGEST_NSIDE = 1024  # of harmonics, which take longer than the simulation on larger spheres


_Source = Annotated[float, Field(gt=0, le=1000)]
_Numbers = Annotated[tuple[float, ...], BeforeValidator(one_or_several)]
_MOST_REDSHIFTS = 4000  # of a bin: an attribute of HDF5 holds 64 kB


class Bin(Section):
    """A bin of sources: the numbers n at redshifts z, as columns or of a file."""

    z: _Numbers | None = about("redshifts, which ascend", None, [0.2, 0.4, 0.6])
    n: _Numbers | None = about("number of sources per redshift at each, in any unit, or one for all", None, [0, 1, 0])
    file: File | None = about("text file with the redshifts as its first column", None, "nz.txt")
    column: int = about("column of the file that holds the numbers, counted from 1", 2, ge=2)

    @cached_property
    def n_z(self) -> tuple[np.ndarray, np.ndarray]:
        """Redshifts, and their numbers."""
        if self.file is not None:
            return read_columns(Path(self.file), "file", f"z and a column {self.column} of n(z)", self.column)
        z, n = np.asarray(self.z, float), np.asarray(self.n, float)
        return z, np.broadcast_to(n, z.shape)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.file is None) != (self.z is not None) or (self.z is None) != (self.n is None):
            raise ValueError("must have z and n, or a file")
        try:
            z, n = self.n_z
        except (OSError, ValueError) as error:
            raise ValueError(f"has wrong columns: {reason(error)}") from error
        if not 2 <= len(z) <= _MOST_REDSHIFTS or z[0] < 0 or z[-1] > 1000 or not (np.diff(z) > 0).all():
            raise ValueError(f"must have 2 to {_MOST_REDSHIFTS} redshifts from 0 to 1000, which ascend")
        if not (np.isfinite(n).all() and n.min() >= 0 and n.max() > 0):
            raise ValueError("must have numbers of 0 or more, not all 0")
        return self


class LightCone(Output):
    """The past light cone, filled during the run, and the lensing by it, at the end of the run."""

    name = "light_cone"
    figure, source = "convergence.png", "light_cone.hdf5"
    rank = 1
    free = False  # it is filled in every step
    stage = "a step"
    remedy = "use fewer edges or pixels of observe.light_cone"
    caption = Caption(
        "Weak lensing",
        "Convergence by the light cone for each source, with the shear as sticks on a flat sky, and its angular power "
        "spectra with linear theory (dashed), which has the window of the pixels and lacks waves that the box or the "
        "particles cannot hold. With redshift_bins the galaxies and their spectra follow.",
        "spectra that follow linear theory at small multipoles within their scatter, and exceed it at larger ones by "
        "nonlinear growth and shot noise; sticks around peaks.",
    )

    sky: Literal["flat", "sphere"] = about("flat: the observer looks along an axis; sphere: in all directions", "flat")
    line_of_sight: Axis = about("axis along which the observer looks on a flat sky", "z")
    sources: Annotated[tuple[_Source, ...], BeforeValidator(one_or_several)] | None = about(
        "redshifts of lensed sources, one or several; default: 1, or the bins", None, 1.0
    )
    bins: Annotated[tuple[Bin, ...], BeforeValidator(one_or_several)] | None = about(
        "bins of sources, as tables [[observe.light_cone.bins]] with z and n, or file and column; default: none",
        None,
        [{"z": [0.1, 0.3, 0.5], "n": [0.0, 1.0, 0.0]}, {"file": "nz.txt", "column": 3}],
    )
    edges: Annotated[tuple[Distance, ...], Listed] | None = about(
        "comoving distances between which the shells lie [Mpc/h]; default: shells of half a box, out to the sources",
        None,
        [0.0, 500.0, 1000.0],
    )
    observer: Place | None = about(
        "place of the observer in the box [Mpc/h]; default: the lower side along the line of sight, or the centre for "
        "a sphere",
        None,
        [0.0, 0.0, 0.0],
    )
    pixels: int | None = about(
        "pixels along a side of a plane of a flat sky; default: twice the mesh", None, 256, ge=1, le=1 << 16
    )
    field: float | None = about(
        "side of the field of view on a flat sky [degrees]; default: the box at the last shell, at most 10",
        None,
        5.0,
        ge=1e-3,
        le=90,
    )
    rays: int = about("rays along each side of the field of view", 256, ge=4, le=1 << 15)
    shift: bool = about(
        "shift each repetition of the box, in the same way for all seeds, for the lensing; on a sphere also rotate or "
        "mirror it",
        True,
    )
    nside: int = about("pixels along the side of a HEALPix base pixel, of a sphere", 128, ge=1, le=1 << 13)

    def problems(self, box: Any) -> Iterator[str]:
        if self.sources is not None and self.bins is not None:
            yield "observe.light_cone.bins: hold the sources; leave observe.light_cone.sources out"
        for key in ("nside",) if self.sky == "flat" else ("line_of_sight", "pixels", "field", "rays"):
            if getattr(self, key) != type(self).model_fields[key].default:
                yield f'observe.light_cone.{key}: has no effect with sky = "{self.sky}"; leave it out'
        if len(set(self.labels)) < len(self.labels):
            yield f"observe.light_cone.sources = {toml_value(list(self.lensed))}: must be different redshifts"

    def columns(self) -> dict[str, tuple[np.ndarray, ...]]:
        return {} if self.bins is None else {"bins": tuple(x for one in self.bins for x in one.n_z)}

    @property
    def lensed(self) -> list[Any]:
        """The sources of each map, as for `observe.convergence`."""
        return list(self.sources or (1.0,)) if self.bins is None else [one.n_z for one in self.bins]

    @property
    def moments(self) -> tuple[list[float], list[float]]:
        """Means and widths of the redshifts of the sources."""
        if self.bins is None:
            return self.lensed, [0.0] * len(self.lensed)
        found = [mean_and_width(*n_z) for n_z in self.lensed]
        return [mean for mean, _ in found], [width for _, width in found]

    @property
    def labels(self) -> list[str]:
        """Name of each map in tables."""
        count = len(self.lensed)
        return [f"z={z:.9g}" for z in self.lensed] if self.bins is None else [f"bin {i + 1}" for i in range(count)]

    def build(self, config: Config, cosmo: Cosmology, assignment: Assignment) -> ShellLightCone:
        """The light cone of these keys.

        Raises ArgumentError for an argument out of its range, or shells or sources beyond the time span.
        """
        table = growth_table_to(config.lpt_order, cosmo)
        name = "sources" if self.bins is None else "bins"
        farthest = [float(np.max(x[0] if isinstance(x, tuple) else x)) for x in self.lensed]
        if max(farthest) > (first := 1 / config.a_start - 1):
            constraint = f"reach beyond the start of the run, z = {first:g}"
            raise ArgumentError(name, farthest, constraint, "use nearer sources, or an earlier time.a_start")
        edges = self.edges or _default_edges(max(farthest), table, config)
        if self.sky == "sphere":
            options: Any = {"observer": self.observer, "seed": _SHIFTS if self.shift else None}
            cone: ShellLightCone = SphericalLightCone(config, edges, self.nside, shell_assignment=assignment, **options)
        else:
            cone = self._flat(config, edges, assignment)
        cone.check(table, config)
        distance = float(distances_at(min(farthest), table))
        if distance <= cone.edges[0]:
            constraint = f"at {distance:.4g} Mpc/h is nearer than the nearest shell, from {cone.edges[0]:g} Mpc/h on"
            raise ArgumentError(name, min(farthest), constraint, "use farther sources or nearer shells")
        return cone

    def _flat(self, config: Config, edges: tuple[float, ...], assignment: Assignment) -> FlatSkyLightCone:
        observer = checked_observer((0.0, 0.0, 0.0) if self.observer is None else self.observer, config.box_size)
        axis = self.line_of_sight
        pixels = tuple(2 * config.mesh_shape[i] for i in ACROSS[axis]) if self.pixels is None else self.pixels
        place: Any = {"observer": observer["xyz".index(axis)], "line_of_sight": axis}
        cone = FlatSkyLightCone(config, edges, pixels=pixels, **place, shell_assignment=assignment)
        for i, parts in enumerate(config.decomposition.pdims):
            config.decomposition.check_axis((self.rays, self.rays, 1), i, parts, "rays")
        return cone

    def view(self, cone: ShellLightCone) -> dict[str, Any]:
        """Arguments of the lensing by a flat sky: field of view [degrees], rays, shifts; empty for a sphere."""
        if not isinstance(cone, FlatSkyLightCone):
            return {}
        side = min(_WIDEST, math.degrees(min(cone.sides) / cone.edges[-1])) if self.field is None else self.field
        return {"field": side, "pixels": self.rays, "offsets": offsets_of(cone) if self.shift else None}

    def warnings(self, simulation: SimulationSetup) -> list[str]:
        cone: Any = simulation.light_cone
        found = (coverage_warning(cone, simulation.growth, z) for z in self.lensed)
        texts = [text for text in found if text is not None]
        if isinstance(cone, FlatSkyLightCone) and np.diff(cone.edges).max() > cone.config.box_size[cone.along] * 1.001:
            texts.append("a shell is thicker than the box, whose structures add up in it; use shells of half a box")
        return [f"observe.light_cone.edges: {text}" for text in texts]

    def description(self, simulation: SimulationSetup) -> str:
        cone: Any = simulation.light_cone
        count, near, far = len(cone.edges) - 1, cone.edges[0], cone.edges[-1]
        lost = share_beyond_box(_LARGE, lambda k: np.nan_to_num(simulation.linear_power(k)), simulation.growth, cone)
        shares = " and ".join(f"{100 * x:.2g} % at l = {ell}" for ell, x in zip(_LARGE, np.asarray(lost), strict=True))
        shells = f"light cone of {count} shell{'s' * (count > 1)} from {near:.4g} to {far:.4g} Mpc/h"
        return f"{shells}; C_l lacks {shares} in waves longer than the box"

    @property
    def _has_harmonics(self) -> bool:
        """Whether shear and spectra are computed."""
        return self.sky == "flat" or self.nside <= _LARGEST_NSIDE

    def last_names(self) -> list[str]:
        return [self.source, *([_POWER] if self._has_harmonics else []), self.figure]

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        cone: Any = simulation.light_cone
        return 4 * shells_like(cone).size

    def write_last(
        self, folder: Path, simulation: SimulationSetup, shells: Array, cone_galaxies: ConeGalaxies | None
    ) -> None:
        cone: Any = simulation.light_cone
        view = self.view(cone)
        about: dict[str, Any] = {"sources": self.moments[0], "edges": cone.edges, "box_size": cone.config.box_size}
        about |= {f"n(z) of bin {i}": np.stack(one.n_z) for i, one in enumerate(self.bins or (), 1)}
        about |= {"sky": self.sky, "observer": place_of(cone), "shift": int(self.shift)}
        if isinstance(cone, FlatSkyLightCone):
            about |= {"line_of_sight": cone.line_of_sight, "field": view["field"]}
        else:
            about |= {"nside": cone.nside, "ordering": "RING"}
        fields = self._lens(shells, simulation, view)
        if not np.isfinite(np.asarray(fields["convergence"])).all():
            raise SimulationError("the light cone is not finite: displacements exceed 100 Mpc/h; use a smaller sigma8")
        pieces = {"mass": (shells, {"unit": "mass of a particle", "axes": "shell, pixels"})}
        for name, values in fields.items():
            pieces[name] = values, {"axes": "source, " + ("component, " * (name == "shear")) + "pixels"}
        tracers = None
        if cone_galaxies is not None and cone_galaxies.bins is not None:
            about["redshift_bins"], *tracer = cone_galaxies.bins
            tracers = galaxies, (_, about["magnification"]) = _maps_of(cone_galaxies, shells, cone, view), tracer
            pieces["galaxies"] = jnp.asarray(galaxies.overdensity), {"axes": "bin, pixels"}
            pieces["seen"] = jnp.asarray(galaxies.seen), {"axes": "pixels"}
        about["units"] = "edges, box_size, observer: Mpc/h; field: degrees"
        write_fields(folder / self.source, pieces, about)
        if self._has_harmonics:
            table = self._spectra(fields["convergence"], simulation, view.get("field"), tracers)
            on_main(write_table, folder / _POWER, table)

    def _lens(self, shells: Array, simulation: SimulationSetup, view: dict[str, Any]) -> dict[str, Array]:
        """Maps of the convergence and, where it has harmonics, of the shear of all sources, on every device."""
        cone: Any = simulation.light_cone
        functions: dict[str, Any] = {"convergence": lensing.convergence}
        if self._has_harmonics:
            functions["shear"] = lensing.shear

        def lens(shells: Array, table: GrowthTable) -> dict[str, Array]:
            own: Any = {"source": self.lensed, **view}
            return {name: function(shells, table, cone, **own) for name, function in functions.items()}

        return jit(lens, out_shardings=cone.config.decomposition.replicated)(shells, simulation.growth)

    def _spectra(
        self, maps: Any, simulation: SimulationSetup, side: float | None, tracers: tuple[GalaxyMaps, Any] | None
    ) -> Table:
        """C_l of all pairs of maps, their Gaussian scatter, and C_l of linear theory with the windows of the maps.

        Galaxies, their linear bias and slope of counts may follow the sources.
        """
        cone: Any = simulation.light_cone
        values, labels, seen, noise = np.asarray(maps), self.labels, [np.ones(1)] * len(maps), np.zeros(len(maps))
        options: dict[str, Any] = {"cone": cone}
        if tracers is not None:
            galaxies, tracer = tracers
            values = np.concatenate([values, np.asarray(galaxies.overdensity, values.dtype)])
            labels = [*labels, *(f"galaxies {i + 1}" for i in range(len(galaxies.n_z)))]
            seen, noise = [*seen, *[galaxies.seen] * len(galaxies.n_z)], np.append(noise, galaxies.shot_noise)
            options |= {"galaxies": [(*n_z, *tracer) for n_z in galaxies.n_z], "pixel": side and side / self.rays}
        measured = {pair: x if side is not None else _binned(x) for pair, x in all_powers(values, side).items()}
        filled = np.asarray(measured[0, 0].modes) > 0
        ell, modes = (np.asarray(x, float)[filled] for x in (measured[0, 0].ell, measured[0, 0].modes))
        share = {(i, j): np.mean(seen[i] * seen[j]) for i, j in measured}
        spectra = {pair: np.asarray(x.power, float)[filled] / share[pair] for pair, x in measured.items()}
        # A table ends where nothing is simulated.
        power = lambda k: np.nan_to_num(simulation.linear_power(k))  # noqa: E731
        given = simulation.growth, cone.edges, self.lensed
        linear = np.asarray(limber_power(ell, power, *given, **options), float)
        columns = {"l": ell, "modes": modes}
        for (i, j), found in spectra.items():
            name = labels[i] if i == j else f"{labels[i]} x {labels[j]}"
            fewer = np.mean((seen[i] * seen[j]) ** 2) / share[i, j] ** 2  # modes of a part of the sky
            scatter = np.sqrt((spectra[i, i] * spectra[j, j] + found**2) / modes * fewer)
            shot = noise[i] / share[i, i] if i == j else 0.0
            columns |= {f"C_l {name}": found - shot, f"error {name}": scatter, f"linear {name}": linear[i, j]}
            columns |= {f"shot noise {name}": np.full_like(ell, shot)} if shot else {}
        where = "the whole sky" if side is None else f"a field of {side:.4g} degrees"
        note = (
            "linear: with the window of the pixels, for waves that fit into the box and on the lattice of the particles"
        )
        if tracers is not None and tracers[1][-1] != UNMAGNIFIED:
            note += f"; galaxies are magnified, with a slope of counts of {tracers[1][-1]:g}"
        return Table(f"convergence of {where}", columns, {}, note)

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        table = read_table(path / _POWER) if (path / _POWER).is_file() else None
        with content.opened(path / cls.source) as file:
            maps, sources = content.numbers(file, "convergence"), content.values(file, "sources").tolist()
            of_bins = "n(z) of bin 1" in file.attrs
            side = float(content.values(file, "field")[0]) if file.attrs.get("sky") == "flat" else None
            gamma = content.numbers(file, "shear") if side is not None and content.has(file, "shear") else None
            edges = content.values(file, "redshift_bins").tolist() if content.has(file, "galaxies") else []
            counted: Any = ()
            if edges:
                counted = np.where(content.numbers(file, "seen") > 0, content.numbers(file, "galaxies"), np.nan)
        titles = [f"galaxies {i}: $z = {a:g}$ to {b:g}" for i, (a, b) in enumerate(pairwise(edges), 1)]
        names = [
            f"sources of bin {i}, mean z = {z:.2f}" if of_bins else f"sources at $z = {z:g}$"
            for i, z in enumerate(sources, 1)
        ]
        columns = [] if table is None else [name[4:] for name in table.columns if name.startswith("C_l ")]
        counts = [("galaxies" in name) + name.startswith("galaxies") for name in columns]
        groups = [[name for name, count in zip(columns, counts, strict=True) if count == i] for i in range(3)]
        spectra = [_panel(table, group) for group in groups if table is not None and group]
        shown: Any = {"galaxies": [*zip(titles, counted, strict=True)], "spectra": spectra}
        return partial(lensed_maps, names, maps, shear=gamma, field=side, **shown)


def _panel(table: Table, names: list[str]) -> dict[str, Any]:
    """Spectra of a table with these names, as arguments of a figure."""
    rows = {"ell": table["l"], "modes": table["modes"]}
    spectra = [SimpleNamespace(power=table[f"C_l {x}"], error=table[f"error {x}"], **rows) for x in names]
    labels = [re.sub(r"z=([^ ]+)", r"$z = \1$", name).replace(" x ", r" $\times$ ") for name in names]
    return {"spectra": spectra, "linear": [table[f"linear {x}"] for x in names], "labels": labels}


def _maps_of(galaxies: ConeGalaxies, shells: Array, cone: ShellLightCone, view: dict[str, Any]) -> GalaxyMaps:
    """Magnified maps of galaxies in the pixels of the convergence; SimulationError if a bin has none."""
    grid, (bins, _, slope) = {key: view.get(key) for key in ("field", "pixels")}, galaxies.bins or ((), None, 0.0)
    try:
        maps = galaxy_maps(galaxies.catalogue().columns, galaxies.survey, galaxies.table, cone, bins, **grid)
    except ArgumentError as error:
        raise SimulationError(f"observe.galaxies.redshift_bins: {error.reason}") from error
    if slope == UNMAGNIFIED:
        return maps

    def see(shells: Array, table: GrowthTable, bins: Any) -> Array:
        return lensing.convergence(shells, table, cone, source=bins, **view)

    kappa = jit(see, out_shardings=cone.config.decomposition.replicated)(shells, galaxies.table, maps.n_z)
    return maps._replace(overdensity=maps.overdensity + (5 * slope - 2) * maps.seen * np.asarray(kappa))


def place_of(cone: ShellLightCone) -> tuple[float, ...]:
    """Place of the observer of a light cone in the box [Mpc/h]."""
    if isinstance(cone, FlatSkyLightCone):
        return tuple(cone.observer if i == cone.along else 0.0 for i in range(3))
    return cone.observer


def shells_like(cone: ShellLightCone) -> jax.ShapeDtypeStruct:
    """Shape, type and sharding of the shells of a light cone."""
    pixels = cone.pixels if isinstance(cone, FlatSkyLightCone) else (pixel_count(cone.nside),)
    sharding = NamedSharding(cone.config.decomposition.mesh, cone.spec)
    return jax.ShapeDtypeStruct((len(cone.edges) - 1, *pixels), np.dtype(jnp.result_type(float)), sharding=sharding)


@partial(jit, static_argnames=("cone", "config"), donate_argnames=("particles", "shells"))
def advance_and_see(
    particles: ExactParticles,
    shells: Array,
    motion: MidStep,
    schedule: StepSchedule,
    done: Any,
    cone: ShellLightCone,
    config: Config,
) -> tuple[MidStep, Array]:
    """One step of `host.advance`, and the shells with the particles that the light cone crosses in it.

    The halo of the config is for forces; the light cone has a halo of its own. Particles and shells are donated;
    `motion` is the rest of the state of the step, with particles=().
    """
    before = motion._replace(particles=particles)
    after = host.advance(before, schedule, done, config)
    start, end = (Epoch(schedule.times[done + i], undo_half_drift(m, config)) for i, m in enumerate((before, after)))
    seen = cone(start, end, schedule.table)
    shells = shells + jnp.where(after.status.code == Code.SUCCESSFUL, seen, 0)
    sharding: Any = shells_like(cone).sharding
    return after, jax.lax.with_sharding_constraint(shells, sharding)


def offsets_of(cone: FlatSkyLightCone) -> np.ndarray:
    """Shifts of the shells across the line of sight, the same for all shells of one repetition of the box [Mpc/h]."""
    depth = cone.config.box_size[cone.along]
    middle = (np.asarray(cone.edges[1:]) + np.asarray(cone.edges[:-1])) / 2
    repetition = np.floor((middle + cone.observer) / depth).astype(int)
    shifts = np.random.default_rng(_SHIFTS).uniform(0, cone.sides, (repetition.max() + 1, 2))
    return shifts[repetition]


def _default_edges(farthest: float, table: GrowthTable, config: Config) -> tuple[float, ...]:
    """Shells of half a box, the last one thinner, from the end of the run out to the farthest source."""
    ends = distances_at([1 / config.a_stop - 1, farthest], table)
    width = min(config.box_size) / 2
    near, far = (round(max(float(end), 0.0), 3) for end in ends)  # the same on all devices, whose last digits differ
    inner = near + width * np.arange(max(1, math.ceil((far - near) / width - 0.05)))
    return (*map(float, inner), far)


def _binned(power: AngularPower) -> AngularPower:
    """A spectrum of each l from 2 on in bins of a tenth, as means over the modes; some bins at small l are empty."""
    ell, values, modes = (np.asarray(x, float)[2:] for x in (power.ell, power.power, power.modes))
    index = np.floor(np.log(ell / 2) / np.log(1.1)).astype(int)
    count = jnp.asarray(np.bincount(index, modes))
    ell, values = (mean(jnp.asarray(np.bincount(index, modes * x)), count) for x in (ell, values))
    return AngularPower(ell, values, count)
