"""The folder of compiled programs: on by default, bounded, the user's own, and switched off by JAX's variables."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pmwd_dist._jax import program
from pmwd_dist.io import compilation_cache


class Config(SimpleNamespace):
    """JAX's configuration, as it is before anything sets it."""

    def __init__(self) -> None:
        super().__init__(
            jax_enable_compilation_cache=True,
            jax_compilation_cache_dir=None,
            jax_compilation_cache_max_size=-1,
        )

    def update(self, name: str, value: Any) -> None:
        setattr(self, name, value)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    config = Config()
    one = SimpleNamespace(config=config, default_backend=lambda: "cpu", device_count=lambda: 1)
    for module in (compilation_cache, program):
        monkeypatch.setattr(module, "jax", one)
    monkeypatch.setattr(program, "_cache_settled", [False])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return config


def fail(text: str) -> None:
    pytest.fail(text)


def test_on_by_default(config: Config, tmp_path: Path):
    with pytest.raises(ValueError, match="warn must be a function; for example print; JAX_COMPILATION_CACHE_DIR names"):
        compilation_cache.enable_compilation_cache(str(tmp_path))  # type: ignore[arg-type]
    compilation_cache.enable_compilation_cache(fail)
    folder = Path(config.jax_compilation_cache_dir)
    assert folder.is_relative_to(tmp_path / "pmwd_dist")
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "step-cache").write_bytes(bytes(2_000_000))
    assert compilation_cache.report() == f"{folder}: 1 programs, 2.0 MB"


@pytest.mark.parametrize(("name", "value"), [("enable_compilation_cache", False), ("compilation_cache_dir", "/mine")])
def test_jax_s_variables_rule(config: Config, tmp_path: Path, name: str, value: Any):
    config.update(f"jax_{name}", value)
    compilation_cache.enable_compilation_cache(fail)
    assert not list(tmp_path.iterdir())
    assert config.jax_compilation_cache_dir in {None, "/mine"}
    assert compilation_cache.report() in {"off", "/mine: 0 programs, 0.0 MB"}


@pytest.mark.slow
def test_the_oldest_programs_make_room(config: Config):
    folder = compilation_cache.default_folder()
    folder.mkdir(parents=True)
    for age in range(5):
        (folder / f"{age}-cache").write_bytes(bytes(100))
        os.utime(folder / f"{age}-cache", (1e9 - age, 1e9 - age))
    config.update("jax_compilation_cache_max_size", 350)
    compilation_cache.enable_compilation_cache(fail)
    assert sorted(path.name for path in folder.iterdir()) == ["0-cache", "1-cache", "2-cache"]
    assert config.jax_compilation_cache_max_size == -1


def shared(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def occupied(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()


def in_a_shared_folder(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [(shared, "others may write"), (in_a_shared_folder, "others may write"), (occupied, "File exists")],
)
def test_a_folder_that_can_not_be_used_is_warned_of_once(
    config: Config, prepare: Callable[[Path], None], reason: str
) -> None:
    folder = compilation_cache.default_folder()
    prepare(folder)
    found: list[str] = []
    compilation_cache.enable_compilation_cache(found.append)
    (line,) = found
    assert reason in line
    assert str(folder.parent if prepare is in_a_shared_folder else folder) + ":" in line
    assert config.jax_compilation_cache_dir is None


def test_a_shared_folder_of_jax_s_variable_is_warned_of(config: Config, tmp_path: Path) -> None:
    found: list[str] = []
    for name, mode in (("own", 0o700), ("sticky", 0o1777), ("shared", 0o777)):
        (tmp_path / name / "programs").mkdir(parents=True)
        (tmp_path / name).chmod(mode)
        config.update("jax_compilation_cache_dir", str(tmp_path / name / "programs"))
        compilation_cache.enable_compilation_cache(found.append)
    (line,) = found
    assert f"others may write into {tmp_path}/shared, and" in line


@pytest.mark.filterwarnings("always")
def test_damaged_entries_are_removed_and_warned_of_once(config: Config):
    found: list[str] = []
    compilation_cache.enable_compilation_cache(found.append)
    folder = Path(config.jax_compilation_cache_dir)
    (folder / "step-cache").write_bytes(b"half")
    for name in ("jit_step", "jit_paint"):
        warnings.showwarning(
            UserWarning(f"Error reading persistent compilation cache entry for '{name}': ValueError: half an entry"),
            UserWarning,
            "compiler.py",
            782,
        )
    assert found == [f"{folder}: half an entry; programs are compiled anew"]
    assert not list(folder.iterdir())


SCRIPT = """
import jax, pmwd_dist as pmd
assert jax.config.jax_compilation_cache_dir is None
jax.numpy.ones(3).block_until_ready()  # a program compiled earlier does not switch the cache off
pmd.enable_compilation_cache()
config = pmd.Config(32.0, 4, decomposition=(1, 1))
pmd.white_noise(jax.random.key(0), config).block_until_ready()
"""


@pytest.mark.slow
def test_a_script_leaves_its_programs_to_the_next(tmp_path: Path):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    def programs() -> set[Path]:
        subprocess.run([sys.executable, "-c", SCRIPT], env=variables, check=True, timeout=200)
        return set((tmp_path / "pmwd_dist" / "programs").glob("*/*-cache"))

    first = programs()
    assert first
    assert programs() == first


@pytest.mark.slow
def test_a_script_is_warned_once(config: Config) -> None:
    shared(compilation_cache.default_folder())
    with pytest.warns(RuntimeWarning, match="others may write"):
        compilation_cache.enable_compilation_cache()


@pytest.mark.parametrize(("platform", "devices", "cached"), [("cpu", 2, False), ("gpu", 2, True), ("cpu", 1, True)])
def test_programs_of_several_cpu_devices_are_not_cached(config: Config, platform: str, devices: int, cached: bool):
    """Read from the cache, they can hang."""
    compilation_cache.jax.default_backend = lambda: platform
    compilation_cache.jax.device_count = lambda: devices
    compilation_cache.enable_compilation_cache(fail)
    assert config.jax_enable_compilation_cache == (config.jax_compilation_cache_dir is not None) == cached
