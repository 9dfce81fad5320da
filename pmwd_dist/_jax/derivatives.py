"""Derivative rules that JAX lacks.

- `linear_map`: a linear map with its transpose, as the tangent of a `jax.custom_jvp` rule. `jax.custom_vjp` can't be
  differentiated forwards (jax-ml/jax#17840). `jax.custom_derivatives.linear_call` is the same but for three gaps: it
  has no batching rule (jax-ml/jax#13283); its residuals can't be differentiated again; and it traces the map at once,
  also where reverse mode takes the transpose alone, which costs the trace of a whole simulation. To be replaced by it,
  or by a custom transpose (jax-ml/jax#9129), when these gaps are closed.
- `forward_derivatives`: reverse mode through a long formula of few numbers costs a sum over its results for each use
  of each number, and a kernel to compile for each sum. The Jacobian costs one more evaluation of the formula for each
  number. To be deleted when XLA compiles kernels of scalars as one.
- `hoist`: `jax.closure_convert` leaves integers and keys inside, which a custom derivative rule must not capture
  (jax-ml/jax#14760). To be replaced by `Traced.closure_convert` (jax-ml/jax#39940) when the oldest JAX has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from pmwd_dist._jax.order import after

Function = Callable[..., Sequence[Any]]


def linear_map(
    apply: Function,
    transpose: Function,
    residuals: Sequence[jax.Array],
    operands: Sequence[jax.Array],
    *,
    operands_like: Sequence[int],
    results_like: Sequence[int],
) -> list[jax.Array]:
    """Apply a function that is linear in its last arguments.

    Both functions depend on no arrays but their arguments, and can be differentiated.

    Args:
      apply: gives the results for (*residuals, *operands).
      transpose: gives the cotangents of the operands for (*residuals, *cotangents of the results).
      residuals: arguments in which the two need not be linear.
      operands: arguments in which they are.
      operands_like: by operand, the number of a residual of its type.
      results_like: by result, the number of a residual of its type.
    """
    out = _linear_map_p.bind(
        *residuals,
        *operands,
        apply=_in_this_mesh(apply),
        transpose=_in_this_mesh(transpose),
        operands_like=tuple(operands_like),
        results_like=tuple(results_like),
    )
    return list(out)


def recomputed(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A function to an array of the type of its argument, of which reverse mode keeps the argument only.

    Unlike with `jax.checkpoint`, compilers for CPUs can't compute it again before its cotangents are there.

    Args:
      function: depends on no array but its argument.
    """

    def apply(x: jax.Array, tangent: jax.Array) -> Sequence[jax.Array]:
        return [jax.jvp(function, (x,), (tangent,))[1]]

    def transpose(x: jax.Array, cotangent: jax.Array) -> Sequence[jax.Array]:
        x, cotangent = after(x, cotangent)
        return jax.vjp(function, x)[1](cotangent)

    @jax.custom_jvp
    def run(x: jax.Array) -> jax.Array:
        return function(x)

    @run.defjvp
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
        (out,) = linear_map(apply, transpose, primals, tangents, operands_like=[0], results_like=[0])
        return run(*primals), out

    return run


def _in_this_mesh(function: Function) -> Function:
    """The function in the mesh that is set now: it is traced later, when the program is lowered."""
    mesh = jax.sharding.get_abstract_mesh()

    def run(*args: Any) -> Sequence[Any]:
        with contextlib.nullcontext() if mesh.empty else jax.sharding.use_abstract_mesh(mesh):
            return function(*args)

    return run


def _linear_map_apply(*args: Any, apply: Function, **_: Any) -> Sequence[Any]:
    return list(apply(*args))


def _linear_map_abstract(*avals: Any, results_like: tuple[int, ...], **_: Any) -> list[Any]:
    return [avals[i] for i in results_like]


def _linear_map_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    count = len(primals) - len(params["operands_like"])
    if all(type(t) is ad.Zero for t in tangents[:count]):
        moved = [ad.instantiate_zeros(t) for t in tangents[count:]]
        return _linear_map_p.bind(*primals, **params), _linear_map_p.bind(*primals[:count], *moved, **params)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def function(*some: Any) -> Sequence[Any]:
        given = dict(zip(moving, some, strict=True))
        return _linear_map_apply(*(given.get(i, x) for i, x in enumerate(primals)), **params)

    return jax.jvp(function, tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving))


