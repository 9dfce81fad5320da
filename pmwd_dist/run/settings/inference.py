"""The sections of the TOML file of an inference: data, model, likelihood, priors, start, sampler and checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer import priors
from pmwd_dist.infer.priors import Prior
from pmwd_dist.run.settings.models import OPTIONAL, SECTIONS, Output, Sections, Settings
from pmwd_dist.run.settings.observables import Observe
from pmwd_dist.run.settings.section import Section, about, list_to_tuple
from pmwd_dist.run.settings.writing import Raw, toml_value

# Keys of [priors], by the library's names of the parameters.
COSMOLOGY = {
    "sigma8": "sigma8",
    "omega_m": "Omega_m",
    "omega_b": "Omega_b",
    "h": "h",
    "n_s": "n_s",
    "omega_k": "Omega_k",
    "w0": "w0",
    "wa": "wa",
}
BIASES = ("b1", "b2", "bs2", "bnabla2")
_KINDS: dict[str, tuple[Any, set[str], set[str]]] = {
    "normal": (priors.Normal, {"mean", "sd"}, {"low", "high"}),
    "uniform": (priors.Uniform, {"low", "high"}, set()),
    "lognormal": (priors.LogNormal, {"median", "sd"}, set()),
}


class PriorTable(Section):
    """The prior of a parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["normal", "uniform", "lognormal"]
    mean: float | None = None
    median: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None

    def build(self) -> Prior:
        """The prior.

        Raises:
          ValueError: keys that this kind lacks or has not, or values out of range.
        """
        make, needed, allowed = _KINDS[self.kind]
        given = {name: value for name, value in self.model_dump(exclude={"kind"}).items() if value is not None}
        if not needed <= given.keys() <= needed | allowed:
            takes = " and ".join(sorted(needed)) + (
                f", and may have {' and '.join(sorted(allowed))}" if allowed else ""
            )
            raise ValueError(f'of kind "{self.kind}" needs {takes}')
        return make(**given)


def _prior(value: object) -> object:
    if value is None or isinstance(value, PriorTable):
        return value
    if not isinstance(value, dict) or "kind" not in value:
        raise ValueError("must be a table with a kind")
    try:
        table = PriorTable.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"has a wrong {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    try:
        table.build()
    except ArgumentError as error:
        raise ValueError(f"has {error.argument} = {toml_value(error.value)}, which {error.reason}") from error
    return table


_Prior = Annotated[PriorTable | None, BeforeValidator(_prior)]


def _prior_of(what: str, example: str) -> Any:
    return about(f"of {what}", None, Raw(example))


class Data(Section):
    """What was observed."""

    file: str = about(
        'an .npy file, or "file.h5:/dataset": density in units of the mean, or counts; "mock": drawn from the model',
        "mock",
    )
    mask: str | None = about("file with 1 where there are data, and 0 elsewhere", None, "survey.h5:/mask")
    selection: str | None = about(
        "file with the fraction of the galaxies that is observed; of Poisson counts", None, "survey.h5:/selection"
    )
    truth: dict[str, float] | None = about(
        "parameters of the mock; default: those of [cosmology] and [model], else drawn from their priors",
        None,
        Raw("{ b1 = 0.8 }"),
    )


class Model(Section):
    """The forward model: gravity and galaxies."""

    gravity: Literal["nbody", "lpt", "linear"] = about("nbody (with time.steps), lpt or linear", "nbody")
    bias: Literal["lagrangian", "eulerian", "none"] = about("lagrangian, eulerian (b1 only) or none", "lagrangian")
    b1: float = about("first bias; of long waves it is 1 + b1 if lagrangian and b1 if eulerian", 1.0)
    b2: float = about("lagrangian bias of the squared density", 0.0)
    bs2: float = about("lagrangian bias of the squared tidal field", 0.0)
    bnabla2: float = about("lagrangian bias of the Laplacian of the density [(Mpc/h)^2]", 0.0)
    smoothing: float | None = about("radius of the filter of the lagrangian density [Mpc/h]", None, 4.0, gt=0)
    line_of_sight: Literal["x", "y", "z", "none"] = about("axis of the redshift distortions, or none", "z")


class Likelihood(Section):
    """The noise of the data."""

    kind: Literal["gaussian", "poisson"] = about("gaussian (densities) or poisson (counts)", "gaussian")
    sigma: float | None = about("gaussian standard deviation in a cell, unless it has a prior", None, 0.5, gt=0)
    k_max: float | None = about(
        "largest wavenumber that is compared, of a gaussian [h/Mpc]; default: all", None, 0.3, gt=0
    )
    nbar: float | None = about("mean number of galaxies in a cell, of poisson, unless it has a prior", None, 2.0, gt=0)


