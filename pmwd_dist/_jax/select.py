"""Conditional computation that stays conditional in derivatives and under vmap.

- `batch_max`, `batch_any`: an unbatched index from batched values. Under vmap `jax.lax.switch` with a batched index
  computes all branches (jax-ml/jax#8409).
- `switch`: reverse mode of `jax.lax.switch` stores the residuals of all branches, zeros for branches not taken
  (jax-ml/jax#8239). Inside shard_map it fails (JAX 0.10 to 0.12) if these lack the mesh axis of the batch. Here the
  derivative of a switch is a switch of derivatives.
- `sum_where`: the derivative of a scan with a switch adds the cotangents of all operands in each iteration, also if
  the branch is empty.

To be deleted when JAX's own conditionals do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.ops import unchecked_names, vary, varying_names

Branch = Any  # a jaxpr and its constants: `ClosedJaxpr`, which is `Jaxpr` from JAX 0.11 on


def batch_max(x: jax.Array) -> jax.Array:
    """Largest finite value of x in all batches, 0 if there is none; not differentiable.

    The maximum is over every axis of vmap, and over every manual mesh axis along which x varies, or may vary in a
    shard_map with check_vma=False. The result has no batch axis, so that a `lax.switch` with this index computes one
    branch. All devices take the same branch: the collectives of different branches would wait for each other forever.
    """
    x = jax.lax.stop_gradient(x)
    return _batch_max_p.bind(_max_over_devices(jnp.where(jnp.isfinite(x), x, 0)))


def _max_over_devices(x: jax.Array) -> jax.Array:
    names = tuple(sorted(varying_names(x) or unchecked_names()))
    return jax.lax.pmax(x, names) if names else x


def batch_any(x: jax.Array) -> jax.Array:
    """Whether x is true in any batch of vmap, element by element; the result has no batch axis.

    Unlike `batch_max`, the result may differ between devices: for branches that do not communicate.
    """
    return _batch_any_p.bind(x)


def _define_reduction(name: str, reduce: Callable[[jax.Array, int], jax.Array]) -> Primitive:
    """An identity that reduces the axes of vmap."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x, multiple_results=False))
    batching.primitive_batchers[primitive] = lambda xs, dims: (primitive.bind(reduce(xs[0], dims[0])), None)
    return primitive


_batch_max_p = _define_reduction("batch_max", lambda x, axis: _max_over_devices(jnp.max(x, axis=axis)))
_batch_any_p = _define_reduction("batch_any", lambda x, axis: jnp.any(x, axis=axis))


