"""Checks of the report of a run: complete and self-contained."""

from __future__ import annotations

import base64
import re
from pathlib import Path


def check_page(path: Path, figures: int) -> str:
    """Check the structure of a page with this number of figures, and return its text."""
    text = path.read_text(encoding="utf-8")
    open_tags: list[str] = []
    for end, tag in re.findall(r"<(/?)(\w+)", text):  # nested and closed
        assert tag not in ("script", "link", "iframe", "object", "a")
        if end:
            assert open_tags.pop() == tag
        elif tag not in ("meta", "img", "br"):
            open_tags.append(tag)
    assert not open_tags
    assert not re.search(r"(?:src|href|url\()\s*=?[\"']?(?!data:)\w+:", text)
    images = re.findall(r"<img ([^>]*)>", text)
    assert len(images) == text.count("<figcaption>") == figures
    for image in images:
        data = re.search(r'src="data:image/png;base64,([^"]*)"', image)
        assert data and base64.b64decode(data[1]).startswith(b"\x89PNG")
        assert re.search(r'alt="[^"]', image) and not re.search(r"\b(width|height|style)=", image)
    assert not re.search(r"[;{\s]width:", text.partition("</style>")[0])
    assert not re.search(r"\bNone\b|Undefined|\{\{|\{%", re.sub(r'src="[^"]*"', "", text))
    return text
