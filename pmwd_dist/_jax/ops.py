"""How an op is defined: a JAX primitive with a reference in JAX, native targets and derivatives.

Operands and results have a leading batch axis, which is all that vmap needs. `jax.ffi.ffi_call` has neither derivatives
nor a reference for devices where the target can't run. Inside shard_map a primitive gives its operands and results by
hand the types that jax.numpy gives them: over which manual mesh axes they vary. To be replaced when JAX has public
primitives with transposes and lowerings of one's own (its `hijax`, jax-ml/jax#35446).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh

_PLATFORMS = {"cpu": "cpu", "CUDA": "cuda"}  # XLA's names of platforms, and those of JAX's lowering rules


@dataclass(frozen=True)
class Target:
    """A native implementation of an op on one platform, called through XLA's FFI.

    Args:
      name: of the registered target.
      attributes: gives the target's attributes for (type of the first operand, device mesh, **parameters), or None
        where the target can't run and the reference does; the mesh is None where only its shape is known.
      scratch: gives shape and type of scratch memory for (types of the operands, **parameters), passed to the target
        after the results; default: none.
      in_place: by the number of an operand, that of the result which takes its memory.
      single: whether the target also takes one element without the batch axis; without scratch memory only.
      lends: tells for (types of the operands, **parameters) whether the first operand's memory is the scratch memory;
        default: never.
    """

    name: str
    attributes: Callable[..., dict[str, Any] | None]
    scratch: Callable[..., ShapedArray] | None = None
    in_place: Mapping[int, int] = field(default_factory=dict)
    single: bool = False
    lends: Callable[..., bool] | None = None


@dataclass(frozen=True)
class Composed:
    """An implementation of an op on one platform that is made of other ops.

    Args:
      function: computes the op.
      available: tells whether those ops can run; where not, the reference does.
    """

    function: Callable[..., Any]
    available: Callable[[], bool]


def define_op(
    name: str,
    abstract: Callable[..., Any],
    reference: Callable[..., Any] | None,
    *,
    targets: Mapping[str, Target | Composed] | None = None,
    multiple_results: bool = False,
) -> Primitive:
    """Define a primitive.

    Args:
      name: of the primitive.
      abstract: gives the type of the result for (types of the operands, **parameters).
      reference: computes the result in JAX, wherever no target runs; None where there is no other way than a target.
      targets: native implementations by platform, "cpu" or "CUDA".
      multiple_results: whether it has a list of results, not one.
    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results
    primitive.def_abstract_eval(abstract)
    primitive.def_impl(functools.partial(_jit_bind, primitive))
    fallback = None if reference is None else mlir.lower_fun(reference, multiple_results=multiple_results)
    if fallback is not None:
        mlir.register_lowering(primitive, fallback)
    for platform, target in (targets or {}).items():
        rule = _lowering(target, fallback) if isinstance(target, Target) else _composed(target, fallback)
        mlir.register_lowering(primitive, rule, platform=_PLATFORMS[platform])
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    return primitive


def _lowering(target: Target, fallback: Callable[..., Any] | None) -> Callable[..., Any]:
    call = jax.ffi.ffi_lowering(target.name, operand_output_aliases=dict(target.in_place) or None)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        mesh = getattr(ctx.module_context.axis_context, "mesh", None)
        attributes = target.attributes(ctx.avals_in[0], mesh if isinstance(mesh, Mesh) else None, **params)
        if attributes is None:
            assert fallback is not None
            return fallback(ctx, *operands, **params)
        if target.single and all(x.shape[0] == 1 for x in ctx.avals_in):
            return _single(call, ctx, operands, attributes)
        if target.scratch is None:
            return call(ctx, *operands, **attributes)
        if target.lends is not None and target.lends(*ctx.avals_in, **params):
            lend = jax.ffi.ffi_lowering(target.name, operand_output_aliases={0: len(ctx.avals_out)})
            own = ctx.replace(avals_out=[*ctx.avals_out, ctx.avals_in[0]])
            return lend(own, *operands, **attributes)[:-1]
        scratch = target.scratch(*ctx.avals_in, **params)
        # Not empty: a buffer of no bytes may have no address.
        scratch = scratch.update(shape=(max(1, *scratch.shape),))
        return call(ctx.replace(avals_out=[*ctx.avals_out, scratch]), *operands, **attributes)[:-1]

    return lower


def _composed(target: Composed, fallback: Callable[..., Any] | None) -> Callable[..., Any]:
    rule = mlir.lower_fun(target.function, multiple_results=False)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if target.available():
            return rule(ctx, *operands, **params)
        assert fallback is not None
        return fallback(ctx, *operands, **params)

    return lower


def _single(call: Callable[..., Any], ctx: Any, operands: Any, attributes: dict[str, Any]) -> list[Any]:
    """Lower a call without its batch axis of one element.

    With the axis, XLA's CPU backend fuses the reshape before a result in the memory of an operand with a copy, which it
    then can't remove: a loop copied the operand in each iteration, and back.
    """

    def reshaped(x: Any, aval: Any) -> Any:
        element = mlir.ir.RankedTensorType(x.type).element_type
        kind = mlir.ir.RankedTensorType.get(aval.shape, element)
        return mlir.ir.Operation.create("stablehlo.reshape", [kind], [x]).result

    avals = [[ShapedArray(x.shape[1:], x.dtype) for x in avals] for avals in (ctx.avals_in, ctx.avals_out)]
    own = [reshaped(x, aval) for x, aval in zip(operands, avals[0], strict=True)]
    results = call(ctx.replace(avals_in=avals[0], avals_out=avals[1]), *own, **attributes)
    return [reshaped(x, aval) for x, aval in zip(results, ctx.avals_out, strict=True)]


