"""Public names of a package, imported when they are first used: a program imports only what it uses."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose source imports its names for type checkers only."""
    nodes = ast.walk(ast.parse(getsource(sys.modules[package])))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    # Module of each public name, and its name there.
    homes = {x.asname: (node.module or "", x.name) for node in imports for x in node.names if x.asname}
    names = sorted(name for name in homes if not name.startswith("_"))

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = homes[name]
        there = None if module == package else import_module(module)
        value = getattr(there, own) if hasattr(there, own) else import_module(f"{module}.{own}")
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: names, names
