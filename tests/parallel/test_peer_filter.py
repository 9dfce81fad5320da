"""Filters of meshes on GPUs, without a GPU: their references run. See also gpu/steps_on_gpu.py."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist._jax import native
from pmwd_dist.parallel.backends import peer, peer_filter
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.fft import filtered_block
from pmwd_dist.pm import gravity, potential_factor

SHAPE = (8, 12, 10)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-12 * np.abs(np.asarray(b)).max())


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs are taken for GPUs that write into each other's memory, and kernels compile, for every length but 6."""
    monkeypatch.setattr(peer.Peer, "unavailable_reason", lambda self, division: None)
    monkeypatch.setattr(native, "peer_unavailable_reason", lambda ordinals: None)
    monkeypatch.setattr(native, "fast_along_x", lambda ordinal, parts, shape, double: shape[0] != 6)
    monkeypatch.setattr(native, "filters", lambda length, double: length != 6)
    monkeypatch.setattr(peer_filter, "cuda_unavailable_reason", lambda: None)


def even_filter(shape: tuple[int, ...]) -> np.ndarray:
    """A filter of the spectrum of a real mesh, even along kx and ky but not along kz."""
    x, y, z = np.meshgrid(*(np.minimum(np.arange(n), n - np.arange(n)) for n in shape), indexing="ij")
    return (np.exp(-0.2 * x) * (2 + np.cos(y + 0.3 * z)))[..., : shape[2] // 2 + 1]


def filtering(decomposition: Decomposition, shape: tuple[int, ...], response: Any = None) -> Any:
    px, whole = decomposition.pdims[0], jnp.asarray(even_filter(shape) if response is None else response)

    def run(block: jax.Array, whole: jax.Array) -> jax.Array:
        start = jax.lax.axis_index(decomposition.x_names) * (shape[1] // px) if px > 1 else 0
        return filtered_block(
            block, lambda: jax.lax.dynamic_slice_in_dim(whole, start, shape[1] // px, axis=1), decomposition
        )

    mapped = decomposition.shard_map(run, (decomposition.spec, jax.P()), decomposition.spec)
    return lambda x: mapped(x, whole)


@pytest.mark.parametrize(("shape", "parts"), [(SHAPE, 1), ((9, 4, 7), 1), ((8, 12, 1), 1), (SHAPE, 4), ((8, 12, 7), 4)])
def test_a_filtered_mesh_and_its_derivatives_are_those_of_numpy(
    shape: tuple[int, ...], parts: int, filters: None
) -> None:
    decomposition = Decomposition((parts, 1), backend="peer")
    run = filtering(decomposition, shape)
    x, ct = np.random.default_rng(0).standard_normal((2, *shape))

    def expected(x: np.ndarray) -> np.ndarray:
        return np.fft.irfftn(np.fft.rfftn(x) * even_filter(shape), s=shape, axes=(0, 1, 2))

    @jax.jit
    def results(x: jax.Array, ct: jax.Array) -> Any:
        value, pull = jax.vjp(run, x)
        return value, pull(ct)[0], jax.jvp(run, (x,), (ct,))[1], jax.vmap(run)(jnp.stack([x, ct]))

    value, cotangent, tangent, batch = results(x, ct)
    close(value, expected(x))
    close(cotangent, expected(ct))
    close(tangent, expected(ct))
    close(batch[1], expected(ct))
    np.testing.assert_allclose(np.vdot(ct, value), np.vdot(cotangent, x), rtol=1e-12)


def test_gpus_filter_in_one_op_where_there_is_a_kernel(filters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one, four = Decomposition((1, 1), backend="peer"), Decomposition((4, 1), backend="peer")

    def ops(decomposition: Decomposition, shape: tuple[int, ...], dtype: str = "float32") -> list[str]:
        run = jax.jit(filtering(decomposition, shape))
        text = run.trace(jax.ShapeDtypeStruct(shape, dtype)).lower(lowering_platforms=("cuda",)).as_text()
        return re.findall(r"custom_call @jaxdecomp_ops_(peer_(?:filtered|transform))", text)

    assert ops(one, SHAPE) == ["peer_filtered"]
    assert ops(one, SHAPE, "float64") == ["peer_filtered"]
    assert ops(one, (6, 4, 10)) == []  # XLA transforms that length along x
    assert ops(one, (10, 4, 10)) == ["peer_filtered"]
    assert ops(four, SHAPE) == ["peer_filtered"]
    monkeypatch.setattr(peer_filter, "cuda_unavailable_reason", lambda: "there is no NVRTC")
    assert ops(one, SHAPE) == ops(four, SHAPE) == ["peer_transform", "peer_transform"]


def test_a_batch_that_cufft_would_find_misaligned_is_filtered_by_other_ops(filters: None) -> None:
    run = jax.vmap(filtering(Decomposition((1, 1), backend="peer"), (3, 5, 7)))
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 7))
    text = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "jaxdecomp_ops_peer_filtered" not in text
    close(run(x), np.fft.irfftn(np.fft.rfftn(x, axes=(1, 2, 3)) * even_filter((3, 5, 7)), s=(3, 5, 7), axes=(1, 2, 3)))


def test_the_force_is_the_same_with_and_without_the_filter(filters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"mesh_shape": (8, 12, 16), "particle_shape": (8, 12, 16)}
    config = pmd.Config((16.0, 24.0, 32.0), **options, decomposition=Decomposition((1, 1), backend="peer"))
    disp = np.random.default_rng(0).standard_normal((*config.particle_shape, 3))
    factor = potential_factor.tabulate(lambda k, a: 1 + a * k / (1 + k), jnp.asarray(0.5), config)
    force, _ = gravity.acceleration(disp, config, factor)
    assert "peer_filtered" in str(jax.make_jaxpr(partial(gravity.acceleration, config=config))(disp))
    jax.clear_caches()
    monkeypatch.setattr(native, "filters", lambda length, double: False)
    assert "peer_filtered" not in str(jax.make_jaxpr(partial(gravity.acceleration, config=config))(disp))
    close(force, gravity.acceleration(disp, config, factor)[0])


def test_a_filter_is_differentiated_by_the_filter_too(filters: None) -> None:
    decomposition = Decomposition((1, 1), backend="peer")
    shape, rng = (8, 5, 7), np.random.default_rng(0)
    (x, ct), factor = rng.standard_normal((2, *shape)), even_filter(shape)

    def run(x: jax.Array, a: jax.Array, backend: Decomposition = decomposition) -> jax.Array:
        return filtered_block(x, lambda: jnp.asarray(factor) ** a, backend)

    def loss(a: jax.Array, x: jax.Array, backend: Decomposition = decomposition) -> jax.Array:
        return jnp.vdot(ct, run(x, a, backend) ** 2)

    assert "peer_filtered" in str(jax.make_jaxpr(loss)(0.7, x))
    plain = Decomposition((1, 1), backend="xla")

    @partial(jax.jit, static_argnums=0)
    def derivatives(backend: Decomposition) -> Any:
        of = partial(loss, backend=backend)
        forward_over_reverse = jax.jvp(jax.grad(of, (0, 1)), (0.7, x), (1.0, ct))
        return forward_over_reverse, jax.grad(jax.grad(of))(0.7, x)

    for ours, theirs in zip(*map(jax.tree.leaves, map(derivatives, (decomposition, plain))), strict=True):
        close(ours, theirs)
    batch = jax.jit(jax.vmap(jax.grad(loss), (0, None)))(jnp.array([0.3, 0.7]), x)
    close(batch[1], derivatives(plain)[0][0][0])


def test_slabs_are_differentiated_by_the_filter_too(filters: None) -> None:
    (x, ct), factor = np.random.default_rng(0).standard_normal((2, *SHAPE)), even_filter(SHAPE)

    def loss(a: jax.Array, backend: str, parts: int) -> jax.Array:
        decomposition = Decomposition((parts, 1), jax.devices()[:parts], backend=backend)
        return jnp.vdot(ct, filtering(decomposition, SHAPE, factor**a)(x) ** 2)

    assert "peer_filtered" in str(jax.make_jaxpr(partial(loss, backend="peer", parts=4))(0.7))
    gradient = jax.jit(jax.grad(loss), static_argnums=(1, 2))
    close(gradient(0.7, "peer", 4), gradient(0.7, "xla", 1))


def test_other_values_than_floats_of_32_and_64_bits_take_no_filter(filters: None) -> None:
    run = filtering(Decomposition((1, 1), backend="peer"), SHAPE)
    for dtype in ("float16", "bfloat16"):
        assert "peer_filtered" not in str(jax.make_jaxpr(run)(jnp.zeros(SHAPE, dtype)))


def test_filters_of_chains_on_explicit_axes(filters: None) -> None:
    mesh = jax.make_mesh((4, 1), ("chain", "x"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    decomposition = Decomposition(mesh=mesh, spec=jax.P("x"), backend="peer")
    x = np.random.default_rng(0).standard_normal((4, *SHAPE))
    with jax.set_mesh(mesh):
        run = jax.jit(jax.vmap(filtering(decomposition, SHAPE)))
        got = run(jax.device_put(x, jax.NamedSharding(mesh, jax.P("chain", "x"))))
    close(got, np.fft.irfftn(np.fft.rfftn(x, axes=(1, 2, 3)) * even_filter(SHAPE), s=SHAPE, axes=(1, 2, 3)))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_meshes_of_more_cells_than_32_bits_count_are_filtered(platform: str, filters: None) -> None:
    """Programs of them are made, in single precision as by default; they are not run."""
    decomposition, mesh = Decomposition((1, 1), backend="peer"), jax.ShapeDtypeStruct((1296, 1296, 1296), jnp.float32)

    def run(block: jax.Array) -> jax.Array:
        return filtered_block(block, lambda: jnp.ones((1, 1, 1), jnp.float32), decomposition)

    with jax.enable_x64(False):
        traced = jax.jit(decomposition.shard_map(run, decomposition.spec, decomposition.spec)).trace(mesh)
        assert "peer_filtered" in str(traced.jaxpr)
        traced.lower(lowering_platforms=(platform,))


def test_the_length_is_looked_at_where_kernels_can_run(filters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then are the GPUs known, whose shared memory bounds the length."""
    asked: list[int] = []
    monkeypatch.setattr(native, "filters", lambda length, double: bool(asked.append(length)))
    reason = peer_filter.unavailable_reason(np.zeros((11, 2, 2)), 2)
    assert reason is not None and "22 along x" in reason and asked == [22]
    monkeypatch.setattr(peer_filter, "cuda_unavailable_reason", lambda: "there is no NVRTC")
    assert (peer_filter.unavailable_reason(np.zeros((24, 2, 2)), 1), asked) == ("there is no NVRTC", [22])
