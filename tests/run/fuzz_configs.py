"""Configs and tables of P(k) that are made up: each is read as it says, or refused a line a problem."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runs import read

from pmwd_dist.run.settings import SettingsError, SimulationSettings, to_toml
from pmwd_dist.run.simulation.job import SimulationJob

CONFIG, TABLE = "run.toml", "p.txt"
SMALL = "[box]\nsize = 64\nmesh = 16\n[devices]\npdims = [1, 1]\n"
WITH_TABLE = f'{SMALL}[cosmology]\nlinear_power = "{TABLE}"\n'
# As TOML.
NASTY = (
    *("0", "-1", "1", "3", "1.5", "1e300", "-1e300", "1e-300", "1e400", "nan", "inf", "-inf", "9" * 5000, "1e99999"),
    *(str(2**31), str(2**63), str(10**30), "true", "false", '""', '"text"', '"auto"', '"1"', '"a\\u0000b"', '"\\n"'),
    *("[]", "[1]", "[1, 2]", "[1, 2, 3]", "[1, nan, 3]", "[[1], 2]", "[" * 5000 + "]" * 5000, "[0, 0, 0]", "[64, 1]"),
    *(
        "{}",
        "{a = 1}",
        "1979-05-27",
        "07:32:00",
        "0x10",
        "'x'",
        "[1e300, 1, 1]",
        "[0.5, 0.25]",
        "[1e9, 0]",
        '"/dev/zero"',
    ),
)
POWER = "".join(f"{k:.6e} {1e4 * k / (k + 0.02) ** 2.4:.6e}\n" for k in np.geomspace(1e-3, 10, 50))


@dataclass(frozen=True)
class Case:
    """A config, and the table beside it."""

    name: str
    config: bytes
    table: bytes = POWER.encode()
    valid: bool | None = None  # None: either way


def outcome(folder: Path, case: Case) -> str:
    """What becomes of a config; AssertionError if that must not be."""
    (folder / CONFIG).write_bytes(case.config)
    (folder / TABLE).write_bytes(case.table)
    settings = plan_or_problems(folder)
    if isinstance(settings, tuple):
        assert settings
        for line in settings:
            assert 0 < len(line) < 600 and line.isprintable(), f"{case.name}: {line!r}"
        assert case.valid is not True, f"{case.name}: {settings}"
        return "refused"
    assert case.valid is not False, f"{case.name}: taken"
    _assert_as_written(settings, folder / CONFIG)
    return "taken"


def plan_or_problems(folder: Path) -> SimulationSettings | tuple[str, ...]:
    """The settings of a config for which there is a plan, or its problems; any other error is one of the program."""
    try:
        settings = read(folder / CONFIG)
        SimulationJob.of(settings, folder / "out").check()
    except SettingsError as error:
        return error.problems
    return settings


def _assert_as_written(settings: SimulationSettings, path: Path) -> None:
    """Settings hold what the file says, and are the same after writing and reading."""
    said = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    observed = {f"observe.{name}": content for name, content in said.pop("observe", {}).items()}
    for section, content in (said | observed).items():
        for key, value in content.items():
            taken = getattr(settings.section(section), key)
            if key == "linear_power":
                assert Path(taken).name == Path(value).name
            elif key != "snapshot" or isinstance(value, str):
                assert _spread(taken, taken) == _spread(value, taken), (section, key, value, taken)
    again = path.with_name("again.toml")
    again.write_text(to_toml(settings))
    assert read(again) == settings


def _spread(value: Any, like: Any) -> tuple[Any, ...]:
    """Values as the settings hold them: one stands for as many as there are, a whole number for a fraction."""
    wanted = like if isinstance(like, tuple) else (like,)
    several = tuple(value) if isinstance(value, list | tuple) else (value,) * len(wanted)
    return tuple(float(x) if isinstance(y, float) else x for x, y in zip(several, wanted, strict=True))


def values() -> Iterator[Case]:
    """Every key with every nasty value, once each."""
    for section, model in SimulationSettings.sections.items():
        for key in model.model_fields:
            for value in NASTY:
                base = tomllib.loads(SMALL)
                lines = [f"[{section}]", f"{key} = {value}"]
                lines += [f"{k} = {json.dumps(v)}" for k, v in base.pop(section, {}).items() if k != key]
                for other, content in base.items():
                    lines += [f"[{other}]", *(f"{k} = {json.dumps(v)}" for k, v in content.items())]
                yield Case(f"{section}.{key} = {value[:30]}", "\n".join(lines).encode())


def tables() -> Iterator[Case]:
    """Tables of P(k)."""
    rows = [line.split() for line in POWER.splitlines()]
    k = np.array([float(row[0]) for row in rows])
    with_comments = "# k [h/Mpc]  P\n" + POWER
    good = {
        "BOM": b"\xef\xbb\xbf" + with_comments.encode(),
        "commas": POWER.replace(" ", ","),
        "commas and blanks": POWER.replace(" ", " , "),
        "Fortran": with_comments.replace("e+", "D+").replace("e-", "d-"),
        "CRLF and blank lines": with_comments.replace("\n", "\r\n\r\n"),
        "three columns": POWER.replace("\n", " 0.1\n"),
    }
    bad = {
        "1e300": "".join(f"{x} 1e300\n" for x in k),
        "beyond single precision": "".join(f"{x} 1e39\n" for x in k),
        "too large": "".join(f"{x} 1e30\n" for x in k),
        "in wrong units": "".join(f"{x} {1e13 * x}\n" for x in k),
        "zeros": "".join(f"{x} 0\n" for x in k),
        "subnormal": "".join(f"{x} 1e-310\n" for x in k),
        "k of 1e300": "".join(f"{x}e300 1\n" for x in (1, 2)),
        "decimal commas": POWER.replace(".", ","),
        "one value": "1\n",
        "nothing": "",
        "binary": bytes(range(256)),
        "UTF-16": POWER.encode("utf-16"),
        "long line": "1 " * 100_000,
        "complex": "1 1j\n2 1j\n",
        "words": "k P\n" + POWER,
        "ragged": POWER + "11\n",
        "NUL": POWER + "\0",
    }
    for valid, some in ((True, good), (False, bad)):
        for name, text in some.items():
            yield Case(f"table: {name}", WITH_TABLE.encode(), text if isinstance(text, bytes) else text.encode(), valid)


def texts() -> Iterator[Case]:
    """Whole files."""
    yield Case("BOM", b"\xef\xbb\xbf" + SMALL.encode(), valid=True)
    yield Case("brackets", b"a = " + b"[" * 5000 + b"]" * 5000, valid=False)
    yield Case("tables", b"".join(b"a" + b".a" * n + b" = 1\n" for n in range(300)), valid=False)
    yield Case("keys", b'"a\\nb" = 1\n["c\\u001b[2J"]\nd = 1\n', valid=False)
    yield Case("digits", b"[box]\nsize = " + b"9" * 10_000, valid=False)
    yield Case("large", SMALL.encode() + b"#" * 2_000_000, valid=False)
    yield Case("sections", SMALL.encode() + b"".join(b"[s%d]\n" % i for i in range(100_000)), valid=False)
    yield Case("several sections", SMALL.encode() + b"".join(b"[s%d]\n" % i for i in range(1500)), valid=False)
    yield Case("long key", b"[box]\n" + b"k" * 200_000 + b" = 1\n", valid=False)
    yield Case("dots", b"a." * 5000 + b"a = 1\n", valid=False)
    yield Case("hexadecimal", b"[noise]\nseed = 0x" + b"f" * 9000, valid=False)
    yield Case("binary", bytes(range(256)), valid=False)
    yield Case("empty", b"", valid=False)
