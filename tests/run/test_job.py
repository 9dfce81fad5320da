"""A simulation as a job: its folder, its checkpoints, and what happens when it fails."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages import check_page
from runs import SMALL, Events, assert_same, command, kill_loop, make, particles, resumed

import pmwd_dist as pmd
from pmwd_dist.cli.display import Display
from pmwd_dist.io import checkpoint
from pmwd_dist.io.snapshot.writer import Snapshot
from pmwd_dist.pm import lpt
from pmwd_dist.pm.stepping.step import final_status
from pmwd_dist.report import drawing
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.folder import Event, alterations, status_of
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.outputs.power import Power
from pmwd_dist.run.outputs.slices import Slices
from pmwd_dist.run.simulation import halo_width, job


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Events]:
    """A run from beginning to end."""
    plan = make(tmp_path_factory.mktemp("run") / "whole")
    events = Events()
    execute(plan, events)
    return plan.folder, events


def test_folder_holds_all_results(finished: tuple[Path, Events]):
    folder, _ = finished
    each = ("power_{}.csv", "density_{}.npz", "density_{}.png", "snapshot_{}.hdf5")
    expected = {name.format(label) for name in each for label in ("z0.000", "z1.000")}
    expected |= {"config.toml", "run.json", "log.jsonl", "report.html", "power.png"}
    assert {path.name for path in folder.iterdir()} == expected | {"manifest.json", ".pmwd-dist.lock"}
    assert set(manifest.files(folder)) == expected


def test_events_and_log_tell_the_same(finished: tuple[Path, Events]):
    folder, events = finished
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert all(line.pop("time") for line in lines)
    assert lines == json.loads(json.dumps([{"event": event.name, **event.fields} for event in events]))
    names = [line["event"] for line in lines]
    assert [name for name in names if name != "output"] == ["start", "initial", *["step"] * 4, "end"]
    for step in (2, 4):  # further steps may come before an output is written
        ended = [(line["event"], line["step"]) for line in lines if line["event"] in ("step", "output")]
        assert ended.index(("step", step)) < ended.index(("output", step))
    steps = events.of("step")
    assert [event.step for event in steps] == [1, 2, 3, 4]
    assert steps[-1].a == pytest.approx(1.0)
    max_displacement = [event.displacement_cells for event in steps]
    assert max_displacement == sorted(max_displacement)
    assert steps[-1].displacement == pytest.approx(4.0 * max_displacement[-1])
    assert all(event.peak_memory > 1e7 for event in steps)


def test_run_json_says_what_ran(finished: tuple[Path, Events]):
    run = json.loads((finished[0] / "run.json").read_text())
    assert run["status"] == "finished"
    assert run["settings"]["noise"]["seed"] == 0
    assert run["devices"] == 1
    assert run["versions"]["jax"] == jax.__version__
    assert run["seconds"] > 0
    parts = run["profile"]["seconds"]
    assert {"tracing", "steps", "initial conditions", "output: computing", "output: waiting"} < parts.keys()
    own = sum(seconds for name, seconds in parts.items() if not name.endswith(", beside"))
    assert own == pytest.approx(run["profile"]["total"], rel=1e-2)


def test_power_follows_linear_theory_on_large_scales(finished: tuple[Path, Events]):
    spectra = Power.read(finished[0])
    assert list(spectra) == [0.0, 1.0]
    late, early = spectra.values()
    assert late["modes"][0] == 18
    growth = late["power"][0] / early["power"][0]
    assert growth == pytest.approx(late["linear power"][0] / early["linear power"][0], rel=0.3)
    slab = Slices.read(finished[0] / "density_z0.000.npz")
    assert slab["density"].shape == (8, 8)
    assert slab["thickness"] == 8.0


@pytest.mark.usefixtures("no_figures")
def test_config_toml_reproduces_the_run(finished: tuple[Path, Events], tmp_path: Path):
    folder, _ = finished
    assert command("run", folder / "config.toml", "--output", tmp_path / "again") == 0
    assert_same(folder, tmp_path / "again")


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("pdims", "x64"), [((1, 1), True), ((4, 1), False)])
def test_particles_are_those_of_nbody_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pdims: tuple[int, int], x64: bool
):
    """At all outputs, also after an interruption; the widths of the halo differ."""
    found = []

    class Recorded(Snapshot):
        def __init__(self, particles, *arguments, **options):
            found.append(jax.device_get(particles))
            super().__init__(particles, *arguments, **options)

    monkeypatch.setattr("pmwd_dist.io.snapshot.writer.Snapshot", Recorded)
    with jax.enable_x64(x64):
        f_nl, options = f"cosmology.f_nl={500.0 if x64 else 0.0}", ["output.slice_thickness=0"]
        if x64:
            pmd.ForceCorrection(4.0, np.full((9, 5), 0.3)).save(tmp_path / "small.json")
            options += ["force.correction=small.json"]
        plan = make(tmp_path / "run", f"devices.pdims={list(pdims)}", f_nl, *options)
        with pytest.raises(Interrupted):
            execute(plan, Events(3))
        execute(resumed(plan.folder), Events(), resume=True)
        with pytest.raises(ValueError, match=r"overrides='box.size=9' must be a list; pass \['box.size=9'\]"):
            pmd.load_config(plan.folder, "box.size=9")
        loaded = pmd.load_config(plan.folder)
        config, cosmo, noise = loaded[:3]
        modes = pmd.linear_modes(noise, cosmo, config, linear_power=loaded.linear_power, f_nl=loaded.f_nl)
        options = {"solver": loaded.solver, "saveat": loaded.saveat, "potential_factor": loaded.potential_factor}
        solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config, **options).raise_if_failed()
    assert (loaded.potential_factor is None) != x64
    assert repr(loaded) == f"LoadedConfig: bullfrog, to a = 0.5, 1, {loaded.config!r}"
    assert len(found) == len(list(solution.snapshots)) == 2
    for i, written in enumerate(found):
        assert written.vel.dtype == (np.float64 if x64 else np.float32)
        np.testing.assert_array_equal(written.disp, solution.snapshots[i].disp)
        np.testing.assert_array_equal(written.vel, solution.snapshots[i].vel)


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 1), (signal.SIGHUP, 3)])
@pytest.mark.usefixtures("no_figures")
def test_interrupted_and_resumed_is_bitwise_the_same(finished, tmp_path: Path, number: int, step: int):
    plan = make(tmp_path / "run")
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests were started in the background
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored, where nohup started them
    try:
        with pytest.raises(Interrupted, match=f"after step {step} of 4") as stopped:
            execute(plan, Events(step, number))
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert stopped.value.signal_number == number
    assert json.loads((plan.folder / "run.json").read_text())["status"] == "interrupted"
    assert checkpoint.latest(plan.folder) == plan.folder / f"checkpoint_{step:06d}"
    assert signal.getsignal(signal.SIGINT) is before

    assert command("resume", plan.folder) == 0
    assert_same(finished[0], plan.folder)
    assert checkpoint.latest(plan.folder) is None
    assert command("resume", plan.folder) == 0  # nothing is left to do


@pytest.mark.usefixtures("no_figures")
def test_interrupt_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "small.toml").write_text(SMALL)

    class Display(Events):
        def __init__(self):
            super().__init__(stop_after=2)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def show(self, lines):
            return None

    monkeypatch.setattr("pmwd_dist.cli.commands.Display", Display)
    assert command("run", tmp_path / "small.toml", "--output", tmp_path / "run") == 130
    err = capsys.readouterr().err
    assert err == f"pmwd-dist: interrupted after step 2 of 4; go on with `pmwd-dist resume {tmp_path / 'run'}`\n"


@pytest.mark.usefixtures("no_figures")
def test_regular_checkpoints_keep_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plan = make(tmp_path / "run", "output.checkpoint_every=1", "output.snapshot=none", "output.slice_thickness=0")
    (plan.folder / "power_z7.000.csv").write_text("not a spectrum, and not the run's")
    seen = []
    display = Display()

    def listener(event: Event) -> None:
        display(event)
        if event.name == "checkpoint":
            seen.append([path.name for path in plan.folder.glob("*checkpoint*")])

    execute(plan, listener)
    assert seen == [["checkpoint_000001"], ["checkpoint_000002"], ["checkpoint_000003"]]
    assert "checkpoint of" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_time_limit(finished: tuple[Path, Events], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A run stops before the step that would end too late, with exit code 0 and the command that goes on."""
    shutil.copy(finished[0] / "config.toml", tmp_path / "small.toml")
    folder = tmp_path / "limited"
    run = ["run", tmp_path / "small.toml", "--output", folder, "--set", "output.slice_thickness=0"]
    for step, verb in ((1, run), (2, ["resume", folder]), (3, ["resume", folder])):
        assert command(*verb, "--time-limit", "0.001 s") == 0
        out, err = capsys.readouterr()
        last = (
            f"stopped after step {step} of 4, by the time limit; go on with `pmwd-dist resume {folder} --time-limit 1s`"
        )
        assert out.splitlines()[-1] == f"pmwd-dist: {last}"
        assert not err
    assert command("resume", folder, "--time-limit", "1h") == 0
    assert_same(finished[0], folder)


