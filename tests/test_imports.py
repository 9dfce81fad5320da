"""Modules that are imported with the package, and public names that are imported when they are used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

# Slow to import, and used neither by the first step of `pmwd-dist run` nor by many programs.
SLOW = ("arviz_stats", "diffrax", "jax_cosmo", "jinja2", "matplotlib", "optax", "pmwd_dist.infer", "scipy")


def test_slow_modules_are_not_imported_with_the_program() -> None:
    code = f"import sys, pmwd_dist, pmwd_dist.cli.main; print([x for x in {SLOW} if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", ["pmwd_dist", "pmwd_dist.infer"])
def test_public_names_are_the_same_in_any_order_of_imports(package: str) -> None:
    """A module of the name of a function would take its place as soon as it is imported."""
    there = import_module(package)
    nodes = ast.walk(ast.parse(inspect.getsource(there)))
    imported = {x.asname for node in nodes if isinstance(node, ast.ImportFrom) for x in node.names}
    assert {name for name in imported if name and name[0] != "_"} == {*there.__all__} == {*dir(there)}
    for name in there.__all__:
        value = getattr(there, name)
        assert isinstance(value, ModuleType) or find_spec(f"{package}.{name}") is None, name
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'absent'"):
        there.absent  # noqa: B018
