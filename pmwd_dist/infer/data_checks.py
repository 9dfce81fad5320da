"""Checks for constant data and unused parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def constant(data: Any, mask: Any = None) -> str:
    """A phrase that follows "data" if they are constant where the mask shows them; else an empty string."""
    values = np.asarray(data)
    if mask is not None:
        values = values[np.broadcast_to(np.asarray(mask) > 0, values.shape)]
    if values.size < 2 or (values != values.flat[0]).any():
        return ""
    return f"are {values.flat[0]:g} everywhere: nothing is known of phases but that; look at the file and its mask"


def unused(function: Callable[..., Any], noise: Any, names: Iterable[str]) -> list[str]:
    """Names of the parameters that a function of (noise, parameters) does not use."""
    ordered = sorted(names)
    numbers = {name: jax.ShapeDtypeStruct((), jnp.result_type(float)) for name in ordered}
    jaxpr = jax.make_jaxpr(function)(noise, numbers).jaxpr
    needed = set(map(id, jaxpr.outvars))
    for equation in reversed(jaxpr.eqns):
        if needed & set(map(id, equation.outvars)):
            needed |= set(map(id, equation.invars))
    inputs = jaxpr.invars[len(jaxpr.invars) - len(ordered) :]
    return [name for name, variable in zip(ordered, inputs, strict=True) if id(variable) not in needed]
