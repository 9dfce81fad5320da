"""A figure that notebooks draw, also where pyplot is not imported."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure of Matplotlib without a window."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, format="png", bbox_inches="tight")
        return image.getvalue()
