"""Rules that involve several keys of the TOML file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from pmwd_dist.cosmology.sampled_parameters import BIASES
from pmwd_dist.run.outputs.registry import outputs_of
from pmwd_dist.run.settings.likelihoods import KINDS
from pmwd_dist.run.settings.simulation import Settings, SimulationSettings
from pmwd_dist.run.settings.table import find_table_problems
from pmwd_dist.run.settings.writing import printable, shown, toml_value

if TYPE_CHECKING:
    from pmwd_dist.run.settings.inference import InferenceSettings

Problems = Iterator[str]


def find_problems(settings: Settings) -> list[str]:
    """Problems that involve several keys, one line each."""
    problems = [*_times_and_cosmology(settings), *_noise(settings)]
    if isinstance(settings, SimulationSettings):
        for output in outputs_of(settings.output, settings.observe):
            problems += output.problems(settings.box)
        problems += _outputs(settings)
    else:
        for output in settings.observe.outputs:
            if output.name not in settings.observables:
                problems.append(f"[observe.{output.name}]: unknown section of an inference; leave it out")
            problems += output.problems(settings.box)
        for part in (_likelihood, _model, _priors, _truth, _chains, _linear_theory):
            problems += part(cast("InferenceSettings", settings))
    if settings.cosmology.table is not None:
        problems += find_table_problems(settings.cosmology.table, settings.box)
    return problems


def _times_and_cosmology(settings: Settings) -> Problems:
    time, cosmology, force = settings.time, settings.cosmology, settings.force
    devices, box = settings.devices, settings.box
    if time.a_stop <= time.a_start:
        yield f"time.a_stop = {time.a_stop}: must be greater than time.a_start = {time.a_start:g}; for example 1.0"
    if cosmology.omega_b >= cosmology.omega_m:
        yield (
            f"cosmology.omega_b = {cosmology.omega_b}: must be less than cosmology.omega_m = {cosmology.omega_m:g}, "
            "which includes the baryons; for example 0.0486"
        )
    neutrinos = cosmology.m_nu / 93.1 / cosmology.h**2
    if cosmology.omega_b + neutrinos >= cosmology.omega_m > cosmology.omega_b:
        yield (
            f"cosmology.m_nu = {cosmology.m_nu}: is a density of {neutrinos:.3g}, and cosmology.omega_m = "
            f"{cosmology.omega_m:g} must hold it with the baryons; for example 0.06"
        )
    if cosmology.w0 + cosmology.wa >= 0:
        yield (
            f"cosmology.wa = {cosmology.wa}: must be less than {-cosmology.w0:g}, as with w0 + wa >= 0 dark energy "
            "dominates early; for example 0.0"
        )
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


def _noise(settings: Settings) -> Problems:
    noise = settings.noise
    if noise.file is not None and (noise.nested or noise.fixed):
        yield "noise.file: nested and fixed are options of a seed; leave them or the file out"
    if not isinstance(settings, SimulationSettings) and cast("InferenceSettings", settings).data.file != "mock":
        for name in ("nested", "fixed", "paired", "file"):
            text = 'is of the truth of data.file = "mock"; leave it out'
            if getattr(noise, name):
                yield f"noise.{name} = {shown(getattr(noise, name))}: {text}"


def _outputs(settings: SimulationSettings) -> Problems:
    time, output = settings.time, settings.output
    yield from _start(settings)
    low, high = 1 / time.a_stop - 1, 1 / time.a_start - 1
    slack = 1e-6 * (1 + high)
    outside = [f"{z:g}" for z in output.redshifts or () if not low - slack <= z <= high + slack]
    if outside:
        few = ", ".join(outside[:3]) + (f" and {len(outside) - 3} more" if len(outside) > 3 else "")
        yield (
            f"output.redshifts = {shown(output.redshifts)}: {few} outside the time span, z = {high:g} to {low:g} "
            f"(a = {time.a_start:g} to {time.a_stop:g}); change output.redshifts, or time.a_start or time.a_stop"
        )


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


def _likelihood(settings: InferenceSettings) -> Problems:
    """Rules of each kind of likelihood, on its keys first."""
    kinds = [(kind, name == settings.likelihood.kind) for name, kind in KINDS.items()]
    for kind, chosen in kinds:
        yield from kind.key_problems(settings, chosen=chosen)
    for kind, chosen in kinds:
        yield from kind.option_problems(settings, chosen=chosen)


def _model(settings: InferenceSettings) -> Problems:
    model, given, box = settings.model, settings.priors.given, settings.box
    linear = model.gravity == "linear"
    if linear and model.bias == "lagrangian":
        yield 'model.bias = "lagrangian": is of particles; use "eulerian" or "none" with gravity = "linear"'
    if model.bias == "eulerian" and not linear and model.line_of_sight != "none":
        yield 'model.bias = "eulerian": is in real space only; use line_of_sight = "none", or bias = "lagrangian"'
    if linear and box.particles not in (None, box.mesh):
        yield "box.particles: linear gravity needs as many as cells; leave it out"
    used = {"none": (), "eulerian": BIASES[:1], "lagrangian": BIASES}[model.bias]
    for name in (set(BIASES) - set(used)) & given.keys():
        yield f'priors.{name}: has no effect with model.bias = "{model.bias}"; leave it out'


def _priors(settings: InferenceSettings) -> Problems:
    """Rules on priors without effect."""
    given, cosmology = settings.priors.given, settings.cosmology
    if "sigma8" in given and ("A_s" in given or cosmology.A_s is not None):
        yield "priors.sigma8: follows from A_s; leave one of them out"
    for name in {"w0", "wa"} & given.keys():
        if cosmology.w_table is not None:
            yield f"priors.{name}: has no effect beside cosmology.w_table; leave it out"
    if cosmology.f_nl != 0 and "f_nl" not in given:
        yield "cosmology.f_nl: of an inference, needs a prior; add priors.f_nl"
    if cosmology.table is not None:
        unchanged = "would not change the P(k) of cosmology.linear_power"
        for name in ("n_s", "h", "omega_b"):
            if name in given:
                yield f"priors.{name}: {unchanged}; leave one of them out"
        for name in {"sigma8", "A_s"} & given.keys():
            remedy = "use cosmology.normalise = true, or leave one of them out"
            if not cosmology.normalise:
                yield f"priors.{name}: {unchanged}; {remedy}"


def _truth(settings: InferenceSettings) -> Problems:
    """Rules on the truth of a mock, which must be possible under the priors."""
    data, given, cosmology, model = settings.data, settings.priors.given, settings.cosmology, settings.model
    truth = data.truth or {}
    if data.truth is not None and data.file != "mock":
        yield 'data.truth: is of data.file = "mock"; leave it out'
    for name in truth.keys() - given.keys():
        yield f"data.truth.{printable(name)}: has no prior; set it in its own section, or add one"
    for name, table in given.items():
        value = truth.get(name, getattr(cosmology, name, getattr(model, name, None)))
        if data.file == "mock" and value is not None:
            where = f"data.truth.{name}" if name in truth else f"priors.{name}"
            if not abs(float(table.build().inverse(value))) <= 8:
                yield f"{where}: the prior {toml_value(table)} excludes the truth, {value:g}; change one of them"


def _chains(settings: InferenceSettings) -> Problems:
    from pmwd_dist.infer.constants import ENERGY_VARIANCE

    start, sampler = settings.start, settings.sampler
    if start.begin == "map" and find_spec("optax") is None:
        yield "start.begin = \"map\": needs optax; `pip install '.[infer]'`, or use another start"
    if sampler.steps % (sampler.thin * sampler.chunk):
        yield f"sampler.steps = {sampler.steps}: must be a multiple of thin * chunk = {sampler.thin * sampler.chunk}"
    if sampler.method != "mclmc" and sampler.energy_variance != ENERGY_VARIANCE:
        yield (
            f"sampler.energy_variance: is a target of mclmc, and {sampler.method} is tuned for its acceptance; "
            'leave it out, or use sampler.method = "mclmc"'
        )
    pdims, size = settings.devices.pdims, sampler.chain_devices
    if pdims is not None and size is not None and (count := math.prod(pdims)) != size:
        yield (
            f"devices.pdims = {toml_value(pdims)}: takes {count} device{'s' * (count != 1)}, and "
            f"sampler.chain_devices is {size}; use [{size}, 1], or leave it out"
        )


def _linear_theory(settings: InferenceSettings) -> Problems:
    """Rules where data and noise have different modes."""
    box, likelihood = settings.box, settings.likelihood
    if settings.start.begin == "wiener" and (likelihood.rules.maps or box.particles not in (None, box.mesh)):
        where = (
            f'likelihood.kind = "{likelihood.kind}"' if likelihood.rules.maps else "box.particles other than box.mesh"
        )
        yield f'start.begin = "wiener": linear theory has none with {where}; use begin = "prior" or "map"'
