"""Checks of the report of a run: complete and self-contained."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

_VOID = ("meta", "img", "br", "link", "input", "hr")


class _Page(HTMLParser):
    """The elements of a page, which must be nested and closed."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check_page(path: Path, figures: int) -> str:
    """Check the structure of a page with this number of figures, and return its text."""
    text = path.read_text(encoding="utf-8")
    page = _Page(text)
    for tag in ("script", "link", "iframe", "object", "a"):
        assert not page.of(tag)
    assert not re.search(r"(?:src|href|url\()\s*=?[\"']?(?!data:)\w+:", text)
    images = page.of("img")
    assert len(images) == len(page.of("figcaption")) == figures
    for image in images:
        kind, data = image["src"].split(",")
        assert kind == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")
        assert image["alt"] and not {"width", "height", "style"} & image.keys()
    assert not re.search(r"[;{\s]width:", text.partition("</style>")[0])
    assert not re.search(r"\bNone\b|Undefined|\{\{|\{%", re.sub(r'src="[^"]*"', "", text))
    return text
