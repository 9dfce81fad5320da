"""The plan of a run and its folder."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from runs import make, read, resumed

from pmwd_dist import _files
from pmwd_dist._files import atomic_write
from pmwd_dist.run.common import fingerprint, folder, manifest, report
from pmwd_dist.run.common.folder import LOCK, Event, Log, StartError, hold_folder, prepare_folder, state, status_of
from pmwd_dist.run.common.report import write_report
from pmwd_dist.run.settings.simulation_sections import Noise
from pmwd_dist.run.simulation.job import SimulationJob


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> SimulationJob:
    """A plan; tests take it to folders of their own."""
    return make(tmp_path_factory.mktemp("plan") / "run")


@pytest.fixture
def run(plan: SimulationJob, tmp_path: Path) -> SimulationJob:
    """The plan, with a folder that is ready."""
    plan = replace(plan, folder=tmp_path / "run")
    prepare_folder(plan)
    return plan


def test_processes_with_other_flags_or_equinox_are_warned_of(plan: SimulationJob, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--ours")
    monkeypatch.setattr(fingerprint, "exchange", lambda text: [text] * 3)
    assert fingerprint.compare_processes(plan) == []
    others = ("--ours", "--theirs"), (f'equinox": "{version("equinox")}', 'equinox": "0.1')
    monkeypatch.setattr(fingerprint, "exchange", lambda text: [text, text, *(text.replace(*x) for x in others)])
    assert fingerprint.compare_processes(plan) == [
        'warning: XLA_FLAGS is "--theirs" in process 2, and "--ours" in process 0',
        f'warning: the version of equinox is "0.1" in process 3, and "{version("equinox")}" in process 0',
    ]


def test_processes_with_other_options_of_jax_are_refused(plan: SimulationJob, monkeypatch: pytest.MonkeyPatch):
    name = "the option jax_use_shardy_partitioner"
    other = f'{name}": "True', f'{name}": "False'
    monkeypatch.setattr(fingerprint, "exchange", lambda text: [text, text.replace(*other)])
    with pytest.raises(ValueError, match=f'^{name} is "False" in process 1, and "True" in process 0; start all proc'):
        fingerprint.compare_processes(plan)


def test_arrays_of_outputs_are_compared_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sent = list[str]()
    monkeypatch.setattr(fingerprint, "exchange", lambda text: sent.append(text) or sent)
    for i, share in enumerate((1.0, 0.5)):
        np.save(tmp_path / "mask.npy", np.full((8, 8, 8), share))
        plan = make(tmp_path / f"run{i}", "observe.galaxies.number_density=0.01", "observe.galaxies.mask='mask.npy'")
        plan = replace(plan, folder=tmp_path)
        if i == 0:
            assert fingerprint.compare_processes(plan) == []
    with pytest.raises(ValueError, match=r"^observe.galaxies.mask is \"sha256:\w+\" in process 1, and \"sha256:"):
        fingerprint.compare_processes(plan)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} - {LOCK}


FOREIGN = (
    "mine.txt",
    "power_z5.000.csv",
    "density_z2.000.png",
    "snapshot_z0.hdf5",
    "checkpoint_000001/data.bin",
    "checkpoint_000001/0.npz",
    "checkpoint_best/weights",
    ".notes.part",
)


def put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text("mine")


def test_a_file_is_flushed_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And an error of that ends the write: the system tells it once."""
    flushed = threading.Event()

    def sync(path: Path) -> None:
        if not flushed.is_set():
            flushed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def write() -> None:
        with atomic_write(tmp_path / "file") as aside:
            aside.write_bytes(b"part")
            assert flushed.wait(60)

    monkeypatch.setattr(_files, "sync", sync)
    with pytest.raises(OSError, match="Input/output error"):
        write()
    assert not any(tmp_path.iterdir())
    (folder := tmp_path / "file").touch()  # an error of the temporary file has the name of the final one
    with pytest.raises(NotADirectoryError, match=r"/file/power.csv'"), atomic_write(folder / "power.csv"):
        pass


def test_overwrite_removes_what_the_manifest_names(run: SimulationJob):
    folder = run.folder
    put(folder, *FOREIGN)
    made = ("power_z3.000.csv", "snapshot_z3.000.1.hdf5", "checkpoint_000002/1.npz", "checkpoint_000002/0.npz")
    manifest.claim(folder, ["power_z3.000.csv", "snapshot_z3.000.1.hdf5", "checkpoint_000002"])
    put(folder, *made, ".checkpoint_000002.part/0.npz", ".power_z3.000.csv.part")
    with pytest.raises(ValueError, match="not empty"):
        prepare_folder(run)
    prepare_folder(run, overwrite=True)
    folders = {"checkpoint_000001", "checkpoint_best"}
    assert names(folder) == {*FOREIGN, *folders, "manifest.json", "config.toml"}
    assert {(folder / path).read_text() for path in FOREIGN} == {"mine"}


