"""The plan of an inference: its data, and the model of them that the settings describe."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from pmwd_dist import infer
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import message
from pmwd_dist.cosmology.parameters import Parameters
from pmwd_dist.cosmology.sampled import cosmology_at
from pmwd_dist.cosmology.sampled_parameters import BIASES, KEYS, NAMES, OF_SOURCES, PARAMETERS, split_index
from pmwd_dist.infer.chain.folder import chain_files
from pmwd_dist.infer.constants import TRAJECTORIES
from pmwd_dist.infer.likelihoods import data_warning, template_warnings
from pmwd_dist.infer.model import unlikely_cosmology
from pmwd_dist.infer.tuning.saved import kind_of
from pmwd_dist.infer.tuning.schedule import block_length
from pmwd_dist.observe.filters import filter_warning
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.parallel.distributed import exchange, is_main, to_host
from pmwd_dist.run.common import resources
from pmwd_dist.run.common.data_files import NOISE, facts_of, read_files, read_noise
from pmwd_dist.run.common.plan import Plan, three
from pmwd_dist.run.inference.memory import InferenceMemory, inference_memory, memory_problem, too_large
from pmwd_dist.run.outputs.light_cone import place_of
from pmwd_dist.run.settings import InferenceSettings, SettingsError, SimulationSetup, build
from pmwd_dist.run.settings.inference import CHAINS, NOISES, LikelihoodSection
from pmwd_dist.run.settings.writing import toml_value
from pmwd_dist.run.simulation.accuracy import convergence_warning, resolution_line

DATA, START, TUNING = "data.npz", "start.npz", "tuning.npz"
_SAME_SELECTION = 0.02  # largest sum of |a - b| of selections a and b that each sum to 1
VERDICT = (
    *("summary.csv", "prior.csv", "fit.csv"),
    *(f"{name}.png" for name in ("traces", "corner", "mixing", "fields", "angular", "slices", "maps")),
)
_ARGUMENTS = {
    "data": "data.file",
    "mask": "data.mask",
    "counts": "data.counts",
    "selection": "data.selection",
    "bins": "data.bins",
    "data.shape": "data.file",
    "mask.shape": "data.mask",
    "observer": "model.observer",
    "a_start": "time.a_start",
    "a_stop": "time.a_stop",
    **{name: f"likelihood.{name}" for name in LikelihoodSection.model_fields},
}


@dataclass(frozen=True)
class InferencePlan(Plan):
    """An inference; `data` holds the arrays of its files."""

    settings: InferenceSettings
    model: infer.Model

    extending = ("sampler.steps", "checks.")

    @classmethod
    def of(cls, settings: InferenceSettings, folder: Path) -> Self:
        simulation = build(settings)
        if (problem := too_large(settings, simulation.config)) is not None:
            raise SettingsError([problem])
        data, problems = _read_files(settings)
        if problems:
            raise SettingsError(problems)
        data |= read_noise(settings)
        simulation = replace(simulation, field=data.get(NOISE))
        try:
            model = make_model(settings, simulation, data)
        except ArgumentError as error:
            raise SettingsError([_translated(error, settings)]) from error
        return cls(settings, simulation, folder, model, data=data)

    @property
    def steps(self) -> int:
        """Number of steps of each chain after the tuning."""
        return self.settings.sampler.steps

    @property
    def chunks(self) -> int:
        """Number of chunks of draws."""
        sampler = self.settings.sampler
        return sampler.steps // (sampler.thin * sampler.chunk)

    @property
    def files(self) -> list[str]:
        return [DATA, START, TUNING, *chain_files(self.chunks), *VERDICT]

    @property
    def chain_axis(self) -> str | None:
        """Axis of the device mesh over which chains are divided, if any."""
        return CHAINS if CHAINS in self.simulation.config.decomposition.mesh.axis_names else None

    @property
    def dimensions(self) -> int:
        """Number of modes and parameters."""
        return self.settings.particle_count + len(self.model.priors)

    @property
    def largest_wavenumber(self) -> float | None:
        """Largest wavenumber that the likelihood compares [h/Mpc]; None for maps."""
        config, likelihood = self.simulation.config, self.settings.likelihood
        if likelihood.maps:
            return None
        nyquist = math.pi / max(config.cell_size)
        return min(nyquist, likelihood.k_max or nyquist)

    @property
    def compared(self) -> float:
        """Largest wavenumber of the initial conditions that data may show: of the Nyquist sphere or less [h/Mpc]."""
        config = self.simulation.config
        nyquist = min(math.pi * n / length for n, length in zip(config.particle_shape, config.box_size, strict=True))
        return min(nyquist, self.largest_wavenumber or nyquist)

    @cached_property
    def memory(self) -> InferenceMemory:
        """Memory that is expected on each device."""
        return inference_memory(self.settings, self.model, self.chain_axis)

    @property
    def expected_memory(self) -> int:
        return resources.room().needed(self.memory.peak, self.simulation.config, self.memory.programs)

    def check(self) -> list[str]:
        problem, tight = memory_problem(
            self.memory.peak, self.memory.programs, f", {self.memory.parts}", self.simulation.config
        )
        problem = problem or wrong_tuning(self)
        if problem is not None:
            raise SettingsError([problem])
        warnings, sampler = [tight], self.settings.sampler
        if (data := self.data.get("data.file")) is not None:
            density = self.settings.likelihood.kind == "gaussian"
            unusual = data_warning(data, to_host(self.model.likelihood), density=density)
            warnings.append(unusual and f"data.file: the data {unusual}")
            warnings += _of_another_model(self)
            if (compared := self.largest_wavenumber) is not None:  # a mock is one of the model as it is
                coarse = convergence_warning(self.simulation, self.settings.model.gravity, compared)
                remedy = ", or a smaller likelihood.k_max" if isinstance(self.model.likelihood, infer.Gaussian) else ""
                warnings.append(coarse and coarse + remedy)
        warnings.append(filter_warning("model.smoothing", self.settings.model.smoothing or 0.0, self.simulation.config))
        warnings += self.simulation.cosmology_warnings()
        warnings += _of_priors(self)
        warnings += template_warnings(to_host(self.model.likelihood), self.model.priors)
        warnings += [text for output in self.settings.observe.outputs for text in output.warnings(self.simulation)]
        if sampler.chains == 1:
            warnings.append("sampler.chains = 1: R-hat of one chain finds less; use 2 or more")
        if sampler.chains * sampler.steps // sampler.thin < (ess := self.settings.checks.ess):
            fewer = f"fewer draws than checks.ess = {ess:g}; the result can't pass; use more steps"
            warnings.append(f"sampler.steps = {sampler.steps}: {fewer}")
        return [f"warning: {text}" for text in warnings if text]

    def lines(self) -> list[str]:
        config, settings = self.simulation.config, self.settings
        model, sampler, likelihood = settings.model, settings.sampler, settings.likelihood
        noise = getattr(likelihood, NOISES[likelihood.kind])
        sampled = ", ".join(f"{name} {prior}" for name, prior in self.model.priors.items()) or "none"
        return [
            f"box         {three(config.box_size)} Mpc/h, {three(config.mesh_shape)} cells: "
            f"{self.dimensions} dimensions",
            f"cosmology   {self.power_text}",
            f"model       {model.gravity} to a {config.a_stop:g}, {model.bias} bias, "
            + ("galaxies on the light cone" if model.light_cone else f"line of sight {model.line_of_sight}"),
            f"resolution  {resolution_line(self.simulation, self.largest_wavenumber)}",
            f"data        {settings.data.file}, {likelihood.kind} noise "
            f"{toml_value(noise) if noise is not None else settings.data.counts or 'sampled'}",
            f"parameters  {sampled}",
            f"chains      {sampler.chains} of {sampler.method} from {settings.start.begin}, {sampler.tuning_steps} "
            f"tuning steps and {sampler.steps}; seed {settings.noise.seed}",
            f"output      {self.folder}: {self.chunks} chunks of {sampler.chunk} draws",
            self.device_line,
            f"expected    {self.memory_text}: {self.memory.parts}",
        ]

    @property
    def slowest(self) -> float:
        """Steps of a chunk in times of those of a block of the tuning."""
        sampler = self.settings.sampler
        block = max(1, block_length(sampler.tuning_steps)) if sampler.method == "mclmc" else TRAJECTORIES
        return max(1.0, sampler.thin * sampler.chunk / block)


def wrong_tuning(plan: InferencePlan) -> str | None:
    """Problem of a tuning of other chains. Collective."""
    sampler = plan.settings.sampler
    if (source := sampler.tuning_from) is None:
        return None
    kind, kept = kind_of(plan.model, sampler.method, sampler.energy_variance), plan.folder / TUNING
    reason = ""
    try:
        if is_main():
            infer.load_tuning(source if Path(source).exists() else kept).check(kind)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ArgumentError) else message(error)
    reason = exchange(reason)[0]
    return f"sampler.tuning_from = {toml_value(source)}: {reason}" if reason else None


def _of_another_model(plan: InferencePlan) -> list[str]:
    """Warnings about data that a run has written with another box, time, window or view than the model's."""
    config, model, cone = plan.simulation.config, plan.settings.model, plan.settings.observe.light_cone
    facts, of_selection = facts_of(plan.settings.data.file), list[str]()
    expected: dict[str, tuple[str, Any]] = {"box_size": ("box.size", config.box_size)}
    if plan.settings.likelihood.maps and cone is not None:
        shells, key = plan.simulation.light_cone, "observe.light_cone." + ("bins" if cone.bins else "sources")
        assert shells is not None
        expected |= {"sources": (key, cone.moments[0]), "widths of n(z)": (key, cone.moments[1])}
        expected["ends of shells"] = "observe.light_cone.edges", (shells.edges[0], shells.edges[-1])
        expected["observer"] = "observe.light_cone.observer", place_of(shells)
        expected["shift"] = "observe.light_cone.shift", int(cone.shift)
        expected["line_of_sight"] = "observe.light_cone.line_of_sight", cone.line_of_sight
        expected["field"] = "observe.light_cone.field", cone.view(shells).get("field")
    elif model.light_cone:
        expected["z"] = "model.light_cone", "a light cone"
    else:
        expected["z"] = "time.a_stop", 1 / config.a_stop - 1
        expected["line_of_sight"] = "model.line_of_sight", model.line_of_sight
        if model.bias == "lagrangian":
            expected["smoothing"] = "model.smoothing", model.smoothing or 0.0
        if "selection" in facts and "window" in facts:  # the counts themselves, and nothing derived from them
            of_selection = _of_another_selection(plan, facts["selection"])
    if model.gravity != "linear":
        expected["window"] = "model.window", model.window
    said = [
        f"have the {name} {_in_words(facts[name])}, and the model has {_in_words(value)} ({key})"
        for name, (key, value) in expected.items()
        if value is not None and name in facts and not _is_same(facts[name], value)
    ]
    if "window" in facts and model.gravity == "linear":
        said.append(f'have the window {facts["window"]}, and model.gravity = "linear" has none; use "lpt"')
    return [f"data.file: the data {text}" for text in (*said, *of_selection)]


