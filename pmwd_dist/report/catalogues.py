"""Figures of catalogues: mass function of halos, galaxies on the sky."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.report.style import COLOURS, check_results, figure_of, make_axes, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 20_000  # galaxies that are drawn where no thickness is given
_WHOLE = 200.0  # width in RA from which the whole circle is drawn [degrees]


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
    check_results([found], "found", "mass density error number", "observe.mass_function")
    rows = 1 if fit is None else 2
    heights = None if fit is None else (2.2, 1)
    upper, *lower = make_axes(axes, (8, 5.6 + 2.6 * (rows - 1)), rows, sharex=True, height_ratios=heights)
    some = np.asarray(found.number) > 0
    mass, value, error = (np.asarray(x, float)[some] for x in (found.mass, found.density, found.error))
    style: Any = {"fmt": "o", "color": COLOURS[0], "ms": 4.5, "lw": 1.4}
    bars = np.stack([np.minimum(error, 0.999 * value), error])
    upper.loglog()  # first: bars of no halos end it
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
    if len(mass):
        upper.set_xlim(0.8 * float(mass.min()), 1.25 * float(np.max(found.mass)))
        upper.set_ylim(0.3 * float(value.min()), 3 * float(value.max()))
    upper.set_ylabel(r"$\mathrm{d}n/\mathrm{d}\ln M$  [($h$/Mpc)$^3$]")
    last = [upper, *lower][rows - 1]
    last.set_xlabel(r"$M$  [$M_\odot/h$]")
    for ax in (upper, *lower):
        ax.grid(True, which="major", color="0.9", lw=0.8)
        ax.set_axisbelow(True)
    upper.legend(fontsize=12)
    return figure_of(upper)


@styled(outward=True)
def wedge(columns: Mapping[str, Any], *, thickness: float | None = None, axes: Any = None) -> Figure:
    """Draw galaxies of a thin slice in declination by right ascension and redshift.

    Args:
      columns: `RA` and `DEC` [degrees] and `Z`, such as `Catalogue.columns`.
      thickness: thickness of the slice, around the median declination [degrees]; default: of 20,000 galaxies.
      axes: polar axes; default: a new figure.

    Examples:
      >>> figure = pmd.plot.wedge(galaxies.columns, thickness=4.0)
    """
    if not hasattr(columns, "get"):  # tables of pandas have it, too
        raise ArgumentError(
            "columns", columns, "must hold RA, DEC and Z by name", "pass the columns of a catalogue", show_value=False
        )
    for name in ("RA", "DEC", "Z"):
        check_number(columns.get(name), f"columns[{name!r}]", several=True, constant=True)
    ra, dec, z = (np.asarray(columns[name], float) for name in ("RA", "DEC", "Z"))
    middle = float(np.median(dec)) if len(dec) else 0.0
    away = np.abs(dec - middle)
    if thickness is None:
        thickness = min(2 * float(np.sort(away)[min(_MOST, len(away)) - 1]), 180.0) if len(away) else 1.0
    check_number(thickness, "thickness", 0, 180, unit="degrees")
    ra, z = ra[away <= thickness / 2], z[away <= thickness / 2]
    centre = float(np.degrees(np.angle(np.exp(1j * np.radians(ra)).mean()))) if len(ra) else 0.0
    across = (ra - centre + 180) % 360 - 180
    low, high = (across.min(), across.max()) if len(ra) else (-1.0, 1.0)
    (ax,) = make_axes(axes, (8.6, 8.6), subplot_kw={"projection": "polar"})
    polar: Any = ax
    if high - low < _WHOLE:
        polar.set_theta_offset(np.pi / 2 - np.radians(centre))
        polar.set_thetalim(np.radians(centre + low), np.radians(centre + high))
    ax.scatter(
        np.radians(centre + across), z, s=6 * min(1.0, 4000 / max(len(z), 1)), c="#123a5c", lw=0, rasterized=True
    )
    polar.set_rlim(0, float(z.max()) if len(z) else 1.0)
    ax.grid(visible=True, alpha=0.25)
    words = f"{len(z)} galaxies within {thickness / 2:.2g}° of DEC = {middle:.3g}°"
    ax.set_title(f"right ascension and redshift of {words}", fontsize=13)
    return figure_of(ax)