class Priors(Section):
    """The parameters that are sampled; those that are not listed are fixed."""

    sigma8: _Prior = _prior_of("sigma8; bound it from below", '{ kind = "normal", mean = 0.8, sd = 0.15, low = 0.1 }')
    omega_m: _Prior = _prior_of("omega_m", '{ kind = "normal", mean = 0.3, sd = 0.05, low = 0.06 }')
    omega_b: _Prior = _prior_of("omega_b", '{ kind = "normal", mean = 0.0486, sd = 0.001, low = 0.01 }')
    h: _Prior = _prior_of("h", '{ kind = "normal", mean = 0.68, sd = 0.02, low = 0.5 }')
    n_s: _Prior = _prior_of("n_s", '{ kind = "normal", mean = 0.9667, sd = 0.01 }')
    omega_k: _Prior = _prior_of("omega_k", '{ kind = "normal", mean = 0.0, sd = 0.05 }')
    w0: _Prior = _prior_of("w0", '{ kind = "uniform", low = -1.5, high = -0.5 }')
    wa: _Prior = _prior_of("wa", '{ kind = "normal", mean = 0.0, sd = 0.3, high = 0.4 }')
    b1: _Prior = _prior_of("b1", '{ kind = "uniform", low = 0.5, high = 4.0 }')
    b2: _Prior = _prior_of("b2", '{ kind = "normal", mean = 0.0, sd = 1.0 }')
    bs2: _Prior = _prior_of("bs2", '{ kind = "normal", mean = 0.0, sd = 1.0 }')
    bnabla2: _Prior = _prior_of("bnabla2", '{ kind = "normal", mean = 0.0, sd = 10.0 }')
    sigma: _Prior = _prior_of("likelihood.sigma", '{ kind = "lognormal", median = 0.5, sd = 0.3 }')
    nbar: _Prior = _prior_of("likelihood.nbar", '{ kind = "lognormal", median = 2.0, sd = 0.3 }')

    @property
    def given(self) -> dict[str, PriorTable]:
        """Those that are listed, by their keys."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


class Start(Section):
    """Where the chains begin."""

    begin: Literal["wiener", "prior", "map"] = about(
        "wiener: draws given the data in linear theory; prior: draws; map: the largest density over the noise", "wiener"
    )
    map_steps: int = about("steps of L-BFGS", 100, ge=1)
    map_free: Annotated[tuple[str, ...], BeforeValidator(list_to_tuple)] = about(
        "parameters that the maximum is over, too; a joint maximum overfits, and is no estimate",
        (),
        Raw('["b1"]'),
    )


class Sampler(Section):
    """The chains."""

    chains: int = about("how many", 4, ge=1, le=1024)
    tune: int = about("steps that find the step size, masses and L", 1000, ge=40)
    steps: int = about("steps of each chain; may be raised later", 4000, ge=1)
    thin: int = about("steps from one draw that is kept to the next", 1, ge=1)
    chunk: int = about("draws from one write to disk to the next; what a kill can lose", 100, ge=4)
    precondition: Literal["conditional", "wiener", "none"] = about(
        "linear theory given data and parameters, wiener (its scales at the fiducial parameters) or none", "conditional"
    )


class Checks(Section):
    """When a result can be trusted."""

    r_hat: float = about("largest R-hat of a parameter", 1.01, gt=1)
    ess: float = about("smallest effective sample size of a parameter, bulk and tail", 400.0, gt=0)
    failed_simulations: float = about("share of the steps of a chunk that may fail; more end the run", 0.05, ge=0, le=1)


OWN: Sections = {
    "data": Data,
    "model": Model,
    "likelihood": Likelihood,
    "priors": Priors,
    "start": Start,
    "sampler": Sampler,
    "checks": Checks,
}


class InferenceSettings(Settings):
    """All sections of the file of an inference; noise.seed is that of all its random numbers."""

    sections: ClassVar[Sections] = {
        **{name: model for name, model in SECTIONS.items() if name not in ("output", *OPTIONAL)},
        **OWN,
    }

    output: Output = Field(default_factory=Output)
    observe: Observe = Field(default_factory=Observe)
    data: Data
    model: Model
    likelihood: Likelihood
    priors: Priors
    start: Start
    sampler: Sampler
    checks: Checks

    @classmethod
    def find_problems(cls, sections: Mapping[str, Any]) -> list[str]:
        """Problems that involve several sections; None stands for invalid ones."""
        known = {name: section for name, section in sections.items() if section is not None}
        problems: list[str] = []
        for needed, find in _CROSS:
            if all(name in known for name in needed):
                problems += find(*(known[name] for name in needed))
        return problems

    @classmethod
    def absolute(cls, sections: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The sections with the paths of the data absolute."""
        data: Data = sections["data"]
        changes = {
            key: str((folder / value).absolute())
            for key in ("file", "mask", "selection")
            if (value := getattr(data, key)) not in (None, "mock")
        }
        return sections | {"data": data.model_copy(update=changes)}


def _of_likelihood(likelihood: Likelihood, given: Priors, data: Data) -> list[str]:
    gaussian = likelihood.kind == "gaussian"
    own, other = ("sigma", "nbar") if gaussian else ("nbar", "sigma")
    problems: list[str] = []
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
    return [
        f"priors.{name}: would not change the P(k) of cosmology.linear_power; leave one of them out"
        for name in ("sigma8", "n_s", "h", "omega_b")
        if name in given.given
    ]


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


def _of_start(start: Start, given: Priors, sampler: Sampler, model: Model) -> list[str]:
    problems = [
        f"start.map_free: {name} has no prior; leave it out" for name in start.map_free if name not in given.given
    ]
    if start.begin == "wiener" and sampler.precondition == "none":
        problems.append('start.begin = "wiener": needs sampler.precondition; use begin = "prior"')
    if sampler.steps % (sampler.thin * sampler.chunk):
        problems.append(
            f"sampler.steps = {sampler.steps}: must be a multiple of thin * chunk = {sampler.thin * sampler.chunk}"
        )
    del model
    return problems


def _of_mesh(box: Any, sampler: Sampler, model: Model) -> list[str]:
    if box.particles is None or box.particles == box.mesh:
        return []
    if sampler.precondition != "none":
        return [
            'box.particles: a preconditioner needs as many as cells; leave it out, or sampler.precondition = "none"'
        ]
    return ["box.particles: linear gravity needs as many as cells; leave it out"] if model.gravity == "linear" else []


_CROSS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("likelihood", "priors", "data"), _of_likelihood),
    (("model", "priors"), _of_model),
    (("cosmology", "priors"), _of_cosmology),
    (("data", "priors", "cosmology", "model"), _of_truth),
    (("start", "priors", "sampler", "model"), _of_start),
    (("box", "sampler", "model"), _of_mesh),
)
