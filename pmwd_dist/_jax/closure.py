"""Functions of their arguments alone: the arrays that they capture become one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun


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
