"""Simulations of a table: their bits, their summary, what is taken up again, and refusals."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from runs import SMALL, Events, assert_same, command, environment, make

from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report.tables import Table, read_table
from pmwd_dist.run import ensemble
from pmwd_dist.run.common.control import StopRequest
from pmwd_dist.run.common.folder import Event, StartError, folder_lock, status_of
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.ensemble import Ensemble, _Worker, is_ensemble, prepare_ensemble, run_ensemble
from pmwd_dist.run.settings import SettingsError
from pmwd_dist.run.settings.columns import read_settings_table
from pmwd_dist.run.simulation.job import SimulationJob

ROWS = (("1", "0.3"), ("2.0", ".25"), ("3", "0.35"))
TABLE = "# noise.seed, cosmology.omega_m\n" + "".join(f"{seed}, {omega_m}\n" for seed, omega_m in ROWS)


@pytest.fixture
def files(tmp_path: Path) -> list[Path | str]:
    """The command of an ensemble of three rows, whose last word is its folder."""
    (tmp_path / "base.toml").write_text(SMALL)
    (tmp_path / "rows.csv").write_text(TABLE)
    return ["ensemble", tmp_path / "base.toml", tmp_path / "rows.csv", "--output", tmp_path / "out"]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the second row by itself."""
    job = make(
        tmp_path_factory.mktemp("single") / "run", "noise.seed=2", "cosmology.omega_m=0.25", "output.figures=false"
    )
    execute(job, Events())
    return job.folder


def summary(folder: Path) -> h5py.File:
    return h5py.File(folder / "summary.h5")


def texts(folder: Path, name: str) -> list[str]:
    with summary(folder) as file:
        return [text.decode() for text in file[name]]


def test_rows_are_runs_of_their_own_with_one_compilation(files: list[Path | str], single: Path, monkeypatch, capsys):
    folder = Path(files[-1])
    assert command(*files) == 0
    for i in (1, 2):
        assert json.loads((folder / f"rows/0000{i}/run.json").read_text())["profile"]["programs"] == 0
    assert_same(folder / "rows/00001", single)
    with summary(folder) as file:
        assert file["parameters/noise.seed"][:].tolist() == [1, 2, 3]
        assert file["parameters/cosmology.omega_m"][:].tolist() == [0.3, 0.25, 0.35]
        for label in ("z1.000", "z0.000"):
            for i in range(3):
                table = read_table(folder / f"rows/0000{i}/power_{label}.csv")
                np.testing.assert_array_equal(file[f"power_{label}/power"][i], table["power"])
        assert file["power_z0.000/power"].attrs["unit"] == "(Mpc/h)^3"
    assert texts(folder, "status") == ["finished"] * 3
    logs = [(folder / f"rows/0000{i}/log.jsonl").read_text() for i in range(3)]
    assert command(*files) == 0  # nothing is left to do
    assert [(folder / f"rows/0000{i}/log.jsonl").read_text() for i in range(3)] == logs
    monkeypatch.setattr(ensemble, "folder_lock", Mock(side_effect=OSError(errno.EROFS, "Read-only file system", "x")))
    capsys.readouterr()
    assert command("resume", folder) == 0
    assert "3 rows, 3 finished; the file system is read-only" in capsys.readouterr().out
    (folder / "summary.h5").unlink()
    assert command("resume", folder) == 1


