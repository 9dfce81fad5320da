"""Functions of few numbers, whose derivatives are taken forwards in every mode.

Reverse mode through a long formula costs a sum over its results for each use of each number, and a kernel to compile
for each sum. The Jacobian costs one more evaluation of the formula for each number, all in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array


def forward_derivatives(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function, whose derivatives with its first argument, of any order and in any mode, multiply by its Jacobian.

    Args:
      function: of a vector of few numbers, and perhaps of other arrays, which are differentiated as usual. It depends
        on no further array that is differentiated.
    """
    return _of_tree(_traced_once(function))


def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose Python code runs once for arguments of the same types: tracing it takes 0.1 s each time."""
    jaxprs: dict[Any, Any] = {}

    def run(*args: Array) -> Any:
        types = tuple(map(jax.typeof, args))
        if types not in jaxprs:
            jaxprs[types] = jax.make_jaxpr(function)(*args)
        (out,) = jaxpr_as_fun(jaxprs[types])(*args)
        return out

    return run


def _of_tree(function: Callable[..., Any]) -> Callable[..., Any]:
    @jax.custom_jvp
    def run(x: Array, *others: Array) -> Any:
        return function(x, *others)

    @partial(run.defjvp, symbolic_zeros=True)
    def rule(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = [i for i, t in enumerate(tangents) if i and not isinstance(t, SymbolicZero)]
        if isinstance(tangents[0], SymbolicZero):
            out, total = run(*primals), None
        else:
            # By the same rule once more where this one is differentiated.
            out, jacobian = _of_tree(partial(value_and_jacobian, function))(*primals)
            total = jax.tree.map(lambda j: jnp.tensordot(tangents[0], j, 1, precision="highest"), jacobian)
        if moving:
            by_others = jax.jvp(
                lambda *some: function(*(dict(enumerate(primals)) | dict(zip(moving, some, strict=True))).values()),
                tuple(primals[i] for i in moving),
                tuple(tangents[i] for i in moving),
            )[1]
            total = by_others if total is None else jax.tree.map(jnp.add, total, by_others)
        return out, total

    return run


def value_and_jacobian(function: Callable[..., Any], x: Array, *others: Array) -> tuple[Any, Any]:
    """The function, and its derivatives with x along a leading axis."""

    def push(tangent: Array) -> tuple[Any, Any]:
        return jax.jvp(lambda x: function(x, *others), (x,), (tangent,))

    return jax.vmap(push, out_axes=(None, 0))(jnp.eye(len(x), dtype=x.dtype))
