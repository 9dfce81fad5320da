"""Style of all figures. Matplotlib is imported when one is drawn, since its import is slow."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write
from pmwd_dist.cosmology.sampled_parameters import symbol_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType

# Okabe & Ito (2008), distinct to colour-blind readers too; without yellow, which is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DPI = 160
P = ParamSpec("P")
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
    "text.usetex": False,  # LaTeX would read signs such as % and may be missing
}
_OUTWARD: Any = {"xtick.top": False, "ytick.right": False, "xtick.direction": "out", "ytick.direction": "out"}


def styled(*, outward: bool = False) -> Callable[[Callable[P, Figure]], Callable[P, Figure]]:
    """Decorate a function that returns a figure, so that it draws in our style, with ticks outward for maps."""

    def decorate(draw: Callable[P, Figure]) -> Callable[P, Figure]:
        @wraps(draw)
        def drawn(*args: P.args, **options: P.kwargs) -> Figure:
            import matplotlib as mpl

            with mpl.rc_context(_STYLE | _OUTWARD if outward else _STYLE):
                figure = draw(*args, **options)
                for axes in figure.axes:  # ticks are made when they are first asked for, in the style of that time
                    for axis in (axes.xaxis, axes.yaxis):
                        axis.get_major_ticks()
                        axis.get_minor_ticks()
            return figure

        return drawn

    return decorate


def check_results(found: Any, name: str, fields: str, source: str) -> None:
    """Raise ArgumentError unless each value of a list has these fields, as results of a function of `source` have."""
    for value in found if isinstance(found, Iterable) else [found]:
        if lacking := [field for field in fields.split() if not hasattr(value, field)]:
            constraint = f"is or holds a {type(value).__name__}, which has no {lacking[0]}"
            raise ArgumentError(name, found, constraint, f"pass what {source} returns", show_value=False)


def make_axes(axes: Any, size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any) -> list[Axes]:
    """The given axes, or the axes of a new figure without a window, row by row."""
    if axes is None:
        from pmwd_dist.report.figure import NotebookFigure

        axes = NotebookFigure(figsize=size, layout="constrained").subplots(rows, columns, **options)
    found = list(np.ravel(axes))
    if len(found) != (needed := rows * columns):
        raise ArgumentError(
            "axes", len(found), f"must be {needed} axes", f"pass those of plt.subplots({rows}, {columns})"
        )
    return found


def figure_of(axes: Axes) -> Figure:
    """The figure of some axes."""
    found = axes.get_figure(root=True)
    assert found is not None
    return found


def latex(name: str) -> str:
    """Name of a parameter in a figure."""
    symbol = symbol_of(name)
    return f"${symbol}$" if symbol else name


def markup(name: str) -> str:
    """Name of a parameter in HTML."""
    text = "log density" if name == "logdensity" else symbol_of(name) or html.escape(name)
    text = re.sub(r"\\mathrm\{(\w+)\}", r"\1", text.replace(r"\bar n", "n&#772;"))
    text = re.sub(r"\\([A-Za-z]+)", r"&\1;", text)  # HTML has TeX's names of Greek letters and nabla
    return re.sub(r"\^(\d)", r"<sup>\1</sup>", re.sub(r"_(?:\{(.*)\}|(\w))", r"<sub>\1\2</sub>", text))


def colours(count: int) -> Sequence[ColorType]:
    """Colours of `count` lines."""
    if count <= len(COLOURS):
        return COLOURS[:count]
    import matplotlib as mpl

    return [mpl.colormaps["viridis"](x) for x in np.linspace(0, 0.9, count)]


def finish_axis(axes: Axes, values: np.ndarray) -> None:
    """Give the x axis a logarithmic scale over `values`, labelled 1, 2, 5, 10 and so on, and a grid."""
    axes.set_xscale("log")
    axes.set_xlim(values.min() * 0.93, values.max() * 1.07)
    label_decades(axes.xaxis, (1, 2, 5))
    axes.grid(True, which="major", color="0.9", lw=0.8)
    axes.set_axisbelow(True)


def label_decades(axis: Axis, digits: Sequence[float]) -> None:
    """Label a logarithmic axis at these digits of each decade, without powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def drawing_errors(path: Path) -> Generator[None]:
    """Raise errors of all kinds, as Matplotlib has them, as ValueError; errors of reading are left as they are."""
    try:
        yield
    except ArgumentError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def titled(draw: Callable[[], Figure], title: str, fontsize: float) -> Figure:
    """A figure of one panel, with a title."""
    figure = draw()
    figure.axes[0].set_title(title, fontsize=fontsize, pad=10)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, with narrow margins."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(DPI)
    FigureCanvasAgg(figure)
    if layout := figure.get_layout_engine():  # savefig would draw the figure once for it and bbox_inches="tight"
        layout.execute(figure)
        figure.set_layout_engine("none")
    box = figure.get_tightbbox().padded(0.15)
    with atomic_write(path) as aside:
        figure.savefig(aside, dpi=DPI, format="png", bbox_inches=box, pil_kwargs={"compress_level": 3})
