"""Write the licences of all dependencies: THIRD-PARTY.txt, and rust/jaxdecomp-ops/THIRD-PARTY.txt with the texts.

Run it in an environment with all dependencies of pyproject.toml, with cargo: `make third-party`.
"""

import json
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_packages() -> str:
    """Return a table of the run-time dependencies in Python and their licences."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = ["pmwd-dist contains no code of other packages. pip installs these beside it:", ""]
    for requirement in project["dependencies"]:
        name = re.split(r"[^\w-]", requirement)[0]
        found = metadata.metadata(name)
        classifiers = [text.split(" :: ")[-1] for text in found.get_all("Classifier", []) if text.startswith("License")]
        given = (found.get("License") or "").strip().split("\n")[0]
        licence = found.get("License-Expression") or ", ".join(classifiers) or given
        if not licence:
            raise SystemExit(f"{name} has no licence in its metadata")
        lines.append(f"{name:12} {licence}")
    lines += ["", "The crates in the native ops: THIRD-PARTY.txt of jaxdecomp-ops."]
    return "\n".join(lines) + "\n"


def licence_files(crate: dict) -> list[Path]:
    """Return the licence files of a crate: where the MIT licence is a choice, that one and those that hold besides."""
    folder = Path(crate["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if re.match(r"(?i)(licen[cs]e|copying|notice)", path.name)]
    if any("mit" in path.name.lower() for path in files):
        files = [path for path in files if "apache" not in path.name.lower()]
    if not files:
        raise SystemExit(f"{crate['name']} {crate['version']} has no licence file")
    return files


def crates() -> str:
    """Return the licences of all crates of Cargo.lock with their texts."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    lines = ["Crates that jaxdecomp-ops is built from, and their licences. The Rust standard library, which is linked"]
    lines += ["as well, is under MIT OR Apache-2.0 (https://www.rust-lang.org/policies/licenses).", ""]
    for crate in sorted((crate for crate in found["packages"] if crate["source"]), key=lambda crate: crate["name"]):
        lines += ["=" * 80, f"{crate['name']} {crate['version']}: {crate['license']}", crate["repository"] or "", ""]
        for path in licence_files(crate):
            lines += [line.rstrip() for line in path.read_text().strip().splitlines()] + [""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "THIRD-PARTY.txt").write_text(python_packages())
    (ROOT / "rust/jaxdecomp-ops/THIRD-PARTY.txt").write_text(crates())
