"""The GPUs of one process that write into each other's memory, without a GPU. See also gpu/test_programs.py.

Here the references of the ops run; the rest is the same: layouts, norms, when the native ones are taken. Derivatives of
transforms are those of `test_transforms.py`.
"""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.sharding import Mesh

import pmwd_dist as pmd
from pmwd_dist._jax import native
from pmwd_dist.parallel import defaults, distributed
from pmwd_dist.parallel.backends import peer
from pmwd_dist.parallel.backends.peer_group import group_attributes
from pmwd_dist.parallel.decomposition import Decomposition

SHAPE = (8, 12, 10)


@pytest.fixture
def as_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs are taken for GPUs that write into each other's memory."""
    monkeypatch.setattr(peer.Peer, "unavailable_reason", lambda self, division: None)


@pytest.fixture(params=[1, 4], ids="{0}x1".format)
def decomposition(request: pytest.FixtureRequest, as_peers: None) -> Decomposition:
    return Decomposition((request.param, 1), backend="peer")


def real(decomposition: Decomposition, seed: int = 0) -> jax.Array:
    return jax.device_put(jax.random.normal(jax.random.key(seed), SHAPE, jnp.float64), decomposition.sharding)


def complex_(decomposition: Decomposition) -> jax.Array:
    return real(decomposition) + 1j * real(decomposition, 1)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-12 * np.abs(np.asarray(b)).max())


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_are_those_of_numpy(decomposition: Decomposition, norm: Any) -> None:
    x, z = real(decomposition), complex_(decomposition)

    @jax.jit
    def run(x: jax.Array, z: jax.Array) -> Any:
        spectrum = pmd.prfft3d(x, decomposition, norm=norm)
        back = pmd.pirfft3d(spectrum, SHAPE, decomposition, norm=norm)
        return spectrum, back, pmd.pfft3d(z, decomposition, norm=norm), pmd.pifft3d(z, decomposition, norm=norm)

    spectrum, back, *complex_ones = run(x, z)
    assert problems.has_sharding(spectrum, decomposition.spectrum_sharding)
    assert problems.has_sharding(back, decomposition.sharding)
    close(spectrum, np.fft.rfftn(np.asarray(x), norm=norm))
    close(back, x)
    for ours, numpys in zip(complex_ones, (np.fft.fftn, np.fft.ifftn), strict=True):
        close(ours, numpys(np.asarray(z), norm=norm))


def test_nothing_of_xlas_takes_part(decomposition: Decomposition) -> None:
    program = str(jax.jit(partial(pmd.prfft3d, decomposition=decomposition)).trace(real(decomposition)).jaxpr)
    assert "peer_transform" in program
    assert " fft" not in program
    assert "all_to_all" not in program


@pytest.mark.parametrize(("parts", "halo"), [(1, 2), (4, 0), (4, 1), (4, 2), (4, 3)])
def test_halos_and_their_derivatives_are_those_of_xla(as_peers: None, parts: int, halo: int) -> None:
    """A halo of 3 is wider than a block of 2: there XLA is used."""
    decomposition = Decomposition((parts, 1), backend="peer")

    def loss(x: jax.Array, decomposition: Decomposition) -> jax.Array:
        padded = pmd.halo_pad(x, halo, decomposition) ** 3
        return jnp.sum(jnp.cos(pmd.halo_reduce(padded, halo, decomposition) * x))

    other = Decomposition(decomposition.pdims, backend="xla")
    x = real(decomposition)

    @partial(jax.jit, static_argnums=1)
    def everything(x: jax.Array, decomposition: Decomposition) -> Any:
        padded = pmd.halo_pad(x, halo, decomposition)
        second = jax.jvp(jax.grad(partial(loss, decomposition=decomposition)), (x,), (jnp.sin(x),))
        return padded, pmd.halo_reduce(padded, halo, decomposition), *second

    for got, expected in zip(everything(x, decomposition), everything(x, other), strict=True):
        close(got, expected)
    program = str(jax.jit(partial(pmd.halo_pad, halo=halo, decomposition=decomposition)).trace(x).jaxpr)
    assert ("peer_pad" in program) == (decomposition.size > 1 and halo in (1, 2))


def test_a_batch_is_one_call(decomposition: Decomposition) -> None:
    x = jnp.stack([real(decomposition), real(decomposition, 1), real(decomposition, 2)])
    program = jax.jit(jax.vmap(partial(pmd.prfft3d, decomposition=decomposition)))
    close(program(x), np.fft.rfftn(np.asarray(x), axes=(1, 2, 3)))
    assert str(program.trace(x).jaxpr).count("peer_transform") == 1


