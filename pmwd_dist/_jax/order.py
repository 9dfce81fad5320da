"""Barriers that order computations.

- `barrier`: `jax.lax.optimization_barrier` of JAX 0.10 to 0.12 fails under vmap with `spmd_axis_name` if only some
  operands or derivatives have a batch axis.
- `after`: XLA's compiler for CPUs removes barriers before scheduling (openxla/xla#20440), and so computes arrays for a
  later computation too early. Here the later computation depends on the earlier one. This lowers the memory of
  gradients on CPUs (benchmarks/RESULTS.md, "CPU").
- `stored`: for the same reason, XLA computes an array again for each of its uses on CPUs.

To be deleted when both are mended in JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pmwd_dist._jax.ops import unify_varying

T = TypeVar("T")
D = TypeVar("D")


def barrier(tree: T) -> T:
    """`jax.lax.optimization_barrier`, differentiable under vmap with `spmd_axis_name`."""
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _barrier_p.bind(*unify_varying(*leaves), waiting=0, batch=0))


def row_major(x: jax.Array) -> jax.Array:
    """The array in row-major order in memory: XLA's transforms on CPUs fail otherwise (jaxlib 0.10.2)."""
    return barrier(x.reshape(-1)).reshape(x.shape)


def after(tree: T, done: D) -> tuple[T, D]:
    """A barrier that makes `tree` available only after `done`; in reverse mode `done` waits for `tree`.

    On CPUs, `tree` is multiplied by 1, or by NaN if the first element of `done` is NaN, separately for each element of
    a batch. XLA can't remove this dependence as it removes barriers. Integers in `done` are ignored.
    """
    leaves, treedef = jax.tree.flatten(tree)
    others, done_treedef = jax.tree.flatten(done)
    out = _barrier_p.bind(*unify_varying(*leaves, *others), waiting=len(leaves), batch=0)
    return jax.tree.unflatten(treedef, out[: len(leaves)]), jax.tree.unflatten(done_treedef, out[len(leaves) :])


def stored(tree: T) -> T:
    """A barrier that stores the arrays in memory also on CPUs; at least one must be floating-point."""
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _barrier_p.bind(*unify_varying(*leaves), waiting=None, batch=0))


def _barrier_reference(*operands: jax.Array, waiting: int | None, batch: int) -> Sequence[jax.Array]:
    del waiting, batch
    return jax.lax.optimization_barrier(operands)


def _ordered_reference(*operands: jax.Array, waiting: int | None, batch: int) -> Sequence[jax.Array]:
    if waiting is None:  # operands of a conditional are stored, and XLA can't remove it
        first = next(x[(0,) * x.ndim] for x in operands if jnp.issubdtype(x.dtype, jnp.floating))
        kept = first == first  # noqa: PLR0124
        return jax.lax.cond(kept, lambda *xs: xs, lambda *xs: tuple(jax.lax.optimization_barrier(xs)), *operands)
    operands = jax.lax.optimization_barrier(operands)
    others = [x for x in operands[waiting:] if jnp.issubdtype(x.dtype, jnp.inexact)]
    first = [x[(slice(None),) * batch + (0,) * (x.ndim - batch)].real for x in others]
    if not (waiting and first):
        return operands
    done = functools.reduce(jnp.logical_and, [x == x for x in first])  # noqa: PLR0124
    return [*(_times(x, done) for x in operands[:waiting]), *operands[waiting:]]


def _times(x: jax.Array, done: jax.Array) -> jax.Array:
    """The array if `done` is true, else NaN, for each element of a batch."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    one = jnp.where(done, 1, jnp.nan).astype(x.real.dtype)
    one = one.reshape(one.shape + (1,) * (x.ndim - one.ndim))
    return jax.lax.complex(x.real * one, x.imag * one) if jnp.iscomplexobj(x) else x * one


def _barrier_rule(
    operands: Sequence[jax.Array], dims: Sequence[int | None], *, waiting: int | None, batch: int
) -> tuple[list[jax.Array], list[int]]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)

    def first(x: jax.Array, d: int | None) -> jax.Array:
        return jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)

    out = _barrier_p.bind(*unify_varying(*map(first, operands, dims)), waiting=waiting, batch=batch + 1)
    return out, [0] * len(operands)


def _barrier_non_zero(values: Sequence[Any], waiting: int | None, batch: int) -> list[Any]:
    """The barrier over tangents or cotangents, without symbolic zeros."""
    present = [type(x) is not ad.Zero for x in values]
    some = [x for x, keep in zip(values, present, strict=True) if keep]
    passed = iter(_barrier_p.bind(*some, waiting=waiting and sum(present[:waiting]), batch=batch) if some else ())
    return [next(passed) if keep else x for x, keep in zip(values, present, strict=True)]


def _barrier_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, waiting: int | None, batch: int
) -> tuple[Any, Any]:
    return _barrier_p.bind(*primals, waiting=waiting, batch=batch), _barrier_non_zero(tangents, waiting, batch)


def _barrier_transpose(cotangents: Sequence[Any], *_: Any, waiting: int | None, batch: int) -> Any:
    if not waiting:
        return _barrier_non_zero(cotangents, waiting, batch)
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
