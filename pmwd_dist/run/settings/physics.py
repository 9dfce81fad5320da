"""The simulation that the settings describe: a Config on the current devices, a cosmology, a solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import message
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.linear_power import (
    DEFAULT,
    check_sigma8_range,
    interpolate_power,
    linear_power,
    normalised_power,
    sigma8_of_A_s,
)
from pmwd_dist.cosmology.parameters import Cosmology, parameters
from pmwd_dist.cosmology.transfer import expected_error, outside_table
from pmwd_dist.io.snapshot.initial import InitialConditions, find_initial_conditions
from pmwd_dist.parallel.autotune import remembered
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.parallel.distributed import to_devices
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.gravity import check_force_mesh
from pmwd_dist.pm.modes import power_nodes, wavenumber_range
from pmwd_dist.pm.noise import GAUSSIAN, NoiseKind
from pmwd_dist.pm.particles import largest
from pmwd_dist.run.settings.light_cone import LightCone, build_light_cone, light_cone_problem
from pmwd_dist.run.settings.reading import SettingsError
from pmwd_dist.run.settings.simulation_sections import Box, Force, Settings, SimulationSettings
from pmwd_dist.run.settings.simulation_sections import Cosmology as CosmologySettings
from pmwd_dist.run.settings.table import read_table
from pmwd_dist.run.settings.writing import argument_problem, toml_value

_SHAPE = (0.01, 1.0)  # wavenumbers [h/Mpc] at which the shape of a table is compared
_POWER_UNITS = "it must be in (Mpc/h)^3 with k in h/Mpc, at z = 0"
_TILT = 0.02  # difference of spectral indices that changes the effect of f_nl by 5 % over two decades of k
_TRAINED = {"Omega_m": (0.247, 0.371), "sigma8": (0.653, 0.98)}  # benchmarks/train_force.py
_SIZES = (5.0, 2e4)  # usual sides of a box [Mpc/h]
_LEAST = {"omega_m": 0.17, "omega_b": 0.03}  # between Omega h^2 and Omega of Planck
Table = tuple[np.ndarray, np.ndarray]

# Keys of the file, by the library's arguments.
_PATHS = {
    "mesh_shape": "box.mesh",
    "particle_shape": "box.particles",
    "box_size": "box.size",
    "gradient": "force.gradient",
    "compensated": "force.compensated",
    "correction": "force.correction",
    "chain_devices": "sampler.chain_devices",
    **{name: f"devices.{name}" for name in ("pdims", "backend", "transpose_comm", "halo_comm", "halo")},
    **{name: f"time.{name}" for name in ("a_start", "a_stop", "steps", "lpt_order")},
    **{f"cosmo.{name}": f"cosmology.{name.lower()}" for name in ("Omega_m", "h", "w0", "wa", "w_table")},
}


@dataclass(frozen=True)
class SimulationSetup:
    """Simulation that is ready to run on the devices of this program.

    Args:
      power: linear P(k): k [h/Mpc] and P(k) at a = 1 [(Mpc/h)^3] from a file, or the name of a transfer function.
      light_cone: light cone to fill during the run, or None.
      f_nl: local primordial non-Gaussianity; None for Gaussian modes.
      field: white noise of a file, or None.
      potential_factor: factor of the potential, or None.
      start: particles of a file, in place of noise and LPT, or None.
    """

    config: Config
    cosmo: Cosmology
    solver: str
    power: Table | str
    seed: int
    light_cone: LightCone | None = None
    kind: NoiseKind = GAUSSIAN
    f_nl: float | None = None
    field: np.ndarray | None = None
    potential_factor: ForceCorrection | None = None
    start: InitialConditions | None = None

    @property
    def noise(self) -> Array:
        """White noise of a file, on the devices, or the key of white noise."""
        if self.field is None:
            return jax.random.key(self.seed)
        dtype = np.dtype(jnp.result_type(float))
        return to_devices(self.field.astype(dtype), self.config.decomposition.sharding)

    @property
    def table(self) -> Table | None:
        """k [h/Mpc] and P(k) at a = 1 [(Mpc/h)^3] from a file, or None."""
        return None if isinstance(self.power, str) else self.power

    @property
    def sigma8(self) -> float:
        """sigma8 of the linear P(k)."""
        if self.table is None:
            return float(np.asarray(self.cosmo.sigma8, float))
        return _sigma8(*self.table)

    def power_warnings(self) -> list[str]:
        """Warnings about a P(k) beyond its fit, or a table of another shape or amplitude than P(k) of the cosmology."""
        if self.table is None:
            return [f"[cosmology]: {text}" for text in self.transfer_warnings(self.cosmo)]
        (k, power), warnings = self.table, list[str]()
        inside = (k > _SHAPE[0]) & (k < _SHAPE[1])
        if np.count_nonzero(inside) >= 8:
            scatter = np.std(np.log(power[inside] / np.asarray(linear_power(k[inside], self.cosmo), float)))
            if scatter > 0.1:
                text = f"has another shape than P(k) of [cosmology]: their ratio scatters by {100 * scatter:.0f} %"
                warnings.append(f"{text}; {_POWER_UNITS}")
        try:
            check_sigma8_range(k, self.cosmo)
            expected = float(np.asarray(self.cosmo.sigma8))
            if abs(change := self.sigma8 / expected - 1) > 0.01:
                used = "not used" if self.potential_factor is None else "used by force.correction alone"
                text = f"has sigma8 = {self.sigma8:.4g}, and cosmology.sigma8 is {expected:.4g}, which is {used}"
                warnings.append(f"{text}; {_POWER_UNITS}" if abs(change) > 0.2 else text)
        except ArgumentError as error:
            warnings.append(f"{error.reason}: its sigma8 can't be compared with cosmology.sigma8")
        return [f"cosmology.linear_power: {text}" for text in warnings]

    @property
    def power_error(self) -> str:
        """Error of a transfer function at the wavenumbers of the box, for people; empty for a table."""
        if not isinstance(self.power, str):
            return ""
        k = wavenumber_range(self.config.particle_shape, self.config.box_size)
        error = expected_error(self.power, self.cosmo, k)
        return ", not compared with CAMB here" if error is None else f", within {error:g} % of CAMB"

    def transfer_warnings(self, cosmo: Cosmology) -> list[str]:
        """Warnings about densities of a cosmology that the transfer function was not tabulated for."""
        if self.power != "boltzmann":
            return []
        limit = 'the range of linear_power = "boltzmann"; P(k) was not compared with CAMB there'
        return [f"{name} = {value:.3g} is outside of {ends}, {limit}" for name, value, ends in outside_table(cosmo)]

    def tilt_warnings(self) -> list[str]:
        """Warning about a table with another tilt than P(k) of the cosmology, which f_nl takes for transfer."""
        if self.table is None:
            return []
        k = power_nodes(self.config)
        ratio = self.linear_power(k) / np.asarray(linear_power(k, self.cosmo), float)
        tilt = np.polyfit(np.log(k), np.log(ratio), 1)[0]
        if abs(tilt) < _TILT:
            return []
        text = f"over the P(k) of [cosmology] rises as k^{tilt:.2g}, which f_nl takes for a transfer function"
        return [f"cosmology.linear_power: {text}; set n_s, h and densities to those of the table"]

    def linear_power(self, k: ArrayLike) -> np.ndarray:
        """Linear P(k) at a = 1 [(Mpc/h)^3] at k [h/Mpc]; NaN beyond a table."""
        k = np.asarray(k, float)
        power = _linear_power(k, self.cosmo, self.power)
        if self.table is None:
            return power
        return np.where((k >= self.table[0][0]) & (k <= self.table[0][-1]), power, np.nan)


def cosmology_warnings(settings: Settings, simulation: SimulationSetup) -> list[str]:
    """Warnings about units, the linear P(k), its amplitude, and a correction of the force of another training."""
    warnings = unit_warnings(settings) + simulation.power_warnings()
    warnings += amplitude_warnings(settings.cosmology, simulation)
    if simulation.f_nl is not None:
        warnings += simulation.tilt_warnings()
    return warnings + [f"[cosmology]: {text}" for text in training_warnings(settings.force, simulation.cosmo)]


def unit_warnings(settings: Settings) -> list[str]:
    """Warnings about sizes and densities that are usual in other units."""
    warnings = [
        f"box.size = {size:g}: is unusual in Mpc/h; convert lengths in Mpc, kpc/h or Gpc/h"
        for size in sorted(set(settings.box.size))
        if not _SIZES[0] <= size <= _SIZES[1]
    ]
    for name, least in _LEAST.items():
        value, by_h = getattr(settings.cosmology, name), settings.cosmology.h**2
        if value < least:
            text = f"is low for a density per critical density; Omega h^2 = {value:g} would be {value / by_h:.3g}"
            warnings.append(f"cosmology.{name} = {value:g}: {text}")
    return warnings


def training_warnings(force: Force, cosmo: Cosmology) -> list[str]:
    """Warnings about a cosmology outside of the training of this package's corrections of the force."""
    values = {"Omega_m": cosmo.Omega_c + cosmo.Omega_b, "sigma8": cosmo.sigma8} if force.correction == "auto" else {}
    return [
        f"{name} = {value:.3g} is outside of {low:g} to {high:g}, the training of force.correction"
        for name, (low, high) in _TRAINED.items()
        if name in values and not low <= (value := float(np.asarray(values[name]))) <= high
    ]


