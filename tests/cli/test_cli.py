"""The command line: exit codes, and errors of one or two lines."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import foreign_snapshots
import h5py
import jax
import numpy as np
import problems
import pytest
from rich.console import Console

import pmwd_dist as pmd
from pmwd_dist.cli import commands, doctor, main
from pmwd_dist.cli.display import Display
from pmwd_dist.run.common import manifest, plan, resources
from pmwd_dist.run.common.folder import Event
from pmwd_dist.run.inference.memory import InferenceMemory

Cli = Callable[..., tuple[int, str, str]]
MINIMAL = "[box]\nsize = 64\nmesh = 16\n"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


PROGRAM = [sys.executable, "-m", "pmwd_dist"]


def process(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(MINIMAL)
    return path


def fails(result: tuple[int, str, str], *words: str, lines: int = 2) -> None:
    """The command fails with exit code 2 and a line or two on standard error, and prints nothing else."""
    code, out, err = result
    assert code == 2, (code, out, err)
    assert not out
    assert "Traceback" not in err
    assert 1 <= len(err.splitlines()) <= lines
    assert all(line.startswith("pmwd-dist: ") for line in err.splitlines())
    for word in words:
        assert word in err


def test_no_verb_prints_the_verbs(cli: Cli):
    code, out, _ = cli()
    assert code == 0
    for verb in ("run", "ensemble", "resume", "check", "template", "doctor", "power", "halos", "report"):
        assert verb in out


def test_wrong_commands_and_huge_requests_fail(cli: Cli, file: Path):
    fails(cli("rnu", file), "rnu", "Did you mean 'run'?")
    fails(cli("run"), "FILE")
    fails(cli("run", file, "--bogus"), "--bogus", "`pmwd-dist run --help` lists all")
    fails(cli("--bogus"), "--bogus", "`pmwd-dist --help` lists all")
    fails(cli("power", "x.hdf5", "--mesh", "two"), "--mesh")
    fails(cli("power", "x.hdf5", "--mesh", "2"), "--mesh")
    fails(cli("check", file, "--set", "x" * 100_000), "--set xxx", "must look like section.key=value", lines=1)
    fails(cli("autotune", 99999999999999), "shape=(99999999999999, ", "use a smaller mesh, or more devices", lines=1)
    fails(cli("power", "x.hdf5", "--mesh", 10**9), "--mesh", "65536", lines=1)
    fails(cli("autotune", 16, "--halo", 10**20), "halo=100000000000000000000 is wider than the mesh", lines=1)
    for verb in ("run", "check"):
        fails(cli(verb, file, "-o", "a\udcff"), "'a\\udcff': is not UTF-8; use another name", lines=1)
    assert cli("--version") == (0, f"pmwd-dist {pmd.__version__}\n", "")


SHORT = ["box.mesh=4", "time.steps=1", "time.lpt_order=1", "devices.pdims=[1,1]", "output.figures=false"]
SHORT = [x for key in SHORT for x in ("--set", key)]


def test_the_program_sets_options_of_jax_whatever_the_environment_says(cli: Cli, file: Path):
    others = {"default_prng_impl": "rbg", "threefry_partitionable": False, "transfer_guard": "disallow"}
    options = {"default_prng_impl": "threefry2x32", "threefry_partitionable": True, "transfer_guard": "allow"}
    options |= {"numpy_dtype_promotion": "standard", "random_seed_offset": 0}
    others |= {"numpy_dtype_promotion": "strict", "random_seed_offset": 7}
    tables: list[str] = []
    for values in (options, others):
        try:
            for name, value in values.items():
                jax.config.update(f"jax_{name}", value)
            code, _, err = cli("run", file, "-o", file.parent / "out", "--overwrite", *SHORT)
        finally:
            for name, value in options.items():
                jax.config.update(f"jax_{name}", value)
        assert code == 0, err
        tables.append((file.parent / "out/power_z0.000.csv").read_text(encoding="utf-8"))
    assert tables[0] == tables[1]


def test_templates_can_be_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As they are checked; no gradients are compiled to tell the memory, which `test_memory` tests."""
    nothing = InferenceMemory(0, 0, 0, 0)
    monkeypatch.setattr("pmwd_dist.run.inference.plan.inference_memory", lambda *_: nothing)
    for options, words in (((), "128^3 cells"), (("--infer",), "parameters  sigma8")):
        code, out, err = cli("template", *options)
        assert (code, err) == (0, "")
        (tmp_path / "t.toml").write_text(out)
        code, out, err = cli("check", tmp_path / "t.toml")
        assert code == 0, err
        assert words in out