def switch(index: jax.Array, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Apply one of several functions to the operands, the only arrays on which they may depend.

    Args:
      index: index of the branch, without a batch axis and the same on all devices (see `batch_max`).
      branches: functions that return pytrees of arrays of the same types.
      operands: arguments of the branches, pytrees of arrays.
    """
    leaves, arguments = jax.tree.flatten(operands)
    results = jax.tree.structure(jax.eval_shape(branches[0], *operands))
    out = _bind(index, [lambda *xs, b=b: jax.tree.leaves(b(*arguments.unflatten(xs))) for b in branches], leaves)
    return results.unflatten(out)


def _bind(index: jax.Array, functions: Sequence[Callable[..., list[Any]]], operands: Sequence[Any]) -> list[Any]:
    branches = tuple(jax.make_jaxpr(function)(*operands) for function in functions)
    return _switch_p.bind(index, *operands, branches=branches)


def _switch_reference(index: jax.Array, *operands: jax.Array, branches: Sequence[Branch]) -> list[jax.Array]:
    return jax.lax.switch(index, [jaxpr_as_fun(branch) for branch in branches], *operands)


def _switch_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, branches: Sequence[Branch]) -> tuple[Any, Any]:
    index, *operands = primals
    out = _switch_p.bind(*primals, branches=branches)
    moving = [i for i, t in enumerate(tangents[1:]) if type(t) is not ad.Zero]

    def tangent(branch: Branch) -> Callable[..., list[Any]]:
        def function(*args: Any) -> list[Any]:
            values = list(args[: len(operands)])

            def moved(*some: Any) -> list[Any]:
                given = dict(zip(moving, some, strict=True))
                return jaxpr_as_fun(branch)(*(given.get(i, x) for i, x in enumerate(values)))

            return jax.jvp(moved, tuple(values[i] for i in moving), args[len(operands) :])[1]

        return function

    changes = [tangents[1 + i] for i in moving]
    return out, _bind(index, [tangent(branch) for branch in branches], [*operands, *changes])


def _switch_transpose(cts: Sequence[Any], index: Any, *operands: Any, branches: Sequence[Branch]) -> list[Any]:
    linear = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    known = [i for i in range(len(operands)) if i not in linear]
    cts = [ad.instantiate_zeros(ct) for ct in cts]

    def transposed(branch: Branch) -> Callable[..., list[Any]]:
        def function(*args: Any) -> list[Any]:
            given = dict(zip(known, args, strict=False))

            def applied(*xs: Any) -> list[Any]:
                values = given | dict(zip(linear, xs, strict=True))
                return jaxpr_as_fun(branch)(*(values[i] for i in range(len(operands))))

            return list(jax.vjp(applied, *(_zeros(branch.in_avals[i]) for i in linear))[1](list(args[len(known) :])))

        return function

    out = _bind(index, [transposed(branch) for branch in branches], [*(operands[i] for i in known), *cts])
    found = dict(zip(linear, out, strict=True))
    return [None, *(found.get(i) for i in range(len(operands)))]


def _zeros(aval: Any) -> jax.Array:
    return vary(jnp.zeros(aval.shape, aval.dtype), varying_names(aval))


def _switch_batch(operands: Sequence[Any], dims: Sequence[Any], *, branches: Sequence[Branch]) -> tuple[Any, Any]:
    index, *operands = operands
    names = frozenset[str]().union(*map(varying_names, operands))

    def batched(branch: Branch) -> Callable[..., list[Any]]:
        many = jax.vmap(jaxpr_as_fun(branch), in_axes=tuple(dims[1:]))
        return lambda *xs: [vary(x, names) for x in many(*xs)]

    assert dims[0] is None, "the index of a switch has no batch axis"
    out = _bind(index, [batched(branch) for branch in branches], operands)
    return out, [0] * len(out)


_switch_p = Primitive("switch")
_switch_p.multiple_results = True
_switch_p.def_abstract_eval(lambda *_, branches: branches[0].out_avals)
_switch_p.def_impl(_switch_reference)
mlir.register_lowering(_switch_p, mlir.lower_fun(_switch_reference, multiple_results=True))
batching.primitive_batchers[_switch_p] = _switch_batch
ad.primitive_jvps[_switch_p] = _switch_jvp
ad.primitive_transposes[_switch_p] = _switch_transpose


Function = Callable[..., Sequence[Array]]


def sum_where(wanted: Array, function: Function, arguments: Array, *operands: Array) -> list[Array]:
    """Sums of the results of a function over the wanted arguments, evaluated one after the other.

    Args:
      wanted: mask of shape (n,), without a batch axis and the same on all devices, unchecked (see `batch_max`).
      function: function of (argument, *operands) that depends on no other arrays.
      arguments: array of shape (n, ...), without a batch axis; not differentiated.
      operands: arrays of real numbers.
    """
    names = frozenset[str]().union(*map(varying_names, operands))

    def varying(*args: Array) -> list[Array]:
        return [vary(x, names) for x in function(*args)]

    return _sums(varying, names, wanted, arguments, *(vary(x, names) for x in operands))


def _sums(function: Function, names: frozenset[str], wanted: Array, arguments: Array, *operands: Array) -> list[Array]:
    results = jax.eval_shape(lambda *xs: list(function(*xs)), arguments[0], *operands)

    @jax.custom_jvp
    def run(wanted: Array, arguments: Array, *operands: Array) -> list[Array]:
        order = jnp.argsort(~wanted)

        def add(i: Array, sums: list[Array]) -> list[Array]:
            each = function(arguments[order[i]], *operands)
            return [total + x for total, x in zip(sums, each, strict=True)]

        zeros = [vary(jnp.zeros(x.shape, x.dtype), names) for x in results]
        return jax.lax.fori_loop(0, jnp.sum(wanted), add, zeros)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[list[Array], list[Array]]:
        out, count = run(*primals), len(primals) - 2
        residuals = [*primals, *out]
        like: Any = {"operands_like": range(2, 2 + count), "results_like": range(2 + count, len(residuals))}

        def tangent(argument: Array, *arrays: Array) -> Sequence[Array]:
            at, along = arrays[:count], arrays[count:]
            return jax.jvp(lambda *xs: list(function(argument, *xs)), at, along)[1]

        def cotangent(argument: Array, *arrays: Array) -> Sequence[Array]:
            at, cts = arrays[:count], list(arrays[count:])
            return jax.vjp(lambda *xs: list(function(argument, *xs)), *at)[1](cts)

        def of(each: Function) -> Function:
            """The sum of the tangents or cotangents as a function of (*residuals, *tangents or cotangents)."""
            return lambda *args: _sums(each, names, *args[: 2 + count], *args[len(residuals) :])

        return out, linear_map(of(tangent), of(cotangent), residuals, list(tangents[2:]), **like)

    return run(wanted, arguments, *operands)
