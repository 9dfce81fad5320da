"""Ops that vmap leaves whole, beside a mesh or, with `spmd_axis_name`, along an axis of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pmwd_dist._jax.complex_numbers import scaled
from pmwd_dist._jax.varying import unify_varying, varying_names

T = TypeVar("T")
D = TypeVar("D")


def batch_max(x: jax.Array) -> jax.Array:
    """Largest finite value of x in all batches, 0 if there is none; not differentiable.

    The maximum is taken over every axis of vmap, which the result does not have, and over every manual mesh axis along
    which x varies. A `lax.switch` that depends on it stays one: it would become a select of all its branches if its
    index were batched, and its collectives would wait for each other forever if devices took different branches.
    """
    x = jax.lax.stop_gradient(x)
    return _batch_max_p.bind(_max_over_devices(jnp.where(jnp.isfinite(x), x, 0)))


def _max_over_devices(x: jax.Array) -> jax.Array:
    names = tuple(sorted(varying_names(x)))
    return jax.lax.pmax(x, names) if names else x


def _batch_max_rule(operands: tuple[jax.Array], dims: tuple[int]) -> tuple[jax.Array, None]:
    return _batch_max_p.bind(_max_over_devices(jnp.max(operands[0], axis=dims[0]))), None


_batch_max_p = Primitive("batch_max")
_batch_max_p.def_abstract_eval(lambda x: x)
_batch_max_p.def_impl(lambda x: x)
mlir.register_lowering(_batch_max_p, mlir.lower_fun(lambda x: x, multiple_results=False))
batching.primitive_batchers[_batch_max_p] = _batch_max_rule


def batch_any(x: jax.Array) -> jax.Array:
    """Whether x is true in any batch of vmap, element by element; the result has no batch axis.

    Unlike `batch_max` it leaves devices apart: for branches that do not communicate.
    """
    return _batch_any_p.bind(x)


_batch_any_p = Primitive("batch_any")
_batch_any_p.def_abstract_eval(lambda x: x)
_batch_any_p.def_impl(lambda x: x)
mlir.register_lowering(_batch_any_p, mlir.lower_fun(lambda x: x, multiple_results=False))
batching.primitive_batchers[_batch_any_p] = lambda xs, dims: (_batch_any_p.bind(jnp.any(xs[0], axis=dims[0])), None)


def barrier(tree: T) -> T:
    """`jax.lax.optimization_barrier` that can be differentiated under vmap with `spmd_axis_name`.

    That of JAX 0.10 to 0.12 fails there as soon as one operand or derivative has no batch axis and another has.
    """
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _barrier_p.bind(*unify_varying(*leaves), waiting=0, batch=0))


def after(tree: T, done: D) -> tuple[T, D]:
    """A barrier after which the first is available only once the second is; in reverse mode the second waits.

    XLA's compiler for CPUs drops barriers before it orders what it computes. There the first is multiplied by 1, or by
    NaN if the second begins with it, which is not known in advance, each element of a batch by its own; arrays of
    integers are not waited for.
    """
    leaves, treedef = jax.tree.flatten(tree)
    others, done_treedef = jax.tree.flatten(done)
    out = _barrier_p.bind(*unify_varying(*leaves, *others), waiting=len(leaves), batch=0)
    return jax.tree.unflatten(treedef, out[: len(leaves)]), jax.tree.unflatten(done_treedef, out[len(leaves) :])


def _barrier_reference(*operands: jax.Array, waiting: int, batch: int) -> Sequence[jax.Array]:
    del waiting, batch
    return jax.lax.optimization_barrier(operands)


def _ordered_reference(*operands: jax.Array, waiting: int, batch: int) -> Sequence[jax.Array]:
    operands = jax.lax.optimization_barrier(operands)
    others = [x for x in operands[waiting:] if jnp.issubdtype(x.dtype, jnp.inexact)]
    first = [x[(slice(None),) * batch + (0,) * (x.ndim - batch)].real for x in others]
    if not (waiting and first):
        return operands
    done = functools.reduce(jnp.logical_and, [x == x for x in first])  # noqa: PLR0124
    return [*(_times(x, done) for x in operands[:waiting]), *operands[waiting:]]


def _times(x: jax.Array, done: jax.Array) -> jax.Array:
    """Numbers if another computation is done, of each element of a batch."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    one = jnp.where(done, 1, jnp.nan).astype(x.real.dtype)
    one = one.reshape(one.shape + (1,) * (x.ndim - one.ndim))
    return scaled(x, one) if jnp.iscomplexobj(x) else x * one


def _barrier_rule(
    operands: Sequence[jax.Array], dims: Sequence[int | None], *, waiting: int, batch: int
) -> tuple[list[jax.Array], list[int]]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)

    def first(x: jax.Array, d: int | None) -> jax.Array:
        return jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)

    out = _barrier_p.bind(*unify_varying(*map(first, operands, dims)), waiting=waiting, batch=batch + 1)
    return out, [0] * len(operands)


def _barrier_non_zero(values: Sequence[Any], waiting: int, batch: int) -> list[Any]:
    """The barrier over those tangents or cotangents that are not known to be zero."""
    there = [type(x) is not ad.Zero for x in values]
    some = [x for x, keep in zip(values, there, strict=True) if keep]
    passed = iter(_barrier_p.bind(*some, waiting=sum(there[:waiting]), batch=batch) if some else ())
    return [next(passed) if keep else x for x, keep in zip(values, there, strict=True)]


def _barrier_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, waiting: int, batch: int) -> tuple[Any, Any]:
    return _barrier_p.bind(*primals, waiting=waiting, batch=batch), _barrier_non_zero(tangents, waiting, batch)


def _barrier_transpose(cotangents: Sequence[Any], *_: Any, waiting: int, batch: int) -> Any:
    if not waiting:
        return _barrier_non_zero(cotangents, 0, batch)
    others = len(cotangents) - waiting
    out = _barrier_non_zero([*cotangents[waiting:], *cotangents[:waiting]], others, batch)
    return [*out[others:], *out[:others]]


_barrier_p = Primitive("barrier")
_barrier_p.multiple_results = True
_barrier_p.def_abstract_eval(lambda *xs, **_: xs)
_barrier_p.def_impl(_barrier_reference)
mlir.register_lowering(_barrier_p, mlir.lower_fun(_barrier_reference, multiple_results=True))
mlir.register_lowering(_barrier_p, mlir.lower_fun(_ordered_reference, multiple_results=True), platform="cpu")
batching.primitive_batchers[_barrier_p] = _barrier_rule
ad.primitive_jvps[_barrier_p] = _barrier_jvp
ad.primitive_transposes[_barrier_p] = _barrier_transpose
