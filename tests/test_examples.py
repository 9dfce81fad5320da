"""The scripts of sims/: one runs, with fewer steps; of the others, which compile for longer, names and keywords."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import pmwd_dist as pmd
from pmwd_dist import infer

SIMS = Path(__file__).parents[1] / "sims"
SCRIPTS = sorted(SIMS.glob("*.py"))


@pytest.mark.slow
def test_a_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (SIMS / "infer_samplers.py").read_text()
    for many, few in {"split(key, 1000)": "split(key, 20)", "[:, 200:]": "[:, 4:]"}.items():
        assert many in text
        text = text.replace(many, few)
    exec(compile(text, "infer_samplers.py", "exec"), {})
    shown = capsys.readouterr().out
    assert "truth 1.8" in shown and "energy error a dimension: " in shown


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_name_what_there_is(path: Path) -> None:
    modules = {"pmd": pmd, "infer": infer}
    used = 0
    for node in ast.walk(ast.parse(path.read_text())):
        target = node.func if isinstance(node, ast.Call) else node
        if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            continue
        if target.value.id in modules:
            found = getattr(modules[target.value.id], target.attr)
            used += 1
            if isinstance(node, ast.Call):
                inspect.signature(found).bind_partial(**{k.arg: None for k in node.keywords if k.arg is not None})
    assert used > 2