def test_files_that_a_run_needs_are_not_overwritten(run: SimulationJob):
    put(run.folder, "noise.npy")
    noise = run.settings.noise.model_copy(update={"file": str(run.folder / "noise.npy")})
    needy = replace(run, settings=run.settings.model_copy(update={"noise": noise}))
    prepare_folder(needy, overwrite=True)  # somebody's own file, which stays
    manifest.claim(run.folder, [])
    path = run.folder / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"files": [*content["files"], "noise.npy"]}))
    with pytest.raises(
        ValueError, match=r"noise.file: names a file of .*, which --overwrite would remove; use another"
    ):
        prepare_folder(needy, overwrite=True)
    assert (run.folder / "noise.npy").exists()


def test_a_folder_that_is_not_a_run_s_is_not_touched(run: SimulationJob, tmp_path: Path):
    foreign = replace(run, folder=tmp_path / "foreign")
    put(foreign.folder, *FOREIGN, "config.toml", "run.json")
    before = names(foreign.folder)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="not the folder of a run"):
            prepare_folder(foreign, overwrite=overwrite)
    assert names(foreign.folder) == before
    assert (foreign.folder / "config.toml").read_text() == "mine"


def test_a_manifest_can_not_name_other_files(run: SimulationJob, tmp_path: Path):
    put(tmp_path, "outside.csv", "run/checkpoint_000007/thesis.tex")
    (run.folder / "power_z1.000.csv").symlink_to(tmp_path / "outside.csv")
    path = run.folder / "manifest.json"
    content = json.loads(path.read_text())
    content["files"] += ["checkpoint_000007", "power_z1.000.csv"]
    path.write_text(json.dumps(content))
    prepare_folder(run, overwrite=True)
    assert (tmp_path / "outside.csv").exists()
    assert (run.folder / "checkpoint_000007" / "thesis.tex").exists()
    assert not (run.folder / "power_z1.000.csv").is_symlink()
    put(tmp_path, ".run.part")
    names = [["../outside.csv"], [""], [".."], ["a/"], ["a\0"], [5], "config.toml", {"config.toml": 1}]
    for damaged in ("[" * 5000, *(json.dumps(content | {"files": files}) for files in names)):
        path.write_text(damaged)
        with pytest.raises(ValueError, match="damaged"):
            prepare_folder(run, overwrite=True)
    assert (tmp_path / "outside.csv").exists()
    assert (tmp_path / ".run.part").exists()


def test_files_that_never_end_are_not_read(run: SimulationJob, tmp_path: Path):
    put(tmp_path, "mine")
    kinds: dict[str, Callable[[Path], Any]] = {
        "not a regular file": os.mkfifo,
        "larger than 64 MB": lambda path: (path.touch(), os.truncate(path, 70_000_000)),
        "is a link": lambda path: path.symlink_to("/dev/zero"),
        "is a hard link": lambda path: path.hardlink_to(tmp_path / "mine"),
    }
    for message, make_it in kinds.items():
        for ours in ("manifest.json", "run.json"):
            (run.folder / ours).unlink(missing_ok=True)
            make_it(run.folder / ours)
        assert status_of(run.folder) == "unknown"
        with pytest.raises(ValueError, match=f"manifest.json: {message}.*; start a new run in another folder"):
            state(run.folder)


def test_a_foreign_file_in_the_way_of_an_output_stays(run: SimulationJob):
    put(run.folder, "power_z1.000.csv")
    with pytest.raises(OSError, match="in the way"):
        prepare_folder(run, overwrite=True)
    with pytest.raises(OSError, match="in the way"):
        manifest.claim(run.folder, ["power_z1.000.csv"])
    assert (run.folder / "power_z1.000.csv").read_text() == "mine"


