"""Vector operations on pytrees of arrays, whose leaves keep their divisions over devices."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def size(tree: Any) -> int:
    """Number of dimensions."""
    return sum(math.prod(jnp.shape(x)) for x in jax.tree.leaves(tree))


def dot(a: Any, b: Any) -> Array:
    """Scalar product."""
    each = [jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return sum(each[1:], each[0]) if each else jnp.zeros(())


def norm(a: Any) -> Array:
    """Euclidean norm."""
    return jnp.sqrt(dot(a, a))


def add(a: Any, factor: Any, b: Any) -> Any:
    """A + factor * b, in the types of a."""
    return jax.tree.map(lambda x, y: x + jnp.asarray(factor, x.dtype) * y, a, b)


def scale(factor: Any, a: Any) -> Any:
    """Factor * a, in the types of a."""
    return jax.tree.map(lambda x: jnp.asarray(factor, x.dtype) * x, a)


def multiply(a: Any, b: Any) -> Any:
    """Elementwise product; b is a number, or a pytree whose leaves broadcast against the leaves of a."""
    return jax.tree.map(lambda x, y: x * jnp.asarray(y, x.dtype), a, broadcast_to_leaves(b, a))


def broadcast_to_leaves(b: Any, like: Any) -> Any:
    """A number as a pytree with the structure of another one; a pytree unchanged."""
    if jax.tree.structure(b).num_nodes == 1 and jnp.ndim(b) == 0:
        return jax.tree.map(lambda _: b, like)
    return b


def where(condition: Array, a: Any, b: Any) -> Any:
    """The pytree a if the condition holds, else b."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(tree: Any) -> Array:
    """Whether every number is finite."""
    finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
    return jnp.stack(finite).all() if finite else jnp.ones((), bool)


def normal_like(key: Array, tree: Any) -> Any:
    """Standard normal numbers in the shapes and types of a pytree, the same on any number of devices."""
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        [jax.random.normal(k, jnp.shape(x), jnp.result_type(x)) for k, x in zip(keys, leaves, strict=True)]
    )


def unit_vector(key: Array, tree: Any) -> Any:
    """A random direction of norm 1 in the shapes and types of a pytree."""
    x = normal_like(key, tree)
    return scale(1 / norm(x), x)
