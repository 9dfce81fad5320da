"""Figures of catalogues on the sky."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist._checks import check_number
from pmwd_dist.report.style import figure_of, make_axes, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 20_000  # galaxies that are drawn where no thickness is given
_WHOLE = 200.0  # width in RA from which the whole circle is drawn [degrees]


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
