"""Public names of a package, from the imports in its source, and their import when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose source may import its names for type checkers only.

    The only table of the names are these imports, `from MODULE import NAME as NAME`: an import without the second name
    is private to type checkers. A program imports only modules that it uses.
    """
    loader: Any = sys.modules[package].__loader__
    imports = re.findall(r"^ *from (\S+) import \w+ as ([^_\W]\w*)$", loader.get_source(package), re.MULTILINE)
    homes = {name: home for home, name in imports}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = None if homes[name] == package else import_module(homes[name])
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{homes[name]}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(homes), sorted(homes)
