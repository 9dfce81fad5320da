"""The GPUs of one process that write into each other's memory, without a GPU. See also gpu/test_transforms_on_gpus.py.

Here the references of the ops run; the rest is the same: layouts, norms, derivatives, when the native ones are taken.
"""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import pmwd_dist as pmd
from pmwd_dist import _native, communication, peer
from pmwd_dist.decomposition import Decomposition

SHAPE = (8, 12, 10)


@pytest.fixture(params=[1, 4], ids="{0}x1".format)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decomposition:
    monkeypatch.setattr(Decomposition, "_why_no_peers", lambda self: None)
    return Decomposition((request.param, 1), backend="peer")


def real(layout: Decomposition, seed: int = 0) -> jax.Array:
    return jax.device_put(jax.random.normal(jax.random.key(seed), SHAPE, jnp.float64), layout.sharding)


def complex_(layout: Decomposition) -> jax.Array:
    return real(layout) + 1j * real(layout, 1)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-12 * np.abs(np.asarray(b)).max())


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_are_those_of_numpy(layout: Decomposition, norm: Any) -> None:
    x, z = real(layout), complex_(layout)
    there = partial(pmd.prfft3d, decomposition=layout, norm=norm)
    spectrum = there(x)
    assert spectrum.sharding == layout.spectrum_sharding
    close(spectrum, np.fft.rfftn(np.asarray(x), norm=norm))
    back = pmd.pirfft3d(spectrum, SHAPE, layout, norm=norm)
    assert back.sharding == layout.sharding
    close(back, x)
    close(pmd.pfft3d(z, layout, norm=norm), np.fft.fftn(np.asarray(z), norm=norm))
    close(pmd.pifft3d(z, layout, norm=norm), np.fft.ifftn(np.asarray(z), norm=norm))


def test_nothing_of_xlas_takes_part(layout: Decomposition) -> None:
    program = str(jax.jit(partial(pmd.prfft3d, decomposition=layout)).trace(real(layout)).jaxpr)
    assert "peer_transform" in program
    assert " fft" not in program
    assert "all_to_all" not in program


@pytest.mark.parametrize("kind", ["r2c", "c2r", "c2c", "inverse c2c"])
def test_derivatives_are_those_on_one_device(layout: Decomposition, kind: str) -> None:
    def transform(x: jax.Array, layout: Decomposition) -> jax.Array:
        if kind == "c2c":
            return pmd.pfft3d(x * (1 + 2j), layout)
        if kind == "inverse c2c":
            return pmd.pifft3d(x * (1 + 2j), layout) * x.size
        spectrum = pmd.prfft3d(x, layout)
        return spectrum if kind == "r2c" else pmd.pirfft3d(spectrum**2, SHAPE, layout)

    def loss(x: jax.Array, layout: Decomposition) -> jax.Array:
        y = transform(x, layout)
        return jnp.sum(jnp.abs(y) ** 4)

    alone = Decomposition((1, 1), devices=jax.devices()[:1], backend="xla")
    x, v = real(layout), real(layout, 2)
    expected, tangent = jax.jvp(jax.grad(partial(loss, layout=alone)), (real(alone),), (real(alone, 2),))
    gradient, found = jax.jit(lambda x, v: jax.jvp(jax.grad(partial(loss, layout=layout)), (x,), (v,)))(x, v)
    close(gradient, expected)
    close(found, tangent)
    own = layout.spectrum_sharding if kind == "inverse c2c" else layout.sharding
    assert gradient.sharding.is_equivalent_to(own, 3)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("nz", [None, 10, 9])
