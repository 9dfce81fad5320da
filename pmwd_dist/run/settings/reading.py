"""Read a TOML file and its overrides into Settings, and list all their problems at once."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from pmwd_dist._files import read_text
from pmwd_dist.run.settings.rules import common_problems, simulation_problems
from pmwd_dist.run.settings.simulation import Sections, Settings, SimulationSettings
from pmwd_dist.run.settings.writing import Raw, printable, shown, toml_value

Tree = dict[str, Any]
AnySettings = TypeVar("AnySettings", bound=Settings)
_LARGEST, _MOST_PROBLEMS = 100_000, 20  # bytes of a file, and its problems that are listed


class SettingsError(ValueError):
    """Settings with problems, one line for each."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def read_as(model: type[AnySettings], path: Path, overrides: Iterable[str] = ()) -> AnySettings:
    """Read settings of a kind from a TOML file, with overrides such as "box.size=500"; SettingsError with all problems.

    Relative paths are taken from the file's folder.
    """
    return read_tree(model, load_tree(path), path, overrides)


def read_any(path: Path, overrides: Iterable[str] = ()) -> Settings:
    """Read settings of a simulation or an inference, whichever has more of the sections in the file."""
    tree = load_tree(path)
    return read_tree(kind_of(tree), tree, path, overrides)


def kind_of(tree: Tree) -> type[Settings]:
    """Kind of the settings that have more of the sections of a file."""
    if tree.keys() <= SimulationSettings.model_fields.keys():
        return SimulationSettings
    from pmwd_dist.run.settings.inference import InferenceSettings

    kinds: tuple[type[Settings], ...] = (SimulationSettings, InferenceSettings)
    return max(kinds, key=lambda kind: len(tree.keys() & kind.sections.keys()))


def read_tree(model: type[AnySettings], tree: Tree, path: Path, overrides: Iterable[str]) -> AnySettings:
    """Settings of a kind from the content of a TOML file, which the overrides change."""
    problems = [problem for text in overrides for problem in _override(tree, text)]
    tree = {name: {} for name in model.model_fields} | tree
    try:
        settings = model.model_validate(tree, context=path.parent)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems += dict.fromkeys(_problem(tree, item, model.sections) for item in found[:_MOST_PROBLEMS])
        if more := len(found[_MOST_PROBLEMS:]):
            problems.append(f"and {more} more problems")
    else:
        problems += common_problems(settings)
        if isinstance(settings, SimulationSettings):
            problems += simulation_problems(settings)
        else:
            from pmwd_dist.run.settings.inference_rules import inference_problems  # slow, and not of a simulation

            problems += inference_problems(cast("Any", settings))
        if not problems:
            return settings
    raise SettingsError(problems)


def load_tree(path: Path) -> Tree:
    """Content of a TOML file; SettingsError if it has none."""
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
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error


def _override(tree: Tree, text: str) -> list[str]:
    """Set one key of the tree; the value is TOML, or a string where it isn't."""
    name, equals, value = text.partition("=")
    keys = tuple(key.strip() for key in name.split("."))
    if not equals or len(keys) < 2 or "" in keys:
        return [f"--set {shown(Raw(text))}: must look like section.key=value, as in --set box.size=500"]
    section: object = tree
    for key in keys[:-1]:
        section = section.setdefault(key, {}) if isinstance(section, dict) else None
    try:
        if isinstance(section, dict):
            section[keys[-1]] = _value(value.strip())
        elif isinstance(tree[keys[0]], dict):
            return [f"--set {shown(Raw(text))}: {'.'.join(keys[:-1])} is no section"]
    except ValueError as error:
        return [f"--set {shown(Raw(text))}: {error}"]
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


def _problem(tree: Tree, item: Any, sections: Sections) -> str:
    """One line for an error of pydantic: dotted path, value, constraint, remedy."""
    keys = item["loc"]
    depth = 2 if keys[0] == "observe" else 1  # of sections
    name = ".".join(keys[:depth])
    if item["type"] == "extra_forbidden" and len(keys) <= depth + 1:
        return _unknown(keys, item["input"], sections)
    if len(keys) <= depth:
        return f"{name} = {shown(item['input'])}: must be a section, that is [{name}] on a line of its own"
    key = keys[depth]
    example = toml_value((sections[name].model_fields[key].examples or [None])[0])
    if item["type"] == "missing" and len(keys) == depth + 1:
        return f"{name}.{key}: missing; add for example `{key} = {example}` to [{name}]"
    value: Any = reduce(lambda part, key: part[key], keys[: depth + 1], tree)
    part = keys[depth + 1] if len(keys) > depth + 1 else None
    if isinstance(value, list) and isinstance(part, int) and part < len(value) and isinstance(value[part], dict):
        key, value = f"{key}[{part}]", value[part]
    return f"{name}.{key} = {shown(value)}: {_constraint(item)}; for example {example}"


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
    if item["type"] == "extra_forbidden":
        return f"has an unknown key, {printable(item['loc'][-1])}"
    text = _CONSTRAINTS.get(item["type"])
    if text is None:
        return str(item["msg"])
    found = text.format(**item.get("ctx", {}))
    return found.replace("'", '"') if item["type"] == "literal_error" else found


def _unknown(keys: tuple[str, ...], value: object, sections: Sections) -> str:
    """The problem of an unknown section or key, with the nearest one."""
    bare = re.compile(r"[A-Za-z0-9_-]{1,60}")  # other keys are quoted
    path = ".".join(key if bare.fullmatch(key) else shown(key) for key in keys)
    section, last = ".".join(keys[:-1]), keys[-1].lower()
    if isinstance(value, dict) and section in ("", "observe"):
        near = difflib.get_close_matches(".".join(keys), sections, 1, 0.5)
        return f"[{path}]: unknown section; " + (f"did you mean [{near[0]}]?" if near else f"use {', '.join(sections)}")
    if section == "cosmology" and re.fullmatch(r"omega_(c|cdm|dm)|om[cb]h2", last):
        remedy = "use omega_m, of cold matter and baryons, and omega_b, each per critical density"
        return f"{path} = {shown(value)}: unknown key; {remedy}"
    own = {key: f"{section}.{key}" for key in sections[section].model_fields} if section in sections else {}
    others = {key: f"{name}.{key}" for name, model in reversed([*sections.items()]) for key in model.model_fields}
    for names, ratio in ((own, 0.6), (others, 0.8)):
        if near := difflib.get_close_matches(last, names, 1, ratio):
            return f"{path} = {shown(value)}: unknown key; did you mean {names[near[0]]}?"
    remedy = f"[{section}] has {', '.join(own)}" if own else f"the sections are {', '.join(sections)}"
    return f"{path} = {shown(value)}: unknown key; {remedy}"
