"""Every transform of JAX on every distributed operation, of functions that say nothing about sharding.

Values are compared with one device, and the compiled programs are searched for all-gathers: nothing may be replicated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist.parallel.backends import peer

SHAPE = (4, 4, 6)  # 4 values of kz: no padding on 1, 2 or 4 devices
Function = Callable[[jax.Array], jax.Array]


def configure(decomposition: pmd.Decomposition) -> pmd.Config:
    return pmd.Config(
        box_size=tuple(map(float, SHAPE)),
        mesh_shape=SHAPE,
        a_start=0.1,
        a_stop=1.0,
        decomposition=decomposition,
        halo=2,
    )


def weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE)


def weighted(y: jax.Array) -> jax.Array:
    """A scalar of a field or spectrum."""
    return jnp.sum(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape) * y)


def squared(z: jax.Array) -> jax.Array:
    return z.real**2 + 0.3 * z.imag * z.real


def operations(decomposition: pmd.Decomposition) -> dict[str, Function]:
    """One function of a real field for each operation, which comes first where that is possible."""
    config = configure(decomposition)
    shift = 0.3 + 0.4 * np.random.default_rng(2).random((*SHAPE, 3))

    def there_and_back(x: jax.Array, power: int) -> jax.Array:
        return pmd.halo_reduce(pmd.halo_pad(x, 2, decomposition) ** power, 2, decomposition)

    def displace(x: jax.Array) -> jax.Array:
        return shift + 0.1 * jnp.tanh(jnp.stack([x, 2 * x, -x], -1))

    return {
        "prfft3d": lambda x: squared(pmd.prfft3d(x, decomposition)),
        "pirfft3d": lambda x: pmd.pirfft3d(pmd.prfft3d(x, decomposition) ** 2, SHAPE, decomposition),
        "pfft3d": lambda x: squared(pmd.pfft3d(x[..., :4].astype(complex), decomposition)),
        "pifft3d": lambda x: squared(
            pmd.pifft3d(pmd.pfft3d(x[..., :4].astype(complex), decomposition) ** 2, decomposition)
        ),
        # A cell is counted once for itself and once for each halo in which it lies.
        "halos": lambda x: there_and_back(x, 3) / there_and_back(jnp.ones_like(x), 1),
        "paint": lambda x: pmd.cic_paint(displace(x), config, 1 + x**2),
        "read": lambda x: pmd.cic_read(x**2, displace(x), config),
    }


def _step(function: Function, x: jax.Array, carry: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
    return jnp.tanh(carry + 0.01 * jnp.mean(function(carry))) + weight * x, None


NAMES = ("prfft3d", "pirfft3d", "pfft3d", "pifft3d", "halos", "paint", "read")
TRANSFORMS: dict[str, Callable[[Function], Callable[[jax.Array], Any]]] = {
    "grad": lambda f: jax.grad(lambda x: weighted(f(x))),
    "jacfwd": lambda f: jax.jacfwd(f),
    "jacrev": lambda f: jax.jacrev(f),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](f(x))[0],
    "hessian-vector product": lambda f: (
        lambda x: jax.jvp(jax.grad(lambda y: jnp.sum(f(y) ** 2)), (x,), (jnp.cos(x),))[1]
    ),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x, x + 1])),
    "scan": lambda f: lambda x: jax.lax.scan(partial(_step, f, x), x, jnp.arange(3.0))[0],
    "grad of remat": lambda f: jax.grad(lambda x: weighted(jax.checkpoint(f)(x))),
}


def run(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, str]:
    """Result and text of the compiled program."""
    compiled = jax.jit(function, **options).lower(*arguments).compile()
    return compiled(*arguments), compiled.as_text()


def transformed(function: Function) -> Callable[[jax.Array], dict[str, Any]]:
    """All transforms of a function, as one program."""
    return lambda x: {name: transform(function)(x) for name, transform in TRANSFORMS.items()}


@functools.cache
def on_one_device(name: str) -> dict[str, np.ndarray]:
    return jax.device_get(run(transformed(operations(pmd.Decomposition((1, 1), backend="xla"))[name]), weights(0))[0])


def expected_sharding(name: str, transform: str, decomposition: pmd.Decomposition) -> NamedSharding:
    """That of the field for a gradient, of the result for a tangent, of one of them in its half of a Jacobian."""
    out = decomposition.spectrum_spec if name in ("prfft3d", "pfft3d") else decomposition.spec
    specs = {"jvp": out, "vmap": P(None, *out), "jacfwd": out, "jacrev": P(None, None, None, *decomposition.spec)}
    return NamedSharding(decomposition.mesh, specs.get(transform, decomposition.spec))


def compared(name: str, parallel: pmd.Decomposition) -> str:
    """Compare all transforms of an operation with one device; returns the program."""
    x = jax.device_put(weights(0), parallel.sharding)
    results, program = run(transformed(operations(parallel)[name]), x)
    for transform, expected in on_one_device(name).items():
        atol = 1e-12 * np.abs(expected).max()
        np.testing.assert_allclose(results[transform], expected, rtol=0, atol=atol, err_msg=transform)
        assert problems.has_sharding(results[transform], expected_sharding(name, transform, parallel)), transform
    return program


@pytest.mark.parametrize(
    ("parallel", "name"),
    [(pdims, name) for pdims in ((4, 1), (2, 2)) for name in NAMES],
    indirect=["parallel"],
    ids=str,
)
def test_values_without_annotation(name: str, parallel: pmd.Decomposition) -> None:
    assert "all-gather" not in compared(name, parallel)


@pytest.mark.parametrize("name", NAMES[:4])
@pytest.mark.parametrize("count", [1, 4])
def test_values_of_gpus_that_are_peers(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the references of their ops; `test_peer.py` has their halos."""
    monkeypatch.setattr(peer.Peer, "unavailable_reason", lambda self, division: None)
    compared(name, pmd.Decomposition((count, 1), backend="peer"))


