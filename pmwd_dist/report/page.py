"""The page of a run: one HTML file with its figures inside. The template page.html has its texts."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pmwd_dist._files import read_bytes, write_text


class Caption(NamedTuple):
    """Caption of a figure."""

    title: str  # which words for the redshift may follow
    seen: str  # content of the figure
    expected: str  # appearance of a good run


def write_page(path: Path, images: Iterable[tuple[Path, str, Caption]], **content: Any) -> None:
    """Write the page.

    Images are PNG files, words for their redshifts, and captions; the content are the values of the template.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pmwd_dist", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    figures = [(base64.b64encode(read_bytes(image, own=True)).decode("ascii"), *words) for image, *words in images]
    text = environment.get_template("page.html").render(images=figures, **content)
    write_text(path, text + "\n")
