"""Arguments of models and likelihoods that are numbers or the names of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.sampled import COSMOLOGY


def number_or_name(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> Any:
    """A finite number in a range, on the host so that it may be static, or the name of a parameter."""
    if isinstance(value, str) and value in (*COSMOLOGY, "f_nl"):
        raise ArgumentError(name, value, "is the name of a parameter of the cosmology", "rename it")
    if not isinstance(value, str | Tracer):
        check_number(value, name, low, high, constant=True, remedy="or pass the name of a parameter with a prior")
    return on_host(value)


def on_host(value: Any) -> Any:
    """A number of JAX or NumPy as one of Python, which may be static; other values unchanged."""
    is_array = isinstance(value, jax.Array | np.generic) and not isinstance(value, Tracer)
    return value.item() if is_array else value


def positive_or_name(value: Any, name: str, high: float = math.inf) -> Any:
    """A positive number up to a largest one, or the name of a parameter."""
    value = number_or_name(value, name, 0, high)
    if not isinstance(value, str) and not value > 0:
        raise ArgumentError(name, value, "must be positive", "or pass the name of a parameter with a prior")
    return value


def value_of(value: Any, parameters: Mapping[str, ArrayLike]) -> Any:
    """A number, or the parameter with this name."""
    return parameters[value] if isinstance(value, str) else value


def names_of(*values: Any) -> tuple[str, ...]:
    """Values that are names of parameters."""
    return tuple(value for value in values if isinstance(value, str))


def check_distinct(names: Sequence[str]) -> None:
    """Raise ArgumentError if two parameters have one name."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ArgumentError("names", name, "stands for two parameters", "rename one")
