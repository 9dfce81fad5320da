"""Checks of values that users pass, which raise ArgumentError; traced values are not checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context

from pmwd_dist._errors import ArgumentError

LARGEST_TRACER_BIAS = 1e4  # of each parameter
_UNSEEN = 1e18  # HEALPix marks missing pixels by -1.6375e30, others by -1e30; squares of more are not finite


def check_number(
    value: Any,
    name: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    unit: str = "",
    remedy: str = "",
    several: bool = False,
    constant: bool = False,
) -> None:
    """Raise ArgumentError unless a value is a finite number in a range, or several such numbers where they may be.

    Of arrays on a device single numbers and constants of a program are checked alone, since that waits for them.

    Args:
      value: number; list or array of numbers.
      name: name of the argument.
      low: least value of the range.
      high: largest value of the range.
      unit: unit of the range, such as "Mpc/h".
      remedy: advice, as in ArgumentError.
      several: whether the value may be a list or an array.
      constant: whether the value becomes a constant of a program.
    """
    parts = value if isinstance(value, list | tuple) else [value]
    on_device = any(isinstance(x, Tracer) or (several and isinstance(x, jax.Array) and x.ndim) for x in parts)
    if on_device and not constant:
        return
    values = _as_array(value)
    counts, is_object = several or values.ndim == 0, values.dtype.kind == "O"
    if counts and values.dtype.kind in "iuf" and bool(np.all(np.isfinite(values) & (values >= low) & (values <= high))):
        return
    ends = f" from {low:g} to {high:g}" if math.isfinite(high) else f", {low:g} or more" if math.isfinite(low) else ""
    constraint = f"must be {'a' if counts else 'one'} finite number{ends}" + (f" {unit}" if unit and ends else "")
    constraint = f"is a {type(value).__name__} and {constraint}" if is_object and value is not None else constraint
    raise ArgumentError(name, value, constraint, remedy, show_value=values.ndim == 0 and "is a" not in constraint)


def check_ascending(values: Any, name: str, least: float = 0.0) -> tuple[float, ...]:
    """Two or more finite numbers that ascend, from a least one on, as Python floats."""
    x = _as_array(values)
    if x.dtype.kind not in "iuf" or x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        shown = values if x.dtype.kind == "O" else x.tolist()
        raise ArgumentError(name, shown, "must be two or more finite numbers that ascend")
    if x[0] < least or (np.diff(x) <= 0).any():
        start = f" from {least:g} or more" if math.isfinite(least) else ""
        raise ArgumentError(name, x.tolist(), f"must ascend{start}", "sort them")
    return tuple(x.astype(float).tolist())


def check_choice(value: Any, name: str, choices: Sequence[Any]) -> None:
    """Raise ArgumentError unless a value is one of some choices."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        *others, last = map(repr, choices)
        raise ArgumentError(name, value, f"must be {', '.join(others)} or {last}")


def check_type(value: Any, kind: type, name: str, constraint: str, remedy: str = "") -> None:
    """Raise ArgumentError unless a value is of a type; the message has its own type and a constraint, "must be ..."."""
    if not isinstance(value, kind):
        constraint = f"is a {type(value).__name__} and {constraint}"
        raise ArgumentError(name, value, constraint, remedy, show_value=False)


def check_callable(value: Any, name: str, call: str) -> None:
    """Raise ArgumentError unless a value is a function, such as `call`."""
    if not callable(value):
        raise ArgumentError(name, value, "must be a function", f"for example {call}", show_value=False)


def check_shares(values: Any, name: str) -> None:
    """Raise ArgumentError unless all values are shares from 0 to 1, to the rounding of single precision."""
    if isinstance(values, Tracer):
        return
    xp: Any = np if isinstance(values, np.ndarray) else jnp  # no program for values of the host
    with eval_context():  # minima on CPUs leave NaN out
        low, high = float(values.min()), float(values.max())
        missing = int(xp.sum(xp.isnan(values)))
    if missing:
        raise ArgumentError(name, values, f"holds {missing} values of NaN", "pass shares from 0 to 1", show_value=False)
    if not low >= 0:
        raise ArgumentError(name, low, "must not be negative", "pass shares from 0 to 1: np.clip removes rounding")
    if not high <= 1 + 1e-6:
        raise ArgumentError(name, high, "must not exceed 1", "pass shares from 0 to 1: divide it by its maximum")


def check_seen(values: Any, name: str, remedy: str, *, finite: bool = True) -> None:
    """Raise ArgumentError for values that mark missing pixels, as HEALPix does, or, with `finite`, not finite."""
    if isinstance(values, Tracer):
        return
    xp: Any = np if isinstance(values, np.ndarray) else jnp
    with eval_context():
        missing = int(xp.sum(~(xp.abs(values) < _UNSEEN) if finite else values < -_UNSEEN))
    if missing:
        constraint = f"holds {missing} values that are {'not finite, or ' * finite}marks like UNSEEN of HEALPix"
        raise ArgumentError(name, values, constraint, remedy, show_value=False)


def check_flag(value: Any, name: str) -> None:
    """Raise ArgumentError unless a value is true or false."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, value, "must be True or False")


def _as_array(value: Any) -> np.ndarray:
    """An array, of type object for booleans, which NumPy would take for numbers beside others."""
    try:
        is_flag = any(isinstance(x, bool) for x in (value if isinstance(value, list | tuple) else [value]))
        return np.asarray(None if is_flag else value)
    except ValueError:  # lists of several lengths
        return np.asarray(None)
