"""Load `environment` where tests run: the process that only hands them out to others need not import JAX."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """All processes but that of `-n`, which waits for its workers, and has them wait until it has started."""
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("environment")
