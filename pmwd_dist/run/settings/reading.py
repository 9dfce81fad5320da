"""Read a TOML file and its overrides into Settings, and list all their problems at once."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pmwd_dist._files import read_text
from pmwd_dist.run.settings.inference import InferenceSettings
from pmwd_dist.run.settings.observables import OBSERVABLES, Observe
from pmwd_dist.run.settings.section import Section
from pmwd_dist.run.settings.simulation_sections import (
    OPTIONAL,
    Box,
    Output,
    Sections,
    Settings,
    SimulationSettings,
    Time,
)
from pmwd_dist.run.settings.table import find_table_problems
from pmwd_dist.run.settings.writing import printable, toml_value

Tree = dict[str, Any]
AnySettings = TypeVar("AnySettings", bound=Settings)
_LARGEST, _LONGEST_LINE, _MOST_ENTRIES = 100_000, 3000, 2000  # bytes, characters, and keys and values of a file
_MOST_PROBLEMS = 20  # that are listed


class SettingsError(ValueError):
    """Settings with problems, one line for each."""

    def __init__(self, problems: Sequence[str]):
        if more := len(problems[_MOST_PROBLEMS:]):
            problems = [*problems[:_MOST_PROBLEMS], f"and {more} more problems"]
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def read(path: Path, overrides: Iterable[str] = ()) -> SimulationSettings:
    """Read settings of a simulation from a TOML file, with overrides such as "box.size=500".

    A relative `cosmology.linear_power` is taken from the file's folder.

    Raises:
      SettingsError: the settings have these problems.
    """
    return read_as(SimulationSettings, path, overrides)


def read_as(model: type[AnySettings], path: Path, overrides: Iterable[str] = ()) -> AnySettings:
    """Read settings of a kind, which has its own sections, as `read` does.

    Raises:
      SettingsError: the settings have these problems.
    """
    return _read_tree(model, _load(path), path, overrides)


def read_any(path: Path, overrides: Iterable[str] = ()) -> Settings:
    """Read settings of a simulation or an inference, whichever has more of the sections in the file.

    Raises:
      SettingsError: the settings have these problems.
    """
    tree = _load(path)
    kinds: tuple[type[Settings], ...] = (SimulationSettings, InferenceSettings)
    return _read_tree(max(kinds, key=lambda kind: len(tree.keys() & kind.sections.keys())), tree, path, overrides)


def _read_tree(model: type[AnySettings], tree: Tree, path: Path, overrides: Iterable[str]) -> AnySettings:
    problems: list[str] = []
    for text in overrides:
        problems += _override(tree, text)
    if (count := _entries(tree)) > _MOST_ENTRIES:
        raise SettingsError([f"{path}: holds {count} keys and values, and a configuration at most {_MOST_ENTRIES}"])
    contents, found = _contents(tree, model.sections)
    problems += found
    sections: dict[str, Any] = {}
    for name, content in contents.items():
        sections[name], found = _validate(name, content, model.sections)
        problems += found
    problems += _cross_check(sections, path) + model.find_problems(sections)
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    sections = _absolute(sections, model.paths, path.parent)
    observe = {name: sections.pop(f"observe.{name}", None) for name in OBSERVABLES}
    return model(**sections, observe=Observe(**observe))


def _entries(tree: Tree) -> int:
    """Number of keys and values in a tree, at any depth."""
    left: list[object] = [tree]
    count = 0
    while left:
        item = left.pop()
        inside = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
        left += inside
        count += len(inside)
    return count


def _contents(tree: Tree, sections: Sections) -> tuple[dict[str, Any], list[str]]:
    """Contents of all present and required sections, and problems with unknown ones."""
    contents = {name: tree.get(name, {}) for name in sections if name not in OPTIONAL}
    known = {*contents, *(name.partition(".")[0] for name in sections)}
    problems = [_unknown((key,), value, sections) for key, value in tree.items() if key not in known]
    observe = tree.get("observe", {}) if "observe" in known else {}
    if not isinstance(observe, dict):
        return contents, [*problems, f"observe = {_show(observe)}: must hold sections, such as [observe.multipoles]"]
    for key, value in observe.items():
        if f"observe.{key}" in sections:
            contents[f"observe.{key}"] = value
        else:
            problems.append(_unknown(("observe", key), value, sections))
    return contents, problems


def _load(path: Path) -> Tree:
    try:
        return _parse(read_text(path, _LARGEST, pipe=True))  # a pipe as in <(sed ...)
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not a text file; `pmwd-dist template` prints one to start from"]) from error
    except ValueError as error:
        raise SettingsError([f"{path}: not valid TOML: {error}"]) from error
    except FileNotFoundError as error:
        raise SettingsError([f"{path}: no such file; `pmwd-dist template` prints one to start from"]) from error
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from error


def _parse(text: str) -> Tree:
    """TOML; ValueError if it isn't."""
    if (longest := max(map(len, text.splitlines()), default=0)) > _LONGEST_LINE:
        raise ValueError(f"it has a line of {longest} characters, and a configuration at most {_LONGEST_LINE}")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error


