"""How an op is defined: a JAX primitive with a reference and native targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import Mesh

from pmwd_dist._jax.varying import unify_varying


def define_op(
    name: str,
    abstract: Callable[..., Any],
    reference: Callable[..., Any],
    *,
    target: str | None = None,
    attributes: Callable[..., dict[str, Any]] | None = None,
) -> Primitive:
    """A primitive with one result that runs a native target on CPU where there is one, else the JAX reference.

    Its operands and its result carry a leading batch axis, which is all that vmap needs. A parameter
    `native` of the primitive chooses between the two.
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)
    primitive.def_impl(functools.partial(_jit_bind, primitive))
    fallback = mlir.lower_fun(reference, multiple_results=False)
    mlir.register_lowering(primitive, fallback)
    if target is not None and attributes is not None:

        def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
            if not params["native"]:
                return fallback(ctx, *operands, **params)
            return jax.ffi.ffi_lowering(target)(ctx, *operands, **attributes(**params))

        mlir.register_lowering(primitive, lower, platform="cpu")
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    return primitive


def define_gpu_op(
    name: str,
    abstract: Callable[..., Any],
    *,
    target: str,
    attributes: Callable[..., dict[str, Any] | None],
    scratch: Callable[..., ShapedArray] | None = None,
    reference: Callable[..., Any] | None = None,
    in_place: bool = False,
) -> Primitive:
    """A primitive with one operand and one result that runs a native target on NVIDIA GPUs.

    Operand and result carry a leading batch axis. `attributes` makes those of the target from the operand's type, the
    mesh in force (None where only its shape is known) and the parameters. Elsewhere, and where it gives None, the
    reference serves, if there is one. With `scratch`, the target gets scratch memory as a second result, of the length
    and type that it gives for the operand.
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)
    primitive.def_impl(functools.partial(_jit_bind, primitive))
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases={0: 0} if in_place else None)
    fallback = None if reference is None else mlir.lower_fun(reference, multiple_results=False)

    def lower(ctx: Any, operand: Any, **params: Any) -> Any:
        mesh = getattr(ctx.module_context.axis_context, "mesh", None)
        given = attributes(ctx.avals_in[0], mesh if isinstance(mesh, Mesh) else None, **params)
        if given is None:
            assert fallback is not None
            return fallback(ctx, operand, **params)
        if scratch is None:
            return rule(ctx, operand, **given)
        extra = scratch(ctx.avals_in[0], **params)
        # Not empty: a buffer of no bytes may have no address.
        extra = extra.update(shape=(max(1, *extra.shape),))
        return rule(ctx.replace(avals_out=[*ctx.avals_out, extra]), operand, **given)[:1]

    if fallback is not None:
        mlir.register_lowering(primitive, fallback)
    mlir.register_lowering(primitive, lower, platform="cuda")
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    return primitive


def _jit_bind(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    static = tuple(sorted(params.items()))
    with jax.disable_jit(False):  # which else would bring it back here
        return _jitted(primitive, static)(*operands)


@functools.lru_cache(maxsize=256)
def _jitted(primitive: Primitive, static: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(functools.partial(primitive.bind, **dict(static)))


def _batch(primitive: Primitive, operands: Any, dims: Any, **params: Any) -> tuple[Any, int]:
    batched, dim = next((x, d) for x, d in zip(operands, dims, strict=True) if d is not None)
    size, own = batched.shape[dim], batched.shape[0 if dim else 1]

    def fold(x: Any, d: Any) -> Any:
        if d is None:
            x = jax.numpy.broadcast_to(x[None], (size, *x.shape))
        else:
            x = jax.numpy.moveaxis(x, d, 0)
        return x.reshape(size * x.shape[1], *x.shape[2:])

    operands = unify_varying(*map(fold, operands, dims))
    out = primitive.bind(*operands, **params)
    return out.reshape(size, own, *out.shape[1:]), 0