def amplitude_warnings(values: CosmologySettings, simulation: SimulationSetup) -> list[str]:
    """Warnings about a sigma8 that was set, but is not used."""
    default = CosmologySettings.model_fields["sigma8"].default
    if values.A_s is None or values.sigma8 == default or abs(simulation.sigma8 / values.sigma8 - 1) < 1e-3:
        return []
    return [f"cosmology.sigma8 = {values.sigma8:g}: is not used; cosmology.A_s gives {simulation.sigma8:.4g}"]


def build(settings: Settings) -> SimulationSetup:
    """The simulation that these settings describe.

    Raises:
      SettingsError: shapes don't divide over the devices or give wrong forces, or structure doesn't grow.
    """
    problems: list[str] = []
    config = correction = None
    try:
        config = config_of(settings)
        check_force_mesh(config)
        correction = correction_of(settings, config)
    except ValueError as error:
        problems.append(_translate(error, settings.box))
    cosmo = cosmology_of(settings)
    power: Table | str = DEFAULT
    try:
        power = _power(settings, cosmo)
    except ArgumentError as error:
        problems.append(f"cosmology.normalise = true: {error.argument} {error.reason}")
    cone = start = None
    if config is not None:
        problems += _linear_problems(settings, cosmo, power, config)
        try:
            start = _start(settings, config, cosmo)
        except ArgumentError as error:
            problems.append(_translate(error, settings.box))
        except (OSError, ValueError) as error:
            problems.append(f"start.snapshot: {message(error)}")
        try:
            cone = build_light_cone(settings, config, cosmo)
        except ArgumentError as error:
            problems.append(light_cone_problem(error))
    if problems or config is None:
        raise SettingsError(problems)
    kind, f_nl, seed = kind_of(settings), settings.cosmology.f_nl or None, settings.noise.seed
    return SimulationSetup(
        config, cosmo, settings.time.solver, power, seed, cone, kind, f_nl, start=start, potential_factor=correction
    )