def test_failed_rows_have_a_reason_and_are_tried_again(files: list[Path | str], single: Path, monkeypatch, capsys):
    folder, work = Path(files[-1]), SimulationJob.work

    def fail(job: SimulationJob, *arguments: object) -> None:
        if job.simulation.seed == 2:
            raise RuntimeError("RESOURCE_EXHAUSTED: out\nof memory")
        work(job, *arguments)

    monkeypatch.setattr(SimulationJob, "work", fail)
    reason = "RESOURCE_EXHAUSTED: out of memory"
    for _ in range(2):
        assert command(*files) == 1
        out, err = capsys.readouterr()
        assert err == f"pmwd-dist: the run failed: {folder}/summary.h5: 3 rows, 2 finished, 1 failed; row 1: {reason}\n"
    assert not out  # the second time nothing is done
    assert texts(folder, "status") == ["finished", "failed", "finished"]
    assert texts(folder, "reason") == ["", reason, ""]
    with summary(folder) as file:
        assert np.isnan(file["power_z0.000/power"]).all(axis=1).tolist() == [False, True, False]
    monkeypatch.setattr(SimulationJob, "work", work)
    assert command("resume", folder) == 0
    assert_same(folder / "rows/00001", single)
    assert texts(folder, "status") == ["finished"] * 3

    (folder / "rows/00001/power_z0.000.csv").unlink()
    (folder / "rows/00002/power_z0.000.csv").write_text("garbage\n")
    assert command("report", folder) == 1
    assert texts(folder, "status") == ["finished", "damaged", "damaged"]
    _, lost, garbage = texts(folder, "reason")
    row = folder / "rows/00001"
    assert lost == f"{row}/power_z0.000.csv: No such file or directory; remove {row} and resume to run it again"
    assert "rows/00002/power_z0.000.csv: not a table of this program (it has no rows); remove" in garbage
    with summary(folder) as file:
        assert np.isnan(file["power_z0.000/power"]).all(axis=1).tolist() == [False, True, True]
    shutil.rmtree(row)
    assert command("doctor", folder) == 0
    out, err = capsys.readouterr()
    assert f"summary.h5: 3 rows, 2 damaged, 1 finished; row 1: {lost}\n" in err
    assert f"{folder}: 3 rows, 2 finished, 1 missing\n" in out
    shutil.rmtree(folder / "rows/00002")
    shutil.copytree(folder / "rows/00000", folder / "rows/00002")
    assert command("resume", folder) == 1
    assert texts(folder, "status") == ["finished", "finished", "damaged"]
    assert "rows/00002: is the run of another row, with cosmology.omega_m = 0.3; remove" in texts(folder, "reason")[2]
    shutil.rmtree(folder / "rows")
    assert command("resume", folder) == 0