def test_check_says_what_would_be_done(cli: Cli, file: Path, tmp_path: Path):
    sets = ("box.size=100", "time.solver=fastpm", "cosmology.omega_m=0.15")
    code, out, err = cli("check", file, *(word for text in sets for word in ("--set", text)))
    assert (code, err) == (0, "")
    assert out.count("Omega_b / Omega_m = 0.324 is outside of 0.04 to 0.32, the range of linear_power") == 1
    for words in ("100 Mpc/h", "16^3 cells", "20 fastpm steps", "seed 0", "4 slabs", "native ops", "memory", "disk"):
        assert words in out
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("verb", ["run", "check"])
def test_wrong_settings_fail(cli: Cli, file: Path, verb: str):
    fails(cli(verb, file, "--set", "box.size=-1"), "box.size = -1", "must be 1e-06 or more")
    fails(cli(verb, file, "--set", "box.size=nan", "--set", "time.steps=0"), "box.size", "time.steps")
    fails(cli(verb, file, "--set", "box.mesh=18", "--set", "devices.pdims=[4, 1]"), "16 or 20")
    fails(cli(verb, file.with_name("none.toml")), "no such file", "template")
    fails(cli("infer", file), "has the sections of a simulation; use `pmwd-dist run`", lines=1)
    file.write_text("[box\n")
    fails(cli(verb, file), "not valid TOML", "line 1")


