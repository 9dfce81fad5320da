"""Load `environment` where tests run: the process that only hands them out to others need not import JAX."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Begin the test run, or one of its worker processes."""
    if not hasattr(config, "workerinput"):
        _share_programs(config)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of OpenBLAS spin while they wait
    # All processes but that of `-n`, which waits for its workers, and has them wait until it has started.
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("environment")


def _share_programs(config: pytest.Config) -> None:
    """Make a folder from which a program comes that is compiled again, by any process of this run.

    JAX writes its entries in place. One of which another process reads half is damaged to it, and compiled there.
    """
    folder = tempfile.mkdtemp(prefix="pmwd-dist-programs-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
