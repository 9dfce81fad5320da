"""The documentation site builds without a warning or a network; its tutorials, commands and config files are right."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import typer

import pmwd_dist as pmd
from pmwd_dist.cli.commands import app
from pmwd_dist.run.settings import InferenceSettings, SimulationSettings

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"
TUTORIALS = sorted((ROOT / "docs").glob("*/*.py"))

# Tutorials with smaller numbers of cells, steps and draws, whose programs are the same.
SMALLER = {"7": "2", "64": "16", "99": "19", "100": "20", "200": "20", "800": "40", "1000": "40", "4000": "80"}
BUILD = """
import notebooks

notebooks.run = lambda body, names: None  # tutorials are executed by a test of their own
notebooks.page = lambda file, text: notebooks.markdown(file)
from mkdocs.__main__ import cli

cli()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:chains have not mixed")
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:positions. objects keep to a lattice")  # of mocks with fewer particles
def test_tutorials(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import notebooks

    plt.close("all")  # figures of other tests: a cell shows all that are open
    source = tutorial.read_text(encoding="utf-8").replace('jax.config.update("jax_num_cpu_devices", 4)', "")
    source = re.sub(r"(max_tree_depth|max_num_doublings)=5", r"\1=1", source)
    small = tmp_path / tutorial.name
    small.write_text(re.sub(r"(?<![\d.])\d+(?![\d.])", lambda number: SMALLER.get(number[0], number[0]), source))
    page = notebooks.markdown(small)
    drawn = sum("pmd.plot." in cell or "plt.subplots" in cell for cell in source.split("# %%"))
    assert page.count('src="data:image/png;base64,') == drawn > 0
    assert source.count("# %% [markdown]") > 5


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "docs")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_that_pages_load_nothing_from_elsewhere(tmp_path)
    assert all((tmp_path / name).is_file() for name in ("iframe-worker.js", "search/search_index.js"))  # by file://
    for tutorial in TUTORIALS:
        page = (tmp_path / tutorial.parent.name / f"{tutorial.stem}.html").read_text(encoding="utf-8")
        assert "<math" in page or tutorial.stem == "devices"
    for kind in (SimulationSettings, InferenceSettings):
        check_that_all_keys_are_described(tmp_path, kind)
    page = (tmp_path / "reference" / "cli.html").read_text(encoding="utf-8")
    for name in commands():
        assert f'id="{name}"' in page


def check_that_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text), page
        assert not re.search(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', text), page
        assert "arithmatex" not in text, page  # all equations are MathML


def check_that_all_keys_are_described(site: Path, kind: Any) -> None:
    page = (site / "reference" / "config.html").read_text(encoding="utf-8")
    for name, section in kind.sections.items():
        assert f"[{name}]" in page
        for key, field in section.model_fields.items():
            assert f"<code>{key}</code>" in page
            assert field.description, (name, key)


@pytest.mark.parametrize("module", [pmd, pmd.observe, pmd.infer, pmd.plot], ids=lambda module: module.__name__)
def test_all_public_names_are_in_the_reference_and_functions_in_an_example(module: Any) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    listed = {name.rsplit(".", 1)[1] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    used = set(re.findall(r"\w+", "".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))))
    known = {name: getattr(module, name) for name in module.__all__} | vars(module)
    public = {name: x for name, x in known.items() if not name.startswith("_") and not inspect.ismodule(x)}
    names = {name for name, x in public.items() if getattr(x, "__module__", "").startswith("pmwd_dist.")}
    assert len(names) > 12
    assert names <= set(module.__all__)
    assert names <= listed
    used.add("numpyro_position")  # takes NumPyro's samples: sims/infer_numpyro.py
    assert {name for name in names if inspect.isroutine(public[name])} <= used


@pytest.mark.parametrize("module", [pmd, pmd.observe, pmd.infer, pmd.plot], ids=lambda module: module.__name__)
def test_examples_of_docstrings_call_what_there_is(module: Any) -> None:
    modules = {"pmd": pmd, "observe": pmd.observe, "infer": pmd.infer}
    documented = [inspect.getdoc(getattr(module, name)) or "" for name in module.__all__]
    examples = [re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", text, re.MULTILINE) for text in documented]
    assert sum(map(bool, examples)) > 5
    for node in ast.walk(ast.parse("\n".join(line for lines in examples for line in lines))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner in modules:
                words = {str(word.arg): None for word in node.keywords}
                inspect.signature(getattr(modules[owner], name)).bind(*node.args, **words)
            case _:
                pass


def test_the_readme_at_an_index_has_no_link_that_needs_the_repository() -> None:
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links
    assert all(link.startswith("https://") for link in links)
    assert "![" not in text
    assert "Install has more" in text


def blocks(language: str) -> list[Any]:
    """Code blocks of a language in all pages, as parameters of a test."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    found = [(page, text) for page in PAGES for text in pattern.findall(page.read_text(encoding="utf-8"))]
    assert found
    return [pytest.param(text, id=f"{page.stem}-{i}") for i, (page, text) in enumerate(found)]


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


@pytest.mark.parametrize("block", blocks("bash"))
def test_commands_of_pages_exist(block: str) -> None:
    """Commands of ours have these options, modules and files exist, targets are in the Makefile."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "pmwd-dist" in words:
            name, *options = words[words.index("pmwd-dist") + 1 :]
            end = next((i for i, word in enumerate(options) if word in (">", "&")), None)
            commands()[name].make_context(name, options[:end])
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif words[:2] == ["pip", "install"]:
            for word in words[2:]:
                name, _, wanted = word.partition("[")
                assert (ROOT / name).exists() or name.startswith("-"), line
                assert set(filter(None, wanted.rstrip("]").split(","))) <= set(extras), line
        elif "-m" in words and words[words.index("-m") + 1] != "venv":
            assert find_spec(words[words.index("-m") + 1]), line
        for word in words:
            if word.startswith(("sims/", "benchmarks/")):
                assert (ROOT / word).exists(), line


@pytest.mark.parametrize("block", blocks("toml"))
def test_config_files_of_pages_are_valid(block: str) -> None:
    """Each section is one of a simulation or of an inference, with valid values."""
    found = tomllib.loads(block)
    for name, values in found.pop("observe", {}).items():
        found[f"observe.{name}"] = values
    assert found
    for name, values in found.items():
        sections: list[Any] = [
            kind.sections[name] for kind in (SimulationSettings, InferenceSettings) if name in kind.sections
        ]
        first, last = sections[0], sections[-1]
        section = first if set(values) <= set(first.model_fields) else last
        fields = section.model_fields
        required = {key: field.examples[0] for key, field in fields.items() if field.is_required() and field.examples}
        section.model_validate(required | values)
