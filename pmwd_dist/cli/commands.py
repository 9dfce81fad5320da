"""The commands of the program."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import message, naming
from pmwd_dist._jax.profile import part
from pmwd_dist.cli.display import Display
from pmwd_dist.cli.doctor import report_lines
from pmwd_dist.io.compilation_cache import enable_compilation_cache
from pmwd_dist.parallel import autotune as tuner
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, raise_on_all_processes
from pmwd_dist.report import drawing
from pmwd_dist.run.common.fingerprint import compare_processes, may_change
from pmwd_dist.run.common.folder import CONFIG, alterations, finished, folder_lock, prepare_folder, state
from pmwd_dist.run.common.job import Job, execute
from pmwd_dist.run.ensemble import Ensemble, is_ensemble, prepare_ensemble, run_ensemble, state_of_rows, write_summary
from pmwd_dist.run.settings import Settings, SimulationSettings, read_any
from pmwd_dist.run.settings.columns import read_settings_table
from pmwd_dist.run.settings.section import duration
from pmwd_dist.run.simulation.job import SimulationJob

app = typer.Typer(
    help="Particle-mesh simulations of the large-scale structure, on one core or many GPUs.",
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="TOML file; `template` or `template --infer` prints one.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Output folder; default: the file's name.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results of an earlier run.")]
Snapshot = Annotated[
    Path,
    typer.Argument(
        metavar="SNAPSHOT",
        help="HDF5 file of GADGET, AREPO, GIZMO, EAGLE or SWIFT; any of a set, its common name or its folder.",
    ),
]
BesideSnapshot = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: beside the snapshot.")
]
LengthUnit = Annotated[
    str | None, typer.Option(metavar="UNIT", help="kpc/h, Mpc/h, kpc or Mpc; default: the unit of the file.")
]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key: --set box.size=500.")]
TimeLimit = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop in time with a checkpoint and exit code 0: --time-limit 3h55m.")
]


# Options of JAX whatever the environment says: random numbers of a seed follow from three of them.
_OPTIONS_OF_JAX = {
    "jax_numpy_dtype_promotion": "standard",
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_transfer_guard": "allow",
}


class CommandError(Exception):
    """The command or the configuration is wrong; nothing was started."""


@contextmanager
def command_errors() -> Generator[None]:
    """Raise errors of the body, which precedes the run, as CommandError on every process."""
    try:
        with raise_on_all_processes():
            yield
    except (OSError, ValueError, SharedError) as error:
        raise CommandError(message(error)) from error


def _version(wanted: bool) -> None:
    if wanted:
        _say(f"pmwd-dist {version('pmwd-dist')}")
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error comes from.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the verb."""
    del traceback, show_version  # `main` reads the first, since it also reports errors of the command line itself


def _add_job(name: str, about: str) -> None:
    @app.command(name, help=about)
    def do(
        file: File,
        output: Output = None,
        overrides: Set = [],
        overwrite: Overwrite = False,
        time_limit: TimeLimit = None,
    ) -> None:
        _start(name)
        with command_errors():
            limit = _seconds(time_limit)
        read = partial(_settings, name, file, overrides)
        job, warnings = _checked_job(read, output or Path(file.stem), overwrite=overwrite, time_limit=limit)
        with command_errors():
            prepare_folder(job, overwrite=overwrite)
        with Display() as display:
            display.show(warnings)
            execute(job, display, time_limit=limit, warnings=warnings)


_add_job("run", "Run the simulation of a TOML file.")
_add_job("infer", "Infer initial conditions and parameters from data, or from a mock, by a TOML file.")


def _settings(command: str, file: Path, overrides: list[str]) -> Settings:
    found = read_any(file, overrides)
    kind, other = ("a simulation", "run") if isinstance(found, SimulationSettings) else ("an inference", "infer")
    if other != command:
        raise ArgumentError("FILE", str(file), f"has the sections of {kind}", f"use `pmwd-dist {other}`")
    return found


@app.command()
def ensemble(
    file: File,
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV file: keys of FILE, such as noise.seed, and rows of values.")
    ],
    output: Output = None,
    overrides: Set = [],
    time_limit: TimeLimit = None,
) -> None:
    """Run a simulation for each row of a table; programs that are started alike share the rows."""
    _start("ensemble")
    with command_errors():
        limit = _seconds(time_limit)
        found = Ensemble(read_settings_table(file, table, overrides), output or Path(table.stem))
    _run_ensemble(found, limit, prepare_ensemble)


def _run_ensemble(found: Ensemble, time_limit: float | None, prepare: Callable[[Ensemble], None] | None = None) -> None:
    """Work on the rows of an ensemble, after its preparation, or again on those that have failed."""
    unequal = list[str]()
    with command_errors():
        if jax.process_count() > 1:
            unequal = compare_processes(found.job(0), table=found.table.text(), time_limit=time_limit)
    if prepare is not None:
        with command_errors():
            prepare(found)
    with Display() as display:
        display.show(unequal)
        display.show(run_ensemble(found, display, retry=prepare is None, time_limit=time_limit))


