"""The simulation that the settings describe: a Config on the current devices, a cosmology, a solver."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import message
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.linear_power import check_sigma8_range, normalised_power, sigma8_of_A_s
from pmwd_dist.cosmology.parameters import Cosmology, parameters
from pmwd_dist.io.snapshot.initial import InitialConditions, find_initial_conditions
from pmwd_dist.parallel.autotune import remembered
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.gravity import check_force_mesh
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.noise import NoiseKind
from pmwd_dist.pm.particles import largest
from pmwd_dist.run.outputs.light_cone import LightCone
from pmwd_dist.run.settings.reading import SettingsError
from pmwd_dist.run.settings.setup import SimulationSetup, Table, power_at
from pmwd_dist.run.settings.simulation import Settings, SimulationSettings
from pmwd_dist.run.settings.simulation_sections import Box
from pmwd_dist.run.settings.table import read_table
from pmwd_dist.run.settings.writing import argument_problem, toml_value

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


def build(settings: Settings) -> SimulationSetup:
    """The simulation that these settings describe.

    Raises:
      SettingsError: shapes don't divide over the devices or give wrong forces, or structure doesn't grow.
    """
    try:
        config = config_of(settings)
        check_force_mesh(config)
        cosmo = cosmology_of(settings)
        correction = correction_of(settings, config, cosmo)
    except ValueError as error:
        raise SettingsError([_translate(error, settings.box)]) from error
    try:
        power = _power(settings, cosmo)
    except ArgumentError as error:
        raise SettingsError([f"cosmology.normalise = true: {error.argument} {error.reason}"]) from error
    if (problem := _linear_problem(settings, cosmo, power, config)) is not None:
        raise SettingsError([problem])
    try:
        start = _start(settings, config, cosmo)
    except ArgumentError as error:
        raise SettingsError([_translate(error, settings.box)]) from error
    except (OSError, ValueError) as error:
        raise SettingsError([f"start.snapshot: {message(error)}"]) from error
    try:
        section = settings.observe.light_cone
        seed = settings.noise.seed
        cone = None if section is None else section.build(config, cosmo, settings.shell_assignment, seed)
    except ArgumentError as error:
        raise SettingsError([_cone_problem(error)]) from error
    kind = NoiseKind(*(getattr(settings.noise, name) for name in NoiseKind._fields))
    f_nl = settings.cosmology.f_nl or None
    return SimulationSetup(
        config, cosmo, settings.time.solver, power, seed, cone, kind, f_nl, start=start, potential_factor=correction
    )


def _start(settings: Settings, config: Config, cosmo: Cosmology) -> InitialConditions | None:
    if not isinstance(settings, SimulationSettings) or (path := settings.start.snapshot) is None:
        return None
    return find_initial_conditions(Path(path), cosmo, config, check_motion=settings.start.check_motion)


def correction_of(settings: Settings, config: Config, cosmo: Cosmology) -> ForceCorrection | None:
    """The correction of the force; ArgumentError if the file can't be read, or is for other particles.

    By default a simulation with two cells a particle has the one that was trained for it, if any.
    """
    name = settings.force.correction
    if name is None and isinstance(settings, SimulationSettings):
        of_training = settings.time.solver == "bullfrog" and settings.cosmology.table is None
        found = ForceCorrection.fitting(config) if of_training else None
        return None if found is None or found.warnings(cosmo) else found
    if name is None or name == "none":
        return None
    if name == "auto":
        return ForceCorrection.auto(config)
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


def _cone_problem(error: ArgumentError) -> str:
    """Message of an error of a light cone, with the key of the file in place of the argument."""
    if error.argument not in LightCone.model_fields:
        return f"[observe.light_cone]: {error}"
    return argument_problem(error, f"observe.light_cone.{error.argument}")


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


def _linear_problem(settings: Settings, cosmo: Cosmology, source: Table | str, config: Config) -> str | None:
    """Problem of the growth factor or of the linear P(k)."""
    try:
        table = growth_table_to(config.lpt_order, cosmo)
    except ArgumentError as error:
        return f"[cosmology]: {error.reason}"
    growth = np.asarray(table.D1(np.geomspace(config.a_start, config.a_stop, 32)))
    if not (np.isfinite(growth).all() and (np.diff(growth) > 0).all()):
        return "[cosmology]: structure doesn't grow throughout the time span; check omega_m, omega_k, w0 and wa"
    name = settings.cosmology.table
    where = "[cosmology]" if name is None else f"cosmology.linear_power = {toml_value(name)}"
    k = power_nodes(config)
    try:
        power = power_at(k, cosmo, source)
    except ArgumentError as error:
        return f"cosmology.linear_power = {toml_value(settings.cosmology.linear_power)}: {error.reason}"
    if not (np.isfinite(power).all() and (power > 0).all()):
        remedy = "check omega_m, omega_b, h, n_s and sigma8" if name is None else "check its values"
        return f"{where}: the linear P(k) is not finite and positive; {remedy}"
    # Variance of the linear displacement along one axis.
    variance = np.trapezoid(k * power, np.log(k)) / (6 * math.pi**2)
    rms, most = growth[0] * math.sqrt(variance), largest(config, np.float32)
    if rms > most / 4:
        moved = f"moves particles by {rms:.3g} Mpc/h (rms) at time.a_start = {config.a_start:g}"
        return f"{where}: the linear P(k) {moved}, and at most {most:g} Mpc/h can be; is P in (Mpc/h)^3, k in h/Mpc?"
    return None