def _of_another_selection(plan: InferencePlan, seen: np.ndarray) -> list[str]:
    """Words on counts whose survey sees other shares of the galaxies than the model, but for a factor."""
    name = plan.settings.data.file.rpartition(":")[0] + ":/selection"
    remedy = f"use data.selection = {toml_value(name)}, or data.mask" if seen.ndim else "leave data.selection out"
    if plan.settings.likelihood.kind != "poisson":
        remedy = f'use likelihood.kind = "poisson", and {remedy.removeprefix("use ")}'
    model = np.ones(plan.simulation.config.mesh_shape)
    for key in ("data.selection", "data.mask"):
        model = model * plan.data.get(key, 1.0)
    seen = np.broadcast_to(seen, model.shape)
    if hidden := float(np.mean((seen == 0) & (model > 0))):
        return [f"see nothing in {100 * hidden:.2g} % of the cells, in which the model has galaxies; {remedy}"]
    seen = np.where(model > 0, seen, 0)
    distance = float(np.abs(model / model.sum() - seen / seen.sum()).sum())
    if plan.settings.data.bins is None and distance > _SAME_SELECTION:  # bins have numbers of their own
        return [f"have another selection than the model, by {100 * distance:.2g} % in the mean; {remedy}"]
    return []


def _is_same(found: Any, value: Any) -> bool:
    """Whether words or numbers are the same, but for rounding."""
    if isinstance(value, str):
        return found == value
    return np.size(found) == np.size(value) and np.allclose(found, value, 1e-3, 1e-3)


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(f"{x:g}" for x in np.ravel(value))


