"""Tables and figures of chains: summary and checks, traces, corner, convergence by scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist._checks import check_number, check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import write_text
from pmwd_dist.report.page import Caption
from pmwd_dist.report.spectra import TRUTH
from pmwd_dist.report.style import COLOURS, colours, figure_of, finish_axis, latex, make_axes, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Mapping[str, Mapping[str, float]]
CAPTIONS = {  # of the figures of an inference, in the order of its page
    "corner.png": Caption(
        "Posterior of the parameters",
        "Distribution of each parameter and of each pair over all chains, with priors, and true values of a mock "
        "(dashed).",
        "histograms narrower than their priors where the data inform, and true values inside the distributions.",
    ),
    "traces.png": Caption(
        "Traces",
        "Each parameter and the log density, draw by draw, in one colour a chain; true values of a mock are dashed.",
        "chains on top of each other that fluctuate about the same level, without a trend or a chain apart.",
    ),
    "mixing.png": Caption(
        "Convergence by scale",
        "R-hat and effective sample size of the modes of the initial conditions, by wavenumber, with their limits "
        "(dashed).",
        "R-hat below its limit and effective sample sizes above theirs on all scales.",
    ),
    "fields.png": Caption(
        "Posterior prediction by scale",
        "P(k) of data that the draws predict beside that of the data, and correlations of predictions and data; "
        "for a mock, r(k) and T(k) of the initial conditions with the truth. Bands hold 68 % and 95 % of the "
        "draws.",
        "data inside the bands. For a mock, r(k) is near 1 at small k and falls to 0 where noise dominates, and "
        "T(k) stays at 1.",
    ),
    "angular.png": Caption(
        "Posterior prediction of maps by scale",
        "Angular power spectra of maps that the draws predict, noise and mask included, beside those of the data.",
        "data inside the bands, which hold 68 % and 95 % of the draws.",
    ),
    "slices.png": Caption(
        "Initial conditions",
        "A plane of the linear density at a = 1: mean and standard deviation of the draws, beside the truth of a mock.",
        "a mean that shows the large structures of the truth, smoothed where noise hides the small ones, and a "
        "smaller standard deviation where data were taken.",
    ),
    "maps.png": Caption(
        "Data and predictions",
        "A plane or maps of the data beside predictions of the draws; cells behind the mask are white.",
        "the same structures in both, and in the data the noise besides.",
    ),
}
_COLUMNS = ("mean", "sd", "rhat", "ess_bulk", "ess_tail", "gradients_per_ess")


def write_rows(path: Path, head: str, rows: Rows) -> None:
    """Write a table as CSV: the names of the rows, and their columns."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [",".join((head, *columns))]
    lines += [
        ",".join([name, *(f"{row.get(column, math.nan):.6g}" for column in columns)]) for name, row in rows.items()
    ]
    write_text(path, "\n".join(lines) + "\n")


def table_lines(rows: Rows, truth: Mapping[str, float]) -> list[str]:
    """Lines of the summary for a terminal."""
    heads = ("mean", "sd", "R-hat", "ESS bulk", "ESS tail", "gradients/ESS", *(("truth",) if truth else ()))
    lines = [f"{'':12}" + "".join(f"{head:>14}" for head in heads)]
    for name, row in rows.items():
        formats = ("14.4f", "14.4f", "14.4f", "14.0f", "14.0f", "14.1f")
        line = f"{name:12}" + "".join(f"{row[c]:{f}}" for c, f in zip(_COLUMNS, formats, strict=True))
        lines.append(line + (f"{truth[name]:14.4f}" if name in truth else ""))
    return lines


def fit_lines(rows: Rows) -> list[str]:
    """Lines of the checks of the fit for a terminal."""
    width = max(map(len, rows), default=0)
    lines = [f"{'checks of the fit':{width}}{'data / model':>14}{'z':>8}{'p':>10}"] if rows else []
    for name, row in rows.items():
        ratio = "" if np.isnan(row["ratio"]) else f"{row['ratio']:.3f}"
        lines.append(f"{name:{width}}{ratio:>14}{row['z']:8.2f}{row['p']:10.2g}")
    return lines


@styled()
def traces(draws: Any, *, truth: Mapping[str, float] | None = None, axes: Any = None) -> Figure:
    """Draw each parameter of each chain, draw by draw.

    Args:
      draws: chain of `infer.load_chain` or `infer.sample`, or draws of shape (chains, draws) by name.
      truth: true values by name, as of a mock.
      axes: axes, one for each name; default: a new figure.

    Examples:
      >>> chain = pmd.infer.load_chain("runs/field")
      >>> pmd.plot.traces(chain, truth={"b1": 1.8})
    """
    if hasattr(draws, "parameters"):
        draws = draws.parameters | {"log density": draws.logdensity}
    _check_draws(draws)
    truth = _by_name(truth, draws, "truth", '{"b1": 1.8}')
    panels = make_axes(axes, (9, 1.8 * len(draws) + 0.8), len(draws), sharex=True)
    for ax, (name, x) in zip(panels, draws.items(), strict=True):
        chains = np.atleast_2d(x)
        for chain, colour in zip(chains, colours(len(chains)), strict=True):
            ax.plot(chain, color=colour, lw=0.7)
        if name in truth:
            ax.axhline(truth[name], **TRUTH)
        ax.set_ylabel(latex(name))
    panels[-1].set_xlabel("draw")
    return figure_of(panels[0])