def test_chains_by_space_exchange_in_rows_of_their_own(as_peers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((2, 2), ("chain", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    decomposition = Decomposition(mesh=mesh, spec=jax.P("x"), backend="peer")
    monkeypatch.setattr(native, "peer_unavailable_reason", lambda ordinals: None)
    attributes = group_attributes(mesh, decomposition.names, decomposition.size)
    assert attributes is not None
    assert attributes["rows"].tolist() == [device.local_hardware_id for device in mesh.devices.flat]
    assert attributes["parts"].tolist() == [2]
    x = jax.random.normal(jax.random.key(0), (2, *SHAPE), jnp.float64)
    x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("chain", "x")))
    run = jax.jit(jax.vmap(partial(pmd.prfft3d, decomposition=decomposition), spmd_axis_name="chain"))
    close(run(x), np.fft.rfftn(np.asarray(x), axes=(1, 2, 3)))


def test_a_replicated_field_is_divided(decomposition: Decomposition) -> None:
    x = jax.device_put(real(decomposition), decomposition.replicated)
    close(pmd.prfft3d(x, decomposition), np.fft.rfftn(np.asarray(x)))


def test_real_arrays_are_taken_for_complex_ones_and_integers_have_halos(decomposition: Decomposition) -> None:
    x = real(decomposition)
    close(pmd.pfft3d(x, decomposition), np.fft.fftn(np.asarray(x)))
    close(pmd.pifft3d(x, decomposition), np.fft.ifftn(np.asarray(x)))
    assert jax.eval_shape(jax.grad(lambda x: jnp.abs(pmd.pfft3d(x, decomposition)).sum()), x).dtype == x.dtype
    numbers = jax.device_put(jnp.arange(x.size).reshape(x.shape), decomposition.sharding)
    assert pmd.halo_reduce(pmd.halo_pad(numbers, 1, decomposition), 1, decomposition).dtype == numbers.dtype


# --- what is compiled for GPUs --------------------------------------------------------------------------------


def native_rows(run: Any, *arguments: Any) -> list[list[int]]:
    """The GPUs that the native ops of a program would exchange with, as compiled for CUDA."""
    text = jax.jit(run).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r"@jaxdecomp_ops_peer_\w+.*?rows = (?:dense<(.*?)>|array<i64: ?(.*?)>)", text)
    return [list(map(int, re.findall(r"\d+", dense or array))) for dense, array in found]


@pytest.fixture
def as_gpus(as_peers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "peer_unavailable_reason", lambda ordinals: None)
    monkeypatch.setattr(native, "fast_along_x", lambda ordinal, parts, shape, double: shape[0] != 6)


def test_gpus_exchange_as_the_current_mesh_says(as_gpus: None) -> None:
    """In a shard_map over the same axes of another mesh, the blocks lie on other devices than the decomposition's."""
    decomposition = Decomposition((4, 1), backend="peer")
    ids = [device.local_hardware_id for device in decomposition.mesh.devices.flat]
    x = np.zeros(SHAPE)
    run = partial(pmd.prfft3d, decomposition=decomposition)
    assert native_rows(run, x) == [ids]
    other = Mesh(decomposition.mesh.devices[::-1], ("x", "y"))
    assert native_rows(
        jax.shard_map(run, mesh=other, in_specs=jax.P("x", "y"), out_specs=jax.P(None, "x", "y")), x
    ) == [ids[::-1]]
    half = Decomposition((2, 1), jax.devices()[:2], backend="peer")
    wider = Mesh(np.array(jax.devices()).reshape(2, 2, 1), ("chain", "x", "y"))
    mapped = jax.shard_map(
        lambda x: pmd.prfft3d(x[0], half)[None],
        mesh=wider,
        in_specs=jax.P("chain", "x", "y"),
        out_specs=jax.P("chain", None, "x", "y"),
    )
    assert native_rows(mapped, np.zeros((2, *SHAPE))) == [ids]


def test_xla_is_used_where_the_devices_are_not_known(as_gpus: None) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chain", "x"))
    decomposition = Decomposition(mesh=mesh, spec=jax.P("x"), backend="peer")
    nested = jax.shard_map(
        lambda x: pmd.prfft3d(x[0], decomposition)[None],
        mesh=mesh,
        in_specs=jax.P("chain"),
        out_specs=jax.P("chain"),
        axis_names={"chain"},
    )
    x = np.random.default_rng(0).standard_normal((2, *SHAPE))
    assert native_rows(nested, x) == []
    close(jax.jit(nested)(x), np.fft.rfftn(x, axes=(1, 2, 3)))


def test_xla_is_used_batches_that_cufft_would_find_misaligned(as_gpus: None) -> None:
    decomposition = Decomposition((1, 1), backend="peer")
    run = jax.vmap(partial(pmd.prfft3d, decomposition=decomposition))
    assert len(native_rows(run, np.zeros((2, 3, 5, 8)))) == 1
    assert native_rows(run, np.zeros((2, 3, 5, 7))) == []
    assert len(native_rows(run, np.zeros((1, 3, 5, 7)))) == 1


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_xla_transforms_along_x_where_gpus_are_slow(
    parts: int, dtype: str, as_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decomposition = Decomposition((parts, 1), jax.devices()[:parts], backend="peer")
    asked: list[Any] = []
    monkeypatch.setattr(native, "fast_along_x", lambda *question: bool(asked.append(question)))
    x = np.zeros((6, 4, 10), dtype)
    ordinal = decomposition.mesh.devices.flat[0].local_hardware_id
    there = partial(pmd.prfft3d, decomposition=decomposition)
    for run in (there, lambda x: pmd.pirfft3d(there(x), x.shape, decomposition)):
        asked.clear()
        text = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
        calls = re.findall(r"@jaxdecomp_ops_peer_transform.*?along_x = (?:dense<(\d+)>|array<i64: ?(\d+)>)", text)
        assert set(asked) == {(ordinal, parts, (6, 4, 6), dtype == "float64")}
        assert [dense or array for dense, array in calls] == ["0"] * (len(asked) if parts > 1 else 0)
        assert "type = FFT, length = [6]" in text
        assert ("type = RFFT, length = [4, 10]" in text) == (parts == 1)


# --- when GPUs are taken for ones that write into each other's memory --------------------------------------------


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
