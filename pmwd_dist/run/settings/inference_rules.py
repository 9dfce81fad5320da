"""Rules that involve several keys of the TOML file of an inference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec

from pmwd_dist.cosmology.sampled_parameters import BIASES, NAMES, OF_SOURCES, PARAMETERS
from pmwd_dist.infer.constants import ENERGY_VARIANCE
from pmwd_dist.infer.filtered_noise import SMALL_SCALE_NOISE
from pmwd_dist.run.settings.inference import NOISES, SHAPES, InferenceSettings
from pmwd_dist.run.settings.writing import printable, shown, toml_value

Problems = Iterator[str]


def inference_problems(settings: InferenceSettings) -> list[str]:
    """Problems that involve several keys, one line each."""
    problems = list[str]()
    for output in settings.observe.outputs:
        if output.name not in settings.observables:
            problems.append(f"[observe.{output.name}]: unknown section of an inference; leave it out")
        problems += output.problems(settings.box)
    for part in (_likelihood, _systematics, _lensing, _model, _priors, _truth, _chains):
        problems += part(settings)
    return problems


def _likelihood(settings: InferenceSettings) -> Problems:
    likelihood, data = settings.likelihood, settings.data
    shapes = [(kind, name) for kind, names in SHAPES.items() for name in names]
    for kind, name in [*NOISES.items(), *shapes]:
        fixed, free = getattr(likelihood, name) is not None, name in settings.priors.given
        if kind == likelihood.kind and fixed and free:
            yield f"likelihood.{name}: is fixed, and has a prior; leave one of them out"
        elif kind == likelihood.kind and fixed and name == NOISES[kind] and data.counts is not None:
            yield f"likelihood.{name}: data.counts hold the galaxies; leave one of them out"
        elif kind == likelihood.kind and not (fixed or free or data.counts is not None) and name == NOISES[kind]:
            example = toml_value((type(likelihood).model_fields[name].examples or [None])[0])
            prior = ", or a prior" if name in NAMES else ""
            yield f"likelihood.{name}: missing; add for example `{name} = {example}` to [likelihood]{prior}"
        elif kind != likelihood.kind:
            for section in ["likelihood"] * fixed + ["priors"] * free:
                yield f"{section}.{name}: is of a {kind} likelihood; leave it out"
    if data.selection is not None and likelihood.kind != "poisson":
        yield 'data.selection: is of counts; use likelihood.kind = "poisson", or data.mask'
    if likelihood.k_max is not None and likelihood.kind != "gaussian":
        yield 'likelihood.k_max: is of a gaussian; leave it out, or use likelihood.kind = "gaussian"'
    sloped = likelihood.slope not in (None, 0) or "slope" in settings.priors.given
    couples = data.mask is not None or isinstance(likelihood.sigma, str) or sloped
    if couples and (likelihood.noise_k2 is not None or "noise_k2" in settings.priors.given):
        yield "likelihood.noise_k2: needs the same noise in all cells; leave it out, or mask, file of sigma and slope"
    if likelihood.small_scale_noise != SMALL_SCALE_NOISE and not (likelihood.k_max and couples):
        yield "likelihood.small_scale_noise: needs k_max, and data.mask, a file of sigma or a slope; leave it out"


def _systematics(settings: InferenceSettings) -> Problems:
    likelihood, data = settings.likelihood, settings.data
    if data.bins is not None and not (likelihood.kind == "poisson" and "nbar" in settings.priors.given):
        yield 'data.bins: needs likelihood.kind = "poisson" with priors.nbar, which each bin has; leave it out'
    if data.templates is not None and "template" not in settings.priors.given:
        yield "data.templates: needs a prior of their amplitudes; add priors.template"
    if len({*(data.templates or ())}) < len(data.templates or ()):
        yield "data.templates: holds a file twice, whose amplitudes no data can tell apart; leave one of them out"
    if data.templates is None and "template" in settings.priors.given:
        yield "priors.template: is of data.templates; leave it out"
    if data.templates is not None and likelihood.maps:
        yield "data.templates: is of a field on the mesh; leave it out"


def _lensing(settings: InferenceSettings) -> Problems:
    model, cone, given = settings.model, settings.observe.light_cone, settings.priors.given
    if not settings.likelihood.maps:
        for name in (name for name in given if PARAMETERS[NAMES[name]].enters == "lensing"):
            yield f'priors.{name}: is of likelihood.kind = "lensing"; leave it out'
        lensing = {"data.counts": None, "likelihood.quantity": "convergence", "likelihood.ellipticity": 0.26}
        for key, default in lensing.items():
            section, name = key.split(".")
            if getattr(settings.section(section), name) != default:
                yield f'{key}: is of likelihood.kind = "lensing"; leave it out'
        if cone is not None:
            yield 'observe.light_cone: is of likelihood.kind = "lensing"; leave it out'
        return
    if cone is None:
        yield 'likelihood.kind = "lensing": needs a section [observe.light_cone], with sources'
    if model.gravity != "nbody":
        yield f'model.gravity = "{model.gravity}": a light cone is filled during a run; use "nbody"'
    if model.bias != "none" or model.line_of_sight != "none":
        yield 'model.bias: light is bent by all matter; use bias = "none" and line_of_sight = "none"'
    if "A_IA" in given and cone is not None and cone.bins is None:
        yield "priors.A_IA: intrinsic alignments need n(z); use [[observe.light_cone.bins]]"
    if "eta_IA" in given and "A_IA" not in given:
        yield "priors.eta_IA: has no effect without A_IA; add priors.A_IA"


def _model(settings: InferenceSettings) -> Problems:
    model, given, box = settings.model, settings.priors.given, settings.box
    linear = model.gravity == "linear"
    if linear and model.bias == "lagrangian":
        yield 'model.bias = "lagrangian": is of particles; use "eulerian" or "none" with gravity = "linear"'
    if model.window != "cloud-in-cell" and (linear or model.bias == "eulerian" or settings.likelihood.maps):
        yield f'model.window = "{model.window}": is of particles as galaxies; use bias = "lagrangian" with nbody or lpt'
    if model.bias == "eulerian" and not linear and model.line_of_sight != "none":
        yield 'model.bias = "eulerian": is in real space only; use line_of_sight = "none", or bias = "lagrangian"'
    if model.light_cone and (model.gravity != "nbody" or model.bias == "eulerian" or settings.likelihood.maps):
        yield 'model.light_cone: is of galaxies in a run; use gravity = "nbody", and bias = "lagrangian" or "none"'
    if model.light_cone and model.line_of_sight != "none":
        yield 'model.line_of_sight: starts at the observer of a light cone; use line_of_sight = "none"'
    if model.observer is not None and not model.light_cone:
        yield "model.observer: is of model.light_cone = true; leave it out"
    if linear and box.particles not in (None, box.mesh):
        yield "box.particles: linear gravity needs as many as cells; leave it out"
    if model.smoothing is not None and model.bias != "lagrangian":
        yield f'model.smoothing: has no effect with model.bias = "{model.bias}"; leave it out'
    used = {"none": (), "eulerian": BIASES[:1], "lagrangian": BIASES}[model.bias]
    for name in (set(BIASES) - set(used)) & given.keys():
        yield f'priors.{name}: has no effect with model.bias = "{model.bias}"; leave it out'


def _priors(settings: InferenceSettings) -> Problems:
    """Rules on priors without effect."""
    given, cosmology, cone = settings.priors.given, settings.cosmology, settings.observe.light_cone
    for name, table in given.items():
        count = len(cone.lensed) if cone is not None and name in OF_SOURCES else 1
        if table.lengths and (count == 1 or table.lengths != {count}):
            wanted = f"one for each of {count} sources" if count > 1 else "one number"
            yield f"priors.{name} = {toml_value(table)}: has lists; use {wanted}"
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
    for name in ("nested", "fixed", "paired", "file") if data.file != "mock" else ():
        if value := getattr(settings.noise, name):
            yield f'noise.{name} = {shown(value)}: is of the truth of data.file = "mock"; leave it out'
    for name in truth.keys() - given.keys():
        yield f"data.truth.{printable(name)}: has no prior; set it in its own section, or add one"
    for name, table in given.items():
        value = truth.get(name, getattr(cosmology, name, getattr(model, name, None)))
        if data.file == "mock" and value is not None:
            where = f"data.truth.{name}" if name in truth else f"priors.{name}"
            if not abs(float(table.build().inverse(value))) <= 8:
                yield f"{where}: the prior {toml_value(table)} excludes the truth, {value:g}; change one of them"


def _chains(settings: InferenceSettings) -> Problems:
    start, sampler = settings.start, settings.sampler
    if start.begin == "map" and find_spec("optax") is None:
        yield "start.begin = \"map\": needs optax; `pip install '.[infer]'`, or use another start"
    if sampler.steps % (sampler.thin * sampler.chunk):
        yield f"sampler.steps = {sampler.steps}: must be a multiple of thin * chunk = {sampler.thin * sampler.chunk}"
    if sampler.method != "mclmc" and sampler.energy_variance != ENERGY_VARIANCE:
        why = f"is a target of mclmc, and {sampler.method} is tuned for its acceptance"
        yield f'sampler.energy_variance: {why}; leave it out, or use sampler.method = "mclmc"'
    pdims, size = settings.devices.pdims, sampler.chain_devices
    if pdims is not None and size is not None and (count := math.prod(pdims)) != size:
        taken = f"takes {count} device{'s' * (count != 1)}, and sampler.chain_devices is {size}"
        yield f"devices.pdims = {toml_value(pdims)}: {taken}; use [{size}, 1], or leave it out"
    box, likelihood = settings.box, settings.likelihood
    if start.begin == "wiener" and (likelihood.maps or box.particles not in (None, box.mesh)):
        where = 'likelihood.kind = "lensing"' if likelihood.maps else "box.particles other than box.mesh"
        yield f'start.begin = "wiener": linear theory has none with {where}; use begin = "prior" or "map"'
