"""Settings as TOML text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pmwd_dist._errors import ArgumentError
from pmwd_dist.run.settings.observables import Observe
from pmwd_dist.run.settings.section import Section
from pmwd_dist.run.settings.simulation_sections import OPTIONAL, Settings, SimulationSettings

_WIDTH = 110


class Raw(str):
    """TOML that stands for itself, as an example."""

    __slots__ = ()


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
    lines = [f"[{name}]" + (f"  # {_first_lower(type(section).__doc__)}" if comments else "")]
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if comments:
            lines += [f"# {line}" for line in textwrap.wrap(field.description or "", _WIDTH)]
        if value is not None:
            lines.append(f"{key} = {toml_value(value)}")
        elif comments:
            lines.append(f"# {key} = {toml_value((field.examples or [None])[0])}")
    return "\n".join(lines) + "\n"


def _first_lower(text: str | None) -> str:
    text = (text or "").rstrip(".")
    return text[:1].lower() + text[1:]


def toml_value(value: object) -> str:
    """A value in TOML; three equal sides become one."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(x)}" for key, x in value.items() if x is not None) + " }"
    if isinstance(value, list | tuple):
        if len(value) == 3 and value[0] == value[1] == value[2]:
            return toml_value(value[0])
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


def shown(value: object) -> str:
    """A value in TOML as messages show it: on one line of a terminal, and at most 60 characters."""
    try:
        text = printable(toml_value(value))
    except ValueError:  # an integer of more digits than Python writes
        text = "..."
    return text if len(text) <= 60 else text[:57] + "..."


def argument_problem(error: ArgumentError, path: str) -> str:
    """Message of an error of the library, with a key of the file in place of the argument."""
    value = "" if error.value is None else f" = {toml_value(error.value)}"
    along = "" if error.axis is None else f" along {'xyz'[error.axis]}"
    return f"{path}{value}{along}: {error.reason}"


def one_line(error: Exception) -> str:
    """Message of an error on one line, at most 200 characters of it, without its last full stop."""
    line = printable(" ".join(str(error).split()).rstrip(".;"))
    return line if len(line) <= 200 else line[:197] + "..."


def printable(text: str) -> str:
    """Text on one line of a terminal: ? for all that it would not show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
