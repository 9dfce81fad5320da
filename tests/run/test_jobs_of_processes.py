"""Whole jobs of two processes that round differently, and of processes that disagree, under one mpirun."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from inferences import SMALL
from runs import Events

from pmwd_dist.infer import load_chain
from pmwd_dist.run.common.folder import prepare_folder
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.common.signals import Interrupted
from pmwd_dist.run.inference import verdict
from pmwd_dist.run.inference.plan import InferenceJob
from pmwd_dist.run.settings import InferenceSettings, read, read_as
from pmwd_dist.run.simulation.plan import SimulationJob

SETTINGS = """
[box]
size = 64
mesh = 16
[time]
steps = 3
[output]
redshifts = [1, 0]
slice_thickness = 0
[observe.multipoles]
[observe.bispectrum]
shells = 3
[observe.galaxies]
number_density = 0.01
[observe.light_cone]
edges = [10.0, 30.0, 50.0]
sources = [0.01]
"""
# Each process has flags of its own for XLA, as processes have kernels of their own on GPUs.
SCRIPT = """
import json, os, sys
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=" + "30"[rank]
import pmwd_dist.cli
import pmwd_dist as pmd
from jax_cosmo import Planck15
from pmwd_dist.report import drawing, results
drawing.draw, results.draw = lambda paths: None, lambda path: path.touch()

def command(name, *arguments):
    try:
        pmwd_dist.cli.main([name, *arguments])
    except SystemExit as ended:
        return ended.code

swift = "output.snapshot='swift'"
codes = {
    "run": command("run", "small.toml"),
    "limited": command("run", "small.toml", "--output", "resumed", "--time-limit", "1s", "--set", swift),
    "resume": command("resume", "resumed"),
    "gadget": command("power", "small/snapshot_z0.000.0.hdf5", "--output", "gadget.csv"),
    "swift": command("power", "resumed/snapshot_z0.000.1.hdf5", "--output", "swift.csv"),
}
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
codes["folder"] = command("run", "small.toml", "--output", f"folder{rank}")
codes["missing"] = command("run", ["small.toml", "none.toml"][rank])
codes["doctor"] = command("doctor", "small")
if rank == 0:
    print("codes", json.dumps(codes))
"""


INFERENCES = """
import json, os
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=" + "30"[rank]
import pmwd_dist.cli
from pmwd_dist.run.inference import verdict
verdict.save = lambda figure, path: path.touch()

def command(name, *arguments):
    try:
        pmwd_dist.cli.main([name, *arguments])
    except SystemExit as ended:
        return ended.code

slabs, mask = ("--set", "devices.pdims=[2, 1]"), ("--set", "data.mask=mask.npy")
codes = {
    "slabs": command("infer", "small.toml", "--output", "slabs", *slabs, *mask),
    "chains": command("infer", "small.toml", "--output", "chains", "--set", "sampler.chain_devices=1", *mask),
    "resumed": command("resume", "begun_on_one", *slabs),
    "limited": command("infer", "small.toml", "--output", "begun_on_two", "--time-limit", "1s", *slabs, *mask),
}
if rank == 0:
    print("codes", json.dumps(codes))
"""


def start(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpirun is None:
        pytest.skip("there is no mpirun")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "MPIEXEC_TIMEOUT": "300"}
    run = [mpirun, "-n", "2", "--oversubscribe", sys.executable, "-c", script]
    return subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, timeout=330, check=False)


def tables(folder: Path) -> dict[str, Any]:
    """All numbers of the tables and maps in a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.csv")):
        found[path.name] = np.genfromtxt(path, delimiter=",", skip_header=1)
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as content:
            found |= {f"{path.name}:{name}": content[name] for name in content.files}
    for path in sorted(folder.glob("counts*.hdf5")):
        with h5py.File(path) as file:
            file.visititems(
                lambda name, x: found.update({f"counts:{name}": x[()]}) if isinstance(x, h5py.Dataset) else None
            )
    return found


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_processes(tmp_path: Path, no_figures: None):
    """Runs and resumes agree with one process; a difference between processes is one line before any work."""
    (tmp_path / "small.toml").write_text(SETTINGS)
    done = start(SCRIPT, tmp_path)
    assert "codes" in done.stdout, done.stderr
    codes = json.loads(done.stdout.split("codes ")[1])
    assert {codes.pop(name) for name in ("run", "limited", "resume", "gadget", "swift", "doctor")} == {0}, done.stderr
    for process in (0, 1):
        line = rf"process {process}   \S+: \S+ \(cpu\); slabs by xla, (native|plain JAX) ops"
        assert any(re.fullmatch(line, text) for text in done.stdout.splitlines()), done.stdout
    assert set(codes.values()) == {2}, codes
    for line in (
        "noise.seed is 1 in process 1, and 0 in process 0; start all processes with the same files and options",
        "box.mesh is 16 in process 1, and 8 in process 0",
        "output.checkpoint_every is 1 in process 1, and 0 in process 0",
        "process 1: time.stepps",
        "process 1: none.toml: no such file",
        "folder1",
    ):
        assert done.stderr.count(line) == 1, (line, done.stderr)
    assert not any((tmp_path / name).exists() for name in (*codes, "folder0", "folder1"))
    plan = SimulationJob.of(read(tmp_path / "small.toml", ["devices.pdims=[2, 1]"]), tmp_path / "one")
    prepare_folder(plan)
    execute(plan, Events())
    spectra = [np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1) for name in ("gadget", "swift")]
    np.testing.assert_allclose(*spectra, rtol=1e-3)
    alone = tables(tmp_path / "one")
    for folder in ("small", "resumed"):
        both = tables(tmp_path / folder)
        assert both.keys() == alone.keys()
        for name, values in both.items():
            scale = np.nanmax(np.abs(alone[name]), initial=0) if alone[name].dtype.kind == "f" else 0
            np.testing.assert_allclose(values, alone[name], rtol=1e-6, atol=1e-6 * scale, err_msg=name)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_inferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Chains divided over processes, and over fields of processes, agree with one process, also where it begins."""
    monkeypatch.setattr(verdict, "save", lambda figure, path: path.touch())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL.replace("pdims = [1, 1]\n", ""))
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
    done = start(INFERENCES, tmp_path)
    assert "codes" in done.stdout, done.stderr
    codes = json.loads(done.stdout.split("codes ")[1])
    assert set(codes.values()) == {0}, (codes, done.stderr)
    assert not (tmp_path / "begun_on_two" / "chunk_00000.npz").exists()
    execute(job("begun_on_two/config.toml", "begun_on_two"), Events(), resume=True)
    alone, names = load_chain(tmp_path / "one"), {path.name for path in (tmp_path / "one").iterdir()}
    for folder in ("slabs", "chains", "begun_on_one", "begun_on_two"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == names
        chain = load_chain(tmp_path / folder)
        for found, expected in (
            (chain.parameters["b1"], alone.parameters["b1"]),
            (chain.logdensity, alone.logdensity),
            (chain.noise_mean, alone.noise_mean),
            (chain.noise_sd, alone.noise_sd),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=folder)
