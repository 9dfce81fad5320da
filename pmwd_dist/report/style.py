"""Style of all figures. Matplotlib is imported when one is drawn, since its import is slow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist._files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType

# Okabe & Ito (2008), distinct to colour-blind readers too; without yellow, which is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: Any = {
    "font.size": 13,
    "axes.labelsize": 15,
    "axes.linewidth": 1.1,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.top": True,
    "ytick.right": True,
    "xtick.major.size": 6,
    "ytick.major.size": 6,
    "legend.frameon": False,
    "mathtext.fontset": "dejavusans",
}
_OUTWARD: Any = {"xtick.top": False, "ytick.right": False, "xtick.direction": "out", "ytick.direction": "out"}


def styled(*, outward: bool = False) -> AbstractContextManager[None]:
    """Set the style of the figures made in the context, with ticks outward for maps."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE | _OUTWARD if outward else _STYLE)


def new_figure(**options: Any) -> Figure:
    """Make a figure without a window."""
    from matplotlib.figure import Figure

    return Figure(**options)


def colours(count: int) -> Sequence[ColorType]:
    """Colours of `count` lines."""
    if count <= len(COLOURS):
        return COLOURS[:count]
    import matplotlib as mpl

    return [mpl.colormaps["viridis"](x) for x in np.linspace(0, 0.9, count)]


def finish_axis(axes: Axes, values: np.ndarray) -> None:
    """Give the x axis a logarithmic scale over `values`, labelled 1, 2, 5, 10 and so on, and a grid."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(values.min() * 0.93, values.max() * 1.07)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", color="0.9", lw=0.8)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG.

    Raises:
      OSError: the figure can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with atomic_write(path) as aside:
        figure.savefig(aside, dpi=160, format="png", bbox_inches="tight", pad_inches=0.15)
