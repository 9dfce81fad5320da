"""The Python of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"


def _blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", _blocks())
def test_readme(source: str) -> None:
    names: dict[str, object] = {}
    exec(compile(source, README.name, "exec"), names)
    density, spectrum = names["density"], names["spectrum"]
    assert np.asarray(density).mean() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(np.asarray(spectrum.power)).all()