def test_output_folder_with_content_fails(cli: Cli, file: Path, tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("keep")
    fails(cli("run", file, "--output", folder), "not the folder of a run")
    fails(cli("run", file, "--output", folder, "--overwrite"), "not the folder of a run")
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    fails(cli("run", file, "--output", folder / "mine.txt"), "is a file")
    fails(cli("run", file, "--output", "/proc/here"), "/proc/here")


def test_too_little_memory_or_disk_fails(cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resources, "available_memory", lambda: (5e8, 6e8))
    fails(cli("run", file, "--output", tmp_path / "out"), "box.mesh", "memory", "600 MB")
    monkeypatch.setattr(resources, "available_memory", lambda: (5e8, 6e11))  # in use, and perhaps free soon
    code, out, _ = cli("check", file)
    assert code == 0 and "warning: the run needs about" in out
    monkeypatch.undo()
    monkeypatch.setattr("pmwd_dist.run.simulation.plan.free_space", lambda path: 1000)
    fails(cli("run", file, "--output", tmp_path / "out"), "disk", "1 kB free")
    assert not (tmp_path / "out").exists()


def test_settings_that_mislead_are_warned_of(cli: Cli, file: Path):
    code, out, _ = cli("check", file, "--set", "observe.galaxies.b1=1")
    assert code == 0
    assert re.search(r"warning: observe.galaxies: with one cell a particle .* box.mesh = 3/2 of box.particles", out)
    _, out, _ = cli("check", file, "--set", "observe.galaxies={b1=1, smoothing=20}", "--set", "cosmology.A_s=2.1e-9")
    assert "warning: observe" not in out


def test_verbs_fail_on_what_is_no_run_or_snapshot(cli: Cli, tmp_path: Path, file: Path):
    fails(cli("power", tmp_path / "absent.hdf5"), "no such snapshot")
    fails(cli("power", file), "not an HDF5 file")
    fails(cli("report", tmp_path), "not the folder of a run")
    fails(cli("report", tmp_path / "absent"), "not the folder of a run")
    fails(cli("resume", tmp_path), "not the folder of a run")
    fails(cli("resume", tmp_path / "absent"), "not the folder of a run")
    (tmp_path / "config.toml").write_text(MINIMAL)
    fails(cli("resume", tmp_path), "not the folder of a run")
    manifest.create(tmp_path, {}, ["run.json"])
    fails(cli("resume", tmp_path, "--set", "box.size=3"), "resume keeps this setting of the run")


def test_power_says_what_is_wrong_in_its_own_words(cli: Cli, tmp_path: Path):
    config = pmd.Config(64.0, 8, decomposition=(1, 1))
    at_rest = pmd.Particles(*np.zeros((2, 8, 8, 8, 3)))
    path = pmd.save_snapshot(tmp_path / "s.hdf5", at_rest, problems.cosmology(), config, 1.0)
    code, _, err = cli("power", path, "--mesh", 9)  # by one device, as four don't divide it
    assert (code, err) == (0, "")
    assert len((tmp_path / "s_power.csv").read_text().splitlines()) == 1 + 4
    with h5py.File(path, "a") as file:
        file["ParticleMesh"].attrs["MeshShape"] = [1, 8, 16]
    fails(cli("power", path, "--output", path), f": --output='{path}' is a file of the snapshot; use another name")
    fails(cli("power", path), "its mesh of (1, 8, 16): must be a whole number, 2 or more")


def test_halos_of_a_snapshot(cli: Cli, tmp_path: Path):
    points, sides = problems.friends_on_borders()
    config = pmd.Config(tuple(sides), (8, 8, 4), decomposition=(1, 1))
    disp = points.reshape(8, 8, 4, 3) - problems.lattice((8, 8, 4), sides)
    particles, cosmo = pmd.Particles(disp, disp / 100), problems.cosmology()
    path = pmd.save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, 0.5, format="swift")
    code, out, err = cli("halos", path, "--linking-length", 0.26)
    assert (code, err, out.splitlines()[0]) == (0, "", "5 halos")
    expected = pmd.observe.friends_of_friends(particles, cosmo, config, linking_length=0.26, a=0.5)
    expected = pmd.observe.overdensity_masses(expected, particles, cosmo, config)
    Omega_m = float(pmd.growth_table(cosmo).cosmo.Omega_m)
    with h5py.File(tmp_path / "s_halos.hdf5") as file:
        assert set(file) == set(expected.columns)
        for name, values in expected.columns.items():
            np.testing.assert_allclose(file[name], values, rtol=2e-5, atol=1e-3 * (name[5:] in {"x", "y", "z"}))
    assert (tmp_path / "s_halos.csv").read_text().startswith("# M200m of halos, z = 1")
    (alias := tmp_path / "alias.hdf5").symlink_to(path)
    fails(cli("halos", path, "--output", alias), "alias.hdf5' is a file of the snapshot; use another name")
    fails(cli("halos", path, "--output", "halos.csv"), "'halos.csv' is the name of the mass function; use .hdf5")
    assert cli("halos", path)[0] == 0  # a result is replaced by another one, and no other file is
    (other := tmp_path / "own.csv").write_text("mass\n1\n")
    fails(cli("halos", path, "--output", other.with_suffix(".hdf5")), "own.csv' is a file of another kind; use another")
    shutil.copy(path, copy := tmp_path / "copy.hdf5")
    fails(cli("halos", path, "--output", copy), "copy.hdf5' is a file of another kind; use another name")
    fails(cli("power", path, "--output", other), "own.csv' is a file of another kind; use another name")
    fails(cli("halos", path, "--linking-length", 3), "--linking-length=3.0 must be a finite number from 0.05 to 1")
    fails(cli("halos", path, "--length-unit", "cm"), "--length-unit='cm' must be one of kpc/h, Mpc/h, kpc, Mpc")
    for factor in (0.5, 2):
        with h5py.File(path, "a") as file:
            file["Header"].attrs["BoxSize"] *= factor
        found = f"density of the particles is {Omega_m / factor**3:.3g}, and Omega_m {Omega_m:.3g}: look at BoxSize"
        assert found in cli("halos", path, "--output", tmp_path / "small.hdf5")[1]
        with h5py.File(path, "a") as file:
            file["Header"].attrs["BoxSize"] /= factor
    with h5py.File(path, "a") as file:
        file["Header"].attrs["MassTable"] = np.zeros(6)
    assert cli("halos", path, "--linking-length", 0.26, "--output", tmp_path / "by_masses.hdf5")[0] == 0
    with h5py.File(tmp_path / "by_masses.hdf5") as file:
        np.testing.assert_allclose(file["halo_mvir"], expected.columns["halo_mvir"], rtol=2e-5)
    with h5py.File(path, "a") as file:
        file["PartType1/Masses"][0] *= 2
    fails(
        cli("halos", path),
        "s.hdf5: its particles of type 1 have masses from 8.60",
        "1e10 Msun/h, and must all have one",
    )
    with h5py.File(path, "a") as file:
        file["PartType1/Masses"][:] = 0
    fails(cli("halos", path), "s.hdf5: its particles of type 1 have no mass")


