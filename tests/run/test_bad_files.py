"""Configs and tables of P(k) that are damaged or made up are refused a line a problem."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from runs import read

from pmwd_dist._files import read_text
from pmwd_dist.run.settings import SettingsError, build
from pmwd_dist.run.settings.table import read_table

CONFIG, TABLE = "run.toml", "p.txt"
WITH_TABLE = f'[box]\nsize = 64\nmesh = 16\n[devices]\npdims = [1, 1]\n[cosmology]\nlinear_power = "{TABLE}"\n'
POWER = "".join(f"{k:.6e} {1e4 * k / (k + 0.02) ** 2.4:.6e}\n" for k in np.geomspace(1e-3, 10, 50))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff# k [h/Mpc]  P\n" + POWER,
        POWER.replace(" ", " , "),
        POWER.replace("e+", "D+").replace("e-", "d-").replace("\n", " 0.1\r\n\r\n"),
    ],
    ids=["BOM", "commas", "Fortran"],
)
def test_tables_of_other_programs_hold_the_same_numbers(tmp_path: Path, text: str) -> None:
    (tmp_path / "plain").write_text(POWER)
    (tmp_path / "other").write_text(text, newline="")
    np.testing.assert_array_equal(read_table(tmp_path / "plain"), read_table(tmp_path / "other"))


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "."])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / CONFIG).write_text(WITH_TABLE.replace(TABLE, name))
    with pytest.raises(SettingsError, match=f'linear_power = "{tmp_path / name}": can\'t be read: not a regular file'):
        read(tmp_path / CONFIG)
    with pytest.raises(OSError, match="not a regular file"):
        read_text(Path("/dev/zero"), 10, pipe=True)


def test_a_name_of_several_lines_is_refused_on_one(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(WITH_TABLE.replace(TABLE, "a\\n\\u001bb"))
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / CONFIG)
    assert refused.value.problems == (
        f'cosmology.linear_power = "{tmp_path}/a??b": no such file; give a path relative to the TOML file, '
        "or a name: boltzmann, eisenstein-hu",
    )


def test_large_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / TABLE).open("wb") as table:
        table.truncate(70_000_000)
    (tmp_path / CONFIG).write_text(WITH_TABLE)
    with pytest.raises(SettingsError, match="larger than 64 MB"):
        read(tmp_path / CONFIG)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("".join(f"[s{i}]\n" for i in range(9000)), "and 8982 more problems"),
        ("[noise]\n" + "".join(f"k{i} = 1\n" for i in range(1900)), "and 1882 more problems"),
        ("#" * 200_000, "larger than 0.1 MB"),
    ],
)
def test_huge_configs_are_few_lines(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / CONFIG)
    assert refused.value.problems[-1].endswith(problem)
    assert len(refused.value.problems) <= 21


def test_a_power_that_moves_particles_too_far_says_so(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(WITH_TABLE)
    (tmp_path / TABLE).write_text("".join(f"{k} 1e30\n" for k in np.geomspace(1e-3, 10, 50)))
    with pytest.raises(SettingsError, match=r"moves particles by .* is P in \(Mpc/h\)\^3, k in h/Mpc\?$"):
        build(read(tmp_path / CONFIG))