def test_donated_fields_are_used_in_place() -> None:
    parallel = pmd.Decomposition((2, 2))
    for name in ("halos", "pirfft3d"):
        x = jax.device_put(weights(0), parallel.sharding)
        function = operations(parallel)[name]
        expected = np.asarray(jax.jit(function)(x))
        donated = jax.jit(function, donate_argnums=0)(x)
        np.testing.assert_allclose(donated, expected, rtol=1e-13)
        assert x.is_deleted()


def test_chains_beside_space(single: pmd.Decomposition) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    decomposition = pmd.Decomposition(mesh=mesh, spec=P("x"))
    batch = np.stack([weights(0), weights(3)])
    x = jax.device_put(batch, NamedSharding(mesh, P("chains", "x")))
    for name in ("prfft3d", "pirfft3d", "halos", "read"):
        one = operations(single)[name]
        many = jax.vmap(operations(decomposition)[name], spmd_axis_name="chains")
        for function, alone in (
            (many, jax.vmap(one)),
            (jax.grad(lambda x, f=many: jnp.sum(f(x) ** 2)), jax.grad(lambda x, f=one: jnp.sum(jax.vmap(f)(x) ** 2))),
        ):
            result, program = run(function, x)
            expected = np.asarray(jax.jit(alone)(batch))
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
            assert result.sharding.spec[0] == "chains"
            assert "all-gather" not in program


# --- kinds of mesh axes ------------------------------------------------------------------------------------


def mesh_of(kind: AxisType, shape: tuple[int, int] = (2, 2)) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(shape), ("a", "b"), axis_types=(kind,) * 2)