@pytest.mark.usefixtures("no_figures")
def test_resume_without_a_checkpoint_begins_anew(finished, tmp_path: Path):
    plan = make(tmp_path / "run")
    execute(plan, Events(), resume=True)
    assert_same(finished[0], plan.folder)


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_is_bitwise_the_same(finished: tuple[Path, Events], tmp_path: Path):
    """Two kills; `python tests/run/kill_loop.py --kills 200` has more."""
    done = kill_loop("--kills", "2", "--no-figures", "--reference", finished[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"(\d+) runs, 2 kills, \1 same bits", done.stdout.strip().splitlines()[-1])


@pytest.mark.usefixtures("no_figures")
def test_beyond_the_halo_a_run_fails_and_continues_on_other_devices(tmp_path: Path, capsys):
    overrides = ["devices.halo=1", "devices.pdims=[2, 1]", "output.snapshot=none", "output.redshifts=0"]
    folder = tmp_path / "run"
    make(folder, *overrides)
    shutil.rmtree(folder)
    sets = [word for override in overrides for word in ("--set", override)]
    assert command("run", folder.with_suffix(".toml"), "--output", folder, *sets) == 1
    err = capsys.readouterr().err
    assert "exceeds the halo of 1 cells" in err
    assert len(err.splitlines()) == 1
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    page = check_page(folder / "report.html", figures=0)
    assert "The run failed after step" in page and "exceeds the halo of 1 cells" in page
    kept = checkpoint.latest(folder)
    assert kept is not None
    step = checkpoint.meta(kept)["step"]
    assert step >= 1
    events = Events()
    execute(resumed(folder, "devices.halo=auto", "devices.pdims=[1, 1]"), events, resume=True)
    assert [event.step for event in events.of("resume")] == [step]
    assert [event.status for event in events.of("end")] == ["finished"]
    assert (folder / "power_z0.000.csv").exists()


def test_particles_that_are_not_finite_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = make(tmp_path / "run", "box.size=31")  # a program of no other test

    def broken(*arguments):
        return jax.tree.map(lambda x: x + jnp.nan, displaced(*arguments))

    displaced = lpt.displaced
    monkeypatch.setattr("pmwd_dist.pm.stepping.host.lpt.displaced", broken)
    with pytest.raises(pmd.SimulationError, match="not finite"):
        execute(plan, Events())
    assert checkpoint.latest(plan.folder) is None


@pytest.mark.slow
def test_particles_that_leave_the_grid_at_the_end_fail_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = make(tmp_path / "run")

    def far(moved, config):
        return final_status(moved.status, 1e3 + moved.max_displacement, jnp.asarray(True), config)

    monkeypatch.setattr("pmwd_dist.pm.stepping.host.final_status", far)
    with pytest.raises(pmd.SimulationError, match="exceeds the range of the particle grid in step 5"):
        execute(plan, Events())
    assert checkpoint.latest(plan.folder) is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_disk_that_fills_up_ends_the_run_in_one_line(
    finished: tuple[Path, Events], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """And the resumed run begins with the output that failed."""

    def full(self, path, chunks):
        raise OSError(28, os.strerror(28), str(path))

    monkeypatch.setattr(Snapshot, "write", full)
    (tmp_path / "small.toml").write_text(SMALL)
    assert command("run", tmp_path / "small.toml", "--output", tmp_path / "run") == 1
    err = capsys.readouterr().err
    assert err == f"pmwd-dist: the run failed: {tmp_path / 'run' / 'snapshot_z1.000.hdf5'}: No space left on device\n"
    monkeypatch.undo()
    assert not list((tmp_path / "run").glob(".*.part"))
    assert (tmp_path / "run" / "power_z1.000.csv").exists()
    shutil.copytree(tmp_path / "run", tmp_path / "less")
    assert command("resume", tmp_path / "run") == 0
    assert_same(finished[0], tmp_path / "run")
    assert command("resume", tmp_path / "less", "--set", "output.snapshot=none") == 0
    assert alterations(tmp_path / "less") == []  # no snapshot is missing


def test_figures_and_a_report_that_do_not_fit_on_the_disk_fail_a_run_with_all_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    def full(path, *_, **__):
        raise OSError(28, os.strerror(28), str(path))

    folder, tables = tmp_path / "run", ("power_z0.000.csv", "density_z0.000.npz")
    (tmp_path / "small.toml").write_text(SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "draw", lambda paths: None)
        patch.setattr(drawing, "save", lambda figure, path: full(path) if "z0" in path.name else path.touch())
        patch.setattr("pmwd_dist.run.common.report.write_page", full)
        assert command("run", tmp_path / "small.toml", "--output", folder, "--set", "output.snapshot=none") == 1
    missing = "all data are kept, but not density_z0.000.png, report.html: free space, and use `pmwd-dist report"
    assert capsys.readouterr().err == f"pmwd-dist: the run failed: {folder}: {os.strerror(28)}; {missing} {folder}`\n"
    assert status_of(folder) == "finished" and all((folder / name).exists() for name in tables)
    assert (folder / "log.jsonl").read_text().count("No space left") == 2
    assert command("report", folder) == 0
    assert set(manifest.files(folder)) <= {path.name for path in folder.iterdir()}
    assert "Warning" not in (folder / "report.html").read_text()


def test_figures_that_fail_do_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(figure, path):
        raise IndexError("none")

    monkeypatch.setattr(drawing, "draw", lambda paths: None)
    monkeypatch.setattr(drawing, "save", full)
    plan, events = make(tmp_path / "run", "output.snapshot=none", "output.redshifts=0"), Events()
    execute(plan, events)
    assert [event.status for event in events.of("end")] == ["finished"]
    (warning,) = events.of("warning")
    assert warning.message.startswith("figures are missing: ") and "power.png: IndexError: none;" in warning.message
    assert warning.message.endswith(f"; `pmwd-dist report {plan.folder}` draws them")


def test_figures_that_fail_leave_the_report_of_an_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuses(figure, path):
        raise IndexError("none")

    monkeypatch.setattr(drawing, "draw", lambda paths: None)
    monkeypatch.setattr(drawing, "save", refuses)
    plan, events = make(tmp_path / "run", "output.snapshot=none"), Events(3)
    with pytest.raises(Interrupted):
        execute(plan, events)
    assert [event.message.partition(":")[0] for event in events.of("warning")] == ["figures are missing"]
    assert (plan.folder / "report.html").exists()


def test_without_figures_none_is_drawn_until_a_report_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    plan = make(tmp_path / "run", "output.figures=false", "output.snapshot=none")
    with monkeypatch.context() as patch:
        patch.setattr("pmwd_dist.report.style.save", None)
        execute(plan, Events())
    assert not list(plan.folder.glob("*.png"))
    assert (plan.folder / "power_z0.000.csv").exists() and (plan.folder / "density_z0.000.npz").exists()
    assert "Warning" not in check_page(plan.folder / "report.html", figures=0)
    (plan.folder / "power_z1.000.csv").unlink()
    config = plan.folder / "config.toml"
    config.write_text(config.read_text().replace("lpt_order = 1", "lpt_order = 2"))
    assert command("resume", plan.folder) == command("report", plan.folder) == 0
    changed = "config.toml is not that of the last start, which had another time.lpt_order"
    lost = "power_z1.000.csv is missing; only another run writes it again"
    said, page = capsys.readouterr().out, (plan.folder / "report.html").read_text()
    assert all(f"\n{text}\n" in said and f"Warning: {text}" in page for text in (changed, lost))
    assert {path.name for path in plan.folder.glob("*.png")} == {
        "power.png",
        "density_z0.000.png",
        "density_z1.000.png",
    }


@pytest.mark.slow
def test_options_of_snapshots_are_those_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    run = ["run", tmp_path / "small.toml", "--output", tmp_path / "run", "--set", 'output.compression="zstd"']
    with monkeypatch.context() as patch:
        patch.setattr("pmwd_dist.run.outputs.snapshot.find_spec", lambda name: None)
        assert command(*run) == 2
    needs = 'output.compression = "zstd": needs hdf5plugin; install it with `pip install hdf5plugin`'
    assert needs in capsys.readouterr().err
    assert command(*run, "--set", 'output.precision="single"') == 0
    with h5py.File(tmp_path / "run" / "snapshot_z0.000.hdf5") as file:
        data = file["PartType1/Coordinates"]
        assert data.dtype == np.float32
        assert data.id.get_create_plist().get_nfilters() == 3


def test_power_of_a_snapshot(finished: tuple[Path, Events], tmp_path: Path):
    folder, _ = finished
    out = tmp_path / "p.csv"
    assert command("power", folder / "snapshot_z0.000.hdf5", "--output", out) == 0
    measured = np.loadtxt(out, delimiter=",", skiprows=1)
    expected = np.loadtxt(folder / "power_z0.000.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(measured[:, :3], expected[:, :3], rtol=1e-5)


def test_the_report_is_one_file_that_shows_all(finished: tuple[Path, Events]):
    text = check_page(finished[0] / "report.html", figures=3)
    assert "The run is finished: 4 steps, 2 outputs." in text and "Density at z = 1." in text
    for part in (
        "sigma8 = 0.8159",
        "seed 0",
        "omega_m = 0.3075",
        "pmwd-dist",
        "peak memory",
        "initial conditions",
        "[box]",
    ):
        assert part in text, part


@pytest.mark.usefixtures("no_figures")
def test_warnings_of_the_checks_are_in_the_report(tmp_path: Path, capsys):
    (tmp_path / "small.toml").write_text(SMALL + "[observe.galaxies]\nb1 = 1\n")
    (tmp_path / "rows.csv").write_text("noise.seed\n1\n")
    for verb, more in {"run": ["--set", "output.snapshot=none"], "ensemble": [tmp_path / "rows.csv"]}.items():
        assert command(verb, tmp_path / "small.toml", *more, "--output", tmp_path / verb) == 0
        (text,) = {line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")}
        (page,) = (tmp_path / verb).rglob("report.html")
        assert html.unescape(page.read_text()).count(text.replace("warning", "Warning")) == 1


def test_report_draws_again(finished: tuple[Path, Events]):
    folder, _ = finished
    for name in ("power.png", "report.html"):
        (folder / name).unlink()
    assert command("report", folder) == 0
    assert (folder / "power.png").exists() and "The run is finished: 4 steps" in (folder / "report.html").read_text()


# --- width of the halo: chosen from displacements, widened when these grow beyond it -----------------------------

# Slabs of 4 cells of 3 Mpc/h, through which particles move by up to 14 Mpc/h.
THIN = ("devices.pdims=[4, 1]", "box.size=48", "box.mesh=16", "output.slice_thickness=0", "output.redshifts=0")


@pytest.mark.slow
def test_widened_halos_give_the_bits_of_all_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(halo_width, "MARGIN", 0.3)
    narrow, events = make(tmp_path / "narrow", *THIN), Events()
    execute(narrow, events)
    chosen, steps = events.of("halo"), events.of("step")
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert len(chosen) > 1
    assert [choice.cells for choice in chosen] == sorted({choice.cells for choice in chosen})
    assert chosen[0].cells < steps[-1].displacement_cells <= chosen[-1].cells

    monkeypatch.setattr(job, "is_automatic", lambda config: False)
    whole, events = make(tmp_path / "whole", *THIN), Events()
    execute(whole, events)
    assert not events.of("halo")
    for name, values in particles(narrow.folder).items():
        np.testing.assert_array_equal(values, particles(whole.folder)[name])
    assert (narrow.folder / "power_z0.000.csv").read_text() == (whole.folder / "power_z0.000.csv").read_text()


def test_width_holds_displacements_and_a_lattice_spacing(tmp_path: Path):
    config = make(tmp_path / "run", *THIN).simulation.config
    assert halo_width.is_automatic(config)
    assert [halo_width.halo_width(displacement, config) for displacement in (0.1, 12.0, 60.0, np.nan)] == [2, 5, 16, 16]
