"""Runs that start from the particles of a snapshot."""

from __future__ import annotations

import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from runs import Events, command, make, particles, resumed

from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.folder import StartError
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.settings import SettingsError


def shuffled(path: Path, to: Path) -> None:
    """The particles of our snapshot as another code writes them: in another order, with IDs from 1, without h."""
    order = np.random.default_rng(0).permutation(8**3)
    with h5py.File(path) as old, h5py.File(to, "w") as file:
        old.copy("Header", file)
        old.copy("Units", file)
        for name, data in old["PartType1"].items():
            file[f"PartType1/{name}"] = data[:][order] + (name == "ParticleIDs")


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_runs_go_on_from_initial_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Our own LPT as it was written, and in another order on four devices, resumed: the same P(k) and particles."""
    first = make(tmp_path / "lpt", "output.redshifts=[9, 1, 0]", "noise.seed=3")
    execute(first, Events())
    own = first.folder / "snapshot_z9.000.hdf5"
    shuffled(own, tmp_path / "ics.hdf5")
    runs = [make(tmp_path / "own", f"start.snapshot={own}")]
    runs.append(make(tmp_path / "other", "start.snapshot=ics.hdf5", "devices.pdims=[2, 2]"))
    execute(runs[0], Events())
    with pytest.raises(Interrupted):
        execute(runs[1], Events(stop_after=2, number=signal.SIGUSR1))
    execute(resumed(runs[1].folder), Events(), resume=True)
    for run in runs:
        assert manifest.identity(run.folder)["start.snapshot"].startswith("sha256:")
        for label in ("z1.000", "z0.000"):
            power = [np.loadtxt(x.folder / f"power_{label}.csv", delimiter=",", skiprows=2) for x in (first, run)]
            np.testing.assert_allclose(power[1], power[0], rtol=1e-5)
            expected, found = (particles(x.folder, label) for x in (first, run))
            for name in ("Coordinates", "Velocities"):
                values = [content[name][np.argsort(content["ParticleIDs"])] for content in (expected, found)]
                np.testing.assert_allclose(values[1], values[0], atol=1e-3)
    (runs[1].folder / "run.json").unlink()
    with h5py.File(tmp_path / "ics.hdf5", "a") as file:
        file["PartType1/Velocities"][0] += 1.0
    with pytest.raises(StartError, match=r"start.snapshot = \"sha256:.*: this folder's run has \"sha256"):
        execute(resumed(runs[1].folder), Events(), resume=True)
    contradictions(own, tmp_path / "wrong", capsys)


def contradictions(own: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings that contradict the particles are named before any work."""
    given = {
        "time.a_start=0.05": r"^time.a_start = 0.05: is not the scale factor of the snapshot, 0.1; set it to 0.1$",
        "box.size=64": r"box.size = 64.0: is not that of the snapshot, \(32.0, 32.0, 32.0\)",
        "box.mesh=16": r"box.particles = 16: is not the lattice of the snapshot, .*; its lattice is \(8, 8, 8\)",
        "cosmology.omega_m=0.3": r"cosmology.omega_m = 0.3: is not that of the snapshot, 0.3075; use the same",
        "noise.seed=3": "noise.seed = 3: the particles are those of start.snapshot; leave one of them out",
        "noise.paired=true": "noise.paired = true: the particles are",
        "cosmology.f_nl=10": "cosmology.f_nl = 10.0: the particles are",
        "observe.cross={}": r"\[observe.cross\]: needs the linear modes, which start.snapshot does not",
    }
    for override, words in given.items():
        with pytest.raises(SettingsError, match=words):
            make(folder, f"start.snapshot={own}", override)
    with pytest.raises(SettingsError, match=r"start.snapshot: .*none.hdf5: no such snapshot"):
        make(folder, "start.snapshot=none.hdf5")
    (folder.parent / "text.hdf5").write_text("text")
    with pytest.raises(SettingsError, match=r"start.snapshot: .*text.hdf5: is not an HDF5 file"):
        make(folder, "start.snapshot=text.hdf5")
    with h5py.File(own, "a") as file:
        del file["ParticleMesh"]
        file["PartType1/Velocities"][...] *= 0
    options = "--output", folder, "--set", f"start.snapshot={own}"
    assert command("run", folder.with_suffix(".toml"), *options) == 2
    assert "velocities are 0 of those of linear growth" in capsys.readouterr().err
