"""Galaxies by Lagrangian bias: multipoles of their power, and their counts in cells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import AfterValidator, Field

from pmwd_dist._checks import LARGEST_TRACER_BIAS
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.observe.angular_power import UNMAGNIFIED
from pmwd_dist.observe.bias import LagrangianBias, bias_weights, tracer_density
from pmwd_dist.observe.catalogue import MOST_GALAXIES, MOST_NEGATIVE
from pmwd_dist.observe.counts import MAX_CUT, MOST_IN_A_CELL, expected_counts, lost_power, overdensity_by_weight
from pmwd_dist.observe.filters import interlaced_density
from pmwd_dist.observe.multipoles import kaiser_multipoles, power_multipoles
from pmwd_dist.observe.redshift_space import redshift_space
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report.page import Caption
from pmwd_dist.report.tables import Table
from pmwd_dist.run.outputs.base import Arrays, Axis, Drawing, Output, TableOutput, View, k_max_problems, modes_of
from pmwd_dist.run.outputs.fields import write_fields
from pmwd_dist.run.outputs.multipoles import K_MAX, POLES, SHOT_NOISE, Multipoles, poles_table
from pmwd_dist.run.settings.section import OBSERVER, Distance, File, Listed, Pairs, Place, Share, about, ascending
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.simulation_sections import Box
from pmwd_dist.run.settings.writing import toml_value

_MASK = "observe.galaxies.mask"
_BIAS: Any = {"ge": -LARGEST_TRACER_BIAS, "le": LARGEST_TRACER_BIAS}
_OPERATORS = "b2", "bs2", "bnabla2", "b3", "bdeltas2", "bs3"  # of an unsmoothed field they diverge
CONE = (*("b1", *_OPERATORS, "smoothing"), *("light_cone", "n_z", "sky", "completeness", "redshift_error", "observer"))


_Selected = Annotated[tuple[Distance, Share], Listed]
_Redshift = Annotated[float, Field(ge=0, le=1000)]


class Galaxies(TableOutput):
    """Galaxies by Lagrangian bias, at each output: multipoles of their power, and their counts in cells."""

    name = "galaxies"
    of_modes = True
    caption = Caption(
        "Multipoles of galaxies",
        "k times the multipoles of the galaxies, with the scatter of the modes, and Kaiser's linear theory (dashed). "
        "The power holds no shot noise; with a number density its scatter is in the errors.",
        "agreement at small k. Nonlinear growth raises the monopole at large k, and smoothing of the bias lowers it.",
    )

    b1: float = about("linear bias; on large scales galaxies have (1 + b1)^2 times the power of matter", 1.0, **_BIAS)
    b2: float = about("bias of delta^2", 0.0, **_BIAS)
    bs2: float = about("bias of the squared tidal field s^2", 0.0, **_BIAS)
    bnabla2: float = about("bias of the Laplacian of delta [(Mpc/h)^2]", 0.0, **_BIAS)
    b3: float = about("bias of delta^3", 0.0, **_BIAS)
    bdeltas2: float = about("bias of delta s^2", 0.0, **_BIAS)
    bs3: float = about("bias of the cubed tidal field s^3", 0.0, **_BIAS)
    smoothing: float | None = about(
        "radius of a Gaussian filter on the linear field [Mpc/h]; needed by all coefficients but b1",
        None,
        4.0,
        gt=0,
        le=1e5,
    )
    redshift_space: bool = about("move the galaxies by their redshifts", True)
    line_of_sight: Axis = about("axis of the redshifts and of the selection: x, y or z", "z")
    number_density: float | None = about(
        "mean number of galaxies where the selection is 1 [(h/Mpc)^3]: counts in cells are drawn; default: none",
        None,
        1e-3,
        gt=0,
        le=1e6,
    )
    selection: Annotated[tuple[_Selected, ...], Listed, AfterValidator(ascending)] | None = about(
        "shares that a survey sees, [distance, share] with the distance from the lower side of the box along the line "
        "of sight [Mpc/h]; linear in between, constant beyond; default: all",
        None,
        [[0.0, 1.0], [200.0, 0.3]],
    )
    mask: File | None = about(
        'file with the share of each cell that a survey sees, .npy or "file.h5:/dataset", of the shape of the mesh; '
        "path relative to this file; default: all",
        None,
        "survey.h5:/mask",
    )
    catalogue: bool = about("write a catalogue of positions and velocities, before selection and mask", False)
    light_cone: bool = about("write the galaxies that a survey with n_z sees on the light cone of the run", False)
    n_z: Pairs | None = about(
        "number density of the survey, [redshift, number], linear in between and 0 beyond [(h/Mpc)^3]",
        None,
        [[0.1, 1e-3], [0.4, 2e-4]],
    )
    sky: File | None = about(
        "file with the share of the galaxies that the survey sees in each HEALPix pixel in RING order, .npy or "
        '"file.h5:/dataset"; default: all',
        None,
        "survey.h5:/sky",
    )
    redshift_bins: Annotated[tuple[_Redshift, ...], Listed] | None = about(
        "edges of bins of Z, whose maps and C_l are written with the lensing of observe.light_cone; default: none",
        None,
        [0.1, 0.2, 0.4],
    )
    magnification: float = about(
        "slope s of counts by magnitude, d log10 N / dm: maps of redshift_bins get (5 s - 2) times the convergence",
        UNMAGNIFIED,
        0.7,
        ge=-10,
        le=10,
    )
    completeness: float = about("share of the galaxies that the survey sees", 1.0, gt=0, le=1)
    redshift_error: float = about("standard deviation of errors of Z / (1 + Z)", 0.0, ge=0, le=0.2)
    observer: Place | None = OBSERVER
    k_max: float | None = K_MAX

    @property
    def fixed(self) -> tuple[str, ...]:
        return CONE if self.light_cone else ()

    def problems(self, box: Box) -> Iterator[str]:
        for name in _OPERATORS:
            if getattr(self, name) and self.smoothing is None:
                why = f"the operator of observe.galaxies.{name} diverges on an unsmoothed field"
                yield f"observe.galaxies.smoothing: must be given: {why}; for example 4.0"
        if self.selection is not None and self.number_density is None:
            needed = "observe.galaxies.number_density; for example 0.001"
            yield f"observe.galaxies.selection: is for counts, which need {needed}"
        if self.catalogue and self.number_density is None:
            yield "observe.galaxies.catalogue: needs observe.galaxies.number_density; for example 0.001"
        if self.light_cone != (self.n_z is not None):
            yield "observe.galaxies.n_z: is needed on a light cone, light_cone = true, and has no effect without it"
        for key in ("sky", "completeness", "redshift_error", "observer", "redshift_bins"):
            if not self.light_cone and getattr(self, key) != type(self).model_fields[key].default:
                yield f"observe.galaxies.{key}: has no effect without light_cone = true; leave it out"
        if self.redshift_bins is None and self.magnification != UNMAGNIFIED:
            yield "observe.galaxies.magnification: has no effect without redshift_bins; leave it out"
        volume = math.prod(box.size)
        limits = [(volume / math.prod(box.mesh), MOST_IN_A_CELL, "a cell")]
        limits += [(volume, MOST_GALAXIES, "in the catalogue")] if self.catalogue else []
        for size, most, where in limits:
            if (expected := (self.number_density or 0) * size) > most:
                limit = f"must be at most {most / size:.3g}: {expected:.3g} galaxies {where} are expected"
                yield f"observe.galaxies.number_density = {self.number_density:g}: {limit}, and {most:g} can be drawn"
        yield from k_max_problems(self, self.k_max, box)

    def inputs(self) -> dict[str, str]:
        return {} if self.mask is None else {_MASK: self.mask}

    def input_problems(self, arrays: Arrays, simulation: SimulationSetup) -> list[str]:
        for values in arrays.values():
            if not (values.min() >= 0 and 0 < values.max() <= 1):
                found = f"and holds {values.min():.3g} to {values.max():.3g}; np.clip removes rounding"
                return [f"{_MASK} = {toml_value(self.mask)}: must hold shares from 0 to 1, some above 0, {found}"]
        shares = self.shares_seen(simulation.config, arrays)
        if shares is not None and not shares.max() > 0:
            return ["observe.galaxies.selection: nothing is left of it in the box, times the mask; change one"]
        if self.number_density is None:
            return []
        number = self.number_density * math.prod(simulation.config.box_size) * (1 if shares is None else shares.mean())
        few = f"expects {number:.3g} galaxies in the box, and must expect 1 or more"
        return [f"observe.galaxies.number_density = {self.number_density:g}: {few}"] if number < 1 else []

    def warnings(self, simulation: SimulationSetup) -> list[str]:
        """Also of galaxies without a bias of f_nl, and of forces of a coarse mesh, which change the linear bias."""
        said, config = super().warnings(simulation), simulation.config
        if simulation.f_nl:
            said.append("observe.galaxies: cosmology.f_nl has no part in the bias: bphi is 0")
        fine = max(n / m for m, n in zip(config.mesh_shape, config.particle_shape, strict=True)) < 0.75
        if not (fine or self.b1 == 0 or (self.smoothing or 0) >= 0.99 * max(config.cell_size)):
            above = "with one cell a particle the bias of large scales comes out some percent above 1 + b1"
            remedy = "use box.mesh = 3/2 of box.particles; observe.galaxies.smoothing of a cell leaves a third of it"
            said.append(f"observe.galaxies: {above}; {remedy}")
        if self._draws and (particles := self._negative(simulation, self.smoothing, MOST_NEGATIVE)):
            share = f"the weights of about {100 * particles:.2g} % of the particles will be negative, too many to draw"
            radii = (float(f"{max(config.cell_size) * 1.5**i:.2g}") for i in range(40))
            few = (r for r in radii if not self._negative(simulation, r, MOST_NEGATIVE / 8))  # half of what warns
            radius = next(few, max(config.box_size))
            said.append(f"observe.galaxies: {share}; use observe.galaxies.smoothing = {radius:g}, or a b1 nearer to 0")
        return said

    @property
    def _draws(self) -> bool:
        """Whether galaxies are drawn, by weights that are linear in the modes."""
        drawn = self.light_cone or self.number_density is not None
        return drawn and not any(getattr(self, name) for name in _OPERATORS)

    def _negative(self, simulation: SimulationSetup, smoothing: float | None, most: float) -> float:
        """Share of particles of negative weights at the latest time, by linear theory; 0 if few galaxies are theirs."""
        config = simulation.config
        a = config.a_stop if self.number_density or self.n_z is None else 1 / (1 + self.n_z[0][0])
        spacing = min(np.divide(config.box_size, config.particle_shape))
        k = np.geomspace(2 * np.pi / max(config.box_size), 1.24 * np.pi / spacing, 400)  # as many modes as the lattice
        power = np.nan_to_num(simulation.linear_power(k)) * np.exp(-((k * (smoothing or 0)) ** 2))
        variance = np.trapezoid(k**3 * power, np.log(k)) / (2 * np.pi**2)
        sigma = max(abs(self.b1) * float(simulation.growth.D1(a)) * math.sqrt(variance), 1e-9)
        below = math.erfc(1 / (math.sqrt(2) * sigma)) / 2
        galaxies = sigma * math.exp(-1 / (2 * sigma**2)) / math.sqrt(2 * math.pi) - below
        return below if galaxies > most else 0.0

    def description(self, simulation: SimulationSetup) -> str:
        if self.n_z is None:
            return self.name
        low, high = self.n_z[0][0], self.n_z[-1][0]
        return f"galaxies, also on the light cone from z = {low:g} to {high:g} through shifted repetitions of the box"

    def measure(self, view: View) -> Table:
        simulation, a = view.simulation, view.a
        config, cosmo = simulation.config, simulation.cosmo
        axis = self.line_of_sight if self.redshift_space else None
        particles, weights = self.tracers(view)
        field = interlaced_density(particles, config, weights=weights)
        weight = self.weight(config, view.data)
        noise, scatter = (0.0 if self.number_density is None else 1 / self.number_density), 1.0
        if weight is not None:
            field, *_ = overdensity_by_weight(field, weight)
            mean, squares, fourth = (float(jnp.mean(weight**power)) for power in (1, 2, 4))
            noise, scatter = noise * mean / squares, math.sqrt(fourth) / squares
        measured = power_multipoles(field, config, line_of_sight=self.line_of_sight, poles=POLES)
        options: Any = {"bias": self.linear_bias, "a": a, "line_of_sight": axis, "poles": POLES}
        theory = kaiser_multipoles(simulation.linear_power, cosmo, config, **options)
        where = f"in redshift space along {axis}" if axis else "in real space"
        title, sight = f"galaxies of Lagrangian b1 = {self.b1:g} {where}", {"real_space": axis is None}
        table = poles_table(self, view, title, measured, theory, noise, bias=self.linear_bias, **sight)
        # Modes of a part of the box are fewer (Feldman, Kaiser & Peacock 1994, eq. 2.4.5).
        columns = {name: x * scatter if name.startswith("error") else x for name, x in table.columns.items()}
        note = SHOT_NOISE.format("in")
        if self.number_density is not None:
            note += "; of counts it is the cell_noise of power_multipoles, and scatters more beyond half of Nyquist;"
            note += " counts have aliases, which this field has not"
        if weight is not None:
            note += "; selection and mask convolve the power, and not its linear theory"
        return replace(table, columns=columns, note=note)

    @classmethod
    def plot(cls, table: Table) -> Drawing:
        return Multipoles.plot(table)

    @partial(jit, static_argnums=0)
    def linear_bias(self, k: Array) -> Array:
        """Eulerian bias at wavenumbers [h/Mpc], to first order."""
        return 1 + (self.b1 - self.bnabla2 * k**2) * jnp.exp(-(k**2) * (self.smoothing or 0.0) ** 2 / 2)

    def tracers(self, view: View) -> tuple[Particles, Array]:
        """Particles, in redshift space if the section says so, and their weights as galaxies."""
        simulation, particles, a = view.simulation, view.particles, view.a
        if self.redshift_space:
            options: Any = {"line_of_sight": self.line_of_sight, "a": a}
            particles = redshift_space(particles, simulation.cosmo, simulation.config, **options)
        return particles, self.weights(view)

    def weights(self, view: View) -> Array:
        """Weights of the particles as galaxies."""
        return self.weights_at(view.a, modes_of(view.simulation), view.simulation)

    def weights_at(self, a: float, modes: Array, simulation: SimulationSetup) -> Array:
        """Weights of the particles as galaxies at a scale factor."""
        bias = LagrangianBias(b1=self.b1, **{name: getattr(self, name) for name in _OPERATORS})
        return bias_weights(modes, bias, simulation.cosmo, simulation.config, smoothing=self.smoothing, a=a)

    def shares_seen(self, config: Config, data: Arrays) -> np.ndarray | None:
        """Shares that the survey sees, selection times mask, to be broadcast to the mesh; None if it sees all."""
        mask = data.get(_MASK)
        if self.selection is None and mask is None:
            return None
        shares = np.ones((1, 1, 1))
        if self.selection is not None:
            axis = "xyz".index(self.line_of_sight)
            distance, share = np.asarray(self.selection, float).T
            positions = np.arange(config.mesh_shape[axis]) * config.cell_size[axis]
            shares = np.interp(positions, distance, share).reshape([-1 if i == axis else 1 for i in range(3)])
        return shares if mask is None else shares * mask

    def weight(self, config: Config, data: Arrays) -> Array | None:
        """`shares_seen` on the mesh."""
        shares = self.shares_seen(config, data)
        if shares is None:
            return None
        shares = np.broadcast_to(shares.astype(jnp.result_type(float)), config.mesh_shape)
        return jax.device_put(shares, config.decomposition.sharding)


class OfGalaxies(Output):
    """Further files of the section [observe.galaxies], where its key `wanted` asks for them."""

    wanted: ClassVar[str]

    galaxies: Galaxies

    @classmethod
    def of(cls, galaxies: Galaxies | None, **others: Output | None) -> Self | None:
        """The files of this section, if it asks for them."""
        return cls(galaxies=galaxies, **others) if galaxies is not None and getattr(galaxies, cls.wanted) else None


class Counts(OfGalaxies):
    """Galaxies in each cell, at each output: Poisson numbers of the section [observe.galaxies]."""

    name = "counts"
    wanted = "number_density"

    def names(self, z: float) -> list[str]:
        return [self.file(z, "hdf5")]

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        fields = 1 if self.galaxies.selection is None and self.galaxies.mask is None else 2
        return 4 * fields * count * math.prod(simulation.config.mesh_shape)

    def write_divided(self, folder: Path, view: View) -> None:
        axes = {"axes": "cells along x, y, z"}
        fields = {"counts": (self._draw(view), axes | {"window": "cloud-in-cell"})}
        galaxies = self.galaxies
        about: dict[str, Any] = {"box_size": view.config.box_size, "units": "Mpc/h", "z": view.z}
        about["line_of_sight"] = galaxies.line_of_sight if galaxies.redshift_space else "none"
        about["smoothing"] = galaxies.smoothing or 0.0
        if (weight := galaxies.weight(view.simulation.config, view.data)) is not None:
            fields["selection"] = weight.astype(np.float32), axes
        write_fields(folder / self.file(view.z, "hdf5"), fields, about)

    def _draw(self, view: View) -> Array:
        """Integers from the Poisson distributions of the rates, shape mesh_shape."""
        config, galaxies = view.simulation.config, self.galaxies
        field = tracer_density(*galaxies.tracers(view), config)
        cells, lost, _ = map(float, lost_power(field, jnp.ones(())))
        if lost > MAX_CUT:
            share = f"1 + delta_g is negative in {100 * cells:.2g} % of the cells, and P(k) of counts would be about"
            share += f" {100 * lost:.2g} % too low"
            remedy = f"{self._smoothing(view)} or a b1 nearer to 0, or leave number_density out; then resume"
            raise SimulationError(f"observe.galaxies at {view.title}: {share}; {remedy}")
        weight = galaxies.weight(config, view.data)
        selection = 1.0 if weight is None else weight
        rate = expected_counts(field, config, number_density=galaxies.number_density or 0.0, selection=selection)
        # By the output's time, too: the galaxies of two outputs are drawn independently.
        key = view.simulation.key(np.float32(view.a).view(np.uint32))
        return _poisson(key, rate, config)

    def _smoothing(self, view: View) -> str:
        """Advice to set a smoothing that leaves few cells negative, tried in steps of a half; empty without one."""
        config = view.simulation.config
        radius = self.galaxies.smoothing or max(config.cell_size) / 1.5
        while (radius := float(f"{1.5 * radius:.2g}")) < min(config.box_size) / 4:
            smoother = self.galaxies.model_copy(update={"smoothing": radius})
            if float(lost_power(tracer_density(*smoother.tracers(view), config), jnp.ones(()))[1]) <= MAX_CUT / 2:
                return f"set observe.galaxies.smoothing = {radius:g},"
        return "set"


@partial(jit, static_argnames="config")
def _poisson(key: Array, rate: Array, config: Config) -> Array:
    return config.decomposition.constrain(jax.random.poisson(key, rate, dtype=jnp.int32))
