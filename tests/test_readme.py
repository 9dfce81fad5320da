"""The Python of the README and of the documentation runs as it stands; the scripts of sims/ name what there is."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer

ROOT = Path(__file__).parent.parent
SIMS = ROOT / "sims"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
DEAR = ("force", "observe")  # and those with chains
PAGES = [
    pytest.param(page, marks=[pytest.mark.slow] if "infer." in text or page.stem in DEAR else [], id=page.stem)
    for page in DOCS
    if "```python\n" in (text := page.read_text(encoding="utf-8"))
]
LINKING = [*DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md"))]


def python_of(page: Path) -> str:
    """All blocks of a page, as one program, with small meshes."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    return "\n".join(blocks).replace("mesh_shape=128", "mesh_shape=16")


def anchors_of(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_links_lead_to_files_and_sections(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if "://" not in link:
            file, _, section = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists() or target.with_suffix(".py").exists(), link  # pages of tutorials are generated
            assert not section or section in anchors_of(target), link


def test_readme() -> None:
    names: dict[str, object] = {}
    exec(compile(python_of(ROOT / "README.md"), "README.md", "exec"), names)
    density, spectrum = names["density"], names["spectrum"]
    assert np.asarray(density).mean() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(np.asarray(spectrum.power)).all()  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:chains have not mixed")  # their chains are short
@pytest.mark.filterwarnings("ignore:the simulation failed")  # as one of them shows
@pytest.mark.parametrize("page", PAGES)
def test_pages(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "sims").symlink_to(SIMS)  # pages name its files, and write their own
    monkeypatch.chdir(tmp_path)
    exec(compile(python_of(page), page.name, "exec"), {})


# --- scripts of sims/ --------------------------------------------------------------------------------------------

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