def _check_draws(draws: Any) -> None:
    """Raise ArgumentError unless draws are finite numbers by name."""
    check_type(draws, Mapping, "draws", "must be a mapping from names", "pass a chain, or draws by name")
    if not draws:
        raise ArgumentError("draws", draws, "has no parameters")
    for parameter, x in draws.items():
        check_number(x, f"draws[{parameter!r}]", several=True, constant=True)


def _by_name(values: Any, draws: Mapping[str, Any], argument: str, example: str) -> Mapping[str, Any]:
    """Values of parameters; ArgumentError for a true value that is no finite number, or for a name that is not drawn.

    Such names may stand beside those of all parameters that are drawn.
    """
    values = {} if values is None else values
    check_type(values, Mapping, argument, "must be a mapping from names", f"pass {example}")
    has_all = all(name in values for name in draws if name != "log density")
    for name, value in values.items():
        if name not in draws and not has_all:
            remedy = f"use names of {', '.join(draws)}"
            raise ArgumentError(f"{argument}[{name!r}]", value, "is of no parameter", remedy, show_value=False)
        if argument == "truth":
            check_number(value, f"truth[{name!r}]")
    return values


@styled(outward=True)
def corner(
    draws: Any, *, priors: Mapping[str, Any] | None = None, truth: Mapping[str, float] | None = None, axes: Any = None
) -> Figure:
    """Draw the distribution of each parameter and of each pair, over all chains, with priors and true values.

    Args:
      draws: chain of `infer.load_chain` or `infer.sample`, or draws of shape (chains, draws) by name.
      priors: priors by name, as `infer.Normal`, drawn as lines beside the histograms.
      truth: true values by name, as of a mock.
      axes: axes, a square array; default: a new figure.

    Examples:
      >>> chain = pmd.infer.load_chain("runs/field")
      >>> pmd.plot.corner(chain, priors={"b1": pmd.infer.Normal(1.8, 0.5)})
    """
    from matplotlib.ticker import MaxNLocator

    draws = getattr(draws, "parameters", draws)
    _check_draws(draws)
    priors = _by_name(priors, draws, "priors", '{"b1": infer.Normal(1.8, 0.5)}')
    truth = _by_name(truth, draws, "truth", '{"b1": 1.8}')
    names, count = list(draws), len(draws)
    side = 2.6 * count + 1
    panels = make_axes(axes, (side, side), count, count, sharex="col")
    for i, row in enumerate(names):
        for j, column in enumerate(names):
            ax = panels[count * i + j]
            if j > i:
                ax.set_axis_off()
                continue
            if i == j:
                ax.hist(np.ravel(draws[row]), 40, color=COLOURS[0], histtype="step", density=True)
                if row in priors:
                    _draw_prior(ax, priors[row])
                ax.set_yticks([])
            else:
                ax.tick_params(labelleft=j == 0)
                ax.hexbin(np.ravel(draws[column]), np.ravel(draws[row]), gridsize=30, cmap="Blues", mincnt=1, lw=0)
                if row in truth:
                    ax.axhline(truth[row], **TRUTH)
            if column in truth:
                ax.axvline(truth[column], **TRUTH)
            for axis in (ax.xaxis, *([] if i == j else [ax.yaxis])):
                axis.set_major_locator(MaxNLocator(3, prune="both"))  # labels of neighbours would touch
            if i == count - 1:
                ax.set_xlabel(latex(column))
            if j == 0 and i > 0:
                ax.set_ylabel(latex(row))
    return figure_of(panels[0])


def _draw_prior(axes: Axes, prior: Any) -> None:
    """Draw the density of a prior over the range of the axes, as the slope of its distribution function."""
    from scipy.special import ndtr

    x = np.linspace(*axes.get_xlim(), 401)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.nan_to_num(np.diff(ndtr(np.asarray(prior.inverse(x), float))))
    axes.plot((x[1:] + x[:-1]) / 2, share / (x[1] - x[0]), color=COLOURS[1], lw=1.4, label="prior")
    axes.legend(fontsize=10, handlelength=1)


@styled()
def mixing(chain: Any, *, r_hat: float | None = None, ess: float | None = None, axes: Any = None) -> Figure:
    """Draw R-hat and the effective sample size of the modes, by wavenumber.

    Args:
      chain: chain of `infer.load_chain` or `infer.sample`.
      r_hat: limit of R-hat.
      ess: limit of the effective sample size.
      axes: two axes; default: a new figure.

    Examples:
      >>> chain = pmd.infer.load_chain("runs/field")
      >>> pmd.plot.mixing(chain, r_hat=1.01, ess=400)
    """
    upper, lower = make_axes(axes, (8, 6), 2, sharex=True)
    rows, k = chain.scales(), np.asarray(sorted(chain.projections))
    for kind, colour in (("projection", COLOURS[0]), ("power", COLOURS[1])):
        for ax, key in ((upper, "rhat"), (lower, "ess_bulk")):
            ax.plot(k, [rows[f"{kind} at k = {x:g}"][key] for x in k], "o-", color=colour, label=f"{kind} of the modes")
    for ax, limit in ((upper, r_hat), (lower, ess)):
        if limit is not None:
            ax.axhline(limit, **TRUTH, label="limit")
        finish_axis(ax, k)
    lower.set_ylim(bottom=0)
    upper.set_ylabel(r"$\hat R$")
    lower.set_ylabel("effective samples")
    lower.set_xlabel(r"$k$  [$h$/Mpc]")
    upper.legend(fontsize=11)
    return figure_of(upper)