def test_power_of_a_hydrodynamic_run_in_several_files(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kinds = foreign_snapshots.universe({0: 200, 1: 8**3, 4: 50})
    foreign_snapshots.write_set(tmp_path / "snapdir_000", "snap_000", kinds, foreign_snapshots.gadget_units, 2)
    for name in ("snapdir_000", "snapdir_000/snap_000"):
        code, out, err = cli("power", tmp_path / name, "--output", tmp_path / "p.csv")
        assert (code, err) == (0, "")
        assert "particles: 200 of type 0, 512 of type 1, 50 of type 4; their density is 0.3, and Omega_m 0.3" in out
    table = np.loadtxt(tmp_path / "p.csv", delimiter=",", skiprows=1)
    masses = np.concatenate([kind.mass for kind in kinds.values()])
    np.testing.assert_allclose(table[:, 4], 1e6 * (masses**2).sum() / masses.sum() ** 2, rtol=1e-5)
    np.testing.assert_array_equal(np.rint(table[:, 0] / (2 * np.pi / 100)), [1, 2, 3, 4])
    (tmp_path / "snapdir_000").rename(tmp_path / "run_h0.67")
    monkeypatch.chdir(tmp_path / "run_h0.67")
    code, out, _ = cli("power", ".", "--types", "1,4")
    assert (code, (tmp_path / "run_h0.67_power.csv").exists()) == (0, True)
    assert "particles: 512 of type 1, 50 of type 4; " in out
    assert "left out: type 0" in out
    fails(cli("power", tmp_path / "run_h0.67", "--types", "gas"), "--types", "for example 0,1,4")
    fails(
        cli("power", tmp_path / "run_h0.67", "--types", "2"),
        "--types=[2] must be among those of the snapshot, 0 (200",
    )


def test_power_says_which_unit_of_length_it_assumes(cli: Cli, tmp_path: Path):
    path = tmp_path / "s.hdf5"
    foreign_snapshots.gadget2(path, foreign_snapshots.universe({1: 64}))
    code, _, err = cli("power", path)
    assert code == 0
    assumed = "names no unit of length: kpc/h is assumed, for a box of 100 Mpc/h (--length-unit sets another)"
    assert err.splitlines() == [f"pmwd-dist: warning: {path} {assumed}"]
    code, _, err = cli("power", path, "--length-unit", "Mpc/h")
    assert code == 0
    assert "have a density of 3e-10, and Omega_m is 0.3" in err
    fails(cli("power", path, "--length-unit", "cm"), "--length-unit='cm' must be one of kpc/h, Mpc/h, kpc, Mpc")


def test_a_full_disk_under_standard_output_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("typer.echo", full)
    assert cli("template") == (1, "", "pmwd-dist: the run failed: standard output: No space left on device\n")


def test_shells_complete_commands():
    environment = {"_PMWD_DIST_COMPLETE": "complete_bash", "COMP_WORDS": "pmwd-dist re", "COMP_CWORD": "1"}
    assert process(*PROGRAM, env=os.environ | environment).stdout.split() == ["resume", "report"]


def test_doctor(cli: Cli):
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    for words in ("pmwd-dist", "jax ", "device", "native ops", "MPI", "programs", "cores", "memory"):
        assert words in out
    assert "slabs       xla; peer needs NVIDIA GPUs" in out
    assert "issue       wait for each program that you jit, or XLA may hang or abort: docs/howto/trouble" in out


def test_doctor_names_known_issues_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver = tmp_path / "version"
    monkeypatch.setattr(doctor, "_DRIVER", driver)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\n")
    assert list(doctor._issues(tmp_path)) == []
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 2024\n")

    def refuse(place: object, *flags: int) -> None:
        if isinstance(place, int) != bool(flags):  # a number is a folder, whose locks are local on NFS and Lustre
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(doctor.fcntl, "flock", refuse)
    monkeypatch.setattr(doctor.os, "fsync", refuse)
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104  Release Build\n")
    found = list(doctor._issues(tmp_path))
    assert [text for place, text in found if place == "file-systems"] == [
        f"{what} in {tmp_path} (No locks available)" for what in ("files can't be locked", "folders can't be flushed")
    ]
    assert list(doctor._issues(tmp_path / "no"))[1][1].endswith("no (No such file or directory)")
    issues = dict(found)
    assert issues["cuda-graphs"] == "driver 535 may fail in CUDA graphs"
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    issues |= dict(doctor._issues(tmp_path))
    page = (Path(__file__).parents[2] / doctor._PAGE).read_text()
    headings = re.findall("^## (.*)$", page, re.MULTILINE)
    assert set(issues) <= {heading.lower().replace(" ", "-") for heading in headings}
    assert len(issues) == 3


def test_what_to_install_without_native_ops(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "native_available", lambda: False)
    monkeypatch.setattr(doctor, "native_available", lambda: False)
    assert "native ops off: slower, see `pmwd-dist doctor`" in cli("check", file)[1]
    assert "`pip install ./rust/jaxdecomp-ops`" in cli("doctor")[1]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            ZeroDivisionError("nobody\nthought"),
            1,
            "internal error: ZeroDivisionError: nobody (--traceback shows where)",
        ),
    ],
)
def test_interrupts_and_unforeseen_errors_are_one_line_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
):
    def fail(_: Path) -> list[str]:
        raise error

    monkeypatch.setattr(commands, "report_lines", fail)
    assert cli("doctor") == (code, "", f"pmwd-dist: {said}\n")
    assert "Traceback" in cli("--traceback", "doctor")[2]


