"""Versions, licences, workflow files and imports of the packages agree with each other."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"^## (\d\S*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {PROJECT["version"], WORKSPACE["version"], citation["version"], headings[0]} == {PROJECT["version"]}
    major, minor, _ = map(int, PROJECT["version"].split("."))
    assert f"jaxdecomp-ops>={major}.{minor},<{major}.{minor + 1};" in PROJECT["optional-dependencies"]["native"][0]
    assert {PROJECT["license"], WORKSPACE["license"], citation["license"]} == {"Apache-2.0"}


def test_licences_of_all_dependencies():
    table = (ROOT / "THIRD-PARTY.txt").read_text().splitlines()
    packages = {re.split(r"[^\w-]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert packages == {line.split()[0] for line in table[2:-2]}
    crates = {
        f"{crate['name']} {crate['version']}"
        for crate in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
        if "source" in crate
    }
    texts = (ROOT / "rust/jaxdecomp-ops/THIRD-PARTY.txt").read_text()
    assert crates == set(re.findall(r"^={80}\n(\S+ \S+): ", texts, re.MULTILINE)), "run `make third-party`"


def test_the_recipe_for_conda_has_the_requirements():
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    ours, native = recipe["outputs"]
    found = {line.replace("matplotlib-base", "matplotlib").replace(" ", "") for line in ours["requirements"]["run"]}
    assert found == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(build) <= {line.replace(" ", "") for line in ours["requirements"]["host"]}
    maturin = tomllib.loads((ROOT / "rust/jaxdecomp-ops/pyproject.toml").read_text())["build-system"]["requires"]
    assert set(maturin) <= {line.replace(" ", "") for line in native["requirements"]["host"]}
    assert recipe["context"]["version"] == PROJECT["version"]


def test_licence_of_the_native_ops_is_ours():
    assert (ROOT / "rust/jaxdecomp-ops/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_workflows_follow_the_schema_of_github():
    program = shutil.which("check-jsonschema", path=str(Path(sys.executable).parent))
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    command = [program, "--builtin-schema", "vendor.github-workflows", *files]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_workflows_call_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text())["jobs"].values()
        for command in (step.get("run", "") for job in jobs for step in job["steps"]):
            assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets, (file.name, command)


# --- imports -----------------------------------------------------------------------------------------------------

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
