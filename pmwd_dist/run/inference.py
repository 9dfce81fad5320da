"""The plan of an inference: its data, and the model of them that the settings describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from pmwd_dist import infer
from pmwd_dist._errors import ArgumentError
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.run import resources
from pmwd_dist.run.arrays import read_files
from pmwd_dist.run.light_cone import random_offsets
from pmwd_dist.run.plan import Plan
from pmwd_dist.run.settings import InferenceSettings, SettingsError, Simulation, build
from pmwd_dist.run.settings.inference_sections import BIASES, COSMOLOGY
from pmwd_dist.run.settings.light_cone import field_of_view
from pmwd_dist.run.settings.writing import toml_value

_ARGUMENTS = {
    "data": "data.file",
    "density": "likelihood.density",
    "mask": "data.mask",
    "selection": "data.selection",
    "data.shape": "data.file",
    "mask.shape": "data.mask",
}


@dataclass(frozen=True, kw_only=True)
class InferencePlan(Plan):
    """Plan of an inference; `data` holds the arrays of its files.

    Args:
      settings: of the inference.
      model: of the data.
    """

    settings: InferenceSettings
    model: infer.Model

    @property
    def chunks(self) -> int:
        """Number of chunks of draws."""
        sampler = self.settings.sampler
        return sampler.steps // (sampler.thin * sampler.chunk)

    @property
    def precondition(self) -> str | None:
        """As the library calls it."""
        name = self.settings.sampler.precondition
        return None if name == "none" else name

    @property
    def dimensions(self) -> int:
        """Number of modes and parameters."""
        return self.settings.particle_count + len(self.model.priors)


def make_inference(settings: InferenceSettings, folder: Path) -> InferencePlan:
    """Plan the inference of these settings.

    Raises:
      SettingsError: the settings don't fit the devices, the files or each other.
    """
    simulation = build(settings)
    data, problems = _read_files(settings)
    model = None
    try:
        model = make_model(settings, simulation, data)
        if "data.file" in data:
            model.likelihood.check(jnp.asarray(data["data.file"]), simulation.config)
    except ArgumentError as error:
        problems.append(_translated(error, settings))
    if problems or model is None:
        raise SettingsError(problems)
    return InferencePlan(
        settings=settings, simulation=simulation, folder=folder, times=(), outputs={}, data=data, model=model
    )


def check_inference(plan: InferencePlan) -> list[str]:
    """Warnings about memory, and data that look like something else.

    Raises:
      SettingsError: memory can't suffice.
    """
    problem, warning = resources.memory_problem(plan.simulation.config)
    if problem is not None:
        raise SettingsError([f"box.mesh: {problem}"])
    warnings = [] if warning is None else [warning]
    data, sampler = plan.data.get("data.file"), plan.settings.sampler
    if data is not None and plan.settings.likelihood.kind == "gaussian" and abs(float(np.nanmean(data))) < 0.1:
        warnings.append(
            "data.file: the mean is about 0, as of a contrast; densities are in units of the mean, 1 + delta"
        )
    if sampler.chains == 1:
        warnings.append("sampler.chains = 1: R-hat of one chain finds less; use 2 or more")
    if sampler.chains * sampler.steps // sampler.thin < plan.settings.checks.ess:
        warnings.append(
            f"sampler.steps = {sampler.steps}: fewer draws than checks.ess = {plan.settings.checks.ess:g}; the result "
            "can't pass; use more steps"
        )
    return [f"warning: {text}" for text in warnings]


def make_model(settings: InferenceSettings, simulation: Simulation, data: dict[str, np.ndarray]) -> infer.Model:
    """The model of the data.

    Raises:
      ArgumentError: parts that exclude each other, or data that are out of range.
    """
    priors = {COSMOLOGY.get(name, name): table.build() for name, table in settings.priors.given.items()}
    noise, names = settings.likelihood, settings.priors.given
    mask = data.get("data.mask")
    if noise.kind == "gaussian":
        sigma = "sigma" if "sigma" in names else noise.sigma
        likelihood = infer.Gaussian(sigma, mask=mask, k_max=noise.k_max)
    elif noise.kind == "lensing":
        maps, density = _maps(settings, simulation), noise.density
        assert density is not None
        density = density[0] if len(density) == 1 else density
        shapes = infer.ShapeNoise(maps, density, ellipticity=noise.ellipticity, mask=mask)
        return infer.Model(simulation.config, maps, priors, shapes)
    else:
        nbar = "nbar" if "nbar" in names else noise.nbar
        likelihood = infer.Poisson(nbar, mask=mask, selection=data.get("data.selection"))
    return infer.Model(simulation.config, _forward(settings, simulation), priors, likelihood)


def _maps(settings: InferenceSettings, simulation: Simulation) -> infer.Convergence:
    """The forward model of lensing: its rays are those of the light cone of a run with the same seed."""
    cone, wanted = simulation.light_cone, settings.observe.light_cone
    assert cone is not None
    assert wanted is not None
    view: Any = {}
    if isinstance(cone, FlatSkyLightCone):
        offsets = random_offsets(cone, simulation.seed) if wanted.shift else None
        view = {"field": field_of_view(wanted, cone), "pixels": wanted.rays, "offsets": offsets}
    options: dict[str, Any] = {"linear_power": simulation.table, "solver": simulation.solver}
    return infer.Convergence(simulation.config, simulation.cosmo, cone, wanted.sources, **options, **view)


def _forward(settings: InferenceSettings, simulation: Simulation) -> Any:
    model, config, cosmo = settings.model, simulation.config, simulation.cosmo
    biases: dict[str, Any] = {n: n if n in settings.priors.given else getattr(model, n) for n in BIASES}
    line_of_sight: Any = None if model.line_of_sight == "none" else model.line_of_sight
    bias = 1.0 if model.bias == "none" else biases["b1"]
    if model.gravity == "linear":
        return infer.LinearField(config, cosmo, bias=bias, line_of_sight=line_of_sight, linear_power=simulation.table)
    galaxies = None
    if model.bias == "lagrangian" or line_of_sight is not None:
        chosen = biases if model.bias == "lagrangian" else {}
        galaxies = infer.LagrangianGalaxies(**chosen, smoothing=model.smoothing, line_of_sight=line_of_sight)
    return infer.Simulation(
        config,
        cosmo,
        gravity=model.gravity,
        bias=1.0 if galaxies else bias,
        observable=galaxies,
        linear_power=simulation.table,
        solver=simulation.solver,
    )


def truth_of(plan: InferencePlan) -> dict[str, float]:
    """Parameters of a mock: those given, else those of their own sections, where they have one."""
    settings, found = plan.settings, dict[str, float]()
    for name in settings.priors.given:
        value = (settings.data.truth or {}).get(name)
        for section in (settings.cosmology, settings.model, settings.likelihood):
            value = getattr(section, name, None) if value is None else value
        if value is not None:
            found[COSMOLOGY.get(name, name)] = float(value)
    return found


def _read_files(settings: InferenceSettings) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays of the files by key, and problems of them."""
    named = {f"data.{name}": getattr(settings.data, name) for name in ("file", "mask", "selection")}
    files = {key: value for key, value in named.items() if value not in (None, "mock")}
    shape = None if settings.likelihood.kind == "lensing" else settings.box.mesh  # that of maps is checked with them
    return read_files(files, shape)


def _translated(error: ArgumentError, settings: InferenceSettings) -> str:
    """Message of an error of the library, with the key of the file in place of the argument."""
    path = _ARGUMENTS.get(error.argument)
    if path is None:
        return str(error)
    section, key = path.split(".")
    value = getattr(settings.section(section), key)
    inside = f"holds {error.value:g}, which " if np.ndim(error.value) == 0 else ""
    return f"{path} = {toml_value(value)}: {inside}{error.reason}"
