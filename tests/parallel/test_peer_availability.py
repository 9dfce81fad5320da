"""When the GPUs of one process are taken for ones that write into each other's memory, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from pmwd_dist._jax import native
from pmwd_dist.parallel import defaults, distributed
from pmwd_dist.parallel.backends import peer
from pmwd_dist.parallel.backends.peer_group import group_attributes
from pmwd_dist.parallel.decomposition import Decomposition


def gpus(count: int, process: int = 0, version: str = "cuda 13000") -> list[Any]:
    client = SimpleNamespace(platform_version=version)
    kind: dict[str, Any] = {"platform": "gpu", "process_index": process, "client": client}
    return [SimpleNamespace(**kind, local_hardware_id=i) for i in range(process, process + count)]


def unavailable_reason(devices: list[Any], py: int = 1) -> str | None:
    mesh = SimpleNamespace(devices=np.array(devices, dtype=object).reshape(-1, py))
    fake: Any = SimpleNamespace(mesh=mesh, pdims=mesh.devices.shape, size=len(devices), is_abstract=False)
    return peer.Peer().unavailable_reason(fake)


def test_where_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(native, "peer_unavailable_reason", lambda ordinals: asked.append(ordinals))
    assert unavailable_reason(gpus(4)) is None
    assert asked == [(0, 1, 2, 3)]
    assert "slabs along x, pdims=(4, 1), not pdims=(2, 2)" in str(unavailable_reason(gpus(4), 2))
    assert "needs GPUs of this process, 0, too, not only of (1,)" in str(unavailable_reason(gpus(2, process=1)))
    assert "NVIDIA" in str(unavailable_reason(gpus(2, version="rocm 60000")))
    assert "NVIDIA" in str(unavailable_reason(jax.devices()[:2]))
    monkeypatch.setattr(
        native, "peer_unavailable_reason", lambda ordinals: "GPU 0 cannot write into the memory of GPU 1"
    )
    assert "cannot be used: GPU 0 cannot" in str(unavailable_reason(gpus(2)))


def test_processes_of_one_host_with_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(native, "processes_unavailable_reason", lambda *group: asked.append(group))
    monkeypatch.setattr(native, "peer_unavailable_reason", lambda ordinals: asked.append(ordinals))
    pair = gpus(1) + gpus(1, process=1)
    several = str(unavailable_reason(gpus(2) + gpus(2, process=2)))
    assert "needs one process for all 4 GPUs or one for each, not 2" in several
    assert "needs processes of one host that pmwd_dist.distributed.initialize()" in str(unavailable_reason(pair))
    assert asked == []
    monkeypatch.setattr(distributed, "_host_key", "key")
    assert unavailable_reason(pair) is None
    # Groups of one GPU exchange nothing.
    mesh: Any = SimpleNamespace(devices=np.array(pair, dtype=object), axis_names=("x",), shape={"x": 2})
    assert group_attributes(mesh, (), 1) is not None
    attributes = group_attributes(mesh, ("x",), 2)
    assert attributes is not None
    assert {name: value.tolist() for name, value in attributes.items()} == {"processes": [0, 1], "parts": [2]}
    assert asked == [("key", (0, 1), 0, 0), (0,), ("key", (0, 1), 0, 0)]


def test_processes_that_do_not_join_give_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*group: Any) -> None:
        assert group == ("key", [0, 1], 0, 3)
        raise OSError("timeout: not all processes of the host connect")

    monkeypatch.setattr(native, "_ops", SimpleNamespace(peer_join=fails))
    for earlier, reason in ((None, "timeout: not all processes of the host connect"), ("no GPU", "no GPU")):
        monkeypatch.setattr(native, "peer_unavailable_reason", lambda ordinals, earlier=earlier: earlier)
        assert native.processes_unavailable_reason.__wrapped__("key", (0, 1), 0, 3) == reason


def test_native_ops_without_peer_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_registered", lambda platform: True)
    monkeypatch.setattr(native, "_ops", SimpleNamespace())
    reason = native.peer_unavailable_reason.__wrapped__((0, 1))
    assert reason == "jaxdecomp-ops was built without its feature `peer`"


def test_on_cpus_it_raises_when_named_and_is_passed_over_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"backend='peer' needs NVIDIA GPUs; use backend='xla'"):
        Decomposition((1, 1), backend="peer")
    assert Decomposition((1, 1)).backend.name == "xla"
    monkeypatch.setattr(defaults, "_set", {"backend": "peer"})
    with pytest.raises(ValueError, match="needs NVIDIA GPUs"):
        Decomposition((1, 1))


def test_it_is_the_default_where_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.Peer, "unavailable_reason", lambda self, division: None)
    assert [Decomposition((4, 1), backend=name).backend.name for name in ("auto", "xla")] == ["peer", "xla"]


def test_without_native_ops_or_libraries_a_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = native.peer_unavailable_reason.__wrapped__  # not remembered for other tests
    monkeypatch.setattr(native, "_registered", lambda platform: False)
    assert "pip install ./rust/jaxdecomp-ops" in str(reason((0,)))

    def fails(devices: list[int], cufft: list[str]) -> None:
        assert set(cufft[-2:]) == {"libcufft.so.12", "libcufft.so.11"}
        raise OSError("cuFFT does not load: it isn't there")

    monkeypatch.setattr(native, "_registered", lambda platform: True)
    monkeypatch.setattr(native, "_ops", SimpleNamespace(peer_probe=fails))
    assert "cuFFT does not load" in str(reason((0,)))
