"""The simulation that the settings describe: a Config on the current devices, a cosmology, a solver."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
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
from pmwd_dist.io.snapshot.initial import find_initial_conditions
from pmwd_dist.parallel.autotune import remembered
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.gravity import check_force_mesh
from pmwd_dist.pm.modes import power_nodes
from pmwd_dist.pm.noise import NoiseKind
from pmwd_dist.pm.particles import largest
from pmwd_dist.run.settings.reading import SettingsError
from pmwd_dist.run.settings.setup import SimulationSetup, Table, power_at
from pmwd_dist.run.settings.simulation import Settings, SimulationSettings
from pmwd_dist.run.settings.simulation_sections import Box
from pmwd_dist.run.settings.table import read_table
from pmwd_dist.run.settings.writing import argument_problem, reason, toml_value

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

    Raises SettingsError if shapes don't divide over the devices or give wrong forces, or structure doesn't grow.
    """
    start = cone = None
    with _key_errors(settings.box):
        config = config_of(settings)
        check_force_mesh(config)
        cosmo = cosmology_of(settings)
        correction = correction_of(settings, config, cosmo)
    with _key_errors(settings.box, "cosmology.normalise = true: "):
        power = _power(settings, cosmo)
    if (problem := _linear_problem(settings, cosmo, power, config)) is not None:
        raise SettingsError([problem])
    with _key_errors(settings.box, "start.snapshot: "):
        if isinstance(settings, SimulationSettings) and settings.start.snapshot is not None:
            path, check_motion = Path(settings.start.snapshot), settings.start.check_motion
            start = find_initial_conditions(path, cosmo, config, check_motion=check_motion)
    if (section := settings.observe.light_cone) is not None:
        keys = {name: f"observe.light_cone.{name}" for name in type(section).model_fields}
        with _key_errors(settings.box, "[observe.light_cone]: ", keys):
            cone = section.build(config, cosmo, settings.shell_assignment)
    kind = NoiseKind(*(getattr(settings.noise, name) for name in NoiseKind._fields))
    f_nl = settings.cosmology.f_nl or None
    return SimulationSetup(
        config,
        cosmo,
        settings.time.solver,
        power,
        settings.noise.seed,
        cone,
        kind,
        f_nl,
        start=start,
        potential_factor=correction,
    )


@contextmanager
def _key_errors(box: Box, section: str = "", keys: Mapping[str, str] = _PATHS) -> Generator[None]:
    """Raise errors of the library as SettingsError, with keys of the file in place of arguments."""
    try:
        yield
    except ArgumentError as error:
        path = keys.get(error.argument)
        if error.argument == "shape":
            path = "box.mesh" if error.value == box.mesh else "box.particles"
        raise SettingsError([f"{section}{error}" if path is None else argument_problem(error, path)]) from error
    except (OSError, ValueError) as error:
        raise SettingsError([section + message(error)]) from error


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
    except (OSError, ArgumentError) as error:
        raise ArgumentError("correction", name, reason(error)) from None
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
    if (own := settings.divide(shapes, **chosen)) is not None:
        return own
    if devices.pdims is None:
        measured = remembered(shapes) if devices.backend == "auto" else None
        return measured or Decomposition(default_decomposition(shapes).pdims, **chosen)
    wanted, count = math.prod(devices.pdims), jax.device_count()
    if wanted > count or (wanted < count and jax.process_count() > 1):  # several processes must use all
        there = f"needs {wanted} devices, and there are {count}"
        raise ArgumentError("pdims", devices.pdims, there, f"use [{count}, 1]")
    return Decomposition(devices.pdims, **chosen)


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