def test_programs_share_rows_and_take_up_what_others_leave(files: list[Path | str], single: Path, monkeypatch, capsys):
    folder, warn = Path(files[-1]), _Worker._show_warning

    def stop(worker: _Worker, event: Event) -> None:
        warn(worker, event)
        if event.name == "step" and event.fields["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(_Worker, "_show_warning", stop)
    assert command(*files) == 143
    assert capsys.readouterr().err == f"pmwd-dist: interrupted; go on with `pmwd-dist resume {folder}`\n"
    monkeypatch.setattr(_Worker, "_show_warning", warn)
    assert [status_of(folder / f"rows/0000{i}") for i in range(3)] == ["interrupted", "unknown", "unknown"]
    with folder_lock(folder / "rows", ".00001.lock"):
        again = ("resume", folder, "--set", "output.checkpoint_every=3")
        assert command(*again, "--time-limit", "0.001s") == 0
        assert f"interrupted; go on with `pmwd-dist {' '.join(map(str, again))}`" in capsys.readouterr().out
        assert [status_of(folder / f"rows/0000{i}") for i in range(3)] == ["interrupted", "unknown", "unknown"]
        assert command(*files) == 0
        assert "other programs work on 1 rows, and write summary.h5" in capsys.readouterr().out
    assert [status_of(folder / f"rows/0000{i}") for i in range(3)] == ["finished", "unknown", "finished"]
    assert command("report", folder) == 0
    assert texts(folder, "status") == ["finished", "missing", "finished"]
    assert command("resume", folder) == 0
    assert_same(folder / "rows/00001", single)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the work of rows by that of an instant, and return the seeds of the rows as they are worked on."""
    seeds = list[int]()

    def end(job: SimulationJob, *_: object, **__: object) -> None:
        seeds.append(job.simulation.seed)
        settings = job.settings.model_dump(mode="json", exclude_none=True)
        (job.folder / "run.json").write_text(json.dumps({"status": "finished", "settings": settings}))

    monkeypatch.setattr(ensemble, "execute", end)
    monkeypatch.setattr(SimulationJob, "check", lambda _: [])
    monkeypatch.setattr(SimulationJob, "stages", {})
    return seeds


def test_rows_that_cannot_begin_have_failed(files: list[Path | str], at_once: list[int], monkeypatch, capsys):
    folder = Path(files[-1])
    (folder / "rows/00000").mkdir(parents=True)
    (folder / "rows/00000/stray").touch()

    def check(job: SimulationJob) -> list[str]:
        if job.simulation.seed == 2:
            raise SettingsError(["box.mesh: too large"])
        return ["warning: first", "warning: second"]

    with monkeypatch.context() as other:
        other.setattr(SimulationJob, "check", check)
        assert command(*files) == 1
    out, err = capsys.readouterr()
    assert "3 rows, 2 failed, 1 finished; row 0: " in err
    assert out.index("first") < out.index("second")
    stray = f"{folder}/rows/00000: not empty, and not the folder of a run; empty it, or choose another --output"
    assert texts(folder, "reason") == [stray, "box.mesh: too large", ""]
    (folder / "rows/00000/stray").unlink()
    assert command("resume", folder) == 0
    assert at_once == [3, 1, 2]
    assert texts(folder, "status") == ["finished"] * 3


@pytest.mark.usefixtures("at_once")
def test_rows_keep_the_halo_of_their_run(files: list[Path | str], monkeypatch):
    Path(files[2]).write_text("noise.seed, devices.halo\n1, 2\n2, 2\n")
    folder = Path(files[-1])
    with monkeypatch.context() as other:
        other.setattr(SimulationJob, "check", Mock(side_effect=[[], SimulationError("failed")]))
        assert command(*files) == 1
    assert command("resume", folder, "--set", "devices.halo=auto") == 0
    for _ in range(2):
        assert texts(folder, "parameters/devices.halo") == ["2", "auto"]
        assert command("report", folder) == 0


def test_runs_that_somebody_resumes_by_themselves_are_left_alone(files: list[Path | str], at_once, monkeypatch, capsys):
    folder, row = Path(files[-1]), Path(files[-1]) / "rows/00001"
    end = ensemble.execute

    def resume_by_hand(job: SimulationJob, *arguments: object, **options: object) -> None:
        if job.folder != row:
            return end(job, *arguments, **options)
        assert stack.enter_context(folder_lock(row)) is None
        raise StartError("process 7 runs in this folder")

    with ExitStack() as stack, monkeypatch.context() as other:
        other.setattr(ensemble, "execute", resume_by_hand)
        assert command(*files) == 0
        assert command(*files) == 0
        assert capsys.readouterr().out.count("other programs work on 1 rows") == 2
    assert [status_of(folder / f"rows/0000{i}") for i in range(3)] == ["finished", "unknown", "finished"]

    def finish_by_hand(job: SimulationJob, *_: object, **__: object) -> None:
        end(job)
        raise StartError("the run is finished; nothing is left to do")

    monkeypatch.setattr(ensemble, "execute", finish_by_hand)
    assert command(*files) == 0
    assert texts(folder, "status") == ["finished"] * 3


def test_programs_that_are_started_together_try_a_failed_row_once(files, at_once: list[int], monkeypatch):
    rows = Ensemble.of_folder(prepared(files))

    def fail(job: SimulationJob, *_: object, **__: object) -> None:
        at_once.append(job.simulation.seed)
        raise SimulationError("failed")

    monkeypatch.setattr(ensemble, "execute", fail)
    for tries in (1, 2):
        workers = [_Worker(rows, Events(), StopRequest(), None, retry=True) for _ in range(3)]
        assert all(worker.work_on(1) for worker in workers)
        assert at_once == [2] * tries


def prepared(files: list[Path | str]) -> Path:
    """The folder of an ensemble on which nobody has worked."""
    rows = Ensemble(read_settings_table(Path(files[1]), Path(files[2])), Path(files[-1]))
    prepare_ensemble(rows)
    return rows.folder


def test_a_folder_is_prepared_after_a_kill_and_beside_another_program(files: list[Path | str], monkeypatch):
    folder = prepared(files)
    (folder / "table.csv").unlink()  # as a kill leaves it
    (folder / ".table.csv.part").touch()
    assert is_ensemble(prepared(files))
    aside, is_new = (folder / "table.csv").rename(folder / "aside"), ensemble._is_new
    monkeypatch.setattr(ensemble, "_is_new", lambda path: is_new(aside.rename(path / "table.csv").parent))
    prepared(files)
    monkeypatch.undo()
    (folder / "table.csv").unlink()
    (folder / "manifest.json").unlink()  # base.toml is somebody's own
    with pytest.raises(ValueError, match="not empty, and not the folder of an ensemble"):
        prepared(files)
    assert not (folder / "manifest.json").exists()


@pytest.mark.slow
def test_a_kill_loses_the_row_in_work_at_most(files: list[Path | str], single: Path):
    start = partial(subprocess.Popen, [sys.executable, "-m", "pmwd_dist", *map(str, files)], env=environment())
    folder = Path(files[-1])
    with start() as killed, start() as other:
        while not (folder / "rows/00000/log.jsonl").exists():
            assert killed.poll() is None
            assert other.poll() is None
        killed.kill()
        assert other.wait() == 0
    assert texts(folder, "status") == ["finished"] * 3
    assert_same(folder / "rows/00001", single)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "rows.csv: holds no table; its first line must have keys, such as noise.seed"),
        ("noise.seed\n", "rows.csv: has no rows below its columns"),
        ("noise.sed\n1\n", "rows.csv: column noise.sed: no key of a simulation; did you mean noise.seed?"),
        ("noise.seed;time.steps\n1;2\n", "column noise.seed;time.steps: is several; separate columns by commas"),
        ("noise.fixed\nTrue\nyes\n", 'rows.csv, row 1 (line 3): noise.fixed = "yes": must be true or false'),
        ("seed\n1\n", "rows.csv: column seed: no key of a simulation; `pmwd-dist template` lists all"),
        ("noise.seed,noise.seed\n1,2\n", "rows.csv: column noise.seed: there are 2 of this name"),
        ("output.figures\ntrue\n", "rows.csv: column output.figures: rows draw no figures"),
        ("noise.seed\n1\n\n2,3\n", "rows.csv: row 1 (line 4): has 2 cells, not 1; write lists in quotes"),
        ("noise.seed,time.steps\n1,\n", "rows.csv: row 0 (line 2): time.steps is empty; write a value"),
        ("noise.seed\n1\n-2\n", "rows.csv, row 1 (line 3): noise.seed = -2: must be 0 or more"),
        ("noise.seed\n1\n1.5\n", "rows.csv, row 1 (line 3): noise.seed = 1.5: must be a whole number"),
        ("time.steps\n2\nmany\n", 'rows.csv, row 1 (line 3): time.steps = "many": must be a whole number'),
        ("box.size\n64\n[1\n", "rows.csv, row 1 (line 3): box.size=[1: not valid TOML"),
        ('devices.pdims\n"[1,1]"\n"[8,1]"\n', "row 1: devices.pdims = [8, 1]: needs 8 devices, and there are 4"),
        ("box.size\n100\n", "--set box.size=3: is a column of"),
        ("noise.seed\n1\n", "base.toml: has the sections of an inference; rows are simulations"),
    ],
)  # fmt: skip
def test_bad_tables_are_one_line_before_any_work(files: list[Path | str], table: str, message: str, capsys):
    Path(files[2]).write_text(table)
    if "sections" in message:
        Path(files[1]).write_text("[model]\n[data]\n[likelihood]\n")
    override = ("--set", "box.size=3") if "a column of" in message else ()
    assert command(*files, *override) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(Path(files[-1]).glob("rows/0*"))


def test_another_table_does_not_join(files: list[Path | str], monkeypatch, capsys):
    monkeypatch.setattr("pmwd_dist.cli.commands.run_ensemble", lambda *_, **__: [])
    assert command(*files) == 0
    assert command("resume", files[-1], "--set", "box.size=9") == 2
    with monkeypatch.context() as other:
        other.setattr("pmwd_dist.run.common.fingerprint._precision", lambda: "float16")
        with pytest.raises(StartError, match='precision = "float16": this ensemble has "float64"'):
            run_ensemble(Ensemble.of_folder(Path(files[-1])), Events())
    assert command("run", files[1], "--output", files[-1], "--overwrite") == 2
    table = Path(files[-1]) / "table.csv"
    table.write_text(table.read_text().replace("0.35", "0.36"))  # of a row that may be finished
    assert [command(name, files[-1]) for name in ("resume", "report", "doctor")] == [2, 2, 2]
    table.write_text(table.read_text().replace("0.36", "0.35"))
    Path(files[2]).write_text(TABLE.replace("0.35", "0.36"))
    assert command(*files) == 2
    assert command(*files[:-1], Path(files[-1]).parent) == 2
    first, run, *changed, second, third = capsys.readouterr().err.splitlines()
    assert "resume keeps this setting" in first
    assert "out: the folder of an ensemble; choose another --output" in run
    assert (
        changed == [f"pmwd-dist: {files[-1]}: base.toml or table.csv has changed since its rows began; set it back"] * 3
    )
    assert "has other rows or settings; choose another --output" in second
    assert "not empty, and not the folder of an ensemble" in third


def test_columns_with_a_slash_are_data_sets_of_their_table(files: list[Path | str]):
    rows = Ensemble.of_folder(prepared(files))
    path, tables = rows.folder / "summary.h5", {0: {"halos_z0.000.csv": Table("", {"dn/dlnM": np.arange(2.0)}, {})}}
    ensemble._write(path, rows, [("finished", "")] * 3, tables)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["halos_z0.000/dn_dlnM"], [[0, 1], [np.nan] * 2, [np.nan] * 2])