HOLD = """
import runpy, sys, time
from pathlib import Path
with runpy.run_path(sys.argv[1])["folder_lock"](Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_run_a_folder(run: SimulationJob):
    """The lock of another process names it, and ends with it, also by SIGKILL."""
    command = [sys.executable, "-c", HOLD, folder.__file__, run.folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        in_use = f"process {other.pid} on {socket.gethostname()} runs in this folder"
        with pytest.raises(ValueError, match=in_use):
            prepare_folder(run, overwrite=True)
        with pytest.raises(StartError, match=in_use), hold_folder(run):
            pass
        other.kill()
    with hold_folder(run), pytest.raises(StartError, match=f"process {os.getpid()} "), hold_folder(run):
        pass
    assert names(run.folder) == {"manifest.json", "config.toml"}


def fail(*_: object, number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(run: SimulationJob, monkeypatch: pytest.MonkeyPatch, number: int):
    monkeypatch.setattr(fcntl, "flock", partial(fail, number=number))
    with hold_folder(run):
        pass
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    with pytest.raises(OSError, match="unset HDF5_USE_FILE_LOCKING") as caught, hold_folder(run):
        pass
    assert caught.value.filename == str(run.folder / LOCK)


@pytest.mark.parametrize(
    ("module", "function", "number"),
    [
        (fcntl, "flock", 524),
        (fcntl, "flock", errno.EREMOTEIO),
        (fcntl, "flock", errno.EINVAL),
        (fcntl, "flock", errno.EPERM),
        (os, "pwrite", errno.ENOSPC),
        (os, "ftruncate", errno.EIO),
    ],
)
def test_a_lock_that_fails_names_its_file(
    run: SimulationJob, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, number: int
):
    monkeypatch.setattr(module, function, partial(fail, number=number))
    remedy = "free space there, or use" if number == errno.ENOSPC else "use"
    words = f"{re.escape(os.strerror(number))}; {remedy} a folder on another file system, one that locks files"
    with pytest.raises(OSError, match=words) as caught, hold_folder(run):
        pass
    assert caught.value.filename == str(run.folder / LOCK)


def test_a_lock_file_of_process_0_names_none(run: SimulationJob):
    """Signals to process 0 go to the sender: it always seems to live."""
    path = run.folder / LOCK
    with hold_folder(run):
        path.write_text("0 host\n")
        with pytest.raises(StartError, match="another process runs in this folder"), hold_folder(run):
            pass
    path.write_text("0 host\n")
    with hold_folder(run):
        assert path.read_text().split()[0] == str(os.getpid())


def test_a_folder_prepared_for_another_run(run: SimulationJob):
    other = replace(run, settings=run.settings.model_copy(update={"noise": Noise(seed=5)}))
    with pytest.raises(StartError, match="noise.seed = 5: this folder's run has 0; set it back"), hold_folder(other):
        pass


def test_table_is_kept_with_the_run(tmp_path: Path):
    k = np.geomspace(1e-3, 10, 50)
    np.savetxt(tmp_path / "p.txt", np.stack([k, 1e4 * k], -1))
    plan = make(tmp_path / "run", "cosmology.linear_power=p.txt")
    (tmp_path / "p.txt").unlink()
    again = resumed(plan.folder)
    assert again.simulation.table is not None
    np.testing.assert_allclose(again.simulation.table[0], k)
    prepare_folder(SimulationJob.of(read(plan.folder / "config.toml"), plan.folder), overwrite=True)
    assert resumed(plan.folder).simulation.table is not None


def test_output_at_the_start_and_more_outputs_than_steps(tmp_path: Path):
    plan = make(tmp_path / "run", "output.redshifts=[9, 4, 2, 1, 0.5, 0]", "time.steps=2", "output.snapshot=none")
    assert plan.steps == 5
    assert sorted(plan.outputs) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose([plan.outputs[i] for i in range(6)], [9, 4, 2, 1, 0.5, 0], atol=1e-12)


def test_a_finished_run_does_not_resume(run: SimulationJob):
    manifest.claim(run.folder, ["run.json"])
    (run.folder / "run.json").write_text('{"status": "finished"}')
    with pytest.raises(StartError, match="the run is finished"), hold_folder(run, resume=True):
        pass
    with hold_folder(run):
        pass


def test_overwrite_looks_at_everything_before_it_removes_a_file(run: SimulationJob):
    put(run.folder, "power_z3.000.csv")
    manifest.claim(run.folder, [])
    path = run.folder / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"files": [*content["files"], "power_z3.000.csv"]}))
    content["files"].remove("run.json")
    path.write_text(json.dumps(content | {"files": [*content["files"], "power_z3.000.csv"]}))
    put(run.folder, "run.json")
    with pytest.raises(FileExistsError, match="in the way"):
        prepare_folder(run, overwrite=True)
    assert (run.folder / "power_z3.000.csv").exists()


def test_a_lock_file_that_is_a_link_is_not_emptied(run: SimulationJob, tmp_path: Path):
    put(tmp_path, "mine.txt")
    path = run.folder / LOCK
    for make_it in (lambda: path.hardlink_to(tmp_path / "mine.txt"), lambda: os.mkfifo(path)):
        path.unlink()
        make_it()
        with pytest.raises(OSError, match="is a hard link, .*; put a copy|not a regular file"), hold_folder(run):
            pass
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_report_shows_no_linked_file(run: SimulationJob, tmp_path: Path):
    put(tmp_path, "secret")
    manifest.claim(run.folder, ["power.png", "fit.csv"])
    for name in ("config.toml", "run.json", "log.jsonl", "power.png", "fit.csv"):
        path = run.folder / name
        kept = path.read_bytes() if path.exists() else None
        for link in (path.symlink_to, path.hardlink_to):
            path.unlink(missing_ok=True)
            link(tmp_path / "secret")
            with pytest.raises((OSError, ValueError), match=str(path)):
                write_report(run.folder)
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    assert "report.html" not in names(run.folder)


def test_a_report_of_any_json(run: SimulationJob, monkeypatch: pytest.MonkeyPatch):
    """A file or a line with an entry of another type is left out."""
    pages = list[dict[str, Any]]()
    own = {"status": "finished", "steps": 4, "reasons": [], "lines": ["box         8"], "peak_memory": 1e9}
    own |= {
        "profile": {"seconds": {"steps": 1.5}},
        "settings": {"cosmology": {"h": 0.7}},
        "versions": {"jax": "1"},
        "started": "now",
        "machine": "a",
    }
    line = {"event": "step", "step": 1, "steps": 4, "seconds": 1.5, "share": 0.5, "what": "a", "message": "b"}
    values = [None, True, -1, 10**400, float("inf"), "text", [1], [[]], {"a": 1}, {"cosmology": 3}, {"sampler": [None]}]
    page, log = run.folder / "run.json", run.folder / "log.jsonl"
    monkeypatch.setattr(report, "write_page", lambda *_, **content: pages.append(content))
    for value in values:
        for changed in (value, *({**own, name: value} for name in own)):
            page.write_text(json.dumps(changed))
            write_report(run.folder)
            assert status_of(run.folder) in ("finished", "unknown")
        for changed in (value, *({**line, name: value} for name in line)):
            log.write_text(json.dumps(changed) + "\n" + json.dumps(line | {"event": "tuning"}))
            write_report(run.folder)
    assert {content["verdict"] for content in pages} <= {
        *(f"The run is finished: {steps} steps, 0 outputs." for steps in (-1, 0, 1, 4, 10**400)),
        *(f"The run has not ended {done}." for done in ("before its first step", "50% through its tuning")),
    }
    assert pages[0]["timing"] == []


def test_no_file_is_written_through_a_link(run: SimulationJob, tmp_path: Path):
    """Neither a lock, nor a log, nor what is written aside."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    holder, log = run.folder / LOCK, run.folder / "log.jsonl"
    holder.unlink()
    holder.symlink_to(mine)
    with pytest.raises(OSError, match="symbolic link"), hold_folder(run):
        pass
    holder.unlink()
    logged: list[Event] = []
    for put_aside in (lambda: log.symlink_to(mine), lambda: log.hardlink_to(mine), lambda: os.mkfifo(log)):
        put_aside()
        Log(run.folder, logged.append).warn("text")
        assert [event.text.split(": ")[1] for event in logged] == [str(log), "text"]
        log.unlink()
        logged.clear()
    aside = run.folder / ".power_z1.000.csv.part"
    aside.symlink_to(mine)
    with atomic_write(run.folder / "power_z1.000.csv") as file:
        file.write_text("ours")
    assert mine.read_text() == "mine"
    assert (run.folder / "power_z1.000.csv").read_text() == "ours"
    with pytest.raises(IsADirectoryError) as error, atomic_write(run.folder) as file:
        file.write_text("ours")
    assert _files.message(error.value) == f"{run.folder}: Is a directory"


def test_a_long_stage_is_named_while_it_lasts(run: SimulationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_SILENCE", 0.01)
    monkeypatch.setattr(folder, "MINUTE", 0.01)
    named, lasts = threading.Event(), threading.Event()
    told = {"maps ...": named, "maps: still running after 0 s": lasts}
    log = Log(run.folder, lambda event: told[event.text].set())
    with log.naming("maps"):
        assert named.wait(60) and lasts.wait(60)
    assert log.last == "maps ..."
    monkeypatch.setattr(folder, "_SILENCE", 60)
    logged: list[Event] = []
    with Log(run.folder, logged.append).naming("short"):
        pass
    assert logged == []


@pytest.mark.parametrize("answer", [(0, 0, 0), OSError(38, "Function not implemented")])
def test_a_file_system_that_does_not_tell_its_space_is_not_full(
    answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files.shutil, "disk_usage", Mock(side_effect=[answer]))
    assert _files.free_space(tmp_path / "new") == math.inf
