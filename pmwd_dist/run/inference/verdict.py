"""The verdict on the chains of an inference: tables, failed checks and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from pmwd_dist import infer
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import remove
from pmwd_dist._jax.profile import part
from pmwd_dist._jax.program import filter_jit
from pmwd_dist.infer.chain.diagnostics import step_errors, stuck
from pmwd_dist.infer.constants import FEW_FAILURES, UNMIXED
from pmwd_dist.infer.predictive_checks import shows_another_window
from pmwd_dist.io.arrays import Arrays, read_arrays
from pmwd_dist.parallel.distributed import is_main, raise_on_all_processes, to_devices, to_host
from pmwd_dist.parallel.fft import pirfft3d
from pmwd_dist.report import plot
from pmwd_dist.report.chains import Rows, fit_lines, table_lines, write_rows
from pmwd_dist.report.fields import COMOVING
from pmwd_dist.report.style import drawing_errors, save
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.data_files import facts_of
from pmwd_dist.run.common.folder import CONFIG, Log
from pmwd_dist.run.inference.plan import DATA, InferencePlan
from pmwd_dist.run.inference.predictive import Comparison, Images, compare, observed_plane, some_draws
from pmwd_dist.run.settings import InferenceSettings, read_as
from pmwd_dist.run.settings.inference import Model as ModelSection

_FEWEST = 4  # draws of a chain, for R-hat
_ACCEPTED = 0.5  # share of the trajectories
_MISFIT = 0.01  # probability that one of the checks of the fit fails where the model is right


Figures = dict[str, Callable[[], Any]]


class Verdict(NamedTuple):
    """The verdict on finished chains, which are converged unless there are reasons against it."""

    table: list[str]  # lines of the summary
    reasons: list[str]  # failed checks, with remedies
    files: list[str]  # names of the files written


@part("verdict")
def make_verdict(
    plan: InferencePlan, posterior: infer.Posterior, chain: infer.Chain, data: Arrays, log: Log
) -> Verdict:
    """Write tables and figures of finished chains, and check their convergence. Collective."""
    truth, config = _truth(data), plan.simulation.config
    on_mesh = posterior.data.shape == config.mesh_shape
    place = f"plane at $z = {observed_plane(posterior) * config.cell_size[2]:g}$ Mpc/$h$" if on_mesh else ""
    found = compare(posterior, chain, data, plan.simulation.key(4))
    rows = summarise(chain, truth)
    fit, prior = ({n: check._asdict() | {"p": check.p} for n, check in x.items()} for x in (found.fit, found.prior))
    tables: dict[str, Rows] = {"summary.csv": rows, "prior.csv": prior} | ({"fit.csv": fit} if fit else {})
    figures = _chain_figures(chain, truth, plan.settings) | _comparison_figures(plan, found, place)
    # The standard deviation is last, and has a colour scale of its own.
    planes, where = _initial_planes(posterior, chain, data, truth), place or "plane at $z = 0$"
    linear: Any = {"quantity": r"linear contrast $\delta$ at $a = 1$", "alike": range(len(planes) - 1)}
    figures["slices.png"] = partial(_draw, where, planes, config.box_size, **linear)
    with raise_on_all_processes():
        if is_main():
            for error in _write(plan.folder, tables, figures):
                log.lack("a figure is missing", error)
    lines = table_lines(rows, truth) + fit_lines(fit)
    reasons = find_reasons(plan, chain) + find_fit_reasons(
        found.fit, plan.settings.model, facts_of(plan.settings.data.file).get("window")
    )
    files = [*tables, *(name for name in figures if (plan.folder / name).exists())]
    return Verdict(lines, reasons, files)


def _write(folder: Path, tables: Mapping[str, Rows], figures: Figures) -> list[Exception]:
    """Write tables and figures of a run; return errors of figures, which are absent then."""
    manifest.claim(folder, [*tables, *figures])
    for name, rows in tables.items():
        write_rows(folder / name, "parameter" if name == "summary.csv" else "statistic", rows)
    errors = list[Exception]()
    for path, draw in ((folder / name, draw) for name, draw in figures.items()):
        try:
            with drawing_errors(path):
                save(draw(), path)
        except (OSError, ValueError) as error:
            remove(path)
            errors.append(error)
    return errors


def _comparison_figures(plan: InferencePlan, found: Comparison, place: str) -> Figures:
    figures = Figures()
    if found.panels:
        figures["fields.png"] = partial(plot.bands, found.k, found.panels)
    if found.angular:
        figures["angular.png"] = partial(plot.bands, found.ell, found.angular, along=r"multipole $\ell$")
    if found.images:
        forward, sides, labels = plan.model.forward, plan.simulation.config.box_size, COMOVING
        if isinstance(forward, infer.Convergence):
            sides, labels = (forward.field or 0.0, forward.field or 0.0), ("degrees", "degrees")
        same: Any = {"quantity": plan.model.likelihood.quantity, "alike": range(len(found.images))}
        figures["maps.png"] = partial(_draw, place, found.images, sides, labels=labels, **same)
    return figures


def _draw(title: str, *images: Any, **options: Any) -> Any:
    """Images of `plot.planes` with a title."""
    figure = plot.planes(*images, **options)
    figure.suptitle(title, fontsize=13)
    return figure


def redraw_chains(folder: Path) -> list[Path]:
    """Write summary and figures of the complete draws, if there are enough, also of a run that was interrupted.

    Returns their paths. Raises OSError or ValueError if a file can't be read or written, or a figure can't be drawn.
    """
    try:
        chain = infer.load_chain(folder)
    except ArgumentError:
        return []
    if chain.logdensity.shape[1] < _FEWEST:
        return []
    data = read_arrays(folder / DATA) if (folder / DATA).exists() else Arrays()
    settings = read_as(InferenceSettings, folder / CONFIG)
    truth = _truth(data)
    tables, figures = {"summary.csv": summarise(chain, truth)}, _chain_figures(chain, truth, settings)
    if errors := _write(folder, tables, figures):
        raise errors[0]
    return [folder / name for name in (*tables, *figures)]


def _chain_figures(chain: infer.Chain, truth: dict[str, float], settings: InferenceSettings) -> Figures:
    figures: Figures = {"traces.png": partial(plot.traces, chain, truth=truth)}
    if chain.parameters:
        priors = {name: settings.priors.distribution(name) for name in chain.parameters}
        figures["corner.png"] = partial(plot.corner, chain, priors=priors, truth=truth)
    if chain.projections:
        figures["mixing.png"] = partial(plot.mixing, chain, r_hat=settings.checks.r_hat, ess=settings.checks.ess)
    return figures


def _truth(data: Arrays) -> dict[str, float]:
    """Parameters of a mock."""
    return {name.removeprefix("parameters/"): float(x) for name, x in data.items() if name.startswith("parameters/")}


def summarise(chain: infer.Chain, truth: Mapping[str, float]) -> Rows:
    """Rows of the summary: mean, standard deviation, R-hat, effective sizes, gradients per effective sample, truth."""
    rows = chain.summary()
    for name, draws in (chain.parameters | {"logdensity": chain.logdensity}).items():
        rows[name]["gradients_per_ess"] = chain.gradients / infer.ess_mean(draws)
        rows[name] |= {"truth": truth[name]} if name in truth else {}
    return rows


def find_reasons(plan: InferencePlan, chain: infer.Chain) -> list[str]:
    """Failed checks of the chains, with remedies."""
    checks, sampler, reasons = plan.settings.checks, plan.settings.sampler, find_mixing_reasons(plan, chain)
    if caught := stuck(chain.logdensity):
        each = ", ".join(f"chain {i} for {count}" for i, count in caught.items())
        draws = f"{each} of {chain.logdensity.shape[1]} draws"
        reasons.append(f"stuck in the same place: {draws}; raise sampler.tuning_steps, or look at the priors")
    if sampler.method == "mclmc":
        reasons += find_step_reasons(chain, checks.bias, sampler.energy_variance)
    elif (accepted := float(np.mean(chain.acceptance_rate))) < _ACCEPTED:
        share = f"{accepted:.0%} of the trajectories are accepted, fewer than {_ACCEPTED:.0%}"
        reasons.append(f"{share}; raise sampler.tuning_steps")
    if chain.failures > FEW_FAILURES * chain.energy_change.size:
        reasons.append(f"{chain.failures} steps failed; look at the priors, devices.halo and time.steps")
    return reasons


def find_mixing_reasons(plan: InferencePlan, chain: infer.Chain) -> list[str]:
    """Parameters and scales that have not mixed or have few effective samples, with one remedy for all."""
    checks, rows, problems = plan.settings.checks, chain.summary(), list[str]()
    apart = {name: row["rhat"] for name, row in rows.items() if row["rhat"] > checks.r_hat}
    few = {name: row for name, row in rows.items() if name in chain.parameters and _size(row) < checks.ess}
    if apart:
        each = ", ".join(f"{name} {value:.4f}" for name, value in apart.items())
        problems.append(f"R-hat is more than {checks.r_hat:g} ({each})")
    if few:
        tails = {name: " (tail)" * (row["ess_tail"] < row["ess_bulk"]) for name, row in few.items()}
        each = ", ".join(f"{name} {_size(row):.0f}{tails[name]}" for name, row in few.items())
        problems.append(f"effective samples are fewer than {checks.ess:g} ({each})")
    if (worst := worst_scale(chain.scales(), checks.r_hat, checks.ess, plan.compared)) is not None:
        name, row = worst
        size = f"{row['ess_bulk']:.0f} effective samples"
        problems.append(f"R-hat of the modes' {name} h/Mpc is {row['rhat']:.3f} with {size}")
    if not problems:
        return []
    if max(apart.values(), default=1.0) >= UNMIXED:
        remedy = "the chains have not mixed, or are stuck: look at traces.png"
    else:
        # As many steps as the smallest effective sample size needs to pass.
        sizes = [_size(row) for row in few.values()] + ([] if worst is None else [worst[1]["ess_bulk"]])
        sampler = plan.settings.sampler
        done, unit = chain.logdensity.shape[1] * sampler.thin, sampler.thin * sampler.chunk
        needed = unit * math.ceil(done * checks.ess / min(sizes, default=math.inf) / unit)
        steps = f"{needed}" if needed > done else f"N with N above {done}"
        remedy = f"take more steps: pmwd-dist resume {plan.folder} --set sampler.steps={steps}"
    return [f"{', and '.join(problems)}; {remedy}"]


def _size(row: Mapping[str, float]) -> float:
    return min(row["ess_bulk"], row["ess_tail"])


def find_step_reasons(chain: infer.Chain, largest_bias: float, energy_variance: float) -> list[str]:
    """Failed checks of steps without a Metropolis step, with one remedy."""
    errors = step_errors(chain, energy_variance, largest_bias)
    if not errors.reasons:
        return []
    finer = energy_variance * errors.factor**6  # it goes as the sixth power of the step
    remedy = f"raise sampler.tuning_steps, or sample again with sampler.energy_variance = {finer:.1g}"
    return [f"steps are too long: {'; '.join(errors.reasons)}; {remedy}"]


def worst_scale(
    scales: Mapping[str, dict[str, float]], r_hat: float, ess: float, largest: float
) -> tuple[str, dict[str, float]] | None:
    """The scale whose modes mix worst, if R-hat and effective sample size both fail: one of many may by chance.

    Modes of larger wavenumbers than the largest one, in the corners of the spectrum or not compared, don't count.
    """
    seen = {name: row for name, row in scales.items() if float(name.rpartition("= ")[2]) <= largest}
    poor = {name: row for name, row in seen.items() if row["rhat"] > r_hat and row["ess_bulk"] < ess}
    return max(poor.items(), key=lambda item: item[1]["rhat"], default=None)


def find_fit_reasons(
    fit: dict[str, infer.Check], model: ModelSection | None = None, window: str | None = None
) -> list[str]:
    """The statistic with the smallest p, if significant among all; `window`: window that the data's file names."""
    if not fit:
        return []
    name, check = min(fit.items(), key=lambda item: item[1].p)
    if check.p * len(fit) > _MISFIT:
        return []
    ratio = "" if np.isnan(check.ratio) else f"{check.ratio:.3f} of the predicted one, "
    remedy = "repeat with finer box.particles, or extend the model"
    if model is not None and model.gravity != "nbody":
        remedy += ', as by model.gravity = "nbody"'
    if model is not None and model.window != window and shows_another_window(fit, _MISFIT / len(fit)):
        bias = "" if model.bias == "lagrangian" else 'bias = "lagrangian" and '
        remedy = (
            f"residuals rise towards the Nyquist frequency, as where data and model have different windows: use {bias}"
            f'the model.window of the data, "nearest" of galaxies counted in cells, in place of "{model.window}"; '
            f"or {remedy}"
        )
    return [
        f"the model does not describe the data: {name}: {ratio}{check.z:+.1f} standard deviations, p = {check.p:.1e}, "
        f"the least of {len(fit)}; {remedy}"
    ]