def _linear_map_transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
    count = len(args) - len(params["operands_like"])
    out = _linear_map_p.bind(
        *args[:count],
        *(ad.instantiate_zeros(ct) for ct in cotangents),
        apply=params["transpose"],
        transpose=params["apply"],
        operands_like=params["results_like"],
        results_like=params["operands_like"],
    )
    wanted = zip(args[count:], out, strict=True)
    return [None] * count + [ct if ad.is_undefined_primal(x) else None for x, ct in wanted]


def _linear_map_batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Operands and results get the batch axis, in front; what depends on residuals without one is shared.

    A residual without the axis that has the type of an operand or result is copied, only for that type.
    """
    operands_like, results_like = params["operands_like"], params["results_like"]
    count = len(args) - len(operands_like)
    if all(dim is None for dim in dims):  # called although no operand is batched: results must be unbatched, too
        return _linear_map_p.bind(*args, **params), [None] * len(results_like)

    def batched(x: Any, dim: int | None) -> Any:
        return jnp.broadcast_to(x[None], (axis.size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)

    residuals = [x if d is None else batched(x, d) for x, d in zip(args[:count], dims[:count], strict=True)]
    operands = [batched(x, d) for x, d in zip(args[count:], dims[count:], strict=True)]
    copied = [i for i in sorted({*operands_like, *results_like}) if dims[i] is None]
    copies = [jax.lax.stop_gradient(batched(args[i], None)) for i in copied]
    place, operand = {i: count + n for n, i in enumerate(copied)}, count + len(copied)
    residual_dims = tuple(None if d is None else 0 for d in dims[:count])

    def mapped(function: Function, number: int) -> Function:
        in_axes = residual_dims + (0,) * number
        many = jax.vmap(lambda *xs: list(function(*xs)), in_axes, spmd_axis_name=axis.spmd_name)
        return lambda *xs: many(*xs[:count], *xs[operand:])

    out = _linear_map_p.bind(
        *residuals,
        *copies,
        *operands,
        apply=mapped(params["apply"], len(operands_like)),
        transpose=mapped(params["transpose"], len(results_like)),
        operands_like=tuple(place.get(i, i) for i in operands_like),
        results_like=tuple(place.get(i, i) for i in results_like),
    )
    return out, [0] * len(out)


_linear_map_p = Primitive("linear_map")
_linear_map_p.multiple_results = True
_linear_map_p.def_abstract_eval(_linear_map_abstract)
_linear_map_p.def_impl(_linear_map_apply)
mlir.register_lowering(_linear_map_p, mlir.lower_fun(_linear_map_apply, multiple_results=True))
batching.fancy_primitive_batchers[_linear_map_p] = _linear_map_batch
ad.primitive_jvps[_linear_map_p] = _linear_map_jvp
ad.primitive_transposes[_linear_map_p] = _linear_map_transpose


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


def hoist(function: Callable[..., Any], *examples: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Turn the arrays that a function captures into its first argument.

    `jax.closure_convert` leaves integers and keys inside, which a custom derivative rule must not capture, and takes no
    callable that holds arrays itself, such as an `equinox.Module`.

    Args:
      function: of pytrees of arrays, gives a pytree of arrays.
      examples: arguments like those to come.

    Returns:
      A function of (captured, *arguments), and what was captured: arrays of any type.
    """

    def call(*args: Any) -> Any:  # the callable itself need not be hashable
        return function(*args)

    closed, shapes = jax.make_jaxpr(call, return_shape=True)(*examples)
    jaxpr, treedef = closed.jaxpr, jax.tree.structure(shapes)

    def pure(captured: list[Any], *args: Any) -> Any:
        return jax.tree.unflatten(treedef, jaxpr_as_fun(ClosedJaxpr(jaxpr, captured))(*jax.tree.leaves(args)))

    return pure, list(closed.consts)