@app.command()
def resume(folder: Folder, overrides: Set = [], time_limit: TimeLimit = None) -> None:
    """Resume a run from its last checkpoint, an inference from its last chunk, or the missing rows of an ensemble."""
    _start("resume")
    with command_errors():
        limit = _seconds(time_limit)
        for text in overrides:
            if not may_change(text.partition("=")[0].strip()):
                why = "resume keeps this setting of the run; leave it out, or start a new run in another folder"
                raise ValueError(f"--set {text}: {why}")
        rows = Ensemble.of_folder(folder, overrides) if is_ensemble(folder) else None
    if rows is not None:
        _run_ensemble(rows, limit)
        return
    with command_errors():
        done = finished(folder)
        kind = _job_type(read_any(folder / CONFIG, overrides))
        extended = any(text.startswith(kind.extending) for text in overrides)
    if distributed.all_processes(done and not extended):
        ignored = f", and --set {' --set '.join(overrides)} has no effect" if overrides else ""
        _say(f"{folder}: the run is finished{ignored}; nothing is left to do", *alterations(folder))
        return
    job, warnings = _checked_job(lambda: read_any(folder / CONFIG, overrides), folder, time_limit=limit)
    with Display() as display:
        display.show(warnings)
        execute(job, display, resume=True, time_limit=limit, warnings=warnings, changes=overrides)


@app.command()
def check(file: File, output: Output = None, overrides: Set = []) -> None:
    """Check a TOML file and describe its run on the current devices."""
    _start("check")
    with command_errors():
        settings = read_any(file, overrides)
        job = _job_type(settings).of(settings, output or Path(file.stem))
    with command_errors():
        unequal = compare_processes(job)
    with command_errors():
        warnings = [*unequal, *job.check()]
        lines = [*job.lines(), *job.memory_lines(), *warnings]
    _say(*lines)


@app.command()
def template(of_inference: Annotated[bool, typer.Option("--infer", help="That of `pmwd-dist infer`.")] = False) -> None:
    """Print a TOML file with every key, its default and its meaning."""
    from pmwd_dist.run.settings import InferenceSettings
    from pmwd_dist.run.settings.template import template as text

    with naming("standard output"):
        typer.echo(text(InferenceSettings if of_inference else SimulationSettings), nl=False)


@app.command()
def doctor(folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder of a run.")] = None) -> None:
    """List versions, devices, native ops, MPI, compiled programs, cores and memory, and the state of a run."""
    _start("doctor")
    _say(*report_lines(folder if folder is not None and folder.is_dir() else Path()))
    if folder is not None:
        with command_errors():
            text = state_of_rows(Ensemble.of_folder(folder)) if is_ensemble(folder) else state(folder)
            _say(f"run         {folder}: {text}")


@app.command()
def power(
    snapshot: Snapshot,
    mesh: Annotated[
        int | None, typer.Option(min=4, max=1 << 16, help="Cells along a side; default: the simulation's.")
    ] = None,
    output: BesideSnapshot = None,
    types: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Types of particles; default: all that have masses.")
    ] = None,
    length_unit: LengthUnit = None,
) -> None:
    """Measure the power spectrum of the matter in a snapshot, weighted by mass."""
    from pmwd_dist.cli.snapshots import measure_snapshot

    _start("power", snapshot, mesh, output, types, length_unit)
    with command_errors():
        numbers = None if types is None else types.split(",")
        if numbers and not all(n.strip().isdecimal() for n in numbers):
            raise ArgumentError("--types", types, "must be numbers of types", "for example 0,1,4")
        chosen = None if numbers is None else list(map(int, numbers))
        lines, warnings = measure_snapshot(snapshot, mesh, output, chosen, length_unit)
    for warning in warnings:
        _warn(warning)
    _say(*lines)


@app.command()
def halos(
    snapshot: Snapshot,
    linking_length: Annotated[float, typer.Option(help="Linking length over the mean distance of particles.")] = 0.2,
    min_particles: Annotated[int, typer.Option(help="Least number of particles of a halo.")] = 20,
    output: BesideSnapshot = None,
    length_unit: LengthUnit = None,
) -> None:
    """Find halos of the dark matter in a snapshot by friends of friends, with their masses and mass function."""
    from pmwd_dist.cli.snapshots import measure_halos

    _start("halos", snapshot, linking_length, min_particles, output, length_unit)
    options = {"linking_length": linking_length, "min_particles": min_particles}
    with command_errors():
        lines = measure_halos(snapshot, output, length_unit, **options)
    _say(*lines)


