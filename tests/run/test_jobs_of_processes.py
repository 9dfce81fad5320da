"""Whole jobs of processes that round differently, disagree, fail or are killed, many under one mpirun."""

from __future__ import annotations

import json
import math
import re
import subprocess
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from inferences import SMALL
from processes import mpirun
from runs import Events, linear_power, read

import pmwd_dist as pmd
from pmwd_dist.infer import load_chain
from pmwd_dist.io.snapshot.header import snapshot_files
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.folder import prepare_folder, status_of
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.inference import verdict
from pmwd_dist.run.inference.job import InferenceJob
from pmwd_dist.run.settings import InferenceSettings, read_as
from pmwd_dist.run.simulation.job import SimulationJob

PLAIN = """
[cosmology]
linear_power = "p.txt"
[box]
size = 64
mesh = 16
[time]
steps = 3
lpt_order = 1
[output]
redshifts = [1, 0]
slice_thickness = 0
"""
SETTINGS = f"""{PLAIN}
[observe.multipoles]
[observe.bispectrum]
shells = 2
[observe.galaxies]
b1 = 0.5
smoothing = 8.0
number_density = 0.01
light_cone = true
n_z = [[0.0, 0.05], [0.012, 0.05]]
redshift_bins = [0.004, 0.012]
observer = [0.0, 0.0, 0.0]
[observe.fields]
quantities = ["momentum", "velocity"]
mesh = [12, 8, 10]
[observe.light_cone]
edges = [10.0, 30.0, 50.0]
sources = [0.01]
shift = false
"""
SPHERE = """
[observe.light_cone]
sky = "sphere"
nside = 4
edges = [10.0, 30.0]
"""
BEGIN = """
import gc, json, os, signal, sys
gc.set_threshold(100_000, 20, 20)
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
import jax
import pmwd_dist.cli
import pmwd_dist as pmd
from jax_cosmo import Planck15
from pmwd_dist.parallel import distributed
from pmwd_dist.report import drawing
from pmwd_dist.run.common import fingerprint
from pmwd_dist.run.common.control import StopRequest
from pmwd_dist.run.inference import verdict
verdict.save = lambda figure, path: path.touch()
drawing.draw, drawing.write = lambda figures: None, lambda path, read: path.touch()
leave, distributed.leave = distributed.leave, sys.exit
received = StopRequest.received

def command(name, *arguments):
    try:
        pmwd_dist.cli.main([name, *arguments])
    except SystemExit as ended:
        return ended.code

def before_step(number, faulty, action):
    count = iter(range(number + 1))

    def stopped(stop):
        if next(count, None) == number and rank == faulty:
            action()
        return received(stop)

    StopRequest.received = stopped

def finish(codes):
    if rank == 0:
        print("codes", json.dumps(codes), flush=True)
    distributed.leave = leave
"""

