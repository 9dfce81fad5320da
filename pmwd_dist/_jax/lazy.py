"""Public names of a package, imported when they are first used: a program imports only what it uses."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import getsource
from typing import Any


def lazy_names(package: str) -> Callable[[str], Any]:
    """A `__getattr__` for a package whose source imports its public names for type checkers only."""

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        """Module of each public name, and its name there."""
        nodes = ast.walk(ast.parse(getsource(sys.modules[package])))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        return {x.asname: (node.module or "", x.name) for node in imports for x in node.names if x.asname}

    def find(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = homes()[name]
        there = None if module == package else import_module(module)
        value = getattr(there, own) if hasattr(there, own) else import_module(f"{module}.{own}")
        setattr(sys.modules[package], name, value)
        return value

    return find
