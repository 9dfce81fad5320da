"""`lax.switch` that keeps no residuals of its branches and stays a switch under vmap with `spmd_axis_name`.

Differentiating JAX's own keeps the residuals of all branches, zeros for those not taken, and fails inside shard_map
(JAX 0.10 to 0.12) where these lack the batch's mesh axis. Here the derivative of a switch is a switch of derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from pmwd_dist._jax.varying import vary, varying_names


def switch(index: jax.Array, branches: Sequence[Callable[..., Any]], *operands: jax.Array) -> Any:
    """Apply one of several functions to the operands, the only arrays on which they may depend.

    Args:
      index: of the branch, without a batch axis and the same on all devices (see `batch_max`).
      branches: functions with results of one type, arrays or pytrees of them.
      operands: arguments of the branches.
    """
    treedef = jax.tree.structure(jax.eval_shape(branches[0], *operands))
    out = _bind(index, [lambda *xs, b=branch: jax.tree.leaves(b(*xs)) for branch in branches], operands)
    return jax.tree.unflatten(treedef, out)


def _bind(index: jax.Array, functions: Sequence[Callable[..., list[Any]]], operands: Sequence[Any]) -> list[Any]:
    branches = tuple(jax.make_jaxpr(function)(*operands) for function in functions)
    return _switch_p.bind(index, *operands, branches=branches)


def _reference(index: jax.Array, *operands: jax.Array, branches: Sequence[ClosedJaxpr]) -> list[jax.Array]:
    return jax.lax.switch(index, [jaxpr_as_fun(branch) for branch in branches], *operands)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, branches: Sequence[ClosedJaxpr]) -> tuple[Any, Any]:
    index, *operands = primals
    out = _switch_p.bind(*primals, branches=branches)
    moving = [i for i, t in enumerate(tangents[1:]) if type(t) is not ad.Zero]

    def tangent(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        def function(*args: Any) -> list[Any]:
            values = list(args[: len(operands)])

            def moved(*some: Any) -> list[Any]:
                given = dict(zip(moving, some, strict=True))
                return jaxpr_as_fun(branch)(*(given.get(i, x) for i, x in enumerate(values)))

            return jax.jvp(moved, tuple(values[i] for i in moving), args[len(operands) :])[1]

        return function

    changes = [tangents[1 + i] for i in moving]
    return out, _bind(index, [tangent(branch) for branch in branches], [*operands, *changes])


def _transpose(cts: Sequence[Any], index: Any, *operands: Any, branches: Sequence[ClosedJaxpr]) -> list[Any]:
    linear = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    known = [i for i in range(len(operands)) if i not in linear]
    cts = [ad.instantiate_zeros(ct) for ct in cts]

    def transposed(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
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


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, branches: Sequence[ClosedJaxpr]) -> tuple[Any, Any]:
    index, *operands = operands
    names = frozenset[str]().union(*map(varying_names, operands))

    def batched(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        many = jax.vmap(jaxpr_as_fun(branch), in_axes=tuple(dims[1:]))
        return lambda *xs: [vary(x, names) for x in many(*xs)]

    assert dims[0] is None, "the index of a switch has no batch axis"
    out = _bind(index, [batched(branch) for branch in branches], operands)
    return out, [0] * len(out)


_switch_p = Primitive("switch")
_switch_p.multiple_results = True
_switch_p.def_abstract_eval(lambda *_, branches: branches[0].out_avals)
_switch_p.def_impl(_reference)
mlir.register_lowering(_switch_p, mlir.lower_fun(_reference, multiple_results=True))
batching.primitive_batchers[_switch_p] = _batch
ad.primitive_jvps[_switch_p] = _jvp
ad.primitive_transposes[_switch_p] = _transpose
