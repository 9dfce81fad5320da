"""Definition of ops: JAX primitives with a reference in JAX, native targets and derivatives.

Operands and results have a leading batch axis, into which vmap folds its own. `jax.ffi.ffi_call` has no derivatives,
and no reference for devices without the target. Inside shard_map a primitive must set the manual mesh axes over which
its operands and results vary. To be replaced when JAX has public primitives with custom transposes and lowerings
(`hijax`, jax-ml/jax#35446).
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

from pmwd_dist._jax.program import jit


@dataclass(frozen=True)
class Target:
    """A native implementation of an op on one platform, called through XLA's FFI.

    Args:
      name: name of the registered target.
      attributes: function of (type of the first operand, device mesh, **parameters) that returns the attributes of the
        target, or None if the reference must run. The mesh is None if only its shape is known.
      scratch: function of (types of the operands, **parameters) that returns the shape and type of scratch memory,
        passed to the target after the results; default: no scratch memory.
      in_place: index of the result that takes the memory of an operand, by the index of the operand.
      single: whether the target accepts one element without the batch axis; not with scratch memory.
      lends: function of (types of the operands, **parameters) that tells whether the memory of the first operand is
        the scratch memory; default: never.
    """

    name: str
    attributes: Callable[..., dict[str, Any] | None]
    scratch: Callable[..., ShapedArray] | None = None
    in_place: Mapping[int, int] = field(default_factory=dict)
    single: bool = False
    lends: Callable[..., bool] | None = None


@dataclass(frozen=True)
class Composed:
    """An implementation of an op on one platform by other ops.

    Args:
      function: function that computes the op.
      available: function that tells whether the other ops can run; if not, the reference runs.
    """

    function: Callable[..., Any]
    available: Callable[[], bool]


def define_op(
    name: str,
    abstract: Callable[..., Any],
    reference: Callable[..., Any] | None,
    *,
    multiple_results: bool = False,
    **targets: Target | Composed,
) -> Primitive:
    """Define a primitive.

    Args:
      name: name of the primitive.
      abstract: function of (types of the operands, **parameters) that returns the type of the result.
      reference: function that computes the result in JAX where no target runs; None if only targets exist.
      multiple_results: whether the primitive returns a list.
      **targets: native implementations by platform, `cpu` or `cuda`.
    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results
    primitive.def_abstract_eval(abstract)
    primitive.def_impl(functools.partial(_jit_bind, primitive))
    fallback = None if reference is None else mlir.lower_fun(reference, multiple_results=multiple_results)
    if fallback is not None:
        mlir.register_lowering(primitive, fallback)
    for platform, target in targets.items():
        rule = _lowering(target, fallback) if isinstance(target, Target) else _composed(target, fallback)
        mlir.register_lowering(primitive, rule, platform=platform)
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
        # At least one element: an empty buffer may have no address.
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

    With the axis, XLA's CPU backend fuses the reshape before an in-place result with a copy that it can't remove. A
    loop would copy the operand twice in each iteration.
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
      primitive: primitive of the op.
      transpose: function of (cotangent of the result, type of the operand, **parameters) that returns the cotangent of
        the operand.
    """

    def rule(ct: Any, x: Any, **params: Any) -> tuple[Any]:
        return (ad.Zero(x.aval) if type(ct) is ad.Zero else transpose(ct, x.aval, **params),)

    ad.deflinear2(primitive, rule)


def define_derivatives(
    primitive: Primitive, tangents: tuple[Callable[..., Any] | None, ...], transposes: Mapping[int, Callable[..., Any]]
) -> None:
    """Define the derivatives of an op with several operands.

    Args:
      primitive: primitive of the op.
      tangents: functions of (tangent of the operand, *operands, **parameters) that return the tangent of the result,
        one for each operand, by differentiable ops; None for a constant operand.
      transposes: functions of (cotangent of the result, *operands, **parameters) that return the cotangent of an
        operand, by the index of the operand, in which the op is linear.
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
    """The op on single blocks, without the batch axis, with the derivatives of a reference.

    Args:
      reference: function that computes the op in JAX on single blocks.
      primitive: primitive of the op.
      **params: parameters of the op.
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
    with jax.disable_jit(False):  # with jit disabled, this implementation would call itself
        return _jitted(primitive, static)(*operands)


@functools.lru_cache(maxsize=256)
def _jitted(primitive: Primitive, static: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jit(functools.partial(primitive.bind, **dict(static)))


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
    """The element of a batch of one, by a reshape, which is traced and lowered faster than the slice x[0]."""
    return jax.lax.squeeze(x, (0,))


def over_batch(function: Callable[..., Any], *operands: Any) -> Any:
    """vmap over the leading axis; a batch of one is traced without the axis, which is faster.

    Both ways must give the same bits: XLA may contract products and sums of floats in one of them.
    """
    if any(x.shape[0] != 1 for x in operands):
        return jax.vmap(function)(*operands)
    return jax.tree.map(add_batch_axis, function(*map(drop_batch_axis, operands)))


def varying_names(x: Any) -> frozenset[str]:
    """Names of the manual mesh axes over which an array varies."""
    return frozenset((x if isinstance(x, ShapedArray) else jax.typeof(x)).mat.varying)


def unchecked_names() -> tuple[str, ...]:
    """Manual mesh axes of a shard_map with check_vma=False, over which an array may vary without a mark."""
    names = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(name for name in names if not varying_names(jax.lax.axis_index(name)))


def vary(x: jax.Array, names: Iterable[str]) -> jax.Array:
    """Mark an array as varying over these manual mesh axes."""
    missing = tuple(sorted(frozenset(names) - varying_names(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def unify_varying(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Mark all arrays as varying over the union of their manual mesh axes, as jax.numpy does for its operands."""
    union = frozenset[str]().union(*map(varying_names, arrays))
    return tuple(vary(x, union) for x in arrays)


def result_aval(operand: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Abstract value of a result that varies over the same manual axes as the operand."""
    spec = jax.P(*(None,) * len(shape))
    sharding = operand.sharding.update(spec=spec)
    return ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=operand.manual_axis_type)
