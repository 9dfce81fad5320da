"""Rules that involve several keys of the TOML file."""

from __future__ import annotations

from collections.abc import Iterator

from pmwd_dist.run.outputs.registry import outputs_of
from pmwd_dist.run.settings.simulation import Settings, SimulationSettings
from pmwd_dist.run.settings.table import find_table_problems
from pmwd_dist.run.settings.writing import shown, toml_value

Problems = Iterator[str]


def common_problems(settings: Settings) -> list[str]:
    """Problems of any file that involve several keys, one line each."""
    problems = [*_times_and_cosmology(settings)]
    if settings.noise.file is not None and (settings.noise.nested or settings.noise.fixed):
        problems.append("noise.file: nested and fixed are options of a seed; leave them or the file out")
    if settings.cosmology.table is not None:
        problems += find_table_problems(settings.cosmology.table, settings.box)
    return problems


def simulation_problems(settings: SimulationSettings) -> list[str]:
    """Problems of the file of a simulation that involve several keys, one line each."""
    outputs = outputs_of(settings.output, settings.observe)
    return [*(text for output in outputs for text in output.problems(settings.box)), *_outputs(settings)]


def _times_and_cosmology(settings: Settings) -> Problems:
    time, cosmology, force = settings.time, settings.cosmology, settings.force
    devices, box = settings.devices, settings.box
    if time.a_stop <= time.a_start:
        yield f"time.a_stop = {time.a_stop}: must be greater than time.a_start = {time.a_start:g}; for example 1.0"
    if cosmology.omega_b >= cosmology.omega_m:
        most = f"cosmology.omega_m = {cosmology.omega_m:g}, which includes the baryons"
        yield f"cosmology.omega_b = {cosmology.omega_b}: must be less than {most}; for example 0.0486"
    neutrinos = cosmology.m_nu / 93.1 / cosmology.h**2
    if cosmology.omega_b + neutrinos >= cosmology.omega_m > cosmology.omega_b:
        most = f"cosmology.omega_m = {cosmology.omega_m:g} must hold it with the baryons"
        yield f"cosmology.m_nu = {cosmology.m_nu}: is a density of {neutrinos:.3g}, and {most}; for example 0.06"
    if cosmology.w0 + cosmology.wa >= 0:
        why = "as with w0 + wa >= 0 dark energy dominates early"
        yield f"cosmology.wa = {cosmology.wa}: must be less than {-cosmology.w0:g}, {why}; for example 0.0"
    for name, other in (("w0", "w_table"), ("wa", "w_table"), ("sigma8", "A_s")):
        value, default = getattr(cosmology, name), type(cosmology).model_fields[name].default
        if value != default and getattr(cosmology, other) is not None:
            yield f"cosmology.{name} = {value}: has no effect beside cosmology.{other}; leave it out"
    if cosmology.normalise and cosmology.table is None:
        needed = "needs cosmology.linear_power as a file; without one P(k) has the sigma8 given"
        yield f"cosmology.normalise = true: {needed}"
    if force.compensated and force.gradient == "spectral":
        yield 'force.compensated = true: is for force.gradient = "finite-difference"; change one of them'
    if devices.halo != "auto" and devices.halo > max(box.mesh):
        yield f"devices.halo = {devices.halo}: must not be wider than box.mesh = {toml_value(box.mesh)}"


def _outputs(settings: SimulationSettings) -> Problems:
    time, output = settings.time, settings.output
    yield from _start(settings)
    low, high = 1 / time.a_stop - 1, 1 / time.a_start - 1
    slack = 1e-6 * (1 + high)
    outside = [f"{z:g}" for z in output.redshifts or () if not low - slack <= z <= high + slack]
    if outside:
        few = ", ".join(outside[:3]) + (f" and {len(outside) - 3} more" if len(outside) > 3 else "")
        span = f"the time span, z = {high:g} to {low:g} (a = {time.a_start:g} to {time.a_stop:g})"
        remedy = "change output.redshifts, or time.a_start or time.a_stop"
        yield f"output.redshifts = {shown(output.redshifts)}: {few} outside {span}; {remedy}"
    lensing, galaxies = settings.observe.light_cone, settings.observe.galaxies
    if galaxies is not None and galaxies.light_cone and galaxies.redshift_bins is not None:
        if lensing is None:
            yield "observe.galaxies.redshift_bins: need a section [observe.light_cone]; add it, or leave them out"
        elif lensing.shift:
            yield "observe.galaxies.redshift_bins: need observe.light_cone.shift = false, since galaxies don't shift"
    if (halos := settings.observe.halos) is not None and halos.light_cone is not None:
        key = f"observe.halos.light_cone = {halos.light_cone}"
        near = [z for z in output.redshifts or () if -slack <= z <= halos.light_cone + 1e-5]
        if len(near) < 2:
            yield f"{key}: needs halos of two or more output.redshifts from 0 to it"
        elif halos.light_cone - max(near) > 1e-3 * (1 + halos.light_cone):
            yield f"{key}: ends where halos do, at z = {max(near):g}; take this redshift, or more output.redshifts"


def _start(settings: SimulationSettings) -> Problems:
    """Rules on a start from particles: what else would make them, and what needs their linear modes."""
    if settings.start.snapshot is None:
        return
    noise, outputs = settings.noise, settings.observe.outputs
    contradicting = {f"noise.{name}": getattr(noise, name) for name in ("nested", "fixed", "paired", "file")}
    contradicting |= {"cosmology.f_nl": settings.cosmology.f_nl}
    contradicting |= {"noise.seed": not any(output.of_seed for output in outputs) and noise.seed}
    for key, value in contradicting.items():
        if value:
            yield f"{key} = {shown(value)}: the particles are those of start.snapshot; leave one of them out"
    for output in outputs:
        text = "needs the linear modes, which start.snapshot does not hold; leave one of them out"
        if output.of_modes:
            yield f"[observe.{output.name}]: {text}"
