"""Load `environment` where tests run: the process that only hands them out to others need not import JAX."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Begin the test run, or one of its worker processes."""
    if not hasattr(config, "workerinput"):
        _share_programs()
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of OpenBLAS spin while they wait
    # All processes but that of `-n`, which waits for its workers, and has them wait until it has started.
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("environment")


def _share_programs() -> None:
    """Keep compiled programs in a folder of the user's cache, for all processes of this run and for later runs.

    The key of an entry is the program, with JAX's version and XLA's flags. JAX writes entries in place: an entry that
    another process reads half is compiled there again. Entries are removed a month after they were last read.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "pmwd-dist" / "programs-of-tests"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):  # another run removes it, too
            if time.time() - entry.stat().st_atime > 30 * 86400:
                entry.unlink()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