def test_the_transpose_is_one(layout: Decomposition, nz: int | None, inverse: bool) -> None:
    third = 10 if nz is None else nz // 2 + 1
    size = layout.size
    before = (8, 12 // size, third) if inverse else (8 // size, 12, nz or third)

    def run(block: jax.Array) -> jax.Array:
        return peer._transform(block, layout, nz=nz, inverse=inverse, sign=1 if inverse else -1)

    specs = (layout.spectrum_spec, layout.spec) if inverse else (layout.spec, layout.spectrum_spec)
    function = layout.shard_map(run, specs[:1], specs[1])
    whole = (8, before[1] * size, before[2]) if inverse else (8, 12, before[2])
    key = jax.random.key(3)
    x = jax.random.normal(key, whole, jnp.complex128 if nz is None or inverse else jnp.float64)
    y = function(x)
    w = jax.random.normal(jax.random.key(4), y.shape, y.dtype)
    (back,) = jax.linear_transpose(function, x)(w)
    # The real part: C2R takes nothing from where a spectrum must be real, and R2C gives to a real field.
    part = jnp.real if nz else lambda z: z
    close(part(jnp.sum(y * w)), part(jnp.sum(x * back)))


@pytest.mark.parametrize("halo", [0, 1, 2, 3])
def test_halos_and_their_derivatives_are_those_of_xla(layout: Decomposition, halo: int) -> None:
    """A halo of 3 is wider than a block of 2: there XLA serves."""

    def loss(x: jax.Array, layout: Decomposition) -> jax.Array:
        padded = pmd.halo_pad(x, halo, layout) ** 3
        return jnp.sum(jnp.cos(pmd.halo_reduce(padded, halo, layout) * x))

    other = Decomposition(layout.pdims, backend="xla")
    x = real(layout)
    close(pmd.halo_pad(x, halo, layout), pmd.halo_pad(x, halo, other))
    padded = pmd.halo_pad(x, halo, layout)
    close(pmd.halo_reduce(padded, halo, layout), pmd.halo_reduce(padded, halo, other))

    def second(layout: Decomposition) -> Any:
        return jax.jit(lambda x: jax.jvp(jax.grad(partial(loss, layout=layout)), (x,), (jnp.sin(x),)))(x)

    for got, expected in zip(second(layout), second(other), strict=True):
        close(got, expected)
    program = str(jax.jit(partial(pmd.halo_pad, halo=halo, decomposition=layout)).trace(x).jaxpr)
    assert ("peer_pad" in program) == (layout.size > 1 and halo in (1, 2))


def test_a_batch_is_one_call(layout: Decomposition) -> None:
    x = jnp.stack([real(layout), real(layout, 1), real(layout, 2)])
    program = jax.jit(jax.vmap(partial(pmd.prfft3d, decomposition=layout)))
    close(program(x), np.fft.rfftn(np.asarray(x), axes=(1, 2, 3)))
    assert str(program.trace(x).jaxpr).count("peer_transform") == 1


def test_chains_by_space_exchange_in_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decomposition, "_why_no_peers", lambda self: None)
    mesh = jax.make_mesh((2, 2), ("chain", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    layout = Decomposition(mesh=mesh, spec=jax.P("x"), backend="peer")
    monkeypatch.setattr(_native, "why_no_peers", lambda ordinals: None)
    attributes = peer._row_attributes(mesh, layout.names, layout.size)
    assert attributes is not None
    assert attributes["rows"].tolist() == [device.local_hardware_id for device in mesh.devices.flat]
    assert attributes["parts"].tolist() == [2]
    x = jax.random.normal(jax.random.key(0), (2, *SHAPE), jnp.float64)
    x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("chain", "x")))
    run = jax.jit(jax.vmap(partial(pmd.prfft3d, decomposition=layout), spmd_axis_name="chain"))
    close(run(x), np.fft.rfftn(np.asarray(x), axes=(1, 2, 3)))


def test_a_replicated_field_is_divided(layout: Decomposition) -> None:
    x = jax.device_put(real(layout), layout.replicated)
    close(pmd.prfft3d(x, layout), np.fft.rfftn(np.asarray(x)))


def test_real_arrays_are_taken_for_complex_ones_and_integers_have_halos(layout: Decomposition) -> None:
    x = real(layout)
    close(pmd.pfft3d(x, layout), np.fft.fftn(np.asarray(x)))
    close(pmd.pifft3d(x, layout), np.fft.ifftn(np.asarray(x)))
    assert jax.grad(lambda x: jnp.abs(pmd.pfft3d(x, layout)).sum())(x).dtype == x.dtype
    numbers = jax.device_put(jnp.arange(x.size).reshape(x.shape), layout.sharding)
    assert pmd.halo_reduce(pmd.halo_pad(numbers, 1, layout), 1, layout).dtype == numbers.dtype


# --- what is compiled for GPUs --------------------------------------------------------------------------------


def native_rows(run: Any, *arguments: Any) -> list[list[int]]:
    """The GPUs that the native ops of a program would exchange with, as compiled for CUDA."""
    text = jax.jit(run).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r"@jaxdecomp_ops_peer_\w+.*?rows = (?:dense<(.*?)>|array<i64: ?(.*?)>)", text)
    return [list(map(int, re.findall(r"\d+", dense or array))) for dense, array in found]


@pytest.fixture
def as_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decomposition, "_why_no_peers", lambda self: None)
    monkeypatch.setattr(_native, "why_no_peers", lambda ordinals: None)
    monkeypatch.setattr(_native, "fast_along_x", lambda ordinal, parts, shape, double: shape[0] != 6)


def test_gpus_exchange_as_the_mesh_in_force_says(as_gpus: None) -> None:
    """In a shard_map over the same axes of another mesh, the blocks lie on other devices than the decomposition's."""
    layout = Decomposition((4, 1), backend="peer")
    ids = [device.local_hardware_id for device in layout.mesh.devices.flat]
    x = np.zeros(SHAPE)
    run = partial(pmd.prfft3d, decomposition=layout)
    assert native_rows(run, x) == [ids]
    other = Mesh(layout.mesh.devices[::-1], ("x", "y"))
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


