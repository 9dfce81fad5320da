"""Two tiers of tests, and what a run compiled.

`environment` is loaded where tests run: the process that only hands them out to others need not import JAX.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from jaxtyping import install_import_hook

FIRST_LAYOUTS = ("1, 1", "2, 2")  # of the first tier
TOTALS = pytest.StashKey[dict[str, float]]()  # of all processes: see `pytest_terminal_summary`


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for everything, and for more damage."""
    text = "run the second tier, too: tests marked slow, and checks of the types of arrays"
    parser.addoption("--all", action="store_true", help=text)
    parser.addoption("--fuzz", type=int, default=60, help="number of files that each test of damage changes")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the test run, or one of its worker processes."""
    config.stash[TOTALS] = {}
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of OpenBLAS spin while they wait
        _keep_bytecode(config)
    # All processes but that of `-n`, which waits for its workers, and has them wait until it has started.
    if config.getoption("dist", "no") == "no":
        if config.option.all:
            config.pluginmanager.import_plugin("typechecking")
            install_import_hook("pmwd_dist", "typechecking.check")
        config.pluginmanager.import_plugin("environment")


def _keep_bytecode(config: pytest.Config) -> None:
    """Where Python may write no bytecode, keep it in pytest's folder: each process would compile all of JAX."""
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(config.rootpath / ".pytest_cache" / "bytecode")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the second tier, unless it is asked for: by --all, by a choice of marks, or test by test."""
    if config.option.all or config.option.markexpr or any("::" in argument for argument in config.args):
        return
    second = _other_layouts(items) | {item for item in items if item.get_closest_marker("slow")}
    items[:] = [item for item in items if item not in second]
    config.hook.pytest_deselected(items=list(second))
    config.stash[TOTALS]["deselected"] = len(second)


def _other_layouts(items: list[pytest.Item]) -> set[pytest.Item]:
    """Tests on layouts beyond those of the first tier, where the same test runs on one of these."""
    layouts: dict[str, dict[pytest.Item, str]] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        for name in {"decomposition", "parallel", "pdims"} & set(parameters):
            layouts.setdefault(item.nodeid.split("[")[0], {})[item] = str(parameters[name]).strip("()[]")
    return {
        item
        for of in layouts.values()
        for item, layout in of.items()
        if layout not in FIRST_LAYOUTS and not set(FIRST_LAYOUTS).isdisjoint(of.values())
    }


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count what this process and those it started have used."""
    totals = session.config.stash[TOTALS]
    if environment := session.config.pluginmanager.get_plugin("environment"):
        totals |= environment.PROGRAMS
        totals["processor"] = sum(os.times()[:4])
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["totals"] = totals


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker process counted; all of them collect the same tests."""
    totals = node.config.stash[TOTALS]
    for name, number in getattr(node, "workeroutput", {}).get("totals", {}).items():
        totals[name] = number if name == "deselected" else totals.get(name, 0) + number


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was left out, and what the run cost."""
    totals = config.stash[TOTALS]
    if "processor" in totals:
        terminalreporter.write_line(
            f"{totals['compiled']} programs compiled, {totals['read']} read from the folder of compiled ones; "
            f"{totals['processor']:.0f} s of processor time"
        )
    if totals.get("deselected"):
        terminalreporter.write_line(f"{totals['deselected']} tests of the second tier left out, which --all runs, too")
