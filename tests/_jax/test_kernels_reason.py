"""What is said where CUDA kernels can't run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from pmwd_dist._jax import native
from pmwd_dist.cli import doctor


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
