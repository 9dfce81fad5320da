"""The page of a run: one HTML file with its figures inside. The template page.html has its texts."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmwd_dist._files import atomic_write, read_bytes


def write_page(path: Path, images: Iterable[Path], **content: Any) -> None:
    """Write the page.

    Images are PNG files whose names tell their kind and redshift; the content are the values of the template.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pmwd_dist", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    figures = list[dict[str, str]]()
    for image in images:
        kind, _, z = image.stem.partition("_z")
        data = base64.b64encode(read_bytes(image, own=True)).decode("ascii")
        figures.append({"kind": kind, "at": f" at z = {float(z):g}" if z else "", "data": data})
    text = environment.get_template("page.html").render(images=figures, **content)
    with atomic_write(path) as aside:
        aside.write_text(text + "\n", encoding="utf-8")
