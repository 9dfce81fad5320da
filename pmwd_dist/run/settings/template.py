"""Settings as TOML text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticUndefined

from pmwd_dist.run.outputs.registry import Observe
from pmwd_dist.run.settings.section import Section
from pmwd_dist.run.settings.simulation import OPTIONAL, Settings, SimulationSettings
from pmwd_dist.run.settings.writing import toml_value

_WIDTH = 110


def to_toml(settings: Settings, *, comments: bool = False) -> str:
    """TOML text of these settings, on request with a comment on each key."""
    parts = ((name, model, settings.section(name)) for name, model in type(settings).sections.items())
    return "\n".join(
        "".join(f"#{line}\n" for line in _section(name, _examples(model), comments=True).splitlines())
        if section is None
        else _section(name, section, comments)
        for name, model, section in parts
        if section is not None or comments
    )


def template(kind: type[Settings] = SimulationSettings) -> str:
    """Commented TOML text with every key, at its default or an example; sections that are optional as comments."""
    given = kind.example
    blank: Any = {n: _examples(model, given.get(n, {})) for n, model in kind.sections.items() if n not in OPTIONAL}
    return to_toml(kind(**blank, observe=Observe()), comments=True)


def _examples(model: type[Section], given: Mapping[str, Any] | None = None) -> Section:
    """A section at its defaults, or examples for keys without a default, with the given values."""
    required = {
        name: (field.examples or [None])[0]
        for name, field in model.model_fields.items()
        if field.default is PydanticUndefined
    }
    return model(**required | dict(given or {}))


def _section(name: str, section: Section, comments: bool) -> str:
    about = (type(section).__doc__ or "").rstrip(".")
    lines = [f"[{name}]" + (f"  # {about[:1].lower()}{about[1:]}" if comments else "")]
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if comments:
            lines += [f"# {line}" for line in textwrap.wrap(field.description or "", _WIDTH)]
        if value is not None:
            lines.append(f"{key} = {toml_value(value)}")
        elif comments:
            lines.append(f"# {key} = {toml_value((field.examples or [None])[0])}")
    return "\n".join(lines) + "\n"
