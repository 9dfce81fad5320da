"""Rules that involve several sections of the TOML file of an inference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pmwd_dist.infer.samplers.methods import NEEDS_BLACKJAX
from pmwd_dist.infer.tuning.schedule import ENERGY_VARIANCE, STEP_BIAS
from pmwd_dist.run.settings.inference_sections import BIASES, Data, LikelihoodSection, Model, Priors, Sampler, Start
from pmwd_dist.run.settings.writing import toml_value


def find_problems(sections: Mapping[str, Any]) -> list[str]:
    """Problems that involve several sections; None stands for invalid ones."""
    known = {name: section for name, section in sections.items() if section is not None}
    problems: list[str] = []
    for needed, find in _CROSS:
        if all(name in known for name in needed):
            problems += find(*(known[name] for name in needed))
    if all(name in known for name in ("likelihood", "model")):
        with_cone = "observe.light_cone" in sections
        problems += _of_light_cone(known["likelihood"], known["model"], with_cone=with_cone)
    return problems


def _of_likelihood(likelihood: LikelihoodSection, given: Priors, data: Data) -> list[str]:
    if likelihood.kind == "lensing":
        return _of_lensing(likelihood, given, data)
    problems: list[str] = []
    if likelihood.density is not None:
        problems.append('likelihood.density: is of lensed galaxies; use likelihood.kind = "lensing", or leave it out')
    gaussian = likelihood.kind == "gaussian"
    own, other = ("sigma", "nbar") if gaussian else ("nbar", "sigma")
    if getattr(likelihood, own) is None and own not in given.given:
        problems.append(f"likelihood.{own}: missing; add for example `{own} = 0.5` to [likelihood], or a prior")
    if getattr(likelihood, own) is not None and own in given.given:
        problems.append(f"likelihood.{own}: is fixed, and has a prior; leave one of them out")
    for section, there in (("likelihood", getattr(likelihood, other) is not None), ("priors", other in given.given)):
        if there:
            problems.append(f"{section}.{other}: a {likelihood.kind} likelihood has none; leave it out")
    if gaussian and data.selection is not None:
        problems.append('data.selection: is of counts; use likelihood.kind = "poisson", or data.mask')
    if not gaussian and likelihood.k_max is not None:
        problems.append('likelihood.k_max: is of a gaussian; leave it out, or use likelihood.kind = "gaussian"')
    if likelihood.k_max is not None and data.mask is not None:
        problems.append("likelihood.k_max: can't be used with data.mask, which couples modes; leave one of them out")
    if likelihood.k_max is not None and isinstance(likelihood.sigma, str):
        problems.append("likelihood.k_max: can't be used with a file of likelihood.sigma, which couples modes; use one")
    return problems


def _of_lensing(likelihood: LikelihoodSection, given: Priors, data: Data) -> list[str]:
    problems: list[str] = []
    if likelihood.density is None:
        problems.append("likelihood.density: missing; add for example `density = 10.0` to [likelihood]")
    problems += [
        f'likelihood.{name}: is of fields on the mesh; leave it out with kind = "lensing"'
        for name in ("sigma", "nbar", "k_max")
        if getattr(likelihood, name) is not None
    ]
    problems += [
        f"priors.{name}: has no effect on lensing; leave it out" for name in ("sigma", "nbar") if name in given.given
    ]
    if data.selection is not None:
        problems.append('data.selection: is of counts; use likelihood.kind = "poisson", or data.mask')
    return problems


def _of_light_cone(likelihood: LikelihoodSection, model: Model, *, with_cone: bool) -> list[str]:
    """Rules on lensing and light cones."""
    if likelihood.kind != "lensing":
        there = 'observe.light_cone: is of likelihood.kind = "lensing"; leave it out'
        return [there] if with_cone else []
    problems: list[str] = []
    if not with_cone:
        problems.append('likelihood.kind = "lensing": needs a section [observe.light_cone], with sources')
    if model.gravity != "nbody":
        problems.append(f'model.gravity = "{model.gravity}": a light cone is filled during a run; use "nbody"')
    if model.bias != "none" or model.line_of_sight != "none":
        problems.append('model.bias: light is bent by all matter; use bias = "none" and line_of_sight = "none"')
    return problems


def _of_model(model: Model, given: Priors) -> list[str]:
    problems: list[str] = []
    used = {"none": (), "eulerian": BIASES[:1], "lagrangian": BIASES}[model.bias]
    if model.gravity == "linear" and model.bias == "lagrangian":
        problems.append('model.bias = "lagrangian": is of particles; use "eulerian" or "none" with gravity = "linear"')
    problems += [
        f'priors.{name}: has no effect with model.bias = "{model.bias}"; leave it out'
        for name in BIASES
        if name in given.given and name not in used
    ]
    if model.bias == "eulerian" and model.gravity != "linear" and model.line_of_sight != "none":
        problems.append(
            'model.bias = "eulerian": is in real space only; use line_of_sight = "none", or bias = "lagrangian"'
        )
    return problems


def _of_cosmology(cosmology: Any, given: Priors) -> list[str]:
    if cosmology.linear_power is None:
        return []
    problems = [
        f"priors.{name}: would not change the P(k) of cosmology.linear_power; leave one of them out"
        for name in ("n_s", "h", "omega_b")
        if name in given.given
    ]
    if "sigma8" in given.given and not cosmology.normalise:
        remedy = "use cosmology.normalise = true, or leave one of them out"
        problems.append(f"priors.sigma8: would not change the P(k) of cosmology.linear_power; {remedy}")
    return problems


def _of_truth(data: Data, given: Priors, cosmology: Any, model: Model) -> list[str]:
    """The truth of a mock that is not possible under the priors."""
    problems: list[str] = []
    if data.truth is not None and data.file != "mock":
        problems.append('data.truth: is of data.file = "mock"; leave it out')
    problems += [
        f"data.truth.{name}: has no prior; set it in its own section, or add one"
        for name in data.truth or {}
        if name not in given.given
    ]
    for name, table in given.given.items():
        value = (data.truth or {}).get(name, getattr(cosmology, name, getattr(model, name, None)))
        if data.file == "mock" and value is not None:
            u = float(table.build().inverse(value))
            if not math.isfinite(u) or abs(u) > 8:
                where = f"data.truth.{name}" if name in (data.truth or {}) else f"priors.{name}"
                problems.append(
                    f"{where}: the prior {toml_value(table)} excludes the truth, {value:g}; change one of them"
                )
    return problems


def _of_start(start: Start, given: Priors, sampler: Sampler) -> list[str]:
    problems = [
        f"start.map_free: {name} has no prior; leave it out" for name in start.map_free if name not in given.given
    ]
    if start.begin == "map" and find_spec("optax") is None:
        problems.append("start.begin = \"map\": needs optax; `pip install '.[infer]'`, or use another start")
    if sampler.method == "nuts" and find_spec("blackjax") is None:
        problems.append(f'sampler.method = "nuts": {NEEDS_BLACKJAX}')
    if start.begin == "wiener" and sampler.precondition == "none":
        problems.append('start.begin = "wiener": needs sampler.precondition; use begin = "prior"')
    if list(start.map_anneal) != sorted(start.map_anneal) or any(k <= 0 for k in start.map_anneal):
        problems.append(f"start.map_anneal = {toml_value(start.map_anneal)}: must be positive, and ascend")
    if sampler.steps % (sampler.thin * sampler.chunk):
        problems.append(
            f"sampler.steps = {sampler.steps}: must be a multiple of thin * chunk = {sampler.thin * sampler.chunk}"
        )
    if sampler.method != "mclmc":
        problems += [
            f"sampler.{key}: is a target of mclmc, and {sampler.method} is tuned for its acceptance; "
            'leave it out, or use sampler.method = "mclmc"'
            for key, default in (("energy_variance", ENERGY_VARIANCE), ("most_bias", STEP_BIAS))
            if getattr(sampler, key) != default
        ]
    if start.map_free and sampler.precondition != "none":
        problems.append(
            "start.map_free: parameters can't be told from the noise where sampler.precondition depends on them; "
            'leave it out, or use sampler.precondition = "none"'
        )
    return problems


def _of_devices(devices: Any, sampler: Sampler) -> list[str]:
    pdims, size = devices.pdims, sampler.chain_devices
    count = size if pdims is None else math.prod(pdims)
    if size is None or count == size:
        return []
    constraint = f"takes {count} device{'s' * (count != 1)}, and sampler.chain_devices is {size}"
    return [f"devices.pdims = {toml_value(pdims)}: {constraint}; use [{size}, 1], or leave it out"]


def _of_mesh(box: Any, model: Model) -> list[str]:
    if not _other_lattice(box) or model.gravity != "linear":
        return []
    return ["box.particles: linear gravity needs as many as cells; leave it out"]


def _of_linear_theory(box: Any, likelihood: LikelihoodSection, sampler: Sampler, start: Start) -> list[str]:
    """Problems of linear theory where data and noise have different modes."""
    if likelihood.kind != "lensing" and not _other_lattice(box):
        return []
    there = 'likelihood.kind = "lensing"' if likelihood.kind == "lensing" else "box.particles other than box.mesh"
    if sampler.precondition == "conditional":
        return [f'sampler.precondition: linear theory has none with {there}; use "adapted" or "none"']
    if start.begin == "wiener" and sampler.precondition == "adapted":
        return [f'start.begin = "wiener": linear theory has none with {there}; use begin = "prior" or "map"']
    return []


def _other_lattice(box: Any) -> bool:
    return box.particles is not None and box.particles != box.mesh


_CROSS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("likelihood", "priors", "data"), _of_likelihood),
    (("model", "priors"), _of_model),
    (("cosmology", "priors"), _of_cosmology),
    (("data", "priors", "cosmology", "model"), _of_truth),
    (("start", "priors", "sampler"), _of_start),
    (("devices", "sampler"), _of_devices),
    (("box", "model"), _of_mesh),
    (("box", "likelihood", "sampler", "start"), _of_linear_theory),
)