@pytest.mark.parametrize("name", NAMES)
def test_explicit_axes_are_in_the_types(name: str) -> None:
    mesh = mesh_of(AxisType.Explicit)
    decomposition = pmd.Decomposition(mesh=mesh, spec=P("a", "b"))
    function = operations(decomposition)[name]
    alone = operations(pmd.Decomposition((1, 1)))[name]
    expected = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(alone(x) ** 2)))(weights(0)))
    for spec in (P("a", "b"), P(None, "a")):  # another layout is brought into that of the decomposition
        x = jax.device_put(weights(0), NamedSharding(mesh, spec))
        with jax.set_mesh(mesh):
            result = jax.jit(jax.grad(lambda x: jnp.sum(function(x) ** 2)))(x)
            typed = tuple(jax.eval_shape(function, x).sharding.spec)
            assert typed == ((None, "a", "b") if name in ("prfft3d", "pfft3d") else ("a", "b", None))
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
        assert result.sharding.is_equivalent_to(x.sharding, 3)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_transforms_take_the_mesh_that_is_set(kind: AxisType) -> None:
    """Inside jit and derivatives, too, where an array over Auto axes doesn't tell its sharding; and arrays of numpy."""
    mesh = mesh_of(kind)
    x = jax.device_put(weights(0), NamedSharding(mesh, P("a", "b")))

    def loss(x: jax.Array) -> jax.Array:
        spectrum = pmd.prfft3d(x)
        padded = pmd.halo_pad(pmd.pirfft3d(spectrum * jnp.conj(spectrum), x.shape), 2)
        return jnp.sum(padded**2)

    def alone(x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.rfftn(x)
        squares = jnp.fft.irfftn(spectrum * jnp.conj(spectrum), x.shape) ** 2
        return jnp.sum(squares * copies)

    with jax.set_mesh(mesh):
        copies = np.asarray(pmd.halo_reduce(pmd.halo_pad(jnp.ones_like(x), 2), 2))
        result = jax.jit(jax.grad(loss))(x)
        spectrum = pmd.prfft3d(weights(0))
    expected = np.asarray(jax.grad(alone)(weights(0)))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    assert result.sharding.is_equivalent_to(x.sharding, 3)
    np.testing.assert_allclose(spectrum[..., : weights(0).shape[2] // 2 + 1], np.fft.rfftn(weights(0)), atol=1e-11)


def test_space_inside_a_shard_map_over_chains() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    decomposition = pmd.Decomposition(mesh=mesh, spec=P("x"))
    batch = jax.device_put(np.stack([weights(0), weights(3)]), NamedSharding(mesh, P("chains", "x")))
    one = lambda x: pmd.pirfft3d(pmd.prfft3d(x, decomposition) ** 2, SHAPE, decomposition)  # noqa: E731
    chains = jax.shard_map(
        lambda xs: jax.vmap(one)(xs), mesh=mesh, in_specs=P("chains"), out_specs=P("chains"), axis_names={"chains"}
    )
    single = pmd.Decomposition((1, 1))
    expected = [np.asarray(operations(single)["pirfft3d"](x)) for x in (weights(0), weights(3))]
    np.testing.assert_allclose(jax.jit(chains)(batch), expected, atol=1e-12)


def test_explicit_space_inside_manual_chains_raises() -> None:
    types = (AxisType.Auto, AxisType.Explicit)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"), axis_types=types)
    decomposition = pmd.Decomposition(mesh=mesh, spec=P("x"))
    batch = jax.device_put(np.stack([weights(0), weights(3)]), NamedSharding(mesh, P("chains", "x")))
    many = jax.shard_map(
        jax.vmap(lambda x: pmd.prfft3d(x, decomposition)),
        mesh=mesh,
        in_specs=P("chains"),
        out_specs=P("chains"),
        axis_names={"chains"},
    )
    with pytest.raises(ValueError, match="Explicit axes inside a shard_map over others"):
        jax.jit(many)(batch)


def test_the_mesh_in_force_is_the_default_and_no_other_is_taken() -> None:
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        assert pmd.Decomposition().mesh == mesh
        assert pmd.Config(box_size=8.0, mesh_shape=8, a_start=0.1, a_stop=1.0, steps=2).decomposition.mesh == mesh
        with pytest.raises(ValueError, match="make the decomposition with mesh= and spec= of that mesh"):
            pmd.prfft3d(weights(0), pmd.Decomposition((2, 2)))
    with pytest.raises(ValueError, match="needs spec="):
        pmd.Decomposition(mesh=Mesh(np.array(jax.devices()).reshape(1, 2, 2), ("a", "b", "c")))