def _start(settings: Settings, config: Config, cosmo: Cosmology) -> InitialConditions | None:
    if not isinstance(settings, SimulationSettings) or (path := settings.start.snapshot) is None:
        return None
    return find_initial_conditions(Path(path), cosmo, config, check_motion=settings.start.check_motion)


def kind_of(settings: Settings) -> NoiseKind:
    """The options of the noise."""
    return NoiseKind(*(getattr(settings.noise, name) for name in NoiseKind._fields))


def correction_of(settings: Settings, config: Config) -> ForceCorrection | None:
    """The correction of the force; ArgumentError if the file can't be read, or is for other particles."""
    name = settings.force.correction
    if name is None or name == "auto":
        return None if name is None else ForceCorrection.auto(config)
    try:
        correction = ForceCorrection.load(name)
        correction.check(config)
    except FileNotFoundError:
        raise ArgumentError("correction", name, "no such file", "give a path relative to the TOML file") from None
    except OSError as error:
        raise ArgumentError("correction", name, f"can't be read: {error.strerror}") from None
    except ArgumentError as error:
        raise ArgumentError("correction", name, error.constraint, error.remedy) from None
    return correction


def config_of(settings: Settings) -> Config:
    """The configuration; ValueError if shapes don't divide over the devices."""
    box, time = settings.box, settings.time
    return Config(
        box_size=box.size,
        mesh_shape=box.mesh,
        particle_shape=box.particles,
        a_start=time.a_start,
        a_stop=time.a_stop,
        steps=time.steps,
        lpt_order=time.lpt_order,
        decomposition=_decomposition(settings, (box.mesh, box.particles or box.mesh)),
        halo=settings.devices.halo,
        gradient=settings.force.gradient,
        compensated=settings.force.compensated,
    )