def test_as_a_program(file: Path):
    """In a process of its own: a reader that goes away is no error, and importing starts neither JAX nor MPI."""
    program = (
        "import sys, pmwd_dist.cli; from jax._src import xla_bridge; "
        "assert not xla_bridge.backends_are_initialized(); assert 'mpi4py.MPI' not in sys.modules; "
        "sys.argv[1:] = ['template']; from pmwd_dist.__main__ import main; main()"
    )
    command = f'{sys.executable} -c "{program}" | head -1'
    done = process("bash", "-o", "pipefail", "-c", command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[box]")


# A program that gets a signal when it first imports a module. Where tests run in the background, SIGINT is ignored.
SIGNALLED = """
import os, signal, sys
from pmwd_dist.__main__ import main
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.mark.parametrize(
    ("number", "module", "code", "said"),
    [
        (2, "pmwd_dist.cli", 130, "interrupted"),
        (2, "jaxlib", 130, "interrupted"),
        pytest.param(2, "pmwd_dist.cli.commands", 130, "interrupted", marks=pytest.mark.slow),
        (15, "numpy", 143, "terminated"),
    ],
)
def test_a_signal_while_the_program_starts(number: int, module: str, code: int, said: str):
    """One line and the code of the signal, from before the library is imported."""
    program = SIGNALLED.format(module=module, number=number)
    done = process(sys.executable, "-c", program, "doctor")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"pmwd-dist: {said}\n")


@pytest.mark.slow
def test_the_program_ends_while_a_thread_compiles():
    """Ctrl-C in a tuning, while the program of the chunks is compiled beside it. Figures need no window before."""
    program = (
        "import pmwd_dist.__main__, pmwd_dist.cli, sys, threading, time\n"
        "def main(began):\n"
        "    import matplotlib.pyplot\n"
        "    threading.Thread(target=time.sleep, args=(100,)).start()\n"
        "    print('interrupted'); sys.stdout.flush(); sys.exit(130)\n"
        "pmwd_dist.cli.main = main; pmwd_dist.__main__.main()"
    )
    done = process(sys.executable, "-c", program, env=os.environ | {"MPLBACKEND": "nonsense"}, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (130, "interrupted\n", "")


SLOW = pytest.mark.slow
NO_CUDA = pytest.mark.skipif(any(map(find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin"))), reason="there is one")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        pytest.param("JAX_PLATFORMS", "cuda", ("JAX_PLATFORMS=cuda", "no plugin", "unset"), marks=[NO_CUDA, SLOW]),
        pytest.param("JAX_PLATFORMS", "nonsense", ("JAX_PLATFORMS=nonsense", "not in the list"), marks=SLOW),
        ("JAX_ENABLE_X64", "banana", ("JAX_ENABLE_X64", "banana")),
    ],
)
def test_a_wrong_environment_is_a_line_at_the_start(file: Path, variable: str, value: str, words: tuple[str, ...]):
    done = process(*PROGRAM, "run", file, "--output", file.parent / "out", env=os.environ | {variable: value})
    fails((done.returncode, done.stdout, done.stderr), *words, lines=1)
    assert not (file.parent / "out").exists()


@pytest.mark.slow
def test_standard_streams_may_be_closed(tmp_path: Path):
    """Files that are opened later don't take their place, also once several processes replace the streams."""
    command = f"{' '.join(map(shlex.quote, PROGRAM))} template"
    done = process("bash", "-c", f"{command} >&-")
    assert done.returncode == 0
    assert done.stderr == "pmwd-dist: warning: standard output is closed, and what it would show is lost\n"
    assert process("bash", "-c", f"{command} <&- >&- 2>&-").returncode == 0
    code = "import gc, os, sys, pmwd_dist.__main__ as p; p._open_streams()"
    code = f"{code}; sys.stdout = sys.stderr = None; gc.collect()"
    check = "sys.exit([os.fstat(i).st_rdev for i in (1, 2)] != [os.stat(os.devnull).st_rdev] * 2)"
    program = shlex.join([sys.executable, "-c", f"{code}; {check}"])
    assert subprocess.run(["bash", "-c", f"{program} >&- 2>&-"], check=False).returncode == 0


# --- what is shown of a run --------------------------------------------------------------------------------------

END = Event("end", "finished after 1.0 s", {})


class Lost(io.StringIO):
    """A terminal that is gone after its first line, as that of a lost connection."""

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(5, "Input/output error")


def test_a_lost_terminal_does_not_end_the_run():
    terminal = Lost()
    with Display() as display:
        display.console = Console(file=terminal)
        display(Event("warning", "warning: first", {}))
        display(Event("warning", "warning: second", {}))
        display.show(["third"])
        display(END)
    assert terminal.getvalue() == "warning: first\n"


def test_a_pipe_that_nobody_reads_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    ended = False
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        with Display() as display:
            display(Event("warning", "warning: first", {}))
            display(END)
        monkeypatch.undo()
        ended = True
    assert ended


@pytest.mark.parametrize(
    ("reasons", "last"),
    [((), "chains pass all checks"), (("one", "another"), "not converged: another")],
)
def test_the_verdict_comes_last(reasons: tuple[str, ...], last: str):
    with Display() as display:
        display.console = Console(file=(shown := io.StringIO()))
        display(Event("verdict", "table\nwrote report.html", {"reasons": reasons}))
        display(END)
    assert shown.getvalue().splitlines()[:3] == ["table", "wrote report.html", END.text]
    assert shown.getvalue().splitlines()[-1] == last