SCRIPT = """
import time
from pmwd_dist.io.snapshot.writer import Snapshot
swift = "output.snapshot='swift'"
rename, write = os.replace, Snapshot.write

def late(old, new):
    time.sleep(0.3 * str(new).endswith("1.npz"))  # the checkpoint must wait for the part of process 1
    rename(old, new)

def full(snapshot, path, chunks):
    if rank == 1:
        time.sleep(1)  # steps go on until then
        raise OSError(28, "No space left on device", str(path))
    write(snapshot, path, chunks)

os.replace = late
codes = {"run": command("run", "small.toml"), "again": command("run", "small.toml")}
before_step(1, 1, lambda: signal.raise_signal(signal.SIGUSR1))
codes |= {
    "signal": command("run", "sphere.toml", "--output", "resumed", "--set", swift),
    "resume": command("resume", "resumed"),
    "gadget": command("power", "small/snapshot_z0.000.hdf5", "--output", "gadget.csv"),
    "swift": command("power", "resumed/snapshot_z0.000.1.hdf5", "--output", "swift.csv"),
}
folder = os.getcwd()
for verb, own in {"power": "resumed", "halos": "."}.items():
    os.chdir(["small", own][rank])
    codes[verb] = command(verb, "snapshot_z0.000.0.hdf5")
    os.chdir(folder)
config = pmd.Config(box_size=64.0, mesh_shape=16)
particles = pmd.load_snapshot("small/snapshot_z0.000.0.hdf5", config)[0]
pmd.save_snapshot("loaded.hdf5", particles, Planck15(), config, a=1.0)
pmd.load_snapshot("loaded.0.hdf5", config)
for name, option in {
    "seed": f"noise.seed={rank}",
    "mesh": f"box.mesh={8 + 8 * rank}",
    "checkpoints": f"output.checkpoint_every={rank}",
    "typing": ["time.steps=2", "time.stepps=2"][rank],
}.items():
    codes[name] = command("run", "small.toml", "--output", name, "--set", option)
codes["rows"] = command("ensemble", "sphere.toml", f"rows{rank}.csv", "--output", "rows")
codes["folder"] = command("run", "small.toml", "--output", f"folder{rank}")
codes["missing"] = command("run", ["small.toml", "none.toml"][rank])
codes["verb"] = command(["run", "check"][rank], "small.toml")
installed = fingerprint.version
fingerprint.version = lambda name: "0" if (name, rank) == ("jaxlib", 1) else installed(name)
codes["version"] = command("run", "small.toml", "--output", "version")
fingerprint.version = installed
codes["report"] = command("report", "small")
codes["doctor"] = command("doctor", "small")
Snapshot.write = full
codes["full"] = command("run", "small.toml", "--output", "full")
Snapshot.write = write
codes["refilled"] = command("resume", "full")
finish(codes)
before_step(2, 1, lambda: signal.raise_signal(signal.SIGKILL))
command("run", "sphere.toml", "--output", "killed", "--set", "output.checkpoint_every=1")
"""

# Process 0 has flags of its own for XLA and rounds differently, as processes have kernels of their own on GPUs.
DIFFERENT = """
import os
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1"
"""

INFERENCES = """
slabs, mask = ("--set", "devices.pdims=[2, 1]"), ("--set", "data.mask=mask.npy")
codes = {
    "chains": command("infer", "small.toml", "--output", "chains", "--set", "sampler.chain_devices=1", *mask),
    "resumed": command("resume", "begun_on_one", *slabs),
    "limited": command("infer", "small.toml", "--output", "begun_on_two", "--time-limit", "1s", *slabs, *mask),
}
finish(codes)
before_step(1, 1, lambda: {}["a fault"])
command("infer", "small.toml", "--output", "faulty", *slabs, *mask)
"""

PENCILS = """
import time
pencils = ("--set", "devices.pdims=[2, 2]")
codes = {
    "resumed": command("resume", "begun_on_one", *pencils),
    "ensemble": command("ensemble", "plain.toml", "rows.csv", *pencils, "--time-limit", "0.001s"),
    "rest": command("resume", "rows"),
}
finish(codes)

def end_all():
    os.kill(os.getppid(), signal.SIGTERM)  # as a batch system does, to mpirun
    time.sleep(60)

before_step(2, 1, end_all)
command("run", "plain.toml", "--output", "ended", "--set", "output.checkpoint_every=1", *pencils)
"""


