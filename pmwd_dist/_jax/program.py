"""Compiled programs: `jit` and `filter_jit`, which take the place of `jax.jit` and `eqx.filter_jit` in this package.

On CPUs, the collectives of two programs in flight can wait for each other forever, between processes as between the
devices of one process. With JAX_CPU_ENABLE_ASYNC_DISPATCH=false, too, calls can return before their program has ended.
And devices run the collectives of one program that was read from JAX's persistent cache in different orders, and wait
for each other (jaxlib 0.10.2). To be deleted when JAX orders the collectives on CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jaxtyping import Array

P = ParamSpec("P")
T = TypeVar("T")

_calls = [0]
_cache_settled = [False]
_METHODS = ("lower", "trace", "clear_cache", "_cache_size")


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit`; a call on several CPU devices returns when the program has ended."""
    return _waiting(jax.jit(function, **options))


def filter_jit(function: Callable[P, T]) -> Callable[P, T]:
    """`eqx.filter_jit`; a call on several CPU devices returns when the program has ended."""
    return _waiting(eqx.filter_jit(function))


def calls() -> int:
    """Number of calls of programs so far, traced ones included."""
    return _calls[0]


def ended(tree: T) -> T:
    """Arrays of a program that has ended, where there are several devices on CPUs; elsewhere, and traced, at once."""
    if _several_cpus():
        jax.block_until_ready([x for x in map(_computed, jax.tree.leaves(tree)) if isinstance(x, Array)])
    return tree


def settle_cache() -> bool:
    """Switch JAX's persistent cache off on several CPU devices, once; whether it is on."""
    config: Any = jax.config
    if not _cache_settled[0]:
        _cache_settled[0] = True
        if _several_cpus() and config.jax_enable_compilation_cache:
            config.update("jax_enable_compilation_cache", False)
            reset_cache()  # JAX looks at its settings once, when it compiles its first program
    return config.jax_enable_compilation_cache


def _several_cpus() -> bool:
    return jax.default_backend() == "cpu" and jax.device_count() > 1


def _computed(x: Any) -> Any:
    """The array in a tracer of vmap or of a derivative outside jit."""
    while isinstance(x, Tracer):
        x = getattr(x, "val", None) if hasattr(x, "val") else getattr(x, "primal", None)
    return x


def _waiting(compiled: Any) -> Any:
    @functools.wraps(compiled, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        settle_cache()
        out = ended(compiled(*args, **kwargs))
        _calls[0] += 1
        return out

    run.__dict__.update({name: getattr(compiled, name) for name in _METHODS if hasattr(compiled, name)})
    return run