def _initial_planes(posterior: infer.Posterior, chain: infer.Chain, data: Arrays, truth: dict[str, float]) -> Images:
    """The linear density in the plane with most data: the truth of a mock, mean and standard deviation.

    The mean density is computed from the mean noise and parameters of all draws, the standard deviation from some.
    """
    model, means = posterior.model, {name: float(np.mean(x)) for name, x in chain.parameters.items()}
    (cells, sites), images = (model.config.mesh_shape[2], model.config.particle_shape[2]), Images()
    plane = observed_plane(posterior) if data["data"].shape == model.config.mesh_shape else 0

    def at(noise: np.ndarray, numbers: dict[str, float]) -> np.ndarray:
        """A plane of the linear density contrast at a = 1."""
        given = {name: jnp.asarray(x, float) for name, x in numbers.items()}
        fields = to_devices(noise, model.config.decomposition.sharding)
        return to_host(_plane(model.forward, plane * sites // cells, fields, given))

    if "noise" in data:
        numbers = {name: truth.get(name, mean) for name, mean in means.items()}
        images.append(("initial density: truth", at(data["noise"], numbers)))
    images.append(("initial density: posterior mean", at(chain.noise_mean, means)))
    noise, drawn = some_draws(chain)
    planes = [at(x, {n: float(v[i]) for n, v in drawn.items()}) for i, x in enumerate(noise)]
    return [*images, ("initial density: standard deviation", np.std(planes, axis=0))]


@filter_jit
def _plane(forward: Any, plane: int, noise: Array, numbers: dict[str, Array]) -> Array:
    config = forward.config
    modes, _ = forward.linear_modes(noise, numbers)
    return pirfft3d(modes, config.particle_shape, config.decomposition)[:, :, plane]