def codes_of(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Exit codes of the commands of a script; its terminal holds lines of the program and mpirun only."""
    assert "codes" in done.stdout, done.stderr
    ours = re.sub(r"^-{70,}\n(.*\n)*?-{70,}\n", "", done.stderr.replace("\0", ""), flags=re.MULTILINE)
    assert all(line.startswith("pmwd-dist: ") for line in ours.splitlines()), done.stderr
    assert "Gloo" not in done.stdout
    return json.loads(done.stdout.split("codes ")[1].splitlines()[0])


def tables(folder: Path) -> dict[str, Any]:
    """All numbers of the tables and maps in a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.csv")):
        found[path.name] = np.genfromtxt(path, delimiter=",", skip_header=1)
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as content:
            found |= {f"{path.name}:{name}": content[name] for name in content.files}
    for path in sorted({*folder.glob("[cflg]*.hdf5")} - {*folder.glob("*.[0-9].hdf5")}):  # without parts
        with h5py.File(path) as file:
            names = list[str]()
            file.visit(names.append)
            found |= {f"{path.name}:{name}": x[()] for name in names if isinstance(x := file[name], h5py.Dataset)}
    return found


def compare(folder: Path, alone: Path) -> None:
    """Assert that two folders have the same tables, maps and particles."""
    both, expected = tables(folder), tables(alone)
    assert both.keys() == expected.keys()
    for name, values in both.items():
        scale = np.nanmax(np.abs(expected[name]), initial=0) if expected[name].dtype.kind == "f" else 0
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6 * scale, err_msg=f"{folder}: {name}")
    config = pmd.Config(box_size=64.0, mesh_shape=16)
    found, values = (pmd.load_snapshot(path / "snapshot_z0.000.hdf5", config)[0].disp for path in (folder, alone))
    np.testing.assert_allclose(np.asarray(found), np.asarray(values), atol=1e-5)


def assert_same_snapshots(one: Path, other: Path) -> None:
    """Assert that the files of two processes have the same bits."""
    for name in (f"snapshot_{label}.{part}.hdf5" for label in ("z1.000", "z0.000") for part in (0, 1)):
        with h5py.File(one / name) as expected, h5py.File(other / name) as found:
            for kind, values in expected["PartType1"].items():
                np.testing.assert_array_equal(found[f"PartType1/{kind}"][:], values[:])


def assert_shown_as_one(path: Path) -> None:
    """Assert that a file shows the particles of both processes, to other readers, too."""
    with (
        h5py.File(path) as whole,
        h5py.File(path.with_suffix(".0.hdf5")) as first,
        h5py.File(path.with_suffix(".1.hdf5")) as second,
    ):
        assert whole["Header"].attrs["NumPart_ThisFile"][1] == len(whole["PartType1/ParticleIDs"]) == 4096
        for kind, values in whole["PartType1"].items():
            parts = [file[f"PartType1/{kind}"][:] for file in (first, second)]
            np.testing.assert_array_equal(values[:], np.concatenate(parts))
        swift = "Units" in whole
    (link := path.parents[1] / f"linked_{swift}.hdf5").symlink_to(path)
    assert len(snapshot_files(link)) == len(snapshot_files(path)) == 2
    with warnings.catch_warnings(action="ignore"):
        if swift:
            data = pytest.importorskip("swiftsimio").load(path).dark_matter.coordinates
        else:
            yt = pytest.importorskip("yt")
            yt.set_log_level(50)
            data = yt.load(path).all_data()["PartType1", "Coordinates"]
    assert data.shape == (4096, 3)