def _override(tree: Tree, text: str) -> list[str]:
    """Set one key of the tree; the value is TOML, or a string where it isn't."""
    name, equals, value = text.partition("=")
    keys = tuple(key.strip() for key in name.split("."))
    if not equals or len(keys) not in ((2, 3) if keys[0] == "observe" else (2,)):
        return [f"--set {_short(text)}: must look like section.key=value, as in --set box.size=500"]
    section: object = tree
    for key in keys[:-1]:
        section = section.setdefault(key, {}) if isinstance(section, dict) else None
    if len(text) > _LONGEST_LINE:
        return [f"--set {_short(text)}: must have at most {_LONGEST_LINE} characters; put the value into the file"]
    try:
        if isinstance(section, dict):
            section[keys[-1]] = _value(value.strip())
    except ValueError as error:
        return [f"--set {_short(printable(text))}: {error}"]
    return []


def _value(text: str) -> object:
    """A value of TOML, or a string without quotes; ValueError if the text begins a list, a string or a number."""
    try:
        tree = _parse(f"value = {text}")
    except ValueError as error:
        if re.match(r"""[\[{"']|[-+.\d]+$""", text):
            why = str(error).partition(" (at")[0]
            raise ValueError(f"not valid TOML: {why}; write 0.5, or '[1, 0.5]' with quotes for the shell") from error
        return text
    return tree["value"] if len(tree) == 1 else text


def _validate(name: str, content: object, sections: Sections) -> tuple[Section | None, list[str]]:
    if not isinstance(content, dict):
        return None, [f"{name} = {_show(content)}: must be a section, that is [{name}] on a line of its own"]
    try:
        return sections[name].model_validate(content), []
    except ValidationError as error:
        return None, [_problem(name, content, item, sections) for item in error.errors(include_url=False)]