def _decomposition(settings: Settings, shapes: tuple[Shape3, ...]) -> Decomposition:
    devices = settings.devices
    chosen: dict[str, Any] = {
        "backend": devices.backend,
        "transpose_comm": devices.transpose_comm,
        "halo_comm": devices.halo_comm,
    }
    pdims = devices.pdims
    if (own := settings.divide(shapes, **chosen)) is not None:
        return own
    if pdims is None:
        measured = remembered(shapes) if devices.backend == "auto" else None
        return measured or Decomposition(default_decomposition(shapes).pdims, **chosen)
    count, processes = jax.device_count(), jax.process_count()
    wrong = math.prod(pdims) != count if processes > 1 else math.prod(pdims) > count
    if wrong:
        there = "there is one" if count == 1 else f"there are {count}"
        if processes > 1:
            there += f" in {processes} processes, which must all be used"
        constraint = f"needs {math.prod(pdims)} devices, and {there}"
        raise ArgumentError("pdims", pdims, constraint, f"use [{count}, 1]")
    return Decomposition(pdims, **chosen)


def _translate(error: ValueError, box: Box) -> str:
    """Message of an error of the library, with the key of the file in place of the argument."""
    if not isinstance(error, ArgumentError):
        return str(error)
    path = _PATHS.get(error.argument)
    if error.argument == "shape":
        path = "box.mesh" if error.value == box.mesh else "box.particles"
    return str(error) if path is None else argument_problem(error, path)


def cosmology_of(settings: Settings) -> Cosmology:
    """The cosmology."""
    values = settings.cosmology
    found = SimpleNamespace(  # as a jax_cosmo.Cosmology, which is slow to import
        Omega_c=values.omega_m - values.omega_b,
        Omega_b=values.omega_b,
        h=values.h,
        n_s=values.n_s,
        sigma8=values.sigma8,
        Omega_k=values.omega_k,
        w0=values.w0 if values.w_table is None else float(np.interp(1.0, *np.transpose(values.w_table))),
        wa=values.wa,
        m_nu=values.m_nu or None,
        n_eff=values.n_eff,
        w_table=values.w_table,
    )
    cosmo = cast("Cosmology", found)
    if values.m_nu:
        found.Omega_c -= float(parameters(cosmo).Omega_nu)
    if values.A_s is not None:
        found.sigma8 = float(sigma8_of_A_s(values.A_s, cosmo))
    return cosmo


def _power(settings: Settings, cosmo: Cosmology) -> Table | str:
    if settings.cosmology.table is None:
        return settings.cosmology.linear_power
    k, power = read_table(Path(settings.cosmology.table))
    if settings.cosmology.normalise:
        check_sigma8_range(k, cosmo)
        power = np.asarray(normalised_power(jnp.asarray(k), jnp.asarray(power), cosmo.sigma8), float)
    return k, power


def _linear_problems(settings: Settings, cosmo: Cosmology, source: Table | str, config: Config) -> list[str]:
    """Problems of the growth factor and of the linear P(k)."""
    growth = np.asarray(growth_table_to(config.lpt_order, cosmo).D1(np.geomspace(config.a_start, config.a_stop, 32)))
    if not (np.isfinite(growth).all() and (np.diff(growth) > 0).all()):
        return ["[cosmology]: structure doesn't grow throughout the time span; check omega_m, omega_k, w0 and wa"]
    name = settings.cosmology.table
    where = "[cosmology]" if name is None else f"cosmology.linear_power = {toml_value(name)}"
    k = power_nodes(config)
    try:
        power = _linear_power(k, cosmo, source)
    except ArgumentError as error:
        return [f"cosmology.linear_power = {toml_value(settings.cosmology.linear_power)}: {error.reason}"]
    if not (np.isfinite(power).all() and (power > 0).all()):
        remedy = "check omega_m, omega_b, h, n_s and sigma8" if name is None else "check its values"
        return [f"{where}: the linear P(k) is not finite and positive; {remedy}"]
    # Variance of the linear displacement along one axis.
    variance = np.trapezoid(k * power, np.log(k)) / (6 * math.pi**2)
    rms, most = growth[0] * math.sqrt(variance), largest(config, np.float32)
    if rms > most / 4:
        moved = f"moves particles by {rms:.3g} Mpc/h (rms) at time.a_start = {config.a_start:g}"
        return [f"{where}: the linear P(k) {moved}, and at most {most:g} Mpc/h can be; is P in (Mpc/h)^3, k in h/Mpc?"]
    return []


def _sigma8(k: np.ndarray, power: np.ndarray) -> float:
    """sigma8 of a table."""
    return math.sqrt(float(power[0] / normalised_power(jnp.asarray(k), jnp.asarray(power), 1.0)[0]))


def _linear_power(k: np.ndarray, cosmo: Cosmology, source: Table | str) -> np.ndarray:
    """Linear P(k) at a = 1, in the precision of the program."""
    if isinstance(source, str):
        return np.asarray(linear_power(k, cosmo, source))
    return np.asarray(interpolate_power(jnp.asarray(k), *map(jnp.asarray, source)))