def alone(folder: Path, file: Path, *, resume: bool = False, time_limit: float | None = None) -> Path:
    """Run or resume a simulation in this process, on one device, whose programs are compiled once for all tests."""
    plan = SimulationJob.of(read(file, ["devices.pdims=[1, 1]"]), folder)
    if not resume:
        prepare_folder(plan)
    execute(plan, Events(), resume=resume, time_limit=time_limit)
    return folder


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_processes(tmp_path: Path, no_figures: None):
    """Runs agree with one process, also where it resumes them; all processes end if one fails or is killed."""
    linear_power(tmp_path / "p.txt")
    (tmp_path / "small.toml").write_text(SETTINGS)
    (tmp_path / "sphere.toml").write_text(PLAIN + SPHERE)
    for rank in (0, 1):
        (tmp_path / f"rows{rank}.csv").write_text(f"noise.seed\n0\n{rank}\n")
    done = mpirun(2, tmp_path, "-c", BEGIN + SCRIPT, limit=300)
    codes = codes_of(done)
    assert {codes.pop(name) for name in ("run", "resume", "gadget", "swift", "doctor", "report", "refilled")} == {0}
    for process in (0, 1):
        line = rf"process {process}   \S+: \S+ \(cpu\); slabs by xla, (native|plain JAX) ops"
        assert any(re.fullmatch(line, text) for text in done.stdout.splitlines()), done.stdout
    assert (codes.pop("signal"), codes.pop("full"), done.returncode) == (138, 1, 137), done.stderr
    assert set(codes.values()) == {2}, codes
    for line in (
        "noise.seed is 1 in process 1, and 0 in process 0; start all processes with the same files, options and",
        "box.mesh is 16 in process 1, and 8 in process 0",
        "output.checkpoint_every is 1 in process 1, and 0 in process 0",
        "process 1: time.stepps",
        'table is "noise.seed\\n0\\n1\\n" in process 1, and "noise.seed\\n0\\n0\\n" in process 0',
        "process 1: none.toml: no such file",
        "process 1 was started with `check`, and process 0 with `run`",
        "snapshot_z0.000.0.hdf5: is another file on process 1 than on process 0; use one that they share",
        "process 1: snapshot_z0.000.0.hdf5: no such snapshot",
        'the version of jaxlib is "0" in process 1, and "',
        "folder1",
        "interrupted after step 1 of 4",
        "small: not empty",
        "the run failed: process 1: full/snapshot_z1.000.1.hdf5: No space left on device",
    ):
        assert done.stderr.count(line) == 1, (line, done.stderr)
    assert not any((tmp_path / name).exists() for name in (*codes, "folder0", "folder1"))
    assert_same_snapshots(tmp_path / "small", tmp_path / "full")
    assert status_of(tmp_path / "killed") in ("running", "failed")
    one = alone(tmp_path / "one", tmp_path / "small.toml")
    spectra = [np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1) for name in ("gadget", "swift")]
    np.testing.assert_allclose(*spectra, rtol=1e-3)
    compare(tmp_path / "small", one)
    compare(tmp_path / "full", one)
    sphere = alone(tmp_path / "sphere", tmp_path / "sphere.toml")
    compare(tmp_path / "resumed", sphere)
    compare(alone(tmp_path / "killed", tmp_path / "killed" / "config.toml", resume=True), sphere)
    for name in ("small", "resumed"):
        assert_shown_as_one(tmp_path / name / "snapshot_z0.000.hdf5")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_pencils_of_processes(tmp_path: Path, no_figures: None):
    """Four processes go on where one began, and one where four were ended through mpirun."""
    linear_power(tmp_path / "p.txt")
    pmd.ForceCorrection(4.0, np.full((9, 5), 0.2)).save(tmp_path / "force.json")
    (tmp_path / "rows.csv").write_text("noise.seed\n0\n1\n")
    (tmp_path / "plain.toml").write_text(f'{PLAIN}\n[force]\ncorrection = "force.json"\n')
    with pytest.raises(Interrupted):
        alone(tmp_path / "begun_on_one", tmp_path / "plain.toml", time_limit=0.01)
    done = mpirun(4, tmp_path, "-c", DIFFERENT + BEGIN + PENCILS, limit=300)
    assert codes_of(done) == {"resumed": 0, "ensemble": 0, "rest": 0}
    assert (done.returncode, done.stdout.count("step 4/4")) == (1, 1)
    assert "rows/summary.h5: 2 rows, 2 finished" in done.stdout
    assert status_of(tmp_path / "ended") == "running"
    one = alone(tmp_path / "one", tmp_path / "plain.toml")
    compare(tmp_path / "begun_on_one", one)
    compare(tmp_path / "rows/rows/00000", one)
    compare(alone(tmp_path / "ended", tmp_path / "ended" / "config.toml", resume=True), one)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_inferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Chains that start over, divided over processes or with divided fields, agree with those of one process."""
    monkeypatch.setattr(verdict, "save", lambda figure, path: path.touch())
    monkeypatch.chdir(tmp_path)
    text = SMALL.replace("pdims = [1, 1]\n", "").replace("2e-4", "1e-12")  # so that the chains start over
    (tmp_path / "small.toml").write_text(text.replace("steps = 36\nchunk = 12", "steps = 96\nchunk = 24"))
    mask = np.ones((4, 4, 4), bool)
    mask[0, 0, :2] = False
    np.save("mask.npy", mask)

    def job(file: str, folder: str, *overrides: str) -> InferenceJob:
        settings = read_as(InferenceSettings, tmp_path / file, ["devices.pdims=[1, 1]", *overrides])
        return InferenceJob.of(settings, tmp_path / folder)

    for folder, limit in {"one": None, "begun_on_one": 0.01}.items():
        plan = job("small.toml", folder, "data.mask=mask.npy")
        prepare_folder(plan)
        with nullcontext() if limit is None else pytest.raises(Interrupted):
            execute(plan, Events(), time_limit=limit)
    done = mpirun(2, tmp_path, "-c", DIFFERENT + BEGIN + INFERENCES, limit=300)
    codes = codes_of(done)
    assert set(codes.values()) == {0}, (codes, done.stderr)
    assert not (tmp_path / "begun_on_two" / "chunk_00000.npz").exists()
    execute(job("begun_on_two/config.toml", "begun_on_two"), Events(), resume=True)
    assert done.returncode == 1
    assert done.stderr.count("process 1: internal error: KeyError: ") == 1
    one, names = load_chain(tmp_path / "one"), {path.name for path in (tmp_path / "one").iterdir()}
    for folder in ("chains", "begun_on_one", "begun_on_two"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == names
        chain = load_chain(tmp_path / folder)
        assert chain.gradients == one.gradients > one.logdensity.size
        for found, expected in (
            (chain.parameters["b1"], one.parameters["b1"]),
            (chain.logdensity, one.logdensity),
            (chain.noise_mean, one.noise_mean),
            (chain.noise_sd, one.noise_sd),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=folder)


# --- programs that would wait for each other forever if queued ---------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "sims" / "field_level.toml"
ONE_CORE = """
import os
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(cores)]})
"""

SHORT = ["sampler.tuning_steps=40", "sampler.steps=12", "sampler.chunk=4", "time.lpt_order=1", "start.begin=prior"]
LINEAR = ["box.mesh=8", "model.gravity=linear", "model.bias=eulerian", "model.line_of_sight=none"]
FOUR_CHAINS = 'finish({"infer": command("infer", *sys.argv[1:], "--output", "run")})'
STOPPED = """
import time
os.environ["PMWD_WATCHDOG"] = "5"
before_step(1, 1, lambda: time.sleep(300))
command("infer", *sys.argv[1:], "--output", "stopped")
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(("pdims", "options"), [((2, 1), ["devices.halo=4"]), ((2, 2), LINEAR)])
def test_four_chains_of_processes_end(tmp_path: Path, pdims: tuple[int, int], options: list[str]) -> None:
    """The field-level example; where one of two processes then stops, the watchdog ends the other."""
    count = math.prod(pdims)
    sets = [x for key in (f"devices.pdims={list(pdims)}", *options, *SHORT) for x in ("--set", key)]
    script = ONE_CORE + BEGIN + FOUR_CHAINS + STOPPED * (count == 2)
    done = mpirun(count, tmp_path, "-c", script, str(EXAMPLE), *sets, limit=600)
    assert 'codes {"infer": 0}' in done.stdout, done.stderr
    assert (tmp_path / "run" / "chunk_00002.npz").exists()
    if count == 2:
        (line,) = (text for text in done.stderr.splitlines() if "no sign of life" in text)
        assert "pmwd-dist resume stopped" in line
        assert done.returncode == 1