def _problem(name: str, content: Tree, item: Any, sections: Sections) -> str:
    """One line for an error of pydantic: dotted path, value, constraint, remedy."""
    key = str(item["loc"][0])
    path = f"{name}.{key}"
    if item["type"] == "extra_forbidden":
        return _unknown((*name.split("."), key), content[key], sections)
    field = sections[name].model_fields[key]
    example = toml_value((field.examples or [None])[0])
    if item["type"] == "missing" and len(item["loc"]) == 1:
        return f"{path}: missing; add for example `{key} = {example}` to [{name}]"
    remedy = f"for example {example}"
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        choices = [choice.strip("' ") for choice in item["ctx"]["expected"].replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(item["input"].lower(), choices, 1, 0.5)
        remedy = f"did you mean {toml_value(near[0])}?" if near else remedy
    value = content.get(key, item["input"])
    return path + ("" if value is None else f" = {_show(value)}") + f": {_constraint(item)}; {remedy}"


_CONSTRAINTS = {
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be less than {lt:.4g}",
    "less_than_equal": "must be {le:g} or less",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
    **dict.fromkeys(("tuple_type", "too_short", "too_long", "missing"), "must be a list of the right length"),
}


def _constraint(item: Any) -> str:
    text = _CONSTRAINTS.get(item["type"])
    if text is None:
        return str(item["msg"])
    found = text.format(**item.get("ctx", {}))
    return found.replace("'", '"') if item["type"] == "literal_error" else found


def _unknown(keys: tuple[str, ...], value: object, sections: Sections) -> str:
    path = ".".join(map(_bare, keys))
    if isinstance(value, dict) and (len(keys) == 1 or keys[0] == "observe"):
        inside = [name for name in sections if name.startswith("observe.") == (keys[0] == "observe")]
        near = difflib.get_close_matches(".".join(keys), inside, 1, 0.5)
        return f"[{path}]: unknown section" + (f"; did you mean [{near[0]}]?" if near else f"; use {_list(inside)}")
    return f"{path} = {_show(value)}: unknown key" + _nearest(keys, sections)


def _nearest(keys: tuple[str, ...], sections: Sections) -> str:
    """Suggest a key: the nearest of the same section, else the same or the nearest key of another one."""
    section, last = ".".join(keys[:-1]), keys[-1].lower()
    known = [f"{name}.{key}" for name, model in sections.items() for key in model.model_fields]
    if section in sections:
        near = difflib.get_close_matches(last, sections[section].model_fields, 1)
        if near:
            return f"; did you mean {section}.{near[0]}?"
    names = {path.replace(".", "_"): path for path in known}
    names |= {path.rpartition(".")[2]: path for path in reversed(known)}
    near = difflib.get_close_matches(last, names, 1)
    if near:
        return f"; did you mean {names[near[0]]}?"
    if section in sections:
        return f"; [{section}] has {_list(sections[section].model_fields)}"
    return f"; `pmwd-dist template{' --infer' if 'priors' in sections else ''}` prints all keys"


def _bare(key: str) -> str:
    """A key in TOML: quoted unless it consists of letters, digits, _ and -."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) else _show(key)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _show(value: object) -> str:
    try:
        text = toml_value(value)
    except (TypeError, ValueError):
        text = repr(value)
    return _short(printable(text))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _cross_check(sections: dict[str, Any], path: Path) -> list[str]:
    """Problems that involve several sections, as far as these are valid."""
    names = ("box", "time", "cosmology", "output", "devices")
    box, time, cosmology, output, devices = (sections.get(name) for name in names)
    problems = []
    if time and output:
        problems += _redshift_problems(time, output)
    if output and box:
        problems += _format_problems(output, box)
    if box:
        problems += _wavenumber_problems(sections, box)
    if devices and box and devices.halo != "auto" and devices.halo > max(box.mesh):
        problems.append(f"devices.halo = {_show(devices.halo)}: must not be wider than box.mesh = {_show(box.mesh)}")
    if cosmology and cosmology.linear_power is not None:
        problems += find_table_problems(path.parent / cosmology.linear_power, cosmology.linear_power, box)
    if cosmology and cosmology.normalise and cosmology.linear_power is None:
        problems.append(
            "cosmology.normalise = true: needs cosmology.linear_power; without a file P(k) always has the sigma8 given"
        )
    return problems


def _wavenumber_problems(sections: dict[str, Any], box: Box) -> list[str]:
    """Spectra that the mesh does not resolve."""
    nyquist = min(math.pi * n / length for n, length in zip(box.mesh, box.size, strict=True))
    fundamental = 2 * math.pi / max(box.size)
    first, end = "first mode of the box", "the Nyquist frequency"
    limits = {
        "multipoles": (1.0, first, 1.0, end),
        "galaxies": (1.0, first, 1.0, end),
        "bispectrum": (math.sqrt(2), "first closed triangle in the box", 2 / 3, f"2/3 of {end}"),
    }
    problems = []
    for name, (least, begin, share, words) in limits.items():
        lowest = least * fundamental
        section = sections.get(f"observe.{name}")
        k_max = None if section is None else section.k_max
        if k_max is not None and not lowest <= k_max <= share * nyquist * (1 + 1e-9):
            problems.append(
                f"observe.{name}.k_max = {_show(k_max)}: must be {lowest:.4g} to {share * nyquist:.4g} h/Mpc, from the "
                f"{begin} to {words} of the mesh; change it, or use a finer box.mesh"
            )
    return problems


def _redshift_problems(time: Time, output: Output) -> list[str]:
    low, high = 1 / time.a_stop - 1, 1 / time.a_start - 1
    slack = 1e-6 * (1 + high)
    outside = [f"{z:g}" for z in output.redshifts or () if not low - slack <= z <= high + slack]
    if not outside:
        return []
    few = ", ".join(outside[:3]) + (f" and {len(outside) - 3} more" if len(outside) > 3 else "")
    return [
        f"output.redshifts = {_show(output.redshifts)}: {few} outside the time span, z = {high:g} to {low:g} "
        f"(a = {time.a_start:g} to {time.a_stop:g}); change output.redshifts, or time.a_start or time.a_stop"
    ]


def _format_problems(output: Output, box: Box) -> list[str]:
    if output.snapshot != "gadget" or len(set(box.size)) == 1:
        return []
    return [
        f'output.snapshot = "gadget": the format holds cubic boxes only, and box.size = {_show(box.size)}; '
        'use "swift" or "none"'
    ]


def _absolute(sections: dict[str, Any], keys: Iterable[str], folder: Path) -> dict[str, Any]:
    """The sections with absolute paths of files, which are relative to a folder."""
    changed = dict(sections)
    for name, _, key in (path.rpartition(".") for path in keys):
        value = getattr(changed.get(name), key, None)
        if isinstance(value, str) and value != "mock":
            changed[name] = changed[name].model_copy(update={key: str((folder / value).absolute())})
    return changed