def _of_priors(plan: InferencePlan) -> list[str]:
    """Warnings about priors that allow parameters at which the model fails."""
    forward: Any = plan.model.forward
    warnings = list[str]()

    def untabulated(cosmo: Parameters) -> list[str]:
        simulation = plan.simulation
        return unlikely_cosmology(simulation.power, cosmo, simulation.config) + simulation.training_warnings(cosmo)

    for name, section in plan.settings.priors.given.items():
        prior, key = section.build(), NAMES[name]
        ends = {f"{float(x):.4g}": x for x in map(prior.forward, (-2.0, 2.0))}
        if PARAMETERS[key].bound == "positive" and min(ends.values()) <= 0:
            warnings.append(f"priors.{name}: 0 is within two deviations of its median; bound it from below with low")
        elif PARAMETERS[key].enters == "cosmology":
            for text, value in ends.items():
                table = cosmology_at({key: value}, forward.table)
                problems = [x for x in untabulated(table.cosmo) if x not in untabulated(forward.table.cosmo)]
                lensing = isinstance(forward, infer.Convergence)
                if lensing and not forward.cone.shells.covered(table, forward.config).all():
                    problems.append(
                        "the run does not span the light cone, and the log density is -inf; use an earlier "
                        "time.a_start, or nearer sources"
                    )
                warnings += [f"priors.{name}: at {text}, within two deviations of its median, {x}" for x in problems]
    if "omega_m" not in plan.settings.priors.given:
        text = "the density of cold dark matter stays, and omega_m moves with this parameter; sample omega_m, too"
        warnings += [f"priors.{x}: {text}" for x in ("omega_b", "m_nu") if x in plan.settings.priors.given]
    return warnings


