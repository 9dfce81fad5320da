"""Configs and tables of P(k) that are damaged or made up are refused a line a problem: the short fuzz."""

from __future__ import annotations

import os
from pathlib import Path

import fuzz_configs as fuzz
import numpy as np
import pytest
from runs import read

from pmwd_dist._files import read_text
from pmwd_dist.run.settings import SettingsError
from pmwd_dist.run.settings.table import read_table


@pytest.mark.slow
def test_made_up_configs(tmp_path: Path) -> None:
    values = list(fuzz.values())
    some = [values[i] for i in np.random.default_rng(3).permutation(len(values))[:10]]
    outcomes = [fuzz.outcome(tmp_path, case) for case in (*fuzz.tables(), *fuzz.texts(), *some)]
    assert set(outcomes) == {"refused", "taken"}


@pytest.mark.parametrize("name", ["BOM", "commas", "Fortran"])
def test_tables_of_other_programs_hold_the_same_numbers(tmp_path: Path, name: str) -> None:
    (case,) = (case for case in fuzz.tables() if case.name == f"table: {name}")
    (tmp_path / "plain").write_text(fuzz.POWER)
    (tmp_path / "other").write_bytes(case.table)
    np.testing.assert_array_equal(read_table(tmp_path / "plain"), read_table(tmp_path / "other"))


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "."])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / fuzz.CONFIG).write_text(fuzz.WITH_TABLE.replace(fuzz.TABLE, name))
    with pytest.raises(SettingsError, match=f'linear_power = "{tmp_path / name}": can\'t be read: not a regular file'):
        read(tmp_path / fuzz.CONFIG)
    with pytest.raises(OSError, match="not a regular file"):
        read_text(Path("/dev/zero"), 10, pipe=True)


def test_a_name_of_several_lines_is_refused_on_one(tmp_path: Path) -> None:
    (tmp_path / fuzz.CONFIG).write_text(fuzz.WITH_TABLE.replace(fuzz.TABLE, "a\\n\\u001bb"))
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / fuzz.CONFIG)
    assert refused.value.problems == (
        f'cosmology.linear_power = "{tmp_path}/a??b": no such file; give a path relative to the TOML file, '
        "or a name: boltzmann, eisenstein-hu",
    )


def test_large_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / fuzz.TABLE).open("wb") as table:
        table.truncate(70_000_000)
    (tmp_path / fuzz.CONFIG).write_text(fuzz.WITH_TABLE)
    with pytest.raises(SettingsError, match="larger than 64 MB"):
        read(tmp_path / fuzz.CONFIG)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("".join(f"[s{i}]\n" for i in range(9000)), "and 8982 more problems"),
        ("[noise]\n" + "".join(f"k{i} = 1\n" for i in range(1900)), "and 1882 more problems"),
        ("#" * 200_000, "larger than 0.1 MB"),
    ],
)
def test_huge_configs_are_few_lines(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / fuzz.CONFIG).write_text(text)
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / fuzz.CONFIG)
    assert refused.value.problems[-1].endswith(problem)
    assert len(refused.value.problems) <= 21


def test_a_power_that_moves_particles_too_far_says_so(tmp_path: Path) -> None:
    (case,) = (case for case in fuzz.tables() if case.name == "table: too large")
    (tmp_path / fuzz.CONFIG).write_bytes(case.config)
    (tmp_path / fuzz.TABLE).write_bytes(case.table)
    problems = fuzz.plan_or_problems(tmp_path)
    assert isinstance(problems, tuple)
    assert "moves particles by" in problems[0]
    assert problems[0].endswith("is P in (Mpc/h)^3, k in h/Mpc?")
