"""The GPUs of one process that write into each other's memory, without a GPU. See also gpu/test_transforms_on_gpus.py.

What the native op does is replaced by XLA's collectives; the rest is the package's own: layouts, norms, derivatives.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import pmwd_dist as pmd
from pmwd_dist import _native, communication, peer
from pmwd_dist.decomposition import Decomposition

SHAPE = (8, 12, 10)


def _stand_in(x: jax.Array, *, rows: peer.Rows, nz: int | None, inverse: bool, sign: int) -> jax.Array:
    """What the native op computes, by XLA, over an axis "x"."""
    apart = len(rows[0]) > 1
    if not inverse:
        planes = jnp.fft.rfftn(x, axes=(2, 3)) if nz else _signed(x, sign, (2, 3))
        lines = jax.lax.all_to_all(planes, "x", 2, 1, tiled=True) if apart else planes
        return _signed(lines, sign, (1,))
    lines = _signed(x, sign, (1,))
    planes = jax.lax.all_to_all(lines, "x", 1, 2, tiled=True) if apart else lines
    if nz is None:
        return _signed(planes, sign, (2, 3))
    return jnp.fft.irfftn(planes, s=(planes.shape[2], nz), axes=(2, 3)) * (planes.shape[2] * nz)


def _signed(x: jax.Array, sign: int, axes: tuple[int, ...]) -> jax.Array:
    return jnp.fft.fftn(x, axes=axes) if sign < 0 else jnp.fft.ifftn(x, axes=axes, norm="forward")


def _swapped(x: jax.Array, *, rows: peer.Rows, halo: int) -> jax.Array:
    count = len(rows[0])
    up, down = [(i, (i + 1) % count) for i in range(count)], [(i, (i - 1) % count) for i in range(count)]
    below, above = jax.lax.ppermute(x[:, halo:], "x", up), jax.lax.ppermute(x[:, :halo], "x", down)
    return jnp.concatenate([below, above], axis=1)


def _padded(x: jax.Array, *, rows: peer.Rows, halo: int) -> jax.Array:
    edges = jnp.concatenate([x[:, :halo], x[:, x.shape[1] - halo :]], axis=1)
    edges = _swapped(edges, rows=rows, halo=halo)
    return jnp.concatenate([edges[:, :halo], x, edges[:, halo:]], axis=1)


@pytest.fixture(scope="module", autouse=True)
def on_cpus() -> None:
    """The lowering stays: nothing else asks for it on CPUs."""
    for primitive, stand_in in ((peer._transform_p, _stand_in), (peer._pad_p, _padded), (peer._swap_p, _swapped)):
        mlir.register_lowering(primitive, mlir.lower_fun(stand_in, multiple_results=False), platform="cpu")


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
    ids = [[device.local_hardware_id for device in row] for row in mesh.devices]
    assert peer._rows(layout) == (tuple(ids[0]), tuple(ids[1]))
    x = jax.random.normal(jax.random.key(0), (2, *SHAPE), jnp.float64)
    x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("chain", "x")))
    run = jax.jit(jax.vmap(partial(pmd.prfft3d, decomposition=layout), spmd_axis_name="chain"))
    close(run(x), np.fft.rfftn(np.asarray(x), axes=(1, 2, 3)))


def test_a_replicated_field_is_divided(layout: Decomposition) -> None:
    x = jax.device_put(real(layout), layout.replicated)
    close(pmd.prfft3d(x, layout), np.fft.rfftn(np.asarray(x)))


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
    assert "of one process, and these belong to several" in str(why_not(gpus(2) + gpus(2, process=1)))
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
    assert "pip install jaxdecomp-ops" in str(_native.why_no_peers((0,)))
    _native.why_no_peers.cache_clear()

    def fails(devices: list[int], cufft: list[str]) -> None:
        assert cufft[-2:] == ["libcufft.so.12", "libcufft.so.11"]
        raise OSError("cuFFT does not load: it isn't there")

    monkeypatch.setattr(_native, "_registered_on_gpus", lambda: True)
    monkeypatch.setattr(_native, "_ops", SimpleNamespace(peer_probe=fails))
    assert "cuFFT does not load" in str(_native.why_no_peers((0,)))
    _native.why_no_peers.cache_clear()
