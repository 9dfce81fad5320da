"""Values in TOML, and messages about them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel

from pmwd_dist._errors import ArgumentError


class Raw(str):
    """TOML that stands for itself, as an example."""

    __slots__ = ()


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
        if len(value) == 3 and isinstance(value[0], int | float | str) and value[0] == value[1] == value[2]:
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
    is_list = isinstance(error.value, list | tuple)
    value = "" if error.value is None else f" = {(shown if is_list else toml_value)(error.value)}"
    along = "" if error.axis is None else f" along {'xyz'[error.axis]}"
    return f"{path}{value}{along}: {error.reason}"


def reason(error: Exception) -> str:
    """What is wrong with a file or an argument, on one line, without its name."""
    if isinstance(error, FileNotFoundError):
        return "no such file; give a path relative to the TOML file"
    if isinstance(error, OSError):
        return f"can't be read: {error.strerror}"
    return error.reason if isinstance(error, ArgumentError) else one_line(error)


def one_line(error: Exception) -> str:
    """Message of an error on one line, at most 200 characters of it, without its last full stop."""
    line = printable(" ".join(str(error).split()).rstrip(".;"))
    return line if len(line) <= 200 else line[:197] + "..."


def printable(text: str) -> str:
    """Text on one line of a terminal: ? for all that it would not show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
