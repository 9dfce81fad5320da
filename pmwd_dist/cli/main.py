"""Run a command; report an error as one or two lines and an exit code."""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import jax
import typer

from pmwd_dist._files import message
from pmwd_dist._jax.profile import recording
from pmwd_dist.cli.commands import CommandError, app
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import ConnectionLostError, SharedError, connection_errors
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.folder import StartError
from pmwd_dist.run.common.resources import larger_fraction
from pmwd_dist.run.settings import SettingsError

# Newer versions of typer bring their own click; this is the base class of usage errors in either.
_UsageError: Any = typer.BadParameter.__mro__[1]
# Errors that every process raises; after any other one the other processes would wait forever.
_SHARED = (SharedError, SimulationError, CommandError, StartError)
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, *, began: float | None = None) -> NoReturn:
    """Run the program `pmwd-dist` with these command-line arguments; default: sys.argv.

    It began at this time of time.perf_counter(); default: now.
    """
    began = time.perf_counter() if began is None else began
    code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"], began)
    try:
        sys.stdout.flush()
    except OSError:  # the terminal may be gone
        distributed.silence(1)
    distributed.leave(code)


def _run(arguments: list[str], began: float) -> int:
    try:
        return _call(arguments, began)
    except BrokenPipeError:  # as in `pmwd-dist template | head`
        distributed.silence(1)
        return 0
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        code, lines = _explain(error)
        alone = distributed.launched_size() == 1 or _process_count() == 1
        own = not alone and not isinstance(error, _SHARED)
        if alone or own or distributed.is_main():
            with suppress(OSError):  # the terminal may be gone
                for line in lines:
                    process = f"process {jax.process_index()}: " if own else ""
                    print(f"pmwd-dist: {process}{line}", file=sys.stderr if code else sys.stdout)
        if "--traceback" in arguments:
            traceback.print_exception(error)
        if own:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            # An orderly exit would wait for the other processes, which wait for this one.
            distributed.abort(code, lost=isinstance(error, ConnectionLostError))
        return code


def _process_count() -> int:
    try:
        return jax.process_count()
    except Exception:  # JAX has no device
        return 1


def _call(arguments: list[str], began: float) -> int:
    warnings.filterwarnings("ignore", ".*P\\(k\\).* CAMB")  # plans say it by key
    warnings.filterwarnings("ignore", ".*have no dense core")  # of the particles that halos are found in
    for name in (*arguments, str(Path.cwd())):
        try:
            os.fsencode(name).decode("utf-8")
        except UnicodeError as error:
            raise CommandError(f"{name!a}: is not UTF-8; use another name") from error
    try:
        with recording(began) as profile, connection_errors():
            profile.add("import", began, time.perf_counter())
            code = int(app(arguments, prog_name="pmwd-dist", standalone_mode=False) or 0)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer turns it into an exit
            raise error.__context__ from None
        raise
    if code == _INTERRUPTED:  # typer turns a KeyboardInterrupt into an exit code
        raise KeyboardInterrupt
    return code


def _explain(error: BaseException) -> tuple[int, list[str]]:
    """Exit code and message."""
    match error:
        case CommandError() | SettingsError() | StartError():
            return 2, str(error).splitlines()
        case Interrupted():
            return 128 + error.signal_number if error.signal_number else 0, [str(error)]
        case SystemExit(code=None | 0):  # after the script of shell completion
            return 0, []
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1, ["terminated"]
        case KeyboardInterrupt() | typer.Abort():
            return _INTERRUPTED, ["interrupted"]
        case SimulationError() | SharedError() | OSError():
            return 1, [f"the run failed: {message(error)}"]
        case ConnectionLostError():
            remedy = "look for its last message, or whether it ran out of memory"
            return 1, [f"the run failed: {error}; {remedy}; then go on with `pmwd-dist resume DIR`"]
        case _:
            pass
    if isinstance(error, _UsageError):
        usage: Any = error
        command = usage.ctx.command_path if usage.ctx else "pmwd-dist"
        return 2, [f"{usage.format_message()} (`{command} --help` lists all)"]
    first = (str(error).splitlines() or [""])[0]
    if "RESOURCE_EXHAUSTED" in first or isinstance(error, MemoryError):
        remedies = ", ".join([*larger_fraction(), "use a smaller mesh"])
        return 1, [f"the run failed: out of memory; {remedies}, or more devices"]
    return 1, [f"internal error: {type(error).__name__}: {first} (--traceback shows where)"]
