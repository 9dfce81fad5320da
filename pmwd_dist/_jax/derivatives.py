"""Derivative rules that JAX lacks.

- `linear_map`: a linear map with its transpose, as the tangent of a `jax.custom_jvp` rule. `jax.custom_vjp` can't be
  differentiated forwards (jax-ml/jax#17840). `jax.custom_derivatives.linear_call` has three gaps. It has no batching
  rule (jax-ml/jax#13283). Its residuals can't be differentiated again. It traces the map even where reverse mode needs
  the transpose alone, which costs the trace of a whole simulation. To be replaced by it, or by a custom transpose
  (jax-ml/jax#9129), when these gaps are closed.
- `forward_derivatives`: reverse mode through a long formula of few scalars sums over its results for each use of each
  scalar, and compiles a kernel for each sum. The Jacobian costs one more evaluation of the formula for each scalar. To
  be deleted when XLA fuses kernels of scalars.
- `hoist`: `jax.closure_convert` does not hoist integers and keys, which a custom derivative rule must not capture
  (jax-ml/jax#14760). To be replaced by `Traced.closure_convert` (jax-ml/jax#39940) when the oldest JAX has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from pmwd_dist._jax.ops import unify_varying
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

    Both functions are differentiable, and depend on no arrays but their arguments.

    Args:
      apply: function of (*residuals, *operands) that returns the results.
      transpose: function of (*residuals, *cotangents of the results) that returns the cotangents of the operands.
      residuals: arguments in which the functions need not be linear.
      operands: arguments in which `apply` is linear.
      operands_like: index of a residual of the same type for each operand.
      results_like: index of a residual of the same type for each result.
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


def recomputed(function: Callable[..., list[jax.Array]]) -> Callable[..., list[jax.Array]]:
    """The function, recomputed in reverse mode from its arguments.

    Unlike `jax.checkpoint`, the recomputation begins after the cotangents are available, also on CPUs.

    Args:
      function: function of arrays that depends on no others and returns a list of arrays of its first argument's type.
    """
    run = jax.custom_jvp(function)

    @run.defjvp
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[jax.Array], list[jax.Array]]:
        count = len(primals)

        def apply(*args: jax.Array) -> Sequence[jax.Array]:
            return jax.jvp(function, args[:count], args[count:])[1]

        def transpose(*args: jax.Array) -> Sequence[jax.Array]:
            primals, cotangents = after(args[:count], list(args[count:]))
            return jax.vjp(function, *primals)[1](cotangents)

        out = run(*primals)
        likes = {"operands_like": range(count), "results_like": [0] * len(out)}
        return out, linear_map(apply, transpose, primals, tangents, **likes)

    return lambda *args: run(*unify_varying(*args))


def _in_this_mesh(function: Function) -> Function:
    """The function in the current device mesh; it is traced later, when the program is lowered."""
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
    """Batch operands and results along a leading axis; residuals without a batch axis are shared.

    An unbatched residual that has the type of an operand or result is copied, only for its type.
    """
    operands_like, results_like = params["operands_like"], params["results_like"]
    count = len(args) - len(operands_like)
    if all(dim is None for dim in dims):  # JAX calls the rule without batched operands, too
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
    """The function with its first argument differentiated by the Jacobian, to any order and in any mode.

    Args:
      function: function of a short vector, and optionally of other arrays, which are differentiated as usual. It must
        not depend on further arrays that are differentiated. The result also takes a sequence of numbers in place of
        the vector; its Jacobian has no rows for constant ones.
    """
    once = _traced_once(function)
    return lambda x, *others: _of_numbers(once, len(x))(*x, *others)


def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    jaxprs: dict[Any, Any] = {}

    def run(*args: Array) -> Any:
        types = tuple(map(jax.typeof, args))
        if types not in jaxprs:
            jaxprs[types] = jax.make_jaxpr(function)(*args)
        (out,) = jaxpr_as_fun(jaxprs[types])(*args)
        return out

    return run


def _of_numbers(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The function of its first numbers and other arrays, with the Jacobian along the numbers."""

    def call(*args: Array) -> Any:
        return function(jnp.stack(args[:count]), *args[count:])

    run = jax.custom_jvp(call)

    @partial(run.defjvp, symbolic_zeros=True)
    def rule(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        along, others = [i for i in moving if i < count], [i for i in moving if i >= count]
        if along:
            # Higher derivatives use the same rule.
            out, jacobian = _of_numbers(partial(value_and_jacobian, function, along=along), count)(*primals)
            tangent = jnp.stack([tangents[i] for i in along])
            total = jax.tree.map(lambda j: jnp.tensordot(tangent, j, 1, precision="highest"), jacobian)
        else:
            out, total = run(*primals), None
        if others:
            by_others = jax.jvp(
                lambda *some: call(*(dict(enumerate(primals)) | dict(zip(others, some, strict=True))).values()),
                tuple(primals[i] for i in others),
                tuple(tangents[i] for i in others),
            )[1]
            total = by_others if total is None else jax.tree.map(jnp.add, total, by_others)
        return out, total

    return run


def value_and_jacobian(
    function: Callable[..., Any], x: Array, *others: Array, along: Sequence[int] | None = None
) -> tuple[Any, Any]:
    """Value, and derivatives with respect to x, or to some of its numbers, along a leading axis."""

    def push(tangent: Array) -> tuple[Any, Any]:
        return jax.jvp(lambda x: function(x, *others), (x,), (tangent,))

    basis = jnp.eye(len(x), dtype=x.dtype)
    return jax.vmap(push, out_axes=(None, 0))(basis if along is None else basis[np.asarray(along)])


def hoist(function: Callable[..., Any], *examples: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Turn the arrays that a function captures into its first argument.

    Unlike `jax.closure_convert`, it hoists integers and keys, and accepts a callable that holds arrays, such as an
    `equinox.Module`.

    Args:
      function: function from pytrees of arrays to a pytree of arrays.
      examples: example arguments of the function.

    Returns:
      A function of (captured, *arguments), and the captured arrays.
    """

    def call(*args: Any) -> Any:  # the callable itself need not be hashable
        return function(*args)

    closed, shapes = jax.make_jaxpr(call, return_shape=True)(*examples)
    values, treedef = list(closed.consts), jax.tree.structure(shapes)
    empty = closed.replace(consts=[None] * len(values))  # the function must not keep the arrays alive

    def pure(captured: list[Any], *args: Any) -> Any:
        return jax.tree.unflatten(treedef, jaxpr_as_fun(empty.replace(consts=captured))(*jax.tree.leaves(args)))

    return pure, values