@app.command()
def report(folder: Folder) -> None:
    """Write report.html of a run, finished or not, and draw its figures again; of an ensemble, its summary."""
    from pmwd_dist.run.common.report import write_report
    from pmwd_dist.run.inference.plan import START
    from pmwd_dist.run.inference.verdict import redraw_chains
    from pmwd_dist.run.outputs.registry import redraw

    _start("report")
    if is_ensemble(folder):
        with command_errors():
            found = Ensemble.of_folder(folder)
        _say(*write_summary(found))
        return
    with command_errors():
        finished(folder)  # or it is not the folder of a run
        if distributed.is_main():
            with folder_lock(folder):
                drawn = redraw_chains(folder) if (folder / START).is_file() else redraw(folder)
                drawn.append(write_report(folder))
            _say(*(f"wrote {path}" for path in drawn))


@app.command()
def movie(
    folder: Folder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="GIF, or MP4 by ffmpeg; default: movie.gif.")
    ] = None,
    fps: Annotated[int, typer.Option(min=1, max=100, help="Frames a second.")] = 8,
) -> None:
    """Write the density slices of a run as a movie, one frame for each redshift."""
    from pmwd_dist.cli.movie import write_movie

    _start("movie", folder, output, fps)
    with command_errors():
        finished(folder)  # or it is not the folder of a run
        if distributed.is_main():
            _say(f"wrote {write_movie(folder, output, fps=fps)}")


@app.command()
def autotune(
    shape: Annotated[list[int], typer.Argument(metavar="NX [NY NZ]", help="Cells of the mesh; one for a cube.")],
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    n_devices: Annotated[int | None, typer.Option(min=1, help="How many devices; default: all.")] = None,
    halo: Annotated[int, typer.Option(min=0, help="Width of the halo exchange [cells].")] = 16,
    again: Annotated[bool, typer.Option("--again", help="Measure even if there is a stored result.")] = False,
) -> None:
    """Time every division of a mesh over the devices, and remember the fastest for runs to come."""
    _start("autotune", shape, dtype, n_devices, halo, again)
    with command_errors():
        if len(shape) not in (1, 3):
            raise ValueError(f"{len(shape)} numbers of cells were given; give one or three")
        nx, ny, nz = shape * (3 // len(shape))
        best = tuner.autotune(
            (nx, ny, nz), dtype=dtype, n_devices=n_devices, halo=halo, measure_again=again, say=typer.echo
        )
    _say(f"devices.pdims = [{best.pdims[0]}, {best.pdims[1]}]")
    _say(f'devices.backend = "{best.backend.name}"')
    _say(*(f'devices.{name} = "{value}"' for name, value in best.backend.options.items()))


@part("device start")
def _start(*command: object) -> None:
    """Join all processes, which must have the same command, up to files and settings. Collective."""
    for name, value in _OPTIONS_OF_JAX.items():
        jax.config.update(name, value)
    try:
        distributed.initialize()
    except RuntimeError as error:
        raise CommandError(" ".join(str(error).split())) from error
    try:
        jax.devices()
        enable_compilation_cache(_warn)
        distributed.first_collective()
    except Exception as error:  # an assertion of JAX, or what follows it, where no plugin has these platforms
        settings: Any = jax.config
        asked = f"JAX_PLATFORMS={settings.jax_platforms}: " if settings.jax_platforms else ""
        remedy = "install one, as by `pip install 'jax[cuda13]'`, or unset the variable"
        reason = str(error) if isinstance(error, RuntimeError) else f"JAX has no plugin for such devices; {remedy}"
        raise CommandError(asked + " ".join(reason.split())) from error
    first, *others = distributed.exchange(" ".join(str(x) for x in command if x is not None))
    for i, other in enumerate(others, 1):
        if other != first:
            raise CommandError(f"process {i} was started with `{other}`, and process 0 with `{first}`; start all alike")


def _seconds(time_limit: str | None) -> float | None:
    try:
        return None if time_limit is None else duration(time_limit)
    except ValueError as error:
        raise ArgumentError("--time-limit", time_limit, str(error)) from error


def _job_type(settings: Settings) -> type[Job]:
    if isinstance(settings, SimulationSettings):
        return SimulationJob
    from pmwd_dist.run.inference.job import InferenceJob

    return InferenceJob


@part("checks")
def _checked_job(settings: Callable[[], Settings], folder: Path, **options: Any) -> tuple[Job, list[str]]:
    """The job of some settings, the same on all processes, and its warnings. Collective.

    Raises CommandError if a process can't do the job, or has another one.
    """
    with command_errors():
        found = settings()
        if isinstance(found, SimulationSettings):
            if found.output.figures and distributed.is_main():
                drawing.start()
        else:
            with suppress(OSError):  # standard output that can't be written is no reason to end a run
                _say("memory: compiling a gradient ...")
        job = _job_type(found).of(found, folder)
    with command_errors():
        unequal = compare_processes(job, **options)
        job = job.of_main()
    with command_errors():
        return job, [*unequal, *job.check()]


def _warn(text: str) -> None:
    if distributed.is_main():
        typer.echo(f"pmwd-dist: warning: {text}", err=True)


def _say(*lines: str) -> None:
    if distributed.is_main():
        with naming("standard output"):
            for line in lines:
                typer.echo(line)
