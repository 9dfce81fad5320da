"""Whether data can inform a model at all: what is wrong with both where they can't."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def constant(data: Any, mask: Any = None) -> str:
    """What is odd about data that are the same wherever the mask shows them, a phrase that follows "data"; else ""."""
    values = np.asarray(data)
    if mask is not None:
        values = values[np.broadcast_to(np.asarray(mask) > 0, values.shape)]
    if values.size < 2 or (values != values.flat[0]).any():
        return ""
    return f"are {values.flat[0]:g} everywhere: nothing is known of phases but that; look at the file and its mask"


def unused(function: Callable[..., Any], noise: Any, names: Iterable[str]) -> list[str]:
    """Names of the parameters on which a function of (noise, parameters) can't depend, whatever their values are."""
    ordered = sorted(names)
    numbers = {name: jax.ShapeDtypeStruct((), jnp.result_type(float)) for name in ordered}
    jaxpr = jax.make_jaxpr(function)(noise, numbers).jaxpr
    needed = set(map(id, jaxpr.outvars))
    for equation in reversed(jaxpr.eqns):
        if needed & set(map(id, equation.outvars)):
            needed |= set(map(id, equation.invars))
    inputs = jaxpr.invars[len(jaxpr.invars) - len(ordered) :]
    return [name for name, variable in zip(ordered, inputs, strict=True) if id(variable) not in needed]