def define_linear(primitive: Primitive, transpose: Callable[..., Any]) -> None:
    """Define the derivatives of an op that is linear in its only operand.

    Args:
      primitive: the op.
      transpose: gives the cotangent of the operand for (cotangent of the result, type of the operand, **parameters).
    """

    def rule(ct: Any, x: Any, **params: Any) -> tuple[Any]:
        return (ad.Zero(x.aval) if type(ct) is ad.Zero else transpose(ct, x.aval, **params),)

    ad.deflinear2(primitive, rule)


def define_linear_pair(first: Primitive, second: Primitive) -> None:
    """Define the derivatives of two linear ops with the same parameters, each the other's transpose."""
    define_linear(first, lambda ct, _, **params: second.bind(ct, **params))
    define_linear(second, lambda ct, _, **params: first.bind(ct, **params))


def define_derivatives(
    primitive: Primitive, tangents: tuple[Callable[..., Any] | None, ...], transposes: Mapping[int, Callable[..., Any]]
) -> None:
    """Define the derivatives of an op with several operands.

    Args:
      primitive: the op.
      tangents: by operand, the tangent of the result for (tangent of the operand, *operands, **parameters); made of ops
        that can be differentiated again; None for an operand that is constant.
      transposes: by the number of an operand in which the op is linear, its cotangent for (cotangent of the result,
        *operands, **parameters).
    """
    ad.defjvp(primitive, *tangents)

    def rule(ct: Any, *operands: Any, **params: Any) -> list[Any]:
        (wanted,) = (i for i, x in enumerate(operands) if ad.is_undefined_primal(x))
        out: list[Any] = [None] * len(operands)
        zero = type(ct) is ad.Zero
        out[wanted] = ad.Zero(operands[wanted].aval) if zero else transposes[wanted](ct, *operands, **params)
        return out

    ad.primitive_transposes[primitive] = rule


def with_derivatives_of(reference: Callable[..., Any], primitive: Primitive, **params: Any) -> Callable[..., Any]:
    """Give an op on single blocks, without the batch axis, whose derivatives are those of a reference.

    Args:
      reference: computes the op in JAX on single blocks.
      primitive: the op.
      **params: of the op.
    """

    @jax.custom_jvp
    def run(*operands: Any) -> Any:
        out = primitive.bind(*map(add_batch_axis, unify_varying(*operands)), **params)
        return tuple(map(drop_batch_axis, out)) if primitive.multiple_results else drop_batch_axis(out)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return jax.jvp(reference, primals, tangents)

    return run


def _jit_bind(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    static = tuple(sorted(params.items()))
    with jax.disable_jit(False):  # inside disable_jit, this implementation would call itself
        return _jitted(primitive, static)(*operands)


@functools.lru_cache(maxsize=256)
def _jitted(primitive: Primitive, static: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(functools.partial(primitive.bind, **dict(static)))


def _batch(primitive: Primitive, operands: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    batched, dim = next((x, d) for x, d in zip(operands, dims, strict=True) if d is not None)
    size, own = batched.shape[dim], batched.shape[0 if dim else 1]

    def fold(x: Any, d: Any) -> Any:
        if d is None:
            x = jax.numpy.broadcast_to(x[None], (size, *x.shape))
        else:
            x = jax.numpy.moveaxis(x, d, 0)
        return x.reshape(size * x.shape[1], *x.shape[2:])

    def unfold(x: Any) -> Any:
        return x.reshape(size, own, *x.shape[1:])

    out = primitive.bind(*unify_varying(*map(fold, operands, dims)), **params)
    return ([*map(unfold, out)], [0] * len(out)) if primitive.multiple_results else (unfold(out), 0)


def add_batch_axis(x: Any) -> jax.Array:
    """An array as a batch of one element."""
    return jax.lax.expand_dims(x, (0,))


def drop_batch_axis(x: Any) -> jax.Array:
    """The element of a batch of one; unlike x[0] a reshape, which is traced and lowered faster than a slice."""
    return jax.lax.squeeze(x, (0,))


def over_batch(function: Callable[..., Any], *operands: Any) -> Any:
    """vmap over the leading axis; a batch of one element, as most are, is traced and lowered faster without the axis.

    For functions that give the same bits either way: XLA may contract products and sums of floats in one of the two.
    """
    if any(x.shape[0] != 1 for x in operands):
        return jax.vmap(function)(*operands)
    return jax.tree.map(add_batch_axis, function(*map(drop_batch_axis, operands)))


def varying_names(x: Any) -> frozenset[str]:
    """The manual mesh axes over which an array varies."""
    return frozenset((x if isinstance(x, ShapedArray) else jax.typeof(x)).mat.varying)


def vary(x: jax.Array, names: Iterable[str]) -> jax.Array:
    """Mark an array as varying over these manual mesh axes."""
    missing = tuple(sorted(frozenset(names) - varying_names(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def unify_varying(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Mark all arrays as varying over the manual mesh axes over which any of them varies.

    A primitive of our own inside shard_map must do by hand what jax.numpy does for its operands.
    """
    union = frozenset[str]().union(*map(varying_names, arrays))
    return tuple(vary(x, union) for x in arrays)


def result_aval(operand: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Abstract value of a result that varies over the same manual axes as the operand."""
    spec = jax.P(*(None,) * len(shape))
    sharding = operand.sharding.update(spec=spec)
    return ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=operand.manual_axis_type)
