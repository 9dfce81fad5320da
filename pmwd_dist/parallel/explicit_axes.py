"""Device meshes with Explicit axes: functions of fields run on Auto axes, and return arrays of Explicit types."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.division import with_auto_axes
from pmwd_dist.parallel.fft import spectrum_shape

P = ParamSpec("P")
R = TypeVar("R")


def on_auto_axes(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of a config, model or posterior on Auto axes where its decomposition has Explicit ones.

    Inside jit and derivatives, results with the shape of a field, of vectors on the lattice or of a spectrum are
    divided like these, also stacks of them; all others are replicated.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        config = next((c for x in (*args, *kwargs.values()) if (c := _config(x)) is not None), None)
        inside_shard_map = bool(jax.sharding.get_abstract_mesh().manual_axes)
        if config is None or not config.decomposition.has_explicit_types or inside_shard_map:
            return function(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs), _is_empty)
        arrays = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

        def of_arrays(values: Sequence[Any]) -> R:
            replaced = dict(zip(arrays, values, strict=True))
            call: Any = function
            args, kwargs = jax.tree.unflatten(tree, [replaced.get(i, x) for i, x in enumerate(leaves)])
            return call(*args, **kwargs)

        values = [leaves[i] for i in arrays]
        mesh = config.decomposition.mesh
        try:
            current = jax.set_mesh(with_auto_axes(mesh))
        except ValueError:  # inside jit or a derivative
            return _traced(of_arrays, values, config)
        with current:
            results = of_arrays(_moved(values, with_auto_axes(mesh), lambda x: x.sharding.spec))
        return _moved(results, mesh, lambda x: _spec(x.shape, config) or x.sharding.spec)

    return run


def _config(x: Any) -> Any:
    """The config of an argument, if it is one, has one or is a method of a model."""
    x = getattr(x, "__self__", x)
    x = getattr(x, "model", x)
    x = getattr(x, "config", x)
    return x if isinstance(getattr(x, "decomposition", None), Decomposition) else None


def _is_empty(x: Any) -> bool:
    """A dataclass without arrays, as the origin of particles, which forgets its fields when it becomes a pytree."""
    return dataclasses.is_dataclass(x) and not jax.tree.leaves(x)


def _moved(tree: Any, mesh: Mesh, spec: Callable[[Any], PartitionSpec]) -> Any:
    """The arrays on a mesh of the same devices with other types of axes."""

    def move(x: Any) -> Any:
        current = getattr(getattr(x, "sharding", None), "mesh", None)
        if current is None or current.axis_names != mesh.axis_names:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # which `device_put` does not put on other processes
            return jax.random.wrap_key_data(move(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        return jax.device_put(x, NamedSharding(mesh, spec(x)))

    return jax.tree.map(move, tree, is_leaf=_is_empty)


def _traced(function: Callable[[Sequence[Any]], R], values: Sequence[Any], config: Any) -> R:
    """The results of a function that is traced: their types are declared by their shapes."""
    structure: list[Any] = []

    def arrays_of(values: Sequence[Any]) -> list[Any]:
        leaves, tree = jax.tree.flatten(function(values), _is_empty)
        structure[:] = [tree, *(None if isinstance(x, jax.Array) else x for x in leaves)]
        return [x for x in leaves if isinstance(x, jax.Array)]

    mesh = config.decomposition.mesh
    with jax.sharding.use_abstract_mesh(with_auto_axes(getattr(mesh, "abstract_mesh", mesh))):
        shapes = jax.eval_shape(arrays_of, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values])
    specs = [NamedSharding(mesh, _spec(x.shape, config) or PartitionSpec()) for x in shapes]
    on_auto: Any = jax.sharding.auto_axes(arrays_of, out_sharding=specs)
    results, (tree, *others) = iter(on_auto(values)), structure
    return jax.tree.unflatten(tree, [next(results) if x is None else x for x in others])


def _spec(shape: tuple[int, ...], config: Any) -> PartitionSpec | None:
    """PartitionSpec of fields, vectors on the lattice, spectra and stacks of them; None for other arrays."""
    decomposition: Decomposition = config.decomposition
    fields = (config.mesh_shape, config.particle_shape)
    for parts, shapes in (
        (decomposition.spec, fields),
        (decomposition.spectrum_spec, [spectrum_shape(n, decomposition) for n in fields]),
    ):
        for axis in range(len(shape) - 2):
            if shape[axis : axis + 3] in shapes:
                return PartitionSpec(*(None,) * axis, *parts)
    return None
