"""The only importer of `jaxdecomp_ops`, and the only place that knows one JAX version from another."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import Mesh

try:
    _ops: Any = importlib.import_module("jaxdecomp_ops")
except ImportError:  # the JAX references serve
    _ops = None


@functools.cache
def _registered() -> frozenset[str]:
    """Names of the native targets, registered with XLA at their first use."""
    if _ops is None:
        return frozenset()
    targets: Mapping[str, Any] = _ops.targets("cpu")
    for name, capsule in targets.items():
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    return frozenset(targets)


def native_available() -> bool:
    """Whether the native CPU ops of jaxdecomp-ops are installed."""
    return "jaxdecomp_ops_cic_paint" in _registered()


def native_version() -> str | None:
    """Version of jaxdecomp-ops, or None where it is not installed."""
    return None if _ops is None else _ops.__version__


def cudecomp_ops() -> Any | None:
    """The native side of `cudecomp`, its targets registered with XLA; None where jaxdecomp-ops has none."""
    return _ops if _registered_on_gpus() else None


@functools.cache
def why_no_peers(ordinals: tuple[int, ...]) -> str | None:
    """What keeps GPUs of this process, by their ordinals, from `peer`, or None."""
    if not _registered_on_gpus() or not hasattr(_ops, "peer_is_fast_along_x"):
        return "the native ops are not installed, or too old; `pip install --upgrade jaxdecomp-ops`"
    try:
        _ops.peer_probe(list(ordinals), _cufft_libraries())
    except OSError as error:
        return str(error)
    return None


@functools.cache
def fast_along_x(ordinal: int, parts: int, shape: tuple[int, int, int], double: bool) -> bool:
    """Whether a GPU, found to have no `why_no_peers`, transforms slabs of a spectrum along x fast by itself."""
    return _ops.peer_is_fast_along_x(ordinal, parts, shape, double)


def _cufft_libraries() -> list[str]:
    """Where cuFFT may be: among the wheels that jax's CUDA plugin asks for, else where the loader looks."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else map(Path, spec.submodule_search_locations or ())
    wheels = [path for folder in folders for path in folder.glob("*/lib/libcufft.so.[0-9]*")]
    releases = {path: int(path.suffix[1:]) for path in wheels if path.suffix[1:].isdigit()}
    names = ["libcufft.so.12", "libcufft.so.11"]
    # CUDA 12 has cuFFT 11, CUDA 13 has 12.
    older = _has("jax_plugins.xla_cuda12") and not _has("jax_plugins.xla_cuda13")
    ordered = sorted(releases, key=lambda path: releases[path], reverse=not older)
    return [*map(str, ordered), *(names[::-1] if older else names)]


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor its parent
        return False


@functools.cache
def _registered_on_gpus() -> bool:
    if not hasattr(_ops, "cudecomp_open"):
        return False
    for name, capsule in _ops.targets("CUDA").items():
        jax.ffi.register_ffi_target(name, capsule, platform="CUDA")
    return True


def _varying(x: Any) -> frozenset[str]:
    return frozenset(jax.typeof(x).mat.varying)


def vary(x: jax.Array, names: Iterable[str]) -> jax.Array:
    """Mark an array as varying over these manual mesh axes."""
    missing = tuple(sorted(frozenset(names) - _varying(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def unify_varying(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Mark all arrays as varying over the manual mesh axes over which any of them varies.

    A primitive of our own inside shard_map must do by hand what jax.numpy does for its operands.
    """
    union = frozenset[str]().union(*map(_varying, arrays))
    return tuple(vary(x, union) for x in arrays)


def result_aval(operand: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Abstract value of a result that varies over the same manual axes as the operand."""
    spec = jax.P(*(None,) * len(shape))
    sharding = operand.sharding.update(spec=spec)
    return ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=operand.manual_axis_type)


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
