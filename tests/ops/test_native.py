"""Importing the package changes nothing; the native ops are optional."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist._jax import native
from pmwd_dist.cli import doctor

IMPORT = """
import os, sys, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jax, diffrax, jax_cosmo  # what the package builds on may do as it likes
before = dict(os.environ), jax.config.values.copy(), jax.config.jax_enable_x64
import pmwd_dist
assert dict(os.environ) == before[0], "the environment changed"
assert jax.config.values == before[1] and jax.config.jax_enable_x64 == before[2], "jax.config changed"
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "JAX's backends were started"
assert "mpi4py.MPI" not in sys.modules, "MPI was initialised"
assert not jax.distributed.is_initialized(), "a cluster was joined"
"""

WITHOUT = """
import sys
from types import SimpleNamespace
from typing import Any
sys.modules["jaxdecomp_ops"] = None  # its import fails
import jax, numpy as np, pmwd_dist as pmd
from pmwd_dist._jax import native
assert not pmd.native_available()
assert native.native_version() is None
config = pmd.Config(box_size=4.0, mesh_shape=4)
assert np.asarray(pmd.cic_paint(np.zeros((4, 4, 4, 3), np.float32), config)).sum() == 64
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, warnings as errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", [IMPORT, WITHOUT], ids=["import", "without"])
def test_in_a_fresh_interpreter(program: str) -> None:
    run = python(program)
    assert run.returncode == 0, run.stderr
    assert run.stdout == run.stderr == ""


def test_native_ops_of_another_interface_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for interface, remedy in ((None, "./rust/jaxdecomp-ops"), (native._INTERFACE + 1, ".")):
        library = SimpleNamespace(__version__="0.0", **({} if interface is None else {"INTERFACE": interface}))
        monkeypatch.setitem(sys.modules, "jaxdecomp_ops", library)
        with pytest.warns(
            RuntimeWarning, match=f"JAX ops run instead.*pip install {re.escape(remedy)}` in the source tree"
        ):
            assert native._native_ops() is None


@pytest.mark.skipif(not pmd.native_available(), reason="the native ops are not installed")
def test_what_cpus_can_call_gpus_can() -> None:
    library: Any = importlib.import_module("jaxdecomp_ops")
    transforms = {"jaxdecomp_ops_rfft", "jaxdecomp_ops_irfft"}  # on one GPU those of XLA run
    assert set(library.targets("cpu")) - transforms <= set(library.targets("CUDA"))


def test_the_version_is_that_of_the_native_package() -> None:
    assert (native.native_version() is not None) >= pmd.native_available()
    if os.environ.get("PMWD_REQUIRE_NATIVE") == "1":
        assert pmd.native_available()


@pytest.mark.skipif(not pmd.native_available(), reason="the native ops are not installed")
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"origin": np.array([0, -(1 << 63), 0])}, r"axis y: 2 sites 1/1 cells apart from cell .* exceed 2\^30 cells"),
        (
            {"spacing_num": np.array([1 << 62, 1, 1])},
            r"spacing of axis x: expected 0 <= num < 2\^30 and 0 < den < 2\^30",
        ),
        ({"spacing_den": np.array([1, 1, -(1 << 63)])}, r"spacing of axis z: expected"),
    ],
)
def test_calls_that_the_package_does_not_make_are_errors(attributes: dict[str, Any], message: str) -> None:
    """Products of 64-bit attributes must not overflow."""
    ones = np.ones(3, np.int64)
    geometry = {"spacing_num": ones, "spacing_den": ones, "origin": 0 * ones, "periodic": ones, "masks": 0 * ones}
    paint = jax.ffi.ffi_call("jaxdecomp_ops_cic_paint", jax.ShapeDtypeStruct((1, 2, 2, 2, 1), np.float32))
    disp, weight = np.zeros((1, 2, 2, 2, 3), np.float32), np.zeros((1, 1, 1, 1, 1, 1), np.float32)
    with pytest.raises(Exception, match=message):
        np.asarray(paint(disp, weight, **geometry | attributes, scale=np.ones(3)))


def test_coordinates_are_three_a_point_in_a_row() -> None:
    if (find := native.function("friends_of_friends")) is None:
        pytest.skip("the native ops are not installed")
    for coordinates in (np.zeros((4, 6))[:, ::2], np.zeros(7), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match="coordinates must be contiguous, three a point"):
            find(coordinates, (4.0, 4.0, 4.0), 1.0)
    assert find(np.zeros((0, 3)), (4.0, 4.0, 4.0), 1.0) == b""


# --- CUDA kernels that cannot run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugin", "remedy"),
    [
        ("jax_plugins.xla_cuda13", "`pip install nvidia-cuda-nvrtc`, which comes with `jax[cuda13]` too"),
        ("jax_plugins.xla_cuda12", "`pip install nvidia-cuda-nvrtc-cu12`, which comes with `jax[cuda12]` too"),
    ],
)
def test_a_missing_compiler_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch, plugin: str, remedy: str) -> None:
    missing = "NVRTC does not load: libnvrtc.so.13: cannot open shared object file: No such file or directory"
    reason = reason_of(monkeypatch, plugin, missing)
    assert reason == f"{missing}; {remedy}"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("pmwd_dist.ops.cic.cuda_unavailable_reason", lambda: reason)
    monkeypatch.setattr(doctor, "native_available", lambda: True)
    assert doctor._native() == f"in use on CPUs; plain JAX paints and reads on GPUs, slower: {missing}; {remedy}"


def test_other_errors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "NVRTC 13.0 supports [75, 80], not compute capability 60"
    assert reason_of(monkeypatch, "jax_plugins.xla_cuda13", old) == old


def reason_of(monkeypatch: pytest.MonkeyPatch, plugin: str, error: str) -> Any:
    """The reason for an error of the native library, on a machine with a GPU and this plugin of jax."""

    def probe(ordinals: list[int], candidates: list[str], folder: Path) -> None:
        assert ordinals == [3]
        assert any("libnvrtc.so" in candidate for candidate in candidates)
        raise OSError(error)

    monkeypatch.setattr(native, "_registered", lambda platform: platform == "CUDA")
    monkeypatch.setattr(native, "_ops", SimpleNamespace(cic_probe=probe))
    monkeypatch.setattr(native, "_has", lambda module: module == plugin)
    monkeypatch.setattr(jax, "local_devices", lambda backend: [SimpleNamespace(local_hardware_id=3)])
    return native.kernels_unavailable_reason.__wrapped__(Path("kernels"))