def test_xla_serves_where_the_devices_are_not_known(as_gpus: None) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chain", "x"))
    layout = Decomposition(mesh=mesh, spec=jax.P("x"), backend="peer")
    nested = jax.shard_map(
        lambda x: pmd.prfft3d(x[0], layout)[None],
        mesh=mesh,
        in_specs=jax.P("chain"),
        out_specs=jax.P("chain"),
        axis_names={"chain"},
    )
    x = np.random.default_rng(0).standard_normal((2, *SHAPE))
    assert native_rows(nested, x) == []
    close(jax.jit(nested)(x), np.fft.rfftn(x, axes=(1, 2, 3)))


def test_xla_serves_batches_that_cufft_would_find_misaligned(as_gpus: None) -> None:
    layout = Decomposition((1, 1), backend="peer")
    run = jax.vmap(partial(pmd.prfft3d, decomposition=layout))
    assert len(native_rows(run, np.zeros((2, 3, 5, 8)))) == 1
    assert native_rows(run, np.zeros((2, 3, 5, 7))) == []
    assert len(native_rows(run, np.zeros((1, 3, 5, 7)))) == 1


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_xla_transforms_along_x_where_gpus_are_slow(
    parts: int, dtype: str, as_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Decomposition((parts, 1), jax.devices()[:parts], backend="peer")
    asked: list[Any] = []
    monkeypatch.setattr(_native, "fast_along_x", lambda *question: bool(asked.append(question)))
    x = np.zeros((6, 4, 10), dtype)
    ordinal = layout.mesh.devices.flat[0].local_hardware_id
    there = partial(pmd.prfft3d, decomposition=layout)
    for run in (there, lambda x: pmd.pirfft3d(there(x), x.shape, layout)):
        asked.clear()
        text = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
        calls = re.findall(r"@jaxdecomp_ops_peer_transform.*?along_x = (?:dense<(\d+)>|array<i64: ?(\d+)>)", text)
        assert set(asked) == {(ordinal, parts, (6, 4, 6), dtype == "float64")}
        assert [dense or array for dense, array in calls] == ["0"] * (len(asked) if parts > 1 else 0)
        assert "type = FFT, length = [6]" in text
        assert ("type = RFFT, length = [4, 10]" in text) == (parts == 1)


# --- whether it can be used -----------------------------------------------------------------------------------


def gpus(count: int, process: int = 0, version: str = "cuda 13000") -> list[Any]:
    client = SimpleNamespace(platform_version=version)
    return [
        SimpleNamespace(platform="gpu", process_index=process, local_hardware_id=i, client=client) for i in range(count)
    ]


def why_not(devices: list[Any], py: int = 1) -> str | None:
    mesh = SimpleNamespace(devices=np.array(devices, dtype=object).reshape(-1, py))
    fake: Any = SimpleNamespace(mesh=mesh, pdims=mesh.devices.shape, size=len(devices))
    return Decomposition._why_no_peers(fake)


def test_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(_native, "why_no_peers", lambda ordinals: asked.append(ordinals))
    assert why_not(gpus(4)) is None
    assert asked == [(0, 1, 2, 3)]
    assert "slabs along x, pdims=(4, 1), not pdims=(2, 2)" in str(why_not(gpus(4), 2))
    assert "of one process, and not all of these belong to this one" in str(why_not(gpus(2) + gpus(2, process=1)))
    assert "NVIDIA" in str(why_not(gpus(2, version="rocm 60000")))
    assert "NVIDIA" in str(why_not(jax.devices()[:2]))
    monkeypatch.setattr(_native, "why_no_peers", lambda ordinals: "GPU 0 cannot write into the memory of GPU 1")
    assert "cannot be used: GPU 0 cannot" in str(why_not(gpus(2)))


def test_on_cpus_it_is_refused_when_demanded_and_passed_over_when_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"backend='peer' serves NVIDIA GPUs; use backend='xla'"):
        Decomposition((1, 1), backend="peer")
    assert Decomposition((1, 1)).backend == "xla"
    monkeypatch.setattr(communication, "_set", {"backend": "peer"})
    with pytest.raises(ValueError, match="serves NVIDIA GPUs"):
        Decomposition((1, 1))


def test_it_is_the_default_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decomposition, "_why_no_peers", lambda self: None)
    assert Decomposition((4, 1)).backend == "peer"
    assert Decomposition((4, 1), backend="xla").backend == "xla"


def test_without_native_ops_or_libraries_a_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    _native.why_no_peers.cache_clear()
    monkeypatch.setattr(_native, "_registered_on_gpus", lambda: False)
    assert "pip install --upgrade jaxdecomp-ops" in str(_native.why_no_peers((0,)))
    _native.why_no_peers.cache_clear()

    def fails(devices: list[int], cufft: list[str]) -> None:
        assert set(cufft[-2:]) == {"libcufft.so.12", "libcufft.so.11"}
        raise OSError("cuFFT does not load: it isn't there")

    monkeypatch.setattr(_native, "_registered_on_gpus", lambda: True)
    monkeypatch.setattr(_native, "_ops", SimpleNamespace(peer_probe=fails, peer_is_fast_along_x=None))
    assert "cuFFT does not load" in str(_native.why_no_peers((0,)))
    _native.why_no_peers.cache_clear()
