"""The checker that jaxtyping's import hook puts around every function of the package in runs with `--all`."""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Union

import jax
import jaxtyping
import numpy as np
from beartype import beartype

Arrays = jax.Array | np.ndarray


def jaxtyped(**options: Any) -> Callable[[Any], Any]:
    """jaxtyping's decorator, for functions whose annotations have arrays: the others have nothing to check."""
    decorate = jaxtyping_jaxtyped(**options)
    return lambda x: decorate(x) if not isinstance(x, types.FunctionType) or takes_arrays(x) else x


jaxtyping_jaxtyped, jaxtyping.jaxtyped = jaxtyping.jaxtyped, jaxtyped


def takes_arrays(function: types.FunctionType) -> bool:
    """Whether a function takes or returns arrays, as far as its annotations can be read while it is defined."""
    hints: list[Any] = []
    for text in function.__annotations__.values():
        with suppress(Exception):
            hints.append(eval(text, function.__globals__))
    return any(map(has_arrays, hints))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the dtypes and axes of arrays. Other arguments are left to the package, whose own errors are tested."""
    # `function` is a copy of a signature that jaxtyping has made.
    hints = function.__annotations__
    function.__annotations__ = {name: or_numpy(hint) for name, hint in hints.items() if has_arrays(hint)}
    return beartype(function) if function.__annotations__ else function


def is_array(hint: Any) -> bool:
    """Whether an annotation is a `jax.Array` or one of jaxtyping's arrays."""
    return isinstance(hint, type) and issubclass(hint, (jax.Array, jaxtyping.AbstractArray))


def has_arrays(hint: Any) -> bool:
    """Whether an annotation has arrays in it."""
    return is_array(hint) or any(map(has_arrays, typing.get_args(hint)))


def or_numpy(hint: Any) -> Any:
    """The annotation with NumPy's arrays beside JAX's, which may stand for them before the first operation."""
    if is_array(hint):
        return Arrays if hint is jax.Array else hint.dtype[Arrays, hint.dim_str]
    if not has_arrays(hint):
        return hint
    origin, inner = typing.get_origin(hint), tuple(map(or_numpy, typing.get_args(hint)))
    return functools.reduce(operator.or_, inner) if origin in {Union, types.UnionType} else origin[inner]
