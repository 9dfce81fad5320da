"""Tutorials: Python files of cells (jupytext's percent format), executed and turned into Markdown with their figures.

python docs/notebooks.py docs/tutorials/simulation.py > page.md
"""

from __future__ import annotations

import ast
import base64
import io
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any


def pages(files: list[Path]) -> list[str]:
    """Markdown of tutorials, two of which run at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda file: page(file, file.read_text(encoding="utf-8")), files))


@cache
def page(file: Path, text: str) -> str:
    """Markdown of a tutorial with this text, in a process of its own."""
    del text  # while pages are served, a tutorial runs again only when it changes
    sys.stderr.write(f"running {file.name} ...\n")
    done = subprocess.run([sys.executable, __file__, str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{file}: {done.stderr}")
    return done.stdout


def cells(text: str) -> list[tuple[bool, str]]:
    """Cells of a notebook: whether it is Markdown, and its text."""
    found = re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text, re.MULTILINE | re.DOTALL)
    return [(bool(mark), re.sub(r"^# ?", "", body, flags=re.MULTILINE) if mark else body) for mark, body in found]


def markdown(file: Path) -> str:
    """Execute a tutorial; its text, code, output and figures."""
    names: dict[str, Any] = {"__name__": "__main__"}
    parts: list[str] = []
    for is_text, body in cells(file.read_text(encoding="utf-8")):
        if is_text:
            parts.append(body.strip())
            continue
        parts.append(f"```python\n{body.strip()}\n```")
        with redirect_stdout(io.StringIO()) as printed:
            last = run(body, names)
        if printed.getvalue():
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
        parts += figures(last)
    source = f"[{file.name}]({file.name})"
    return "\n\n".join([*parts, f"---\n\nThis page is {source}, a notebook for jupytext, as it runs on two cores."])


def run(body: str, names: dict[str, Any]) -> Any:
    """Execute a cell; the value of its last line, if that is an expression."""
    tree = ast.parse(body)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


def figures(last: Any) -> list[str]:
    """The figures that pyplot has open, or the one that is the value of a cell, inside the page."""
    import matplotlib.pyplot as plt

    drawn: list[str] = []
    opened = [plt.figure(number) for number in plt.get_fignums()]
    for figure in opened or [last] * hasattr(last, "savefig"):
        image = io.BytesIO()
        figure.savefig(image, dpi=90, bbox_inches="tight")
        data = base64.b64encode(image.getvalue()).decode()
        drawn.append(f'<img alt="Figure of the cell above" src="data:image/png;base64,{data}">')
    plt.close("all")
    return drawn


if __name__ == "__main__":
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"figure.constrained_layout.use": True, "image.origin": "lower"}
    warnings.simplefilter("error")
    for words in ("pkg_resources is deprecated", "invalid escape sequence"):  # in jax-cosmo
        warnings.filterwarnings("ignore", message=words)
    sys.stdout.write(markdown(Path(sys.argv[1])) + "\n")
