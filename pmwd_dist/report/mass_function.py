"""Figure of the mass function of halos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist.report.style import COLOURS, figure_of, make_axes, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled()
def mass_function(found: Any, fit: Any = None, *, label: str = "Tinker et al. 2008", axes: Any = None) -> Figure:
    """Draw the mass function of halos with its Poisson errors, and a fit with their ratio below.

    Args:
      found: mass function of `observe.mass_function`.
      fit: fit at its masses [(h/Mpc)^3], as of `observe.tinker_mass_function`.
      label: label of the fit.
      axes: axes, with a fit two, for mass functions and ratios; default: a new figure.

    Examples:
      >>> found = observe.mass_function(observe.friends_of_friends(solution.particles, cosmo, config))
      >>> pmd.plot.mass_function(found)
    """
    rows = 1 if fit is None else 2
    heights = None if fit is None else (2.2, 1)
    upper, *lower = make_axes(axes, (8, 5.6 + 2.6 * (rows - 1)), rows, sharex=True, height_ratios=heights)
    some = np.asarray(found.number) > 0
    mass, value, error = (np.asarray(x, float)[some] for x in (found.mass, found.density, found.error))
    style: Any = {"fmt": "o", "color": COLOURS[0], "ms": 4.5, "lw": 1.4}
    bars = np.stack([np.minimum(error, 0.999 * value), error])
    upper.errorbar(mass, value, bars, **style, label="halos")
    if fit is not None:
        theory = np.asarray(fit, float)
        upper.plot(found.mass, theory, color=COLOURS[1], lw=1.6, label=label)
        above = theory[some] > 0
        ratio, scatter = (x[..., above] / theory[some][above] for x in (value, bars))
        lower[0].errorbar(mass[above], ratio, scatter, **style)
        lower[0].axhline(1, color="0.35", lw=1)
        lower[0].set_ylim(0, 2)
        lower[0].set_ylabel("ratio to the fit")
    upper.loglog()
    if len(mass):
        upper.set_ylim(0.3 * float(value.min()), 3 * float(value.max()))
    upper.set_ylabel(r"$\mathrm{d}n/\mathrm{d}\ln M$  [($h$/Mpc)$^3$]")
    last = [upper, *lower][rows - 1]
    last.set_xlabel(r"$M$  [$M_\odot/h$]")
    for ax in (upper, *lower):
        ax.grid(True, which="major", color="0.9", lw=0.8)
        ax.set_axisbelow(True)
    upper.legend(fontsize=12)
    return figure_of(upper)