def make_model(settings: InferenceSettings, simulation: SimulationSetup, data: dict[str, np.ndarray]) -> infer.Model:
    """The model of the data, which are checked before processes share the fields of the model.

    Raises ArgumentError for incompatible parts, or data out of range.
    """
    config, forward = simulation.config, _forward(settings, simulation)
    likelihood = make_likelihood(settings, forward, data)
    counts = {"template": len(data.get("data.templates", ()))}
    if isinstance(likelihood, infer.Poisson) and likelihood.bins is not None:
        counts["nbar"] = len(likelihood.means)
    if isinstance(forward, infer.Convergence):
        counts |= dict.fromkeys(OF_SOURCES, len(forward.sources))
    priors = settings.priors.distributions(counts)
    nothing = np.zeros(forward.layout[0])  # until a mock is drawn
    with np.errstate(over="ignore"):
        observed = data.get("data.file", nothing).astype(np.dtype(jnp.result_type(float)))
    likelihood.check(observed, config)
    with warnings.catch_warnings(action="ignore"):  # `check` returns them
        return infer.Model(config, forward, priors, likelihood)


def make_likelihood(settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
    """The likelihood of these settings, a forward model and the arrays of files, by key."""
    section = settings.likelihood
    templates = {f"template_{i}": x for i, x in enumerate(data.get("data.templates", ()))}
    common: dict[str, Any] = {"mask": data.get("data.mask"), "templates": templates}

    def number(name: str) -> Any:
        """A number of the settings, or the name of a parameter with a prior."""
        return name if name in settings.priors.given else getattr(section, name)

    match section.kind:
        case "gaussian":
            options: Any = {"k_max": section.k_max, "small_scale_noise": section.small_scale_noise}
            sigma = data.get("likelihood.sigma", number("sigma"))
            return infer.Gaussian(sigma, slope=number("slope"), noise_k2=number("noise_k2"), **options, **common)
        case "poisson":
            options = {"selection": data.get("data.selection"), "bins": data.get("data.bins")}
            return infer.Poisson(number("nbar"), dispersion=number("dispersion"), **options, **common)
        case "lensing":
            density, counts = section.density, data.get("data.counts")
            each = density[0] if density is not None and len(density) == 1 else density
            options = {"ellipticity": section.ellipticity, "mask": common["mask"], "counts": counts}
            return infer.ShapeNoise(forward, each, **options)


def _forward(settings: InferenceSettings, simulation: SimulationSetup) -> Any:
    model, config, cosmo = settings.model, simulation.config, simulation.cosmo
    power: dict[str, Any] = {"linear_power": simulation.power, "normalise": settings.cosmology.normalise}
    gravity: dict[str, Any] = power | {"solver": simulation.solver, "potential_factor": simulation.potential_factor}
    if settings.likelihood.maps:
        return _maps(settings, simulation, **gravity)
    biases: dict[str, Any] = {n: n if n in settings.priors.given else getattr(model, n) for n in BIASES}
    line_of_sight: Any = None if model.line_of_sight == "none" else model.line_of_sight
    bias = 1.0 if model.bias == "none" else biases["b1"]
    if model.gravity == "linear":
        return infer.LinearField(config, cosmo, bias=bias, line_of_sight=line_of_sight, **power)
    painted = line_of_sight is None and model.window == "cloud-in-cell" and not model.light_cone
    if model.bias != "lagrangian" and painted:
        return infer.Simulation(config, cosmo, gravity=model.gravity, bias=bias, **gravity)
    chosen = biases if model.bias == "lagrangian" else {}
    options: dict[str, Any] = {"smoothing": model.smoothing, "line_of_sight": line_of_sight, "window": model.window}
    galaxies = infer.LagrangianGalaxies(**chosen, **options)
    if model.light_cone:
        centre = tuple(length / 2 for length in config.box_size)
        gravity["observer"] = centre if model.observer is None else model.observer
    return infer.Simulation(config, cosmo, gravity=model.gravity, observable=galaxies, **gravity)


def _maps(settings: InferenceSettings, simulation: SimulationSetup, **options: Any) -> infer.Convergence:
    """The forward model of lensing, with the rays of the light cone of a run."""
    cone, wanted = simulation.light_cone, settings.observe.light_cone
    assert cone is not None
    assert wanted is not None
    view = wanted.view(cone)
    with warnings.catch_warnings(action="ignore"):  # `check` returns them
        kind = infer.Shear if settings.likelihood.quantity == "shear" else infer.Convergence
        return kind(simulation.config, simulation.cosmo, cone, wanted.lensed, **view, **options)


def truth_of(plan: InferencePlan) -> dict[str, float]:
    """Parameters of a mock: the given values, else the values of their own sections."""
    settings, found = plan.settings, dict[str, float]()
    for name in plan.model.priors:
        key = KEYS[split_index(name)[0]]
        value = (settings.data.truth or {}).get(key)
        for section in (settings.cosmology, settings.model, settings.likelihood):
            value = getattr(section, key, None) if value is None else value
        if value is not None:
            found[name] = float(value)
    return found


def _read_files(settings: InferenceSettings) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays of the files by key, and problems."""
    named = {f"data.{name}": getattr(settings.data, name) for name in ("file", "mask", "counts", "selection", "bins")}
    files = {key: value for key, value in named.items() if value not in (None, "mock")}
    if isinstance(settings.likelihood.sigma, str):
        files["likelihood.sigma"] = settings.likelihood.sigma
    cone = settings.observe.light_cone
    if not settings.likelihood.maps or cone is None:
        arrays, problems = read_files(files, settings.box.mesh)
        key, named = "data.templates", settings.data.templates or ()
        templates = [read_files({key: name}, settings.box.mesh) for name in named]
        problems += [text for _, texts in templates for text in texts]
        if named and not problems:
            arrays[key] = np.stack([found[key] for found, _ in templates])
        return arrays, problems
    one = (cone.rays, cone.rays) if cone.sky == "flat" else (pixel_count(cone.nside),)
    several, components = len(cone.lensed), (2,) if settings.likelihood.quantity == "shear" else ()
    observed = {key: value for key, value in files.items() if key == "data.file"}
    arrays, problems = read_files(observed, (several, *components, *one), one)
    others = read_files({key: value for key, value in files.items() if key not in observed}, (several, *one), one)
    return arrays | others[0], problems + others[1]


def _translated(error: ArgumentError, settings: InferenceSettings) -> str:
    """Message of an error of the library, with the key of the file in place of the argument."""
    name, bracket, index = error.argument.partition("[")
    keys = {"priors": f"priors.{KEYS.get(split_index(index[1:-2])[0])}", "templates": "data.templates"}
    path = keys.get(name) if bracket else _ARGUMENTS.get(name)
    if path is None:
        return str(error)
    section, key = path.split(".")
    value = getattr(settings.section(section), key)
    inside = f"holds {error.value:g}, which " if section == "data" and np.ndim(error.value) == 0 else ""
    return f"{path} = {toml_value(value)}: {inside}{error.reason}"
